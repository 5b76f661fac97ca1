/* Two threads that say themselves what is to be traced, and call functions as often as they are told.
 *
 * Usage: rdp_marks
 *   Each line of the input is a thread (0: the main one, 1: `second`), a word, and what it takes:
 *     start NAME TYPES   that thread begins a trace; `-` for none
 *     stop NAME          that thread ends one
 *     calls N            that thread calls outer N times, which calls leaf twice
 *     turns N            N times: begins a trace `turn` of name and depth, calls outer 3 times, ends it
 * First line of the output: {"tids": [..]}. For each line of the input one: {"watched": whether anybody looks}. */
#include "../../sdk/profiler.h"
#include "trace.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>

static sem_t wanted, done;
static int tids[2];
static char word[16], first[128], more[128];

TRACED long leaf(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

TRACED long outer(long n) {
    long first = leaf(n);
    NOT_A_TAIL_CALL();
    return leaf(first);
}

static const char *text(const char *text) {
    return strcmp(text, "-") ? text : NULL;
}

static void work(void) {
    long number = atol(first);
    if (!strcmp(word, "start")) profiler_start_trace(text(first), text(more));
    if (!strcmp(word, "stop")) profiler_stop_trace(text(first));
    if (!strcmp(word, "calls"))
        for (long i = 0; i < number; i++) outer(i);
    if (!strcmp(word, "turns"))
        for (long i = 0; i < number; i++) {
            profiler_start_trace("turn", "name,depth");
            for (long j = 0; j < 3; j++) outer(j);
            profiler_stop_trace("turn");
        }
}

static void *second(void *nothing) {
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
    char line[512];
    sem_init(&wanted, 0, 0);
    sem_init(&done, 0, 0);
    if (pthread_create(&thread, NULL, second, NULL)) return 1;
    sem_wait(&done);
    tids[0] = (int)syscall(SYS_gettid);
    printf("{\"tids\": [%d, %d]}\n", tids[0], tids[1]);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int which = 0;
        first[0] = more[0] = 0;
        sscanf(line, "%d %15s %127s %127s", &which, word, first, more);
        if (which) {
            sem_post(&wanted);
            sem_wait(&done);
        } else {
            work();
        }
        printf("{\"watched\": %s}\n", profiler_is_watched() ? "true" : "false");
        fflush(stdout);
    }
    return 0;
}
