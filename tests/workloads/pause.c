// Counts without end, for tests of pausing: pause FILE PROCESSES THREADS [LIMIT]
//
// FILE holds PROCESSES * THREADS counters of 64 bits that all processes share; each thread adds to its
// own until it has reached LIMIT (0: for ever), then the program ends. With THREADS 0 it is a storm:
// the counter of each process counts children, which each live for a moment and start one more.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static volatile uint64_t *counters;
static uint64_t limit;

static void *count(void *slot) {
    volatile uint64_t *counter = slot;
    while (!limit || *counter < limit) ++*counter;
    return NULL;
}

static void storm(volatile uint64_t *counter) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
                _exit(0);
            }
            if (grandchild > 0) waitpid(grandchild, NULL, 0);
            _exit(0);
        }
        if (child > 0) waitpid(child, NULL, 0);
    }
}

static void work(int process, int threads) {
    if (threads == 0) storm(&counters[process]);
    pthread_t ids[threads];
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, count, (void *)&counters[process * threads + i]);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int processes = atoi(argv[2]), threads = atoi(argv[3]);
    if (argc > 4) limit = strtoull(argv[4], NULL, 10);
    int file = open(argv[1], O_RDWR);
    size_t size = 8 * processes * (threads ? threads : 1);
    if (file < 0 || ftruncate(file, size)) return 2;
    counters = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counters == MAP_FAILED) return 2;
    for (int process = 1; process < processes; process++) {
        pid_t parent = getpid();
        if (fork() == 0) {
            // A test that fails must not leave it behind.
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            work(process, threads);
            _exit(0);
        }
    }
    puts("running");
    fflush(stdout);
    work(0, threads);
    while (wait(NULL) > 0) {}
    return 0;
}
