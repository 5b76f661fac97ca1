/* A process that runs three programs one after the other, and whose thread has another name at its end.
 *
 * Usage: b_c1 (b_c2 and b_c3 are the same program). Each burns CPU time, of the thread's own: 150, 150 and 300 ms
 * under the name of its file, then the last 300 ms more as "renamed". Output: a line for each name: from when to when,
 * in ns of CLOCK_MONOTONIC, it had it for sure, and the CPU time that it burnt meanwhile. */
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../burn.h"

static void burn_ms(const char *name, uint64_t wanted) {
    uint64_t from = clock_ns(CLOCK_MONOTONIC), begin = thread_cpu_ns(), took;
    do {
        for (volatile uint64_t i = 0; i < 20000; i++) {
        }
        took = thread_cpu_ns() - begin;
    } while (took < wanted * 1000000);
    uint64_t to = clock_ns(CLOCK_MONOTONIC);
    printf("%s %llu %llu %llu\n", name, (unsigned long long)from, (unsigned long long)to, (unsigned long long)took);
    fflush(stdout);
}

int main(int argc, char **argv) {
    (void)argc;
    size_t last = strlen(argv[0]) - 1;
    const char *name = strrchr(argv[0], '/') + 1;
    if (argv[0][last] == '3') {
        burn_ms(name, 300);
        prctl(PR_SET_NAME, "renamed");
        burn_ms("renamed", 300);
        return 0;
    }
    burn_ms(name, 150);
    argv[0][last]++;
    execv(argv[0], argv);
    return 1;
}
