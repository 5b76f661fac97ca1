/* main -> outer -> middle -> inner -> leaf_a | leaf_b | leaf_c, which burn about 50, 30 and 20 % of
 * the CPU time.
 *
 * Usage: chain MILLISECONDS [--unlink] [--replace-with FILE] [--now-and-then | --seldom]
 *   --unlink        deletes its own executable before it burns anything
 *   --replace-with  puts FILE in its executable's place before it burns anything
 *   --now-and-then  burns for about 200 ms of each second: woken seldom, it is hardly ever seen on its way from a nap
 *   --seldom        burns for about 50 ms of each second, for who wants it to be there
 * Output: {"leaf_a": NS, "leaf_b": NS, "leaf_c": NS, "total": NS}, of the thread's CPU time. */
#include "burn.h"
#include <string.h>
#include <unistd.h>

static uint64_t took[3];

FUNCTION uint64_t leaf_a(uint64_t steps) { return spin(steps, 3); }
FUNCTION uint64_t leaf_b(uint64_t steps) { return spin(steps, 5); }
FUNCTION uint64_t leaf_c(uint64_t steps) { return spin(steps, 7); }

FUNCTION uint64_t inner(int leaf, uint64_t steps) {
    uint64_t from = thread_cpu_ns(), result;
    switch (leaf) {
    case 0: result = leaf_a(steps); break;
    case 1: result = leaf_b(steps); break;
    default: result = leaf_c(steps); break;
    }
    took[leaf] += thread_cpu_ns() - from;
    return result;
}

FUNCTION uint64_t middle(int leaf, uint64_t steps) {
    uint64_t result = inner(leaf, steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

FUNCTION uint64_t outer(int leaf, uint64_t steps) {
    uint64_t result = middle(leaf, steps);
    NOT_A_TAIL_CALL();
    return result + 2;
}

int main(int argc, char **argv) {
    static const uint64_t tenths[3] = {5, 3, 2};
    if (argc < 2) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000;
    char self[4096];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0) return 1;
    self[len] = 0;
    int burst = 0, rounds = 0;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--unlink") && unlink(self)) return 1;
        if (!strcmp(argv[i], "--replace-with") && ++i < argc && rename(argv[i], self)) return 1;
        if (!strcmp(argv[i], "--now-and-then")) burst = 20;
        if (!strcmp(argv[i], "--seldom")) burst = 5;
    }

    uint64_t ms = steps_per_ms(), random = 42, begin = thread_cpu_ns();
    volatile uint64_t sink;
    while (thread_cpu_ns() - begin < wanted) {
        for (int leaf = 0; leaf < 3; leaf++) sink = outer(leaf, jitter(tenths[leaf] * ms, &random));
        if (burst && ++rounds % burst == 0) usleep(1000000 - 10000 * (unsigned)burst);
    }
    (void)sink;
    printf("{\"leaf_a\": %llu, \"leaf_b\": %llu, \"leaf_c\": %llu, \"total\": %llu}\n",
           (unsigned long long)took[0], (unsigned long long)took[1], (unsigned long long)took[2],
           (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
