/* A just-in-time compiler with one product: machine code in anonymous memory that spins with a
 * frame pointer, called by `enter_jitted`, and /tmp/perf-PID.map that calls it `jitted_spin`.
 * x86-64 only.
 *
 * Usage: jit MILLISECONDS [MAP_NAME]   (MAP_NAME in place of `jitted_spin`)
 *        jit MILLISECONDS --again      (two functions, `old_one` and `old_three`, which run 1:3; after half of the time
 *                                       others are announced where they are, `new_one` and `new_three`)
 *        jit MILLISECONDS --twice      (two functions of one name, `work`, which run 1:3)
 * Output: {"jitted": NS, "total": NS} of CPU time, and of --again when the others were announced: {"again": NS} of
 * CLOCK_MONOTONIC; of --twice each function's: {"a": NS, "b": NS}. */
#include "burn.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t (*spinner)(uint64_t);

/* push rbp; mov rbp, rsp; mov rax, rdi; 1: dec rax; jnz 1b; pop rbp; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48,
                                     0xff, 0xc8, 0x75, 0xfb, 0x5d, 0xc3};

FUNCTION uint64_t enter_jitted(spinner function, uint64_t steps) {
    uint64_t result = function(steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

/* Announces two functions, beginning with `kind`. */
static int announce(FILE *map, const char *memory, const char *kind) {
    fprintf(map, "%lx %zx %s_one\n", (unsigned long)(memory + 64), sizeof code, kind);
    fprintf(map, "%lx %zx %s_three\n", (unsigned long)(memory + 128), sizeof code, kind);
    return fflush(map);
}

static int announced_again(FILE *map, const char *memory, uint64_t wanted) {
    uint64_t from = thread_cpu_ns(), at = 0;
    if (announce(map, memory, "old")) return 1;
    while (thread_cpu_ns() - from < wanted) {
        volatile uint64_t sink = enter_jitted((spinner)(void *)(memory + 64), 500000);
        sink = enter_jitted((spinner)(void *)(memory + 128), 1500000);
        (void)sink;
        if (!at && thread_cpu_ns() - from >= wanted / 2) {
            at = clock_ns(CLOCK_MONOTONIC);
            if (announce(map, memory, "new")) return 1;
        }
    }
    printf("{\"again\": %llu}\n", (unsigned long long)at);
    return 0;
}

static int of_one_name(FILE *map, const char *memory, uint64_t wanted) {
    uint64_t times[2] = {0, 0};
    for (int index = 0; index < 2; index++)
        fprintf(map, "%lx %zx work\n", (unsigned long)(memory + 64 * (index + 1)), sizeof code);
    if (fflush(map)) return 1;
    while (times[0] + times[1] < wanted)
        for (int index = 0; index < 2; index++) {
            uint64_t from = thread_cpu_ns();
            volatile uint64_t sink = enter_jitted((spinner)(void *)(memory + 64 * (index + 1)),
                                                  index ? 6000000 : 2000000);
            (void)sink;
            times[index] += thread_cpu_ns() - from;
        }
    printf("{\"a\": %llu, \"b\": %llu}\n", (unsigned long long)times[0],
           (unsigned long long)times[1]);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000, jitted = 0;
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    memcpy(memory + 64, code, sizeof code);
    memcpy(memory + 128, code, sizeof code);
    if (mprotect(memory, 4096, PROT_READ | PROT_EXEC)) return 1;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) return 1;
    if (argc > 2 && !strcmp(argv[2], "--again")) return announced_again(map, memory, wanted);
    if (argc > 2 && !strcmp(argv[2], "--twice")) return of_one_name(map, memory, wanted);
    fprintf(map, "%lx %zx %s\n", (unsigned long)(memory + 64), sizeof code,
            argc > 2 ? argv[2] : "jitted_spin");
    fclose(map);
    while (jitted < wanted) {
        /* Reading the clock is a system call, half of which counts as jitted: rarely, since one that somebody else
         * traces takes microseconds. */
        uint64_t from = thread_cpu_ns();
        volatile uint64_t sink = enter_jitted((spinner)(void *)(memory + 64), 20000000);
        (void)sink;
        jitted += thread_cpu_ns() - from;
    }
    printf("{\"jitted\": %llu, \"total\": %llu}\n", (unsigned long long)jitted,
           (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
