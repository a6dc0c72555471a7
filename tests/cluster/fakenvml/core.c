/* Initialisation, enumeration, identity and the two ways in which a call blocks for ever. */
#define _GNU_SOURCE
#include "fakenvml.h"
#include "state.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static struct device devices[FAKE_MAX_GPUS];
static int initialized; /* as nvmlInit counts: calls minus shutdowns */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

struct device *slot_device(int slot)
{
	devices[slot].slot = slot;
	return &devices[slot];
}

static void gpu_key(char out[80], int slot, const char *key)
{
	snprintf(out, 80, "gpu.%d.%s", slot, key);
}

uint64_t gpu_number(const char *text, const struct device *device, const char *key, uint64_t fallback)
{
	char name[80];
	gpu_key(name, device->slot, key);
	return state_number(text, name, fallback);
}

static int gpu_text(const char *text, int slot, const char *key, char *out, size_t size)
{
	char name[80];
	gpu_key(name, slot, key);
	return state_text(text, name, 0, out, size);
}

/* ---- blocking ---- */

enum block { BLOCK_NONE, BLOCK_SLEEP, BLOCK_DSTATE };

static enum block wanted_block(const char *text, const char *function, const struct device *device)
{
	char value[80];

	if (device && gpu_text(text, device->slot, "block", value, sizeof(value)))
		return strcmp(value, "dstate") ? BLOCK_SLEEP : BLOCK_DSTATE;
	if (!state_text(text, "block", 0, value, sizeof(value)))
		return BLOCK_NONE;
	char only[80];
	if (state_text(text, "block.function", 0, only, sizeof(only)) && strcmp(only, function))
		return BLOCK_NONE;
	return strcmp(value, "dstate") ? BLOCK_SLEEP : BLOCK_DSTATE;
}

/* Returns only when the state file no longer asks for a block: a test that heals the node. */
static void wait_until_unblocked(const char *function, const struct device *device, char *text)
{
	struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};

	do {
		nanosleep(&pause, NULL);
	} while (!state_load(text) || wanted_block(text, function, device) != BLOCK_NONE);
}

/*
 * State D without a driver: the parent of a vfork child sleeps uninterruptibly until the child execs or exits (kernel:
 * wait_for_vfork_done, TASK_KILLABLE, shown as D). Unlike a hung ioctl it can still be killed, so nothing is left behind.
 * The child dies with the thread that called, by its parent-death signal.
 */
static void block_in_state_d(const char *function, const struct device *device, char *text)
{
	pid_t caller = getpid();
	pid_t child = vfork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != caller)
			_exit(0);
		wait_until_unblocked(function, device, text);
		_exit(0);
	}
}

int enter(const char *function, const struct device *device, char *text)
{
	if (!state_load(text))
		return initialized ? UNKNOWN : DRIVER_NOT_LOADED;
	switch (wanted_block(text, function, device)) {
	case BLOCK_SLEEP:
		wait_until_unblocked(function, device, text);
		break;
	case BLOCK_DSTATE:
		block_in_state_d(function, device, text);
		state_load(text);
		break;
	case BLOCK_NONE:
		break;
	}
	if (!initialized && strncmp(function, "nvmlInit", 8))
		return UNINITIALIZED;
	if (device && gpu_number(text, device, "lost", 0))
		return GPU_IS_LOST;
	return SUCCESS;
}

/* ---- library ---- */

EXPORT int nvmlInitWithFlags(uint flags)
{
	(void)flags;
	ENTER(NULL);
	uint64_t delay_ms = state_number(text, "init.delay_ms", 0);
	struct timespec pause = {.tv_sec = (time_t)(delay_ms / 1000), .tv_nsec = (long)(delay_ms % 1000) * 1000000};
	nanosleep(&pause, NULL);
	int error = (int)state_number(text, "init.error", SUCCESS);
	if (error != SUCCESS)
		return error;
	pthread_mutex_lock(&init_lock);
	initialized++;
	pthread_mutex_unlock(&init_lock);
	return SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
	int result = UNINITIALIZED;

	pthread_mutex_lock(&init_lock);
	if (initialized > 0) {
		initialized--;
		result = SUCCESS;
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

EXPORT const char *nvmlErrorString(int result)
{
	switch (result) {
	case SUCCESS: return "The operation was successful";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case TIMEOUT: return "Timeout";
	case GPU_IS_LOST: return "GPU is lost";
	default: return "Unknown Error";
	}
}

static int copy_text(const char *value, char *out, uint size)
{
	if (!out || strlen(value) >= size)
		return out ? INSUFFICIENT_SIZE : INVALID_ARGUMENT;
	strcpy(out, value);
	return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, uint size)
{
	char value[80] = "550.90.07";
	ENTER(NULL);
	state_text(text, "driver", 0, value, sizeof(value));
	return copy_text(value, out, size);
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, uint size)
{
	char value[80] = "12.550.90.07";
	ENTER(NULL);
	state_text(text, "nvml", 0, value, sizeof(value));
	return copy_text(value, out, size);
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
	ENTER(NULL);
	*version = 12040;
	return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

/* ---- enumeration ---- */

static int exists(const char *text, int slot)
{
	char pci[32];
	return gpu_text(text, slot, "pci", pci, sizeof(pci)) && !gpu_number(text, slot_device(slot), "missing", 0);
}

EXPORT int nvmlDeviceGetCount_v2(uint *count)
{
	ENTER(NULL);
	*count = 0;
	for (int slot = 0; slot < FAKE_MAX_GPUS; slot++)
		*count += (uint)exists(text, slot);
	return SUCCESS;
}

/* A lost GPU is still counted, but gives no handle. */
static int give_handle(const char *text, int slot, struct device **device)
{
	if (gpu_number(text, slot_device(slot), "lost", 0))
		return GPU_IS_LOST;
	*device = slot_device(slot);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(uint index, struct device **device)
{
	ENTER(NULL);
	for (int slot = 0; slot < FAKE_MAX_GPUS; slot++)
		if (exists(text, slot) && index-- == 0)
			return give_handle(text, slot, device);
	return INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
	char found[96];
	ENTER(NULL);
	for (int slot = 0; slot < FAKE_MAX_GPUS; slot++)
		if (exists(text, slot) && gpu_text(text, slot, "uuid", found, sizeof(found)) && !strcmp(found, uuid))
			return give_handle(text, slot, device);
	return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, struct device **device)
{
	char found[96];
	ENTER(NULL);
	for (int slot = 0; slot < FAKE_MAX_GPUS; slot++)
		if (exists(text, slot) && gpu_text(text, slot, "serial", found, sizeof(found)) && !strcmp(found, serial))
			return give_handle(text, slot, device);
	return NOT_FOUND;
}

static int parse_pci(const char *address, uint part[4])
{
	return sscanf(address, "%x:%x:%x.%x", &part[0], &part[1], &part[2], &part[3]) >= 3;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct device **device)
{
	char found[32];
	uint want[4] = {0}, have[4] = {0};
	ENTER(NULL);
	if (!parse_pci(address, want))
		return INVALID_ARGUMENT;
	for (int slot = 0; slot < FAKE_MAX_GPUS; slot++)
		if (exists(text, slot) && gpu_text(text, slot, "pci", found, sizeof(found)) && parse_pci(found, have) &&
		    !memcmp(want, have, 3 * sizeof(uint)))
			return give_handle(text, slot, device);
	return NOT_FOUND;
}

/* ---- identity ---- */

EXPORT int nvmlDeviceGetPciInfo_v3(const struct device *device, struct pci_info *out)
{
	uint part[4] = {0};
	char pci[32] = "";
	ENTER(device);
	gpu_text(text, device->slot, "pci", pci, sizeof(pci));
	parse_pci(pci, part);
	memset(out, 0, sizeof(*out));
	out->domain = part[0];
	out->bus = part[1];
	out->device = part[2];
	out->device_id = 0x233010de;
	out->subsystem_id = 0x16c110de;
	snprintf(out->bus_id, sizeof(out->bus_id), "%08X:%02X:%02X.0", part[0], part[1] & 0xff, part[2] & 0xff);
	snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "%04X:%02X:%02X.0", part[0] & 0xffff, part[1] & 0xff,
		 part[2] & 0xff);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v2(const struct device *device, struct pci_info *out)
{
	struct pci_info all;
	int result = nvmlDeviceGetPciInfo_v3(device, &all);
	if (result == SUCCESS) /* the v2 struct ends where v3 put its long bus id */
		memcpy(out, &all, sizeof(all) - sizeof(all.bus_id) + 4 * sizeof(uint));
	return result;
}

#define TEXT_CALL(name, key, fallback)                                                                                 \
	EXPORT int name(const struct device *device, char *out, uint size)                                             \
	{                                                                                                              \
		char value[96] = fallback;                                                                             \
		ENTER(device);                                                                                         \
		gpu_text(text, device->slot, key, value, sizeof(value));                                               \
		return copy_text(value, out, size);                                                                    \
	}

TEXT_CALL(nvmlDeviceGetUUID, "uuid", "")
TEXT_CALL(nvmlDeviceGetSerial, "serial", "")
TEXT_CALL(nvmlDeviceGetName, "name", "NVIDIA H100 80GB HBM3")
TEXT_CALL(nvmlDeviceGetVbiosVersion, "vbios", "96.00.74.00.01")
TEXT_CALL(nvmlDeviceGetInforomImageVersion, "inforom", "G520.0200.00.05")

EXPORT int nvmlDeviceGetMinorNumber(const struct device *device, uint *out)
{
	ENTER(device);
	*out = (uint)gpu_number(text, device, "minor", (uint64_t)device->slot);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetIndex(const struct device *device, uint *out)
{
	ENTER(device);
	*out = 0;
	for (int slot = 0; slot < device->slot; slot++)
		*out += (uint)exists(text, slot);
	return SUCCESS;
}
