/* The calls that tell whether a GPU is well: errors, links, clocks, memory, processes. */
#define _GNU_SOURCE
#include "fakenvml.h"
#include "state.h"

#include <string.h>

/* name(device, &out): one number of the state file. */
#define NUMBER_CALL(name, type, key, fallback)                                                                         \
	EXPORT int name(const struct device *device, type *out)                                                        \
	{                                                                                                              \
		ENTER(device);                                                                                         \
		*out = (type)gpu_number(text, device, key, fallback);                                                  \
		return SUCCESS;                                                                                        \
	}

NUMBER_CALL(nvmlDeviceGetRetiredPagesPendingStatus, uint, "retired.pending", 0)
NUMBER_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "throttle", 0)
NUMBER_CALL(nvmlDeviceGetCurrentClocksEventReasons, u64, "throttle", 0)
NUMBER_CALL(nvmlDeviceGetSupportedClocksThrottleReasons, u64, "throttle.supported", 0x1ff)
NUMBER_CALL(nvmlDeviceGetPowerUsage, uint, "power_mw", 72000)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, uint, "power_limit_mw", 700000)
NUMBER_CALL(nvmlDeviceGetPowerManagementLimit, uint, "power_limit_mw", 700000)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, uint, "power_default_mw", 700000)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, uint, "pcie.gen", 5)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, uint, "pcie.max_gen", 5)
NUMBER_CALL(nvmlDeviceGetGpuMaxPcieLinkGeneration, uint, "pcie.max_gen", 5)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, uint, "pcie.width", 16)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, uint, "pcie.max_width", 16)
NUMBER_CALL(nvmlDeviceGetPcieReplayCounter, uint, "pcie.replays", 0)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, uint, "persistence", 1)
NUMBER_CALL(nvmlDeviceGetPerformanceState, uint, "pstate", 0)
NUMBER_CALL(nvmlDeviceGetComputeMode, uint, "compute_mode", 0)
NUMBER_CALL(nvmlDeviceGetArchitecture, uint, "architecture", 9)
NUMBER_CALL(nvmlDeviceGetBrand, uint, "brand", 14)
NUMBER_CALL(nvmlDeviceGetSupportedEventTypes, u64, "event_types", 0x1b)

/* ---- memory errors ---- */

static const char *const counter_name[2] = {"volatile", "aggregate"};
static const char *const error_name[2] = {"corrected", "uncorrected"};

static u64 ecc_count(const char *text, const struct device *device, uint error, uint counter)
{
	char key[64];
	snprintf(key, sizeof(key), "ecc.%s.%s", counter_name[counter & 1], error_name[error & 1]);
	return gpu_number(text, device, key, 0);
}

EXPORT int nvmlDeviceGetTotalEccErrors(const struct device *device, uint error, uint counter, u64 *out)
{
	ENTER(device);
	if (error > 1 || counter > 1)
		return INVALID_ARGUMENT;
	*out = ecc_count(text, device, error, counter);
	return SUCCESS;
}

/* Counted errors are in device memory (location 2), but for those that the state file puts into SRAM (location 7). */
EXPORT int nvmlDeviceGetMemoryErrorCounter(const struct device *device, uint error, uint counter, uint location, u64 *out)
{
	ENTER(device);
	if (error > 1 || counter > 1 || location > 7)
		return INVALID_ARGUMENT;
	char key[64];
	snprintf(key, sizeof(key), "sram.%s.%s", counter_name[counter], error_name[error]);
	u64 sram = gpu_number(text, device, key, 0);
	*out = location == 7 ? sram : location == 2 ? ecc_count(text, device, error, counter) - sram : 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetSramEccErrorStatus(const struct device *device, struct sram_status *out)
{
	ENTER(device);
	uint version = out->version;
	memset(out, 0, sizeof(*out));
	out->version = version;
	out->threshold_exceeded = (uint)gpu_number(text, device, "sram.threshold", 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(const struct device *device, uint *current, uint *pending)
{
	ENTER(device);
	*current = (uint)gpu_number(text, device, "ecc.mode", 1);
	*pending = (uint)gpu_number(text, device, "ecc.mode_pending", *current);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(const struct device *device, uint *correctable, uint *uncorrectable, uint *pending,
				     uint *failed)
{
	ENTER(device);
	*correctable = (uint)gpu_number(text, device, "remap.correctable", 0);
	*uncorrectable = (uint)gpu_number(text, device, "remap.uncorrectable", 0);
	*pending = (uint)gpu_number(text, device, "remap.pending", 0);
	*failed = (uint)gpu_number(text, device, "remap.failed", 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(const struct device *device, struct row_histogram *out)
{
	ENTER(device);
	memset(out, 0, sizeof(*out));
	out->none = (uint)gpu_number(text, device, "remap.banks_without_spare", 0);
	out->max = 2560 - out->none;
	return SUCCESS;
}

static int retired_pages(const char *text, const struct device *device, uint cause, uint *count, u64 *pages, u64 *times)
{
	uint room = *count;

	*count = (uint)gpu_number(text, device, cause ? "retired.dbe" : "retired.sbe", 0);
	if (*count && (!pages || room < *count))
		return INSUFFICIENT_SIZE;
	for (uint i = 0; i < *count; i++) {
		pages[i] = 0x1000ULL * (i + 1);
		if (times)
			times[i] = 0;
	}
	return SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPages(const struct device *device, uint cause, uint *count, u64 *pages)
{
	ENTER(device);
	return retired_pages(text, device, cause, count, pages, NULL);
}

EXPORT int nvmlDeviceGetRetiredPages_v2(const struct device *device, uint cause, uint *count, u64 *pages, u64 *times)
{
	ENTER(device);
	return retired_pages(text, device, cause, count, pages, times);
}

/* ---- NVLink ---- */

int nvlink_number(const char *text, const struct device *device, uint link, const char *what, u64 *out)
{
	char key[64];

	if (link >= gpu_number(text, device, "nvlinks", 18))
		return INVALID_ARGUMENT;
	snprintf(key, sizeof(key), "nvlink.%u.%s", link, what);
	*out = gpu_number(text, device, key, 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkState(const struct device *device, uint link, uint *active)
{
	u64 down;
	ENTER(device);
	int result = nvlink_number(text, device, link, "down", &down);
	if (result == SUCCESS)
		*active = !down;
	return result;
}

EXPORT int nvmlDeviceGetNvLinkVersion(const struct device *device, uint link, uint *version)
{
	u64 unused;
	ENTER(device);
	*version = 4;
	return nvlink_number(text, device, link, "down", &unused);
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(const struct device *device, uint link, uint counter, u64 *out)
{
	static const char *const names[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
	ENTER(device);
	if (counter >= sizeof(names) / sizeof(names[0]))
		return INVALID_ARGUMENT;
	return nvlink_number(text, device, link, names[counter], out);
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(const struct device *device, uint link, uint *type)
{
	u64 unused;
	ENTER(device);
	*type = 2; /* an NVSwitch */
	return nvlink_number(text, device, link, "down", &unused);
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(const struct device *device, uint link, struct pci_info *out)
{
	u64 unused;
	ENTER(device);
	memset(out, 0, sizeof(*out));
	out->bus = 5 + link % 4;
	out->device_id = 0x22a310de;
	snprintf(out->bus_id, sizeof(out->bus_id), "00000000:%02X:00.0", out->bus);
	snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "0000:%02X:00.0", out->bus);
	return nvlink_number(text, device, link, "down", &unused);
}

/* Without a state in the state file the card is in no NVSwitch fabric. */
EXPORT int nvmlDeviceGetGpuFabricInfoV(const struct device *device, struct fabric_info *out)
{
	ENTER(device);
	out->state = (unsigned char)gpu_number(text, device, "fabric.state", 0);
	out->status = (int)gpu_number(text, device, "fabric.status", 0);
	return SUCCESS;
}

/* ---- clocks, heat, modes ---- */

EXPORT int nvmlDeviceGetClockInfo(const struct device *device, uint type, uint *mhz)
{
	ENTER(device);
	*mhz = (uint)gpu_number(text, device, type == 2 ? "clock.memory" : "clock.sm", type == 2 ? 2619 : 1980);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxClockInfo(const struct device *device, uint type, uint *mhz)
{
	ENTER(device);
	*mhz = type == 2 ? 2619 : 1980;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(const struct device *device, uint sensor, uint *celsius)
{
	ENTER(device);
	if (sensor != 0)
		return INVALID_ARGUMENT;
	*celsius = (uint)gpu_number(text, device, "temperature", 34);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureV(const struct device *device, struct temperature_v1 *out)
{
	ENTER(device);
	out->temperature = (int)gpu_number(text, device, "temperature", 34);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureThreshold(const struct device *device, uint which, uint *celsius)
{
	static const uint limits[] = {92, 89, 95, 87}; /* shutdown, slowdown, memory max, GPU max */
	ENTER(device);
	if (which >= sizeof(limits) / sizeof(limits[0]))
		return NOT_SUPPORTED;
	*celsius = limits[which];
	return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(const struct device *device, struct utilization *out)
{
	ENTER(device);
	out->gpu = (uint)gpu_number(text, device, "utilization", 0);
	out->memory = 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(const struct device *device, uint *current, uint *pending)
{
	ENTER(device);
	*current = (uint)gpu_number(text, device, "mig", 0);
	*pending = (uint)gpu_number(text, device, "mig_pending", *current);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(const struct device *device, uint *count)
{
	ENTER(device);
	*count = gpu_number(text, device, "mig", 0) ? 7 : 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(const struct device *device, int *major, int *minor)
{
	ENTER(device);
	*major = 9;
	*minor = 0;
	return SUCCESS;
}

/* ---- memory and processes ---- */

/* The driver frees a process's memory when the process ends; a zombie has ended. */
static int process_lives(uint pid)
{
	char path[32], line[512], *after;
	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	FILE *file = fopen(path, "re");
	int lives = 0;

	if (!file)
		return 0;
	if (fgets(line, sizeof(line), file) && (after = strrchr(line, ')')) && strlen(after) > 2)
		lives = after[2] != 'Z' && after[2] != 'X';
	fclose(file);
	return lives;
}

static uint live_processes(const char *text, const struct device *device, struct process *out, uint room, u64 *used)
{
	char key[32], value[80];
	uint count = 0;

	snprintf(key, sizeof(key), "gpu.%d.process", device->slot);
	for (int n = 0; state_text(text, key, n, value, sizeof(value)); n++) {
		uint pid;
		u64 bytes;
		if (sscanf(value, "%u %llu", &pid, &bytes) != 2 || !process_lives(pid))
			continue;
		if (out && count < room)
			out[count] = (struct process){pid, bytes, 0xffffffff, 0xffffffff};
		count++;
		*used += bytes;
	}
	return count;
}

static int running_processes(const char *text, const struct device *device, uint *count, struct process *out)
{
	uint room = *count;
	u64 used = 0;

	*count = live_processes(text, device, out, room, &used);
	return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const struct device *device, uint *count, struct process *out)
{
	ENTER(device);
	return running_processes(text, device, count, out);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(const struct device *device, uint *count, struct process *out)
{
	ENTER(device);
	return running_processes(text, device, count, out);
}

static int no_processes(const char *function, const struct device *device, uint *count)
{
	char text[FAKE_MAX_TEXT];
	*count = 0;
	return enter(function, device, text);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(const struct device *device, uint *count, struct process *out)
{
	(void)out;
	return no_processes(__func__, device, count);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(const struct device *device, uint *count, struct process *out)
{
	(void)out;
	return no_processes(__func__, device, count);
}

static struct memory_v2 memory_of(const char *text, const struct device *device)
{
	struct memory_v2 memory = {.total = gpu_number(text, device, "memory_total", 85520809984ULL)};
	memory.reserved = 635437056;
	memory.used = gpu_number(text, device, "memory_used", 0);
	live_processes(text, device, NULL, 0, &memory.used);
	memory.free = memory.total - memory.reserved - memory.used;
	return memory;
}

/* The old call counts the driver's reserve as used, the new one tells it apart. */
EXPORT int nvmlDeviceGetMemoryInfo(const struct device *device, struct memory *out)
{
	ENTER(device);
	struct memory_v2 memory = memory_of(text, device);
	*out = (struct memory){memory.total, memory.free, memory.used + memory.reserved};
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(const struct device *device, struct memory_v2 *out)
{
	ENTER(device);
	uint version = out->version;
	*out = memory_of(text, device);
	out->version = version;
	return SUCCESS;
}
