/* What the tracing workloads share: functions that keep their names and are called as often as the
 * source says, tallies of their calls, and a start that waits until somebody traces them.
 *
 * A workload counts by itself, in memory that its children share: `ENTERED(f)` where f begins,
 * `LEFT(f)` where it returns. What was entered and never left was left in another way, which one
 * the workload knows. Times are nanoseconds of CLOCK_MONOTONIC. */
#ifndef TRACE_H
#define TRACE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Code of its own under its own name: never inlined, cloned, or merged with a twin. */
#if defined(__clang__)
#define TRACED __attribute__((noinline, used))
#else
#define TRACED __attribute__((noinline, noclone, no_icf, used))
#endif

/* Keeps a call from becoming a jump: something is left to do after it. */
#define NOT_A_TAIL_CALL() __asm__ volatile("" ::: "memory")

struct tally {
    const char *function;
    long calls, returns;
};

/* At most as many as any workload has. In C++ and C alike, so by index and not by section. */
enum { TALLIES = 64 };
static struct tally *tallies;

/* Before anything else. */
static inline void tallies_begin(void) {
    tallies = (struct tally *)mmap(NULL, TALLIES * sizeof *tallies, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tallies == MAP_FAILED) abort();
}

#define ENTERED(f) tally_enter(tally_##f, #f)
#define LEFT(f) (void)__atomic_add_fetch(&tallies[tally_##f].returns, 1, __ATOMIC_RELAXED)

static inline void tally_enter(int index, const char *function) {
    tallies[index].function = function;
    __atomic_add_fetch(&tallies[index].calls, 1, __ATOMIC_RELAXED);
}

/* `"calls": {"f": N, ...}, "returns": {"f": N, ...}` */
static inline void tallies_print(void) {
    for (int which = 0; which < 2; which++) {
        const char *comma = "";
        printf(which ? ", \"returns\": {" : "\"calls\": {");
        for (int i = 0; i < TALLIES; i++) {
            if (!tallies[i].function) continue;
            printf("%s\"%s\": %ld", comma, tallies[i].function,
                   which ? tallies[i].returns : tallies[i].calls);
            comma = ", ";
        }
        printf("}");
    }
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Busy for this long, in its own code rather than in the clock's. Inlined: its caller is who spins. */
static inline __attribute__((always_inline)) void spin_ns(uint64_t ns) {
    uint64_t from = now_ns();
    while (now_ns() - from < ns)
        for (volatile int i = 0; i < 200; i++) {
        }
}

/* Says where it has come to, and waits for a line on standard input. Gives whether there was one. */
static inline int meet(const char *where) {
    char line[16];
    printf("{\"at\": \"%s\", \"pid\": %d, \"now_ns\": %llu}\n", where, (int)getpid(),
           (unsigned long long)now_ns());
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

/* With `--wait` as the last argument, which it takes away: says that it is there, and waits. */
static inline int wait_if_told(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[argc - 1], "--wait")) return argc;
    if (!meet("start")) exit(3);
    argv[argc - 1] = NULL;
    return argc - 1;
}

/* The argument at `index`, or a default. */
static inline long number(int argc, char **argv, int index, long otherwise) {
    return argc > index ? strtol(argv[index], NULL, 10) : otherwise;
}

#endif
