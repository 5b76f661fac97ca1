/* Chains of calls that are known by name, for workloads in C and C++.
 *
 * Every function whose name begins with known_ is a frame of its own, whatever the optimisation. A
 * program says its chains before it runs them, a line for each, leaf first:
 *   chain: known_leaf known_plain_2 known_plain_1 main
 * At any instruction of the program, the known frames of a stack are the end of one of these lines.
 */

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FRAME __attribute__((noinline, noclone, used))
#ifdef __clang__
#undef FRAME
#define FRAME __attribute__((noinline, used))
#endif

/* Behind a call: it is no tail call. */
#define STAY __asm__ volatile("" ::: "memory")

/* Milliseconds of each chain in a round. */
#define TURN_MS 25

/* An argument that the compiler knows nothing about. */
static volatile uint64_t known_seed = 1;

/* CPU time of the process: a turn has as many samples, whatever else runs. */
static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* When the present turn is over. */
static uint64_t known_until;

#ifdef __cplusplus
extern "C" {
#endif

FRAME static uint64_t known_spin(uint64_t x)
{
    for (int i = 0; i < 2000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    STAY;
    return x;
}

/* Burns the rest of the turn. */
FRAME static uint64_t known_leaf(uint64_t x)
{
    while (now_ns() < known_until) {
        x ^= known_spin(x);
        STAY;
    }
    return x;
}

#ifdef __cplusplus
}
#endif

static inline void turn(void)
{
    known_until = now_ns() + TURN_MS * 1000000ull;
}

/* Says that all chains are said, and waits until its standard input ends. */
static inline void begin(void)
{
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

static inline void chain(const char *names)
{
    printf("chain: %s\n", names);
}
