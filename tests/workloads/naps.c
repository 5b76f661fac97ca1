/* Works for a moment and sleeps for one, again and again, always below the same callers:
 * main -> a -> b -> nap -> nanosleep, and main -> a -> work.
 *
 *     naps COUNT NAP_MICROSECONDS WORK_MICROSECONDS
 */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noinline, noclone))

static volatile uint64_t sink;

static uint64_t used_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

FUNCTION uint64_t work(uint64_t turns) {
    uint64_t x = turns | 1;
    while (turns-- > 0) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    return x;
}

FUNCTION int nap(long ns) {
    struct timespec length = {0, ns};
    int result = nanosleep(&length, NULL);
    sink += (uint64_t)result;
    return result;
}

FUNCTION int b(long ns) {
    int result = nap(ns);
    sink += 2;
    return result;
}

FUNCTION int a(long ns, uint64_t work_ns) {
    uint64_t until = used_ns() + work_ns;
    while (work_ns > 0 && used_ns() < until)
        sink += work(20000);
    int result = b(ns);
    sink += 1;
    return result;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    long count = atol(argv[1]), ns = atol(argv[2]) * 1000;
    uint64_t work_ns = strtoull(argv[3], NULL, 10) * 1000;
    for (long turn = 0; turn < count; turn++)
        if (a(ns, work_ns) != 0)
            return 1;
    return 0;
}
