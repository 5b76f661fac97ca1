/* Threads that call one function as fast as they can.
 *
 * Usage: trace_crowd THREADS CALLS [--wait]. Each thread calls `crowded` CALLS times.
 * Output: {"calls": N, "took_ns": NS, "good": true}. */
#include "trace.h"
#include <pthread.h>

static long each;

TRACED long crowded(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

static void *thread(void *unused) {
    (void)unused;
    long sum = 0;
    for (long n = 0; n < each; n++) sum = crowded(sum);
    return (void *)(long)(sum == each);
}

int main(int argc, char **argv) {
    argc = wait_if_told(argc, argv);
    long count = number(argc, argv, 1, 8);
    each = number(argc, argv, 2, 1000);
    pthread_t threads[64];
    int good = count <= 64;
    if (!good) return 1;
    uint64_t from = now_ns();
    for (long i = 0; i < count; i++) good &= !pthread_create(&threads[i], 0, thread, 0);
    for (long i = 0; i < count; i++) {
        void *result = 0;
        good &= !pthread_join(threads[i], &result) && result;
    }
    printf("{\"calls\": %ld, \"took_ns\": %lld, \"good\": %s}\n", count * each,
           (long long)(now_ns() - from), good ? "true" : "false");
    return !good;
}
