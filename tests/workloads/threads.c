/* Four named threads, `worker-0` to `worker-3`, each in a function of its own, burning CPU time in
 * the proportion 1 : 2 : 3 : 4.
 *
 * Usage: threads MILLISECONDS (of the last thread).
 * First line of the output, before anything is burnt: {"tids": [..]}; it then waits for a line on
 * standard input. Last line: {"cpu_ns": [..]}, each thread's CPU time in thread_0 .. thread_3. */
#include "burn.h"
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 4 };
static uint64_t wanted_ns, ms, took[THREADS];
static int tids[THREADS];
static pthread_barrier_t ready, go;

FUNCTION uint64_t thread_0(uint64_t steps) { return spin(steps, 31); }
FUNCTION uint64_t thread_1(uint64_t steps) { return spin(steps, 37); }
FUNCTION uint64_t thread_2(uint64_t steps) { return spin(steps, 41); }
FUNCTION uint64_t thread_3(uint64_t steps) { return spin(steps, 43); }
static uint64_t (*const functions[THREADS])(uint64_t) = {thread_0, thread_1, thread_2, thread_3};

FUNCTION void *worker(void *argument) {
    long index = (long)argument;
    char name[16];
    uint64_t random = 1 + (uint64_t)index;
    snprintf(name, sizeof name, "worker-%ld", index);
    pthread_setname_np(pthread_self(), name);
    tids[index] = (int)syscall(SYS_gettid);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&go);
    while (took[index] < wanted_ns * (uint64_t)(index + 1) / THREADS) {
        uint64_t from = thread_cpu_ns();
        volatile uint64_t sink = functions[index](jitter(ms, &random));
        (void)sink;
        took[index] += thread_cpu_ns() - from;
    }
    return NULL;
}

static void print(const char *key, const unsigned long long *values) {
    printf("{\"%s\": [%llu, %llu, %llu, %llu]}\n", key, values[0], values[1], values[2], values[3]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    wanted_ns = strtoull(argv[1], NULL, 10) * 1000000;
    ms = steps_per_ms();
    pthread_t threads[THREADS];
    unsigned long long values[THREADS];
    char line[16];
    pthread_barrier_init(&ready, NULL, THREADS + 1);
    pthread_barrier_init(&go, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, worker, (void *)i)) return 1;
    pthread_barrier_wait(&ready);
    for (int i = 0; i < THREADS; i++) values[i] = (unsigned long long)tids[i];
    print("tids", values);
    if (!fgets(line, sizeof line, stdin)) return 1;
    pthread_barrier_wait(&go);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) values[i] = took[i];
    print("cpu_ns", values);
    return 0;
}
