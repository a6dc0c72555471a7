/*
 * LD_PRELOAD library for the watchdog of the torture test: a wall clock that can be set, and death at a chosen step.
 *
 * TORTURE_PAGE names a file of three int64 that the test shares with the process:
 *   [0] nanoseconds that are added to CLOCK_REALTIME (and to the mtime of files, which the same clock writes)
 *   [1] fuse: counts down at each commit (fdatasync, fsync), command (pipe2 before it, waitpid after it) and removal of a file;
 *       at zero the process gets SIGKILL, one time before that step is made, the next time after it
 *   [2] how many processes died so
 * Only Python is affected: the shell that starts it, and Slurm's commands that it starts, are not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *page;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TORTURE_PAGE");

    if (path == NULL || strncmp(program_invocation_short_name, "python", 6) != 0)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (found != MAP_FAILED)
        page = found;
    unsetenv("LD_PRELOAD");
    unsetenv("TORTURE_PAGE");
}

static int64_t offset_ns(void)
{
    return page ? page[0] : 0;
}

/* 1: the fuse is burnt. */
static int burn(void)
{
    if (page == NULL || page[1] <= 0)
        return 0;
    return --page[1] == 0;
}

static void die(void)
{
    page[2]++;
    kill(getpid(), SIGKILL);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void shift(struct timespec *time)
{
    int64_t ns = time->tv_nsec + offset_ns() % 1000000000;
    time->tv_sec += offset_ns() / 1000000000;
    if (ns < 0) {
        ns += 1000000000;
        time->tv_sec--;
    } else if (ns >= 1000000000) {
        ns -= 1000000000;
        time->tv_sec++;
    }
    time->tv_nsec = ns;
}

int clock_gettime(clockid_t clock, struct timespec *time_now)
{
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(clock, time_now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(time_now);
    return result;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

#define STEP(call) \
    do { \
        int burnt = burn(); \
        if (burnt && (page[2] & 1)) \
            die(); \
        int result = call; \
        int saved = errno; \
        if (burnt) \
            die(); \
        errno = saved; \
        return result; \
    } while (0)

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int);
    STEP(real(fd));
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    STEP(real(fd));
}

int pipe2(int fds[2], int flags)
{
    REAL(int, "pipe2", int[2], int);
    STEP(real(fds, flags));
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    REAL(pid_t, "waitpid", pid_t, int *, int);
    STEP(real(pid, status, options));
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    STEP(real(path));
}

int fstat(int fd, struct stat *found)
{
    REAL(int, "fstat", int, struct stat *);
    int result = real(fd, found);
    if (result == 0 && offset_ns())
        shift(&found->st_mtim);
    return result;
}

int lstat(const char *restrict path, struct stat *restrict found)
{
    REAL(int, "lstat", const char *, struct stat *);
    int result = real(path, found);
    if (result == 0 && offset_ns())
        shift(&found->st_mtim);
    return result;
}

int fstat64(int fd, struct stat64 *found)
{
    return fstat(fd, (struct stat *)found);
}

int lstat64(const char *restrict path, struct stat64 *restrict found)
{
    return lstat(path, (struct stat *)found);
}
