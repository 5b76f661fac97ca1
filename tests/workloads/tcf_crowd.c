/* Many processes of many threads that do nothing, each thread with a stack of 32 KiB.
 *
 * Usage: tcf_crowd PROCESSES THREADS (of each process, its first one included)
 * Output when all are there: {"pids": [..]}. Ends with its input. */
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *wait_for_ever(void *argument) {
    for (;;) pause();
    return argument;
}

static void process(long threads, int ready) {
    pthread_attr_t small;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, 32 << 10)) _exit(1);
    for (long i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, wait_for_ever, NULL)) {
            perror("tcf_crowd");
            _exit(1);
        }
    }
    if (write(ready, "", 1) != 1) _exit(1);
    wait_for_ever(NULL);
}

int main(int argc, char **argv) {
    int ready[2];
    char byte;
    if (argc < 3 || pipe(ready)) return 2;
    long processes = strtol(argv[1], NULL, 10), threads = strtol(argv[2], NULL, 10);
    pid_t *pids = calloc((size_t)processes, sizeof *pids);
    if (!pids) return 1;
    for (long i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] == 0) process(threads, ready[1]);
    }
    close(ready[1]);
    for (long i = 0; i < processes; i++)
        if (read(ready[0], &byte, 1) != 1) return 1;
    printf("{\"pids\": [");
    for (long i = 0; i < processes; i++) printf("%s%d", i ? ", " : "", (int)pids[i]);
    printf("]}\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    for (long i = 0; i < processes; i++) kill(pids[i], SIGKILL);
    return 0;
}
