#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *state_path(void)
{
	const char *path = getenv("FAKE_NVML_STATE");
	return path && *path ? path : "/run/aisim/nvml.state";
}

/* Only system calls and the caller's buffer: a vfork child uses it too. */
int state_load(char text[FAKE_MAX_TEXT])
{
	size_t used = 0;
	int fd = open(state_path(), O_RDONLY | O_CLOEXEC);

	text[0] = '\0';
	if (fd < 0)
		return 0;
	while (used < FAKE_MAX_TEXT - 1) {
		ssize_t got = read(fd, text + used, FAKE_MAX_TEXT - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	text[used] = '\0';
	return used > 0;
}

int state_text(const char *text, const char *key, int n, char *out, size_t size)
{
	size_t key_length = strlen(key);

	for (const char *line = text; *line; ) {
		const char *end = strchrnul(line, '\n');
		if (!strncmp(line, key, key_length) && line[key_length] == ' ' && n-- == 0) {
			size_t length = (size_t)(end - line) - key_length - 1;
			if (length >= size)
				length = size - 1;
			memcpy(out, line + key_length + 1, length);
			out[length] = '\0';
			return 1;
		}
		line = *end ? end + 1 : end;
	}
	return 0;
}

uint64_t state_number(const char *text, const char *key, uint64_t fallback)
{
	char value[64];
	return state_text(text, key, 0, value, sizeof(value)) ? strtoull(value, NULL, 0) : fallback;
}
