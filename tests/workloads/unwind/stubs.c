/* Calls a function of the C library that does next to nothing, so that a good part of the time goes into the stub that
 * leads there: main -> stub_loop -> the stub.
 *
 * Usage: stubs MILLISECONDS of CPU time. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noinline, noclone))

static uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

FUNCTION long stub_loop(uint64_t until) {
    long sum = 0;
    while (cpu_ns() < until)
        for (int i = 0; i < 20000; i++) sum += labs(sum - i);
    return sum;
}

int main(int count, char **arguments) {
    uint64_t ms = count > 1 ? strtoull(arguments[1], NULL, 10) : 1000;
    volatile long sum = stub_loop(ms * 1000000);
    return sum == 1;
}
