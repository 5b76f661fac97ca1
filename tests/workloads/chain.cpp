/* The chain in C++: names that need demangling, a template, a method, a lambda's caller.
 *
 * main -> work::Outer::run -> work::middle<int> -> work::(inner) -> work::leaf_a | leaf_b | leaf_c
 * Usage and output as chain.c, without its options. */
#include "burn.h"

namespace work {
uint64_t took[3];

FUNCTION uint64_t leaf_a(uint64_t steps) { return spin(steps, 11); }
FUNCTION uint64_t leaf_b(uint64_t steps) { return spin(steps, 13); }
FUNCTION uint64_t leaf_c(uint64_t steps) { return spin(steps, 17); }

FUNCTION uint64_t inner(int leaf, uint64_t steps) {
    uint64_t from = thread_cpu_ns();
    uint64_t result = leaf == 0 ? leaf_a(steps) : leaf == 1 ? leaf_b(steps) : leaf_c(steps);
    took[leaf] += thread_cpu_ns() - from;
    return result;
}

template <typename T> FUNCTION T middle(int leaf, T steps) {
    T result = inner(leaf, steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

struct Outer {
    uint64_t calls = 0;
    FUNCTION uint64_t run(int leaf, uint64_t steps) {
        uint64_t result = middle<uint64_t>(leaf, steps);
        calls++;
        return result;
    }
};
} // namespace work

int main(int argc, char **argv) {
    static const uint64_t tenths[3] = {5, 3, 2};
    if (argc < 2) return 2;
    uint64_t wanted = strtoull(argv[1], nullptr, 10) * 1000000;
    uint64_t ms = steps_per_ms(), random = 42, begin = thread_cpu_ns();
    volatile uint64_t sink = 0;
    work::Outer outer;
    while (thread_cpu_ns() - begin < wanted)
        for (int leaf = 0; leaf < 3; leaf++) sink = outer.run(leaf, jitter(tenths[leaf] * ms, &random));
    (void)sink;
    printf("{\"leaf_a\": %llu, \"leaf_b\": %llu, \"leaf_c\": %llu, \"total\": %llu}\n",
           (unsigned long long)work::took[0], (unsigned long long)work::took[1],
           (unsigned long long)work::took[2],
           (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
