/* One thread that hops between the first two processors, in `on_cpu_0` on the one and in `on_cpu_1`
 * on the other: the processor of a sample tells which function it must show.
 *
 * Usage: migrate MILLISECONDS
 * Output: {"on_cpu_0": NS, "on_cpu_1": NS, "hops": N}. Status 3 if there are not two processors. */
#include "burn.h"
#include <sched.h>

FUNCTION uint64_t on_cpu_0(uint64_t steps) { return spin(steps, 53); }
FUNCTION uint64_t on_cpu_1(uint64_t steps) { return spin(steps, 59); }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000, ms = steps_per_ms(), random = 7;
    uint64_t took[2] = {0, 0}, hops = 0;
    while (took[0] + took[1] < wanted) {
        int cpu = (int)(hops++ % 2);
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set)) return 3;
        uint64_t from = thread_cpu_ns(), steps = jitter(ms, &random);
        volatile uint64_t sink = cpu ? on_cpu_1(steps) : on_cpu_0(steps);
        (void)sink;
        took[cpu] += thread_cpu_ns() - from;
    }
    printf("{\"on_cpu_0\": %llu, \"on_cpu_1\": %llu, \"hops\": %llu}\n",
           (unsigned long long)took[0], (unsigned long long)took[1], (unsigned long long)hops);
    return 0;
}
