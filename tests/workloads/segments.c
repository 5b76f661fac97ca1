/* Two functions in segments of the file whose addresses differ from their offsets by different amounts, as binaries
 * have that were laid out anew after they were linked (BOLT).
 *
 * Usage: segments MILLISECONDS, of processor time
 * Link with: -no-pie -Wl,--section-start=.far=0x900000 */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define FRAME __attribute__((noinline, noclone))

static uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

FRAME uint64_t near_step(uint64_t x) {
    for (int i = 0; i < 20000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    __asm__ volatile("" ::: "memory");
    return x;
}

__attribute__((section(".far"))) FRAME uint64_t far_step(uint64_t x) {
    for (int i = 0; i < 20000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    __asm__ volatile("" ::: "memory");
    return x;
}

int main(int argc, char **argv) {
    uint64_t end = strtoull(argc > 1 ? argv[1] : "1000", NULL, 10) * 1000000u;
    volatile uint64_t x = 1;
    while (cpu_ns() < end)
        x = far_step(near_step(x));
    return 0;
}
