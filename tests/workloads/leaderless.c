/* A process whose first thread has ended: another one burns the CPU time.
 *
 * Usage: leaderless MILLISECONDS
 * Output: a line "ready" once the first thread has ended. */
#include "burn.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

FUNCTION uint64_t without_leader(uint64_t steps) { return spin(steps, 3); }

static void *run(void *milliseconds) {
    uint64_t wanted = strtoull(milliseconds, NULL, 10) * 1000000;
    char state[512], path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    for (;;) {
        FILE *file = fopen(path, "r");
        if (!file || !fgets(state, sizeof state, file)) return NULL;
        fclose(file);
        if (strstr(state, ") Z ")) break;
        usleep(1000);
    }
    puts("ready");
    fflush(stdout);
    uint64_t ms = steps_per_ms(), begin = thread_cpu_ns();
    volatile uint64_t sink;
    while (thread_cpu_ns() - begin < wanted) sink = without_leader(ms);
    (void)sink;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2 || pthread_create(&thread, NULL, run, argv[1])) return 2;
    pthread_exit(NULL);
}
