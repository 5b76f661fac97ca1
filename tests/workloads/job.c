/* A fixed amount of work under twenty frames, for measuring what sampling adds to it.
 *
 * Usage: job STEPS
 * Output: {"cpu_ns": NS, "wall_ns": NS, "from_ns": NS} of the work alone: thread CPU time, elapsed
 * time, and when it began (CLOCK_MONOTONIC). */
#include "burn.h"

FUNCTION uint64_t descend(int depth, uint64_t steps) {
    uint64_t result = depth ? descend(depth - 1, steps) : spin(steps, 73);
    NOT_A_TAIL_CALL();
    return result + 1;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    uint64_t slices = strtoull(argv[1], NULL, 10) / 100000;
    uint64_t from = clock_ns(CLOCK_MONOTONIC), cpu = thread_cpu_ns();
    volatile uint64_t sink;
    for (uint64_t i = 0; i < slices; i++) sink = descend(18, 100000);
    (void)sink;
    printf("{\"cpu_ns\": %llu, \"wall_ns\": %llu, \"from_ns\": %llu}\n",
           (unsigned long long)(thread_cpu_ns() - cpu),
           (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - from), (unsigned long long)from);
    return 0;
}
