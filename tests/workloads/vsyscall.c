/* Asks the kernel for the time by the page of code among its addresses, as programs did before there was a vDSO.
 *
 * Usage: vsyscall MILLISECONDS of CPU time. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noipa))
typedef long (*asked)(void *, void *);

FUNCTION static long asks_day(void) {
    long day[2];
    return ((asked)0xffffffffff600000)(day, 0) + day[0];
}

FUNCTION static long asks_time(void) {
    return ((asked)0xffffffffff600400)(0, 0) + 1;
}

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    uint64_t ns = (argc > 1 ? strtoull(argv[1], 0, 10) : 0) * 1000000;
    volatile long sum = 0;
    while (cpu_ns() < ns)
        for (int i = 0; i < 1000; i++)
            sum += asks_day() + asks_time();
    return 0;
}
