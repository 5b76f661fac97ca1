/* A process that runs three programs one after the other, and whose thread has another name at its end.
 *
 * Usage: b_c1 (b_c2 and b_c3 are the same program). Each burns CPU time, of the thread's own: 150, 150 and 300 ms
 * under the name of its file, then the last 300 ms more as "renamed". Output: nothing. */
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../burn.h"

static void burn_ms(uint64_t wanted) {
    uint64_t begin = thread_cpu_ns();
    while (thread_cpu_ns() - begin < wanted * 1000000) {
        for (volatile uint64_t i = 0; i < 20000; i++) {
        }
    }
}

int main(int argc, char **argv) {
    (void)argc;
    size_t last = strlen(argv[0]) - 1;
    if (argv[0][last] == '3') {
        burn_ms(300);
        prctl(PR_SET_NAME, "renamed");
        burn_ms(300);
        return 0;
    }
    burn_ms(150);
    argv[0][last]++;
    execv(argv[0], argv);
    return 1;
}
