/*
 * The state file of the fake NVML: lines "key value", written by nvml_state.py, read anew by every call.
 *
 *   driver 550.90.07              nvml 12.550.90.07        init.error 9        init.delay_ms 3000
 *   block sleep|dstate            every call blocks        block.function nvmlDeviceGetTotalEccErrors (only that one)
 *   event SEQ GPU XID             delivered by nvmlEventSetWait to sets made before SEQ was written
 *   gpu.N.pci 00000000:18:00.0    gpu.N.uuid, .serial, .name, .memory_total (bytes); a GPU exists when it has a pci
 *   gpu.N.lost 1                  gpu.N.missing 1          gpu.N.block sleep|dstate (calls on that GPU)
 *   gpu.N.process PID BYTES       may be repeated; counted only while that process lives
 *   gpu.N.KEY NUMBER              see the calls in fakenvml.c for the keys and their defaults; 0x.. is allowed
 */
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <stdint.h>
#include <stdio.h>

#define FAKE_MAX_GPUS 16
#define FAKE_MAX_TEXT 65536

/* The file's text, NUL terminated; false when it cannot be read. */
int state_load(char text[FAKE_MAX_TEXT]);

/* Value of the n-th line with this key, copied to out; false when there is none. */
int state_text(const char *text, const char *key, int n, char *out, size_t size);

/* The same as a number; `fallback` when there is none. */
uint64_t state_number(const char *text, const char *key, uint64_t fallback);

#endif
