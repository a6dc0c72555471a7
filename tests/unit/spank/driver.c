/*
 * Stands in for sbatch: loads a SPANK plugin, gives it options and prints what it does with them, one line each.
 *
 *   driver PLUGIN CONTEXT [--NAME[=VALUE] ...]
 *
 * CONTEXT is the number of an S_CTX_* of spank.h. Output: "option NAME HAS_ARG USAGE", "refused NAME", "set NAME=VALUE",
 * "init CODE", "post_opt CODE", "env NAME=VALUE" (variables of the plugin's interest that are left); slurm_error goes to
 * stderr. An option is "remote" in context 2 (slurmstepd), as in Slurm.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

static struct spank_option *registered[64];
static int count, context;

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	if (!option->usage || count == 64)
		return ESPANK_BAD_ARG;
	registered[count++] = option;
	printf("option %s %d %s\n", option->name, option->has_arg, option->usage);
	return ESPANK_SUCCESS;
}

spank_context_t spank_context(void)
{
	return (spank_context_t)context;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) /* as spank(7) has it */
		return ESPANK_NOT_LOCAL;
	printf("set %s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

static int give(const char *text)
{
	const char *equals = strchr(text, '=');
	size_t length = equals ? (size_t)(equals - text) : strlen(text);

	for (int i = 0; i < count; i++)
		if (strlen(registered[i]->name) == length && strncmp(registered[i]->name, text, length) == 0)
			return registered[i]->cb(registered[i]->val, equals ? equals + 1 : NULL, context == S_CTX_REMOTE);
	return -1;
}

int main(int argc, char **argv)
{
	void *plugin;
	int (*init)(spank_t, int, char **), (*post_opt)(spank_t, int, char **);

	if (argc < 3 || !(plugin = dlopen(argv[1], RTLD_NOW))) {
		fprintf(stderr, "%s\n", argc < 3 ? "driver PLUGIN CONTEXT [--OPTION ...]" : dlerror());
		return 2;
	}
	context = atoi(argv[2]);
	*(void **)&init = dlsym(plugin, "slurm_spank_init");
	*(void **)&post_opt = dlsym(plugin, "slurm_spank_init_post_opt");
	printf("init %d\n", init(NULL, 0, NULL));
	for (int i = 3; i < argc; i++)
		if (give(argv[i] + 2)) {
			printf("refused %s\n", argv[i]);
			return 1;
		}
	printf("post_opt %d\n", post_opt(NULL, 0, NULL));
	for (char **entry = environ; *entry; entry++)
		if (strstr(*entry, "AISTATION") || strstr(*entry, "aistation") || strncmp(*entry, "SLURM_", 6) == 0)
			printf("env %s\n", *entry);
	return 0;
}
