/* Threads that begin together and sleep, each so often and so long. The clock of a sleep runs before the thread has left its
 * processor: who has to wait for that sleeps less. So they have a priority that nothing else has, where they may.
 *
 * Usage: sleepers THREADS TIMES MILLISECONDS */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

static long times, milliseconds;
static pthread_barrier_t begin;

static void *sleeper(void *argument) {
    pthread_barrier_wait(&begin);
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    for (long turn = 0; turn < times; turn++)
        nanosleep(&length, NULL);
    return argument;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    long count = atol(argv[1]);
    times = atol(argv[2]);
    milliseconds = atol(argv[3]);
    struct sched_param first = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &first);
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (threads == NULL || pthread_barrier_init(&begin, NULL, (unsigned)count + 1) != 0)
        return 1;
    for (long i = 0; i < count; i++)
        if (pthread_create(&threads[i], &small, sleeper, NULL) != 0)
            return 1;
    pthread_barrier_wait(&begin);
    for (long i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
