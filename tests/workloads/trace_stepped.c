/* Functions that begin with an instruction which moves the stack pointer, and which the kernel executes out of line
 * where a probe is: `sub $.., %rsp` of code without frame pointers.
 *
 * Usage: trace_stepped SECONDS */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noinline, noclone))

static volatile uint64_t sink;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

FUNCTION uint64_t stepped_inner(uint64_t seed) {
    volatile uint64_t kept[20];
    kept[seed % 20] = seed;
    return kept[seed % 20];
}

FUNCTION uint64_t stepped_middle(uint64_t seed) {
    volatile uint64_t kept = seed;
    return stepped_inner(seed + 1) ^ kept;
}

FUNCTION uint64_t stepped_outer(uint64_t seed) {
    volatile uint64_t kept = seed;
    return stepped_middle(seed + 1) ^ kept;
}

int main(int argc, char **argv) {
    double until = now() + (argc > 1 ? atof(argv[1]) : 1);
    while (now() < until)
        for (uint64_t turn = 0; turn < 100; turn++) sink += stepped_outer(turn);
    return 0;
}
