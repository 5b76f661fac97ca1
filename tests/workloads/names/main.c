/* Two functions of one name that burn about 25 and 75 % of the CPU time: `work` of a.c and of b.c.
 *
 * Usage: names MILLISECONDS
 * Output: {"a": NS, "b": NS}, of the thread's CPU time. */
#include "../burn.h"

#ifdef __cplusplus
extern "C" {
#endif
uint64_t call_a(uint64_t steps);
uint64_t call_b(uint64_t steps);
#ifdef __cplusplus
}
#endif

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000;
    uint64_t ms = steps_per_ms(), random = 42, begin = thread_cpu_ns(), took[2] = {0, 0};
    volatile uint64_t sink;
    while (thread_cpu_ns() - begin < wanted) {
        uint64_t from = thread_cpu_ns();
        sink = call_a(jitter(ms, &random));
        uint64_t between = thread_cpu_ns();
        sink = call_b(jitter(3 * ms, &random));
        took[0] += between - from;
        took[1] += thread_cpu_ns() - between;
    }
    (void)sink;
    printf("{\"a\": %llu, \"b\": %llu}\n", (unsigned long long)took[0], (unsigned long long)took[1]);
    return 0;
}
