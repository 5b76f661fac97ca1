/* Five threads that are blocked for good: in a condition, a read, a poll (two of them), a pause.
 *
 * Output: "blocked" when all are. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int ends[2];

FUNCTION static void hang_cond(void) {
    pthread_mutex_lock(&mutex);
    for (;;) pthread_cond_wait(&condition, &mutex);
}
FUNCTION static void hang_read(void) {
    char byte;
    for (;;)
        if (read(ends[0], &byte, 1) == 1) abort();
}
FUNCTION static void hang_poll(void) {
    for (;;) poll(NULL, 0, -1);
}
FUNCTION static void hang_pause(void) {
    for (;;) pause();
}

static void *run(void *hang) {
    ((void (*)(void))hang)();
    return NULL;
}

/* Whether all threads sleep. */
static int sleeping(const pid_t *threads, int count) {
    for (int i = 0; i < count; i++) {
        char path[64], state = 0;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)threads[i]);
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
        if (file) fclose(file);
        if (state != 'S') return 0;
    }
    return 1;
}

static pid_t ids[4];
static void (*hangs[4])(void) = {hang_cond, hang_read, hang_poll, hang_pause};

static void *enter(void *number) {
    long i = (long)number;
    __atomic_store_n(&ids[i], gettid(), __ATOMIC_SEQ_CST);
    return run((void *)hangs[i]);
}

int main(void) {
    pthread_t thread;
    if (pipe(ends)) return 1;
    for (long i = 0; i < 4; i++)
        if (pthread_create(&thread, NULL, enter, (void *)i)) return 1;
    for (int i = 0; i < 4; i++)
        while (!__atomic_load_n(&ids[i], __ATOMIC_SEQ_CST)) usleep(1000);
    while (!sleeping(ids, 4)) usleep(1000);
    puts("blocked");
    fflush(stdout);
    hang_poll();
    return 0;
}
