/* What the C and C++ workloads share: CPU time that is burnt in one function and measured.
 *
 * A workload knows its own truth: the time of CLOCK_THREAD_CPUTIME_ID that each of its leaf
 * functions took, in nanoseconds. A leaf makes no calls and reads no clock; its caller reads the
 * clock before and after. Slices are of random length, so that no timer beats with them. */
#ifndef BURN_H
#define BURN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Own stack frame, own symbol, never merged with a twin, never cloned. */
#if defined(__clang__)
#define FUNCTION __attribute__((noinline))
#else
#define FUNCTION __attribute__((noinline, noclone, no_icf))
#endif

/* Keeps a call from becoming a jump: something is left to do after it. */
#define NOT_A_TAIL_CALL() __asm__ volatile("" ::: "memory")

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline uint64_t thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* `steps` dependent multiplications: the same time each, no memory. The function that it is in gets a
 * frame pointer, which GCC leaves out of a leaf even when told to omit none: without one, a walk
 * along frame pointers misses the leaf's caller. */
static inline __attribute__((always_inline)) uint64_t spin(uint64_t steps, uint64_t seed) {
    uint64_t x = seed | 1;
    __asm__ volatile("" ::"r"(__builtin_frame_address(0)));
    for (uint64_t i = 0; i < steps; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

FUNCTION static uint64_t calibration_loop(uint64_t steps) { return spin(steps, 99); }

/* Steps of `spin` that take about a millisecond here and now. */
static inline uint64_t steps_per_ms(void) {
    uint64_t steps = 100000, took;
    volatile uint64_t sink;
    for (;;) {
        uint64_t from = thread_cpu_ns();
        sink = calibration_loop(steps);
        (void)sink;
        took = thread_cpu_ns() - from;
        if (took > 2000000) break;
        steps *= 2;
    }
    return steps * 1000000 / took;
}

/* A slice of `nominal` steps, spread evenly over 0.5 to 1.5 of it. */
static inline uint64_t jitter(uint64_t nominal, uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return nominal / 2 + (*state >> 33) % (nominal + 1);
}

#endif
