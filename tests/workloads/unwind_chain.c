/* Known chains of calls without frame pointers: main -> run -> link_1 -> ... -> link_12 -> work, which
 * burns CPU time. Frames differ: small and large ones, registers that are saved, memory of a size
 * that is not known before, calls through pointers.
 *
 * Usage: unwind_chain MODE CPU_MS [COUNT] [LIBRARY]
 *   plain    the chain in main's thread
 *   threads  COUNT threads: thread_main -> run -> ...
 *   forks    COUNT children, one after the other: main -> child -> run -> ..., without an exec
 *   vforks   COUNT children that run this program in mode plain
 *   execs    this program COUNT times in the same process, each time in mode plain
 *   maps     plain, behind COUNT mappings of one page of code each, of this program's own file
 *   library  plain, then LIBRARY is loaded, and then main -> plugin_outer -> plugin_inner -> plugin_work,
 *            COUNT times as long
 * Everything for CPU_MS of CPU time each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))

static uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

typedef uint64_t (*Link)(uint64_t);

FUNCTION uint64_t work(uint64_t seed) {
    for (int turn = 0; turn < 200000; turn++)
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed;
}

#define LINK(name, next)                                                                           \
    FUNCTION uint64_t name(uint64_t seed) {                                                        \
        volatile uint64_t kept = seed;                                                             \
        return next(seed + 1) ^ kept;                                                              \
    }

/* Nearly a page of local memory. */
#define LARGE(name, next)                                                                          \
    FUNCTION uint64_t name(uint64_t seed) {                                                        \
        volatile uint64_t kept[460];                                                               \
        kept[seed % 460] = seed;                                                                   \
        return next(seed + 1) ^ kept[seed % 460];                                                  \
    }

/* Local memory whose size is known at run time only: a frame pointer is needed in this one. */
#define SIZED(name, next)                                                                          \
    FUNCTION uint64_t name(uint64_t seed) {                                                        \
        volatile char *kept = __builtin_alloca(16 + seed % 64);                                    \
        kept[0] = (char)seed;                                                                      \
        return next(seed + 1) ^ (uint64_t)kept[0];                                                 \
    }

/* More values live across the call than there are scratch registers. */
#define FULL(name, next)                                                                           \
    FUNCTION uint64_t name(uint64_t seed) {                                                        \
        uint64_t a = seed * 3, b = seed * 5, c = seed * 7, d = seed * 11, e = seed * 13;           \
        uint64_t f = seed * 17;                                                                    \
        uint64_t result = next(seed + 1);                                                          \
        return ((((result ^ a) * b + c) ^ d) * e + f) ^ seed;                                      \
    }

LINK(link_12, work)
FULL(link_11, link_12)
LARGE(link_10, link_11)
SIZED(link_9, link_10)
static volatile Link pointer = link_9;
LINK(link_8, pointer)
FULL(link_7, link_8)
LINK(link_6, link_7)
SIZED(link_5, link_6)
LARGE(link_4, link_5)
FULL(link_3, link_4)
LINK(link_2, link_3)
LINK(link_1, link_2)

static volatile uint64_t result;

FUNCTION void run(uint64_t ms) {
    uint64_t end = cpu_ns() + ms * 1000000u;
    while (cpu_ns() < end)
        result += link_1(result);
}

FUNCTION void *thread_main(void *ms) {
    run(*(uint64_t *)ms);
    return NULL;
}

FUNCTION void child(uint64_t ms) {
    run(ms);
    _exit(result == 1);
}

FUNCTION void run_again(char *name, char *ms) {
    char *words[] = {name, "plain", ms, NULL};
    if (vfork() == 0) {
        execv("/proc/self/exe", words);
        _exit(1);
    }
    wait(NULL);
}

/* Every second page, so that none of them joins another. */
static void map_pages(int count) {
    const size_t page = 4096;
    int file = open("/proc/self/exe", O_RDONLY);
    char *room = mmap(NULL, 2 * page * (size_t)count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int index = 0; index < count; index++) {
        int flags = MAP_PRIVATE | MAP_FIXED;
        char *at = room + 2 * page * (size_t)index;
        if (room == MAP_FAILED || mmap(at, page, PROT_READ | PROT_EXEC, flags, file, 0) == MAP_FAILED) {
            perror("mmap");
            exit(1);
        }
    }
    close(file);
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "plain";
    uint64_t ms = count > 2 ? strtoull(words[2], NULL, 10) : 100;
    int times = count > 3 ? atoi(words[3]) : 1;
    if (!strcmp(mode, "maps")) {
        map_pages(times);
        // Which of them are kept is asked, not how soon a busy machine has taken them all in.
        sleep(1);
    }
    if (!strcmp(mode, "threads")) {
        pthread_t threads[64];
        for (int index = 0; index < times && index < 64; index++)
            pthread_create(&threads[index], NULL, thread_main, &ms);
        for (int index = 0; index < times && index < 64; index++)
            pthread_join(threads[index], NULL);
    } else if (!strcmp(mode, "forks")) {
        for (int index = 0; index < times; index++) {
            if (fork() == 0)
                child(ms);
            wait(NULL);
        }
    } else if (!strcmp(mode, "vforks")) {
        for (int index = 0; index < times; index++)
            run_again(words[0], words[2]);
    } else if (!strcmp(mode, "execs")) {
        run(ms);
        char left[16];
        snprintf(left, sizeof left, "%d", times - 1);
        char *next[] = {words[0], times > 1 ? "execs" : "plain", words[2], left, NULL};
        execv("/proc/self/exe", next);
        return 1;
    } else {
        run(ms);
    }
    if (!strcmp(mode, "library")) {
        void *library = dlopen(words[4], RTLD_NOW);
        uint64_t (*outer)(uint64_t) = library ? (Link)dlsym(library, "plugin_outer") : NULL;
        if (!outer) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        uint64_t end = cpu_ns() + times * ms * 1000000u;
        while (cpu_ns() < end)
            result += outer(result);
    }
    return 0;
}
