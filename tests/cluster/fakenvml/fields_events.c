/* Field values, and the event sets on which a program waits for an Xid. */
#define _GNU_SOURCE
#include "fakenvml.h"
#include "state.h"

#include <stdlib.h>
#include <time.h>

/* ---- field values ---- */

static int known_field(const char *text, const struct device *device, const struct field_value *field, u64 *value)
{
	static const struct { uint id; const char *key; } table[] = {
		{3, "ecc.volatile.corrected"},  {4, "ecc.volatile.uncorrected"}, {5, "ecc.aggregate.corrected"},
		{6, "ecc.aggregate.uncorrected"}, {142, "remap.correctable"},    {143, "remap.uncorrectable"},
		{144, "remap.pending"},         {145, "remap.failed"},           {230, "recovery_action"},
	};
	char key[64];

	snprintf(key, sizeof(key), "field.%u.%u", field->field, field->scope);
	*value = gpu_number(text, device, key, UINT64_MAX);
	if (*value != UINT64_MAX)
		return 1;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].id == field->field) {
			*value = gpu_number(text, device, table[i].key, 0);
			return 1;
		}
	static const struct { uint id; const char *key; } rare[] = { /* not supported unless the state file says so */
		{29, "retired.sbe"}, {30, "retired.dbe"}, {31, "retired.pending"}, {75, "thermal_ns"}, {82, "temperature_memory"},
	};
	for (size_t i = 0; i < sizeof(rare) / sizeof(rare[0]); i++)
		if (rare[i].id == field->field) {
			*value = gpu_number(text, device, rare[i].key, UINT64_MAX);
			return *value != UINT64_MAX;
		}
	static const struct { uint id; const char *key; } links[] = { /* sums over all links */
		{38, "nvlink.crc_flit"}, {45, "nvlink.crc_data"}, {52, "nvlink.replay"}, {59, "nvlink.recovery"}, {160, "nvlink.ecc"},
	};
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
		if (links[i].id == field->field) {
			*value = gpu_number(text, device, links[i].key, 0);
			return 1;
		}
	if (field->field == 91) /* NVLink count */
		*value = gpu_number(text, device, "nvlinks", 18);
	else if (field->field == 165) { /* NVLink state, the link in the scope: 1 is active */
		if (nvlink_number(text, device, field->scope, "down", value) != SUCCESS)
			return 0;
		*value = !*value;
	} else if (field->field >= 206 && field->field <= 222) /* link error counters */
		*value = 0;
	else
		return 0;
	return 1;
}

EXPORT int nvmlDeviceGetFieldValues(const struct device *device, int count, struct field_value *fields)
{
	ENTER(device);
	for (int i = 0; i < count; i++) {
		u64 value;
		fields[i].result = known_field(text, device, &fields[i], &value) ? SUCCESS : NOT_SUPPORTED;
		fields[i].type = fields[i].field == 230 || fields[i].field == 91 ? 1 : 3;
		fields[i].timestamp = (int64_t)time(NULL) * 1000000;
		fields[i].value.ull = fields[i].result == SUCCESS ? value : 0;
	}
	return SUCCESS;
}

/* ---- events ---- */

struct event_set {
	u64 last; /* sequence number of the last event seen */
	uint registered; /* bit per slot */
};

static u64 next_event(const char *text, const struct event_set *set, uint *slot, u64 *code)
{
	char value[80];
	u64 found = 0;

	for (int n = 0; !found && state_text(text, "event", n, value, sizeof(value)); n++) {
		u64 sequence;
		if (sscanf(value, "%llu %u %llu", &sequence, slot, code) == 3 && sequence > set->last &&
		    *slot < FAKE_MAX_GPUS && set->registered & 1u << *slot)
			found = sequence;
	}
	return found;
}

EXPORT int nvmlEventSetCreate(struct event_set **out)
{
	uint slot;
	u64 code, sequence;
	ENTER(NULL);
	*out = calloc(1, sizeof(**out));
	(*out)->registered = ~0u; /* step over what happened before */
	while ((sequence = next_event(text, *out, &slot, &code)))
		(*out)->last = sequence;
	(*out)->registered = 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(const struct device *device, u64 types, struct event_set *set)
{
	ENTER(device);
	if (types & ~gpu_number(text, device, "event_types", 0x1b))
		return NOT_SUPPORTED;
	if (types & 8)
		set->registered |= 1u << device->slot;
	return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event *out, uint timeout_ms)
{
	struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};

	for (u64 waited = 0;; waited += 50) {
		uint slot;
		u64 code, sequence;
		ENTER(NULL);
		if ((sequence = next_event(text, set, &slot, &code))) {
			set->last = sequence;
			*out = (struct event){slot_device((int)slot), 8, code, 0xffffffff, 0xffffffff};
			return SUCCESS;
		}
		if (waited >= timeout_ms)
			return TIMEOUT;
		nanosleep(&pause, NULL);
	}
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
	free(set);
	return SUCCESS;
}
