/* Threads that end inside traced functions, and a process that does.
 *
 * Usage: trace_cancel ROUNDS [--wait]; each round four threads
 *   cancel_outer > cancel_wait, cancelled while it waits
 *   exit_outer > exit_inner, which calls pthread_exit
 *   syscall_outer, which ends its thread by the system call, without unwinding
 *   plain_outer, which returns
 * and at the end main > finish, which calls exit(5).
 * exit_outer and cancel_outer have something to clean up, which the unwinding of pthread_exit and
 * pthread_cancel does (-fexceptions).
 * Output: {"calls": {..}, "returns": {..}, "good": true}; what was not returned from was terminated.
 *
 * Under return probes of the kernel the unwinding ends at the first traced frame: exit_outer and
 * cancel_outer are never cleaned up ("good": false, status 1), no mutex of theirs would be unlocked. */
#include "trace.h"
#include <pthread.h>
#include <sys/syscall.h>

enum {
    tally_cancel_outer,
    tally_cancel_wait,
    tally_exit_outer,
    tally_exit_inner,
    tally_syscall_outer,
    tally_plain_outer,
    tally_finish
};

static int waits, cleaned;

static void clean_up(int **count) { ++**count; }
#define CLEANED_UP() __attribute__((cleanup(clean_up), unused)) int *count = &cleaned

TRACED void cancel_wait(void) {
    ENTERED(cancel_wait);
    __atomic_store_n(&waits, 1, __ATOMIC_RELEASE);
    for (;;) usleep(100000);
}

TRACED void *cancel_outer(void *none) {
    ENTERED(cancel_outer);
    CLEANED_UP();
    cancel_wait();
    LEFT(cancel_outer);
    return none;
}

TRACED void exit_inner(void *value) {
    ENTERED(exit_inner);
    pthread_exit(value);
}

TRACED void *exit_outer(void *value) {
    ENTERED(exit_outer);
    CLEANED_UP();
    exit_inner(value);
    LEFT(exit_outer);
    return NULL;
}

TRACED void *syscall_outer(void *none) {
    ENTERED(syscall_outer);
    syscall(SYS_exit, 0);
    LEFT(syscall_outer);
    return none;
}

TRACED void *plain_outer(void *value) {
    ENTERED(plain_outer);
    LEFT(plain_outer);
    return value;
}

TRACED void finish(int good) {
    ENTERED(finish);
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    exit(good ? 5 : 1);
}

static void *result_of(void *(*function)(void *), void *argument, int cancel) {
    pthread_t thread;
    void *result = NULL;
    __atomic_store_n(&waits, 0, __ATOMIC_RELAXED);
    if (pthread_create(&thread, NULL, function, argument)) abort();
    if (cancel) {
        while (!__atomic_load_n(&waits, __ATOMIC_ACQUIRE)) usleep(100);
        pthread_cancel(thread);
    }
    pthread_join(thread, &result);
    return result;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 20);
    int good = 1, token;
    for (long i = 0; i < rounds; i++) {
        good &= result_of(cancel_outer, NULL, 1) == PTHREAD_CANCELED;
        good &= result_of(exit_outer, &token, 0) == &token;
        result_of(syscall_outer, NULL, 0);
        good &= result_of(plain_outer, &token, 0) == &token;
    }
    finish(good && cleaned == 2 * rounds);
}
