/* Threads that call one function, `kind_nop5`, as fast as they can.
 *
 * Usage: trace_crowd THREADS CALLS [--wait]. Each thread calls it CALLS times.
 * Output: {"calls": N, "took_ns": NS, "cpu_ns": NS, "good": true}; the CPU time is that of the process. */
#include "trace.h"
#include "trace_kinds.h"
#include <pthread.h>

static long each;

static void *thread(void *unused) {
    (void)unused;
    long sum = 0;
    for (long n = 0; n < each; n++) sum = kind_nop5(sum);
    return (void *)(long)(sum == each);
}

static uint64_t cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000ull + (uint64_t)used.tv_nsec;
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
    printf("{\"calls\": %ld, \"took_ns\": %llu, \"cpu_ns\": %llu, \"good\": %s}\n", count * each,
           (unsigned long long)(now_ns() - from), (unsigned long long)cpu_ns(),
           good ? "true" : "false");
    return !good;
}
