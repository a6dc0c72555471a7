/* Return codes and structs of NVML that the fake serves; layouts as in nvidia-ml-py's pynvml.py (13.615). */
#ifndef FAKENVML_H
#define FAKENVML_H

#include <stdint.h>

typedef unsigned int uint;
typedef unsigned long long u64;

enum {
	SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999,
};

/* What an nvmlDevice_t points to. */
struct device {
	int slot;
};

struct pci_info {
	char bus_id_legacy[16];
	uint domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

struct memory { u64 total, free, used; };
struct memory_v2 { uint version; u64 total, reserved, free, used; };
struct process { uint pid; u64 used; uint gpu_instance, compute_instance; };
struct utilization { uint gpu, memory; };
struct temperature_v1 { uint version, sensor; int temperature; };
struct row_histogram { uint max, high, partial, low, none; };

struct sram_status { uint version; u64 counts[11]; uint threshold_exceeded; };
struct fabric_info { uint version; unsigned char cluster[16]; int status; uint32_t clique; unsigned char state; uint32_t health; };

struct event {
	struct device *device;
	u64 type, data;
	uint gpu_instance, compute_instance;
};

struct field_value {
	uint32_t field, scope;
	int64_t timestamp, latency_us;
	uint type, result;
	union { double d; uint ui; unsigned long ul; u64 ull; } value;
};

/* Shared between the source files of calls. */
int enter(const char *function, const struct device *device, char *text);
uint64_t gpu_number(const char *text, const struct device *device, const char *key, uint64_t fallback);
struct device *slot_device(int slot);
int nvlink_number(const char *text, const struct device *device, uint link, const char *what, u64 *out);

#define EXPORT __attribute__((visibility("default")))

/* Every call: read the state, block or fail as it says, then answer. */
#define ENTER(device)                                                                                                  \
	char text[FAKE_MAX_TEXT];                                                                                      \
	int entered = enter(__func__, (device), text);                                                                 \
	if (entered != SUCCESS)                                                                                        \
		return entered

#endif
