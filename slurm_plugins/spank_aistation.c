/*
 * spank_aistation.so: the --ais-* options of sbatch, salloc and srun.
 *
 * Each option is checked where it is typed and becomes one variable of the job:
 *
 *   --ais-resume=auto        AISTATION_RESUME=auto
 *
 * which the job sees as SLURM_SPANK_AISTATION_RESUME, Prolog and Epilog as SPANK_AISTATION_RESUME, and job_submit.lua in
 * job_desc.spank_job_env. Slurm keeps it over requeues and restarts of slurmctld.
 *
 * plugstack.conf:   optional /opt/aistation/slurm_plugins/spank_aistation.so
 *
 * The static spank_options[] table is not loaded by sbatch and salloc, so options are registered in slurm_spank_init in
 * every context; spank_job_control_setenv works in slurm_spank_init_post_opt (spank(7)). Nothing is exported but SPANK's
 * own symbols: Slurm's loader calls any exported init() or fini().
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#define EXPORTED __attribute__((visibility("default")))

/* Slurm looks plugin_name, plugin_type and the versions up by name. */
#pragma GCC visibility push(default)
SPANK_PLUGIN(aistation, 1)
#pragma GCC visibility pop

#define VALUE_MAX 1024 /* bytes; a job's environment is kept in slurmctld's memory */
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

enum { RESUME, CKPT_DIR, RESUME_ARGS, MAX_RESTARTS, HANG_TIMEOUT, HEALTH, SWITCH, DATASET, OPTION_COUNT };

static const char *const variable[OPTION_COUNT] = {
	[RESUME] = "AISTATION_RESUME",
	[CKPT_DIR] = "AISTATION_CKPT_DIR",
	[RESUME_ARGS] = "AISTATION_RESUME_ARGS_TEMPLATE",
	[MAX_RESTARTS] = "AISTATION_MAX_RESTARTS",
	[HANG_TIMEOUT] = "AISTATION_HANG_TIMEOUT",
	[HEALTH] = "AISTATION_HEALTH",
	[SWITCH] = "AISTATION_SWITCH",
	[DATASET] = "AISTATION_DATASET",
};

/* Last value given, or empty. A script's #SBATCH line, the environment and the command line come in that order. */
static char value[OPTION_COUNT][VALUE_MAX];

static const char *const resume_names[] = {"auto", "megatron", "deepspeed", "hf", "lightning", "dcp", "nemo", "none"};
static const char *const health_names[] = {"quick", "full", "off"};
static const char *const switch_names[] = {"pack", "spread", "any"};

static int on_option(int which, const char *text, int remote);

static struct spank_option options[OPTION_COUNT] = {
	{"ais-resume", "[auto|megatron|deepspeed|hf|lightning|dcp|nemo|none]",
	 "resume from the newest valid checkpoint after a fault; with no value: auto", 2, RESUME, on_option},
	{"ais-ckpt-dir", "DIR", "directory of this job's checkpoints", 1, CKPT_DIR, on_option},
	{"ais-resume-args", "TEMPLATE", "arguments that resume the program, e.g. '--load {path} --step {step}'", 1, RESUME_ARGS,
	 on_option},
	{"ais-max-restarts", "N", "most automatic restarts that are not for the machine's faults; 0: none at all (0 to 1000)", 1, MAX_RESTARTS, on_option},
	{"ais-hang-timeout", "MIN", "minutes without progress that count as a hang (1 to 10080)", 1, HANG_TIMEOUT, on_option},
	{"ais-health", "quick|full|off", "health check before the job starts", 1, HEALTH, on_option},
	{"ais-switch", "pack|spread|any[,max=N][,wait=MIN]", "leaf switches: as few as possible, spread, or any", 1, SWITCH,
	 on_option},
	{"ais-dataset", "PATH", "dataset that the job reads, for nodes that have it cached", 1, DATASET, on_option},
};

static int one_of(const char *text, size_t length, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0)
			return 1;
	return 0;
}

static int refuse(int which, const char *text, const char *expected)
{
	slurm_error("--%s=%.200s: expected %s", options[which].name, text, expected);
	return -1;
}

/* Whole decimal number of text within [low, high]; -1 where it is not. */
static long number(const char *text, size_t length, long low, long high)
{
	long found = 0;

	if (length == 0 || length > 6)
		return -1;
	for (size_t i = 0; i < length; i++) {
		if (!isdigit((unsigned char)text[i]))
			return -1;
		found = found * 10 + (text[i] - '0');
	}
	return found < low || found > high ? -1 : found;
}

/* Control characters of ASCII and, in UTF-8, of Latin-1 (C2 80 to C2 9F): they end lines in other programs' eyes. */
static int has_control(const char *text)
{
	const unsigned char *at = (const unsigned char *)text;

	for (; *at; at++)
		if (*at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f))
			return 1;
	return 0;
}

static int check_switch(const char *text)
{
	static const char expected[] = "pack, spread or any, then ,max=N (1 to 10000) and ,wait=MIN (0 to 10080) where wanted";
	const char *part = text;

	for (int first = 1; part; first = 0) {
		const char *comma = strchr(part, ',');
		size_t length = comma ? (size_t)(comma - part) : strlen(part);
		int good;

		if (first)
			good = one_of(part, length, switch_names, ARRAY_SIZE(switch_names));
		else if (strncmp(part, "max=", 4) == 0)
			good = length > 4 && number(part + 4, length - 4, 1, 10000) >= 0;
		else if (strncmp(part, "wait=", 5) == 0)
			good = length > 5 && number(part + 5, length - 5, 0, 10080) >= 0;
		else
			good = 0;
		if (!good)
			return refuse(SWITCH, text, expected);
		part = comma ? comma + 1 : NULL;
	}
	return 0;
}

/* The script leaves $AISTATION_RESUME_ARGS unquoted: nothing that a shell expands, and only placeholders we fill. */
static int check_template(const char *text)
{
	/* PLACEHOLDERS of aistation_slurm/checkpoints/choose.py */
	static const char *const names[] = {"path", "dir", "step", "tag", "name"};
	static const char expected[] = "words with the placeholders {path} {dir} {step} {tag} {name}, without quotes and "
				       "the characters $ ` \\ ; & | < > ( ) * ? [ ] ~ # !";

	for (const char *at = text; *at; at++) {
		if (strchr("\"'$`\\;&|<>()*?[]~#!", *at) || *at == '}')
			return refuse(RESUME_ARGS, text, expected);
		if (*at == '{') {
			const char *end = strchr(at, '}');

			if (!end || !one_of(at + 1, (size_t)(end - at - 1), names, ARRAY_SIZE(names)))
				return refuse(RESUME_ARGS, text, expected);
			at = end;
		}
	}
	return 0;
}

/* A relative directory means the directory of the submission, not that of the batch host. */
static int absolute(int which, const char *text, char *out, size_t size)
{
	char here[PATH_MAX];
	int length;

	if (text[0] == '/') {
		length = snprintf(out, size, "%s", text);
	} else {
		if (!getcwd(here, sizeof(here)))
			return refuse(which, text, "an absolute path (the present directory cannot be read)");
		length = snprintf(out, size, "%s/%s", here, text);
	}
	if (length < 0 || (size_t)length >= size)
		return refuse(which, text, "a path of less than 1024 bytes");
	if (has_control(out))
		return refuse(which, text, "a path without control characters, from a directory without any");
	return 0;
}

static int on_option(int which, const char *text, int remote)
{
	char out[VALUE_MAX];

	if (remote) /* checked at submission; the job's environment carries it from there */
		return 0;
	if (which < 0 || which >= OPTION_COUNT)
		return -1;
	/* inside the job srun gets an option without a value back from the environment as "(null)" */
	if (which == RESUME && (!text || !*text || strcmp(text, "(null)") == 0))
		text = "auto";
	if (!text || !*text)
		return refuse(which, "", options[which].arginfo);
	if (has_control(text))
		return refuse(which, "(not shown)", "text without control characters, such as a line end");
	if (strlen(text) >= VALUE_MAX)
		return refuse(which, text, "less than 1024 bytes");
	snprintf(out, sizeof(out), "%s", text);
	switch (which) {
	case RESUME:
		if (!one_of(text, strlen(text), resume_names, ARRAY_SIZE(resume_names)))
			return refuse(which, text, "one of auto, megatron, deepspeed, hf, lightning, dcp, nemo, none");
		break;
	case HEALTH:
		if (!one_of(text, strlen(text), health_names, ARRAY_SIZE(health_names)))
			return refuse(which, text, "one of quick, full, off");
		break;
	case MAX_RESTARTS:
		if (number(text, strlen(text), 0, 1000) < 0)
			return refuse(which, text, "a whole number from 0 to 1000");
		break;
	case HANG_TIMEOUT:
		if (number(text, strlen(text), 1, 10080) < 0)
			return refuse(which, text, "minutes, a whole number from 1 to 10080");
		break;
	case SWITCH:
		if (check_switch(text))
			return -1;
		break;
	case RESUME_ARGS:
		if (check_template(text))
			return -1;
		break;
	case CKPT_DIR:
	case DATASET:
		if (absolute(which, text, out, sizeof(out)))
			return -1;
		break;
	default:
		return -1;
	}
	memcpy(value[which], out, sizeof(out));
	return 0;
}

/*
 * sbatch inside a job passes that job's environment on, and Slurm reads the outer job's options from it, with more weight
 * than the inner script's #SBATCH lines. The inner job is another program with other checkpoints: forget all of it.
 */
static void forget_outer_job(void)
{
	static const char *const own[] = {"SLURM_SPANK__SLURM_SPANK_OPTION_aistation_", "SLURM_SPANK_AISTATION_"};
	/* what the outer start or step was given; TaskProlog knows a batch script by its lack of a step id */
	static const char *const start[] = {"AISTATION_ATTEMPT",	"AISTATION_RESUME_ARGS",    "AISTATION_RESUME_PATH",
					    "AISTATION_RESUME_STEP",	"AISTATION_EXCLUDED_NODES", "SLURM_RESTART_COUNT",
					    "SLURM_STEP_ID",		"SLURM_STEPID"};

	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		for (char **entry = environ; *entry;) {
			const char *equals = strchr(*entry, '=');
			char name[256];

			if (strncmp(*entry, own[i], strlen(own[i])) == 0 && equals && (size_t)(equals - *entry) < sizeof(name)) {
				memcpy(name, *entry, (size_t)(equals - *entry));
				name[equals - *entry] = '\0';
				if (unsetenv(name) == 0)
					continue; /* the next entry has moved here */
			}
			entry++;
		}
	for (size_t i = 0; i < ARRAY_SIZE(start); i++)
		unsetenv(start[i]);
}

EXPORTED int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_ALLOCATOR && getenv("SLURM_JOB_ID"))
		forget_outer_job();
	for (int i = 0; i < OPTION_COUNT; i++)
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			slurm_error("aistation: option --%s could not be registered", options[i].name);
	return 0; /* never a reason to refuse a job or, in slurmstepd, to drain a node */
}

EXPORTED int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	spank_context_t context = spank_context();

	(void)argc;
	(void)argv;
	if (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL)
		return 0;
	/* srun of a step: the job's own values stand, and a relative directory would now mean another one */
	if (context == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))
		return 0;
	for (int i = 0; i < OPTION_COUNT; i++) {
		if (!value[i][0])
			continue;
		if (spank_job_control_setenv(spank, variable[i], value[i], 1) != ESPANK_SUCCESS) {
			slurm_error("aistation: --%s could not be passed to the job", options[i].name);
			return -1;
		}
	}
	return 0;
}
