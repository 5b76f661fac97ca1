/* Two threads that call functions as often as they are told, and count that themselves.
 *
 * Usage: rdp_calls
 *   Each line of the input is a thread (0: the main one, 1: `second`) and a number N: that thread calls outer N
 *   times, which calls leaf twice. A number below 0: it spins in busy for that many milliseconds.
 * First line of the output: {"tids": [..]}. For each line of the input one with what that thread has called:
 * {"outer": N, "leaf": 2 N, "sum": what came of it}. */
#include "trace.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>

static sem_t wanted, done;
static int tids[2];
static long turns, result;

TRACED long leaf(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

TRACED long outer(long n, const char *why) {
    long first = leaf(n);
    NOT_A_TAIL_CALL();
    return leaf(first) + (why[0] == 'x');
}

TRACED void busy(long ms) {
    spin_ns((uint64_t)ms * 1000000);
    NOT_A_TAIL_CALL();
}

static void work(void) {
    result = 0;
    if (turns < 0) busy(-turns);
    for (long i = 0; i < turns; i++) result += outer(i, "because");
}

static void *second(void *nothing) {
    pthread_setname_np(pthread_self(), "second");
    tids[1] = (int)syscall(SYS_gettid);
    sem_post(&done);
    for (;;) {
        sem_wait(&wanted);
        work();
        sem_post(&done);
    }
    return nothing;
}

int main(void) {
    pthread_t thread;
    int which;
    sem_init(&wanted, 0, 0);
    sem_init(&done, 0, 0);
    if (pthread_create(&thread, NULL, second, NULL)) return 1;
    sem_wait(&done);
    tids[0] = (int)syscall(SYS_gettid);
    printf("{\"tids\": [%d, %d]}\n", tids[0], tids[1]);
    fflush(stdout);
    while (scanf("%d %ld", &which, &turns) == 2) {
        if (which) {
            sem_post(&wanted);
            sem_wait(&done);
        } else {
            work();
        }
        long calls = turns > 0 ? turns : 0;
        printf("{\"outer\": %ld, \"leaf\": %ld, \"sum\": %ld}\n", calls, 2 * calls, result);
        fflush(stdout);
    }
    return 0;
}
