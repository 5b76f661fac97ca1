/* A call that the dynamic loader binds anew each time: main -> lazy_loop -> lazy_call -> the loader.
 *
 * What is bound is undone by putting back what the table of the program's calls held at the
 * beginning. Built with lazy binding, and without making that table read-only.
 *
 * Usage: lazy MILLISECONDS of CPU time. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noinline, noclone))
#define STAY __asm__ volatile("" ::: "memory")
/* Entries before those of functions. */
#define RESERVED 3
#define MOST 64

extern ElfW(Dyn) _DYNAMIC[];
extern volatile ElfW(Addr) _GLOBAL_OFFSET_TABLE_[] __attribute__((visibility("hidden")));

static volatile ElfW(Addr) unbound[MOST];
static size_t count;

static uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

FUNCTION static long lazy_call(long number) {
    number = labs(number);
    STAY;
    return number + 1;
}

FUNCTION static long lazy_loop(long number) {
    for (int turn = 0; turn < 2000; turn++) {
        for (size_t at = 0; at < count; at++)
            _GLOBAL_OFFSET_TABLE_[RESERVED + at] = unbound[at];
        number = lazy_call(-number);
        STAY;
    }
    return number;
}

int main(int argc, char **argv) {
    for (ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_PLTRELSZ)
            count = entry->d_un.d_val / sizeof(ElfW(Rela));
    if (count == 0 || count > MOST)
        return 3;
    for (size_t at = 0; at < count; at++)
        unbound[at] = _GLOBAL_OFFSET_TABLE_[RESERVED + at];
    if (argc < 2)
        return 2;
    uint64_t end = cpu_ns() + strtoull(argv[1], NULL, 10) * 1000000u;
    long number = 1;
    while (cpu_ns() < end) {
        number = lazy_loop(number);
        STAY;
    }
    printf("%ld\n", number);
    return 0;
}
