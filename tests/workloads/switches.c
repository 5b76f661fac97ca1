/* Pairs of threads that pass a byte to and fro through pipes, all on one processor: each byte is a
 * switch, a wait and a wake-up. Says once a second nothing, and at the end how many switches a second
 * there were, and how much processor time each took: "SWITCHES_PER_SECOND NS_PER_SWITCH".
 *
 *     switches PROCESSOR PAIRS SWITCHES_PER_SECOND MILLISECONDS
 *
 * A rate of 0 is as fast as it goes. Otherwise pairs do what is due every two milliseconds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PAIRS = 64, PERIOD_NS = 2000000 };

struct pair {
    int there[2];
    int back[2];
    uint64_t turns;
};

static struct pair pairs[MOST_PAIRS];
static int count;
static uint64_t rate;
static uint64_t ends_ns;

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *call(void *argument) {
    struct pair *pair = argument;
    char byte = 0;
    uint64_t began = now_ns(CLOCK_MONOTONIC);
    for (;;) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (now >= ends_ns)
            break;
        /* A turn is two switches. */
        uint64_t due = rate == 0 ? pair->turns + 64
                                 : (uint64_t)((double)(now - began) * (double)rate / 2e9 / count);
        while (pair->turns < due) {
            if (write(pair->there[1], &byte, 1) != 1 || read(pair->back[0], &byte, 1) != 1)
                exit(1);
            pair->turns++;
        }
        if (rate != 0) {
            struct timespec length = {0, PERIOD_NS};
            nanosleep(&length, NULL);
        }
    }
    close(pair->there[1]);
    return NULL;
}

static void *answer(void *argument) {
    struct pair *pair = argument;
    char byte;
    while (read(pair->there[0], &byte, 1) == 1)
        if (write(pair->back[1], &byte, 1) != 1)
            exit(1);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(atoi(argv[1]), &only);
    if (sched_setaffinity(0, sizeof only, &only) != 0)
        return 1;
    count = atoi(argv[2]);
    if (count < 1 || count > MOST_PAIRS)
        return 2;
    rate = strtoull(argv[3], NULL, 10);
    uint64_t began = now_ns(CLOCK_MONOTONIC);
    ends_ns = began + strtoull(argv[4], NULL, 10) * 1000000;
    pthread_t threads[2 * MOST_PAIRS];
    for (int i = 0; i < count; i++) {
        if (pipe(pairs[i].there) != 0 || pipe(pairs[i].back) != 0)
            return 1;
        pthread_create(&threads[2 * i], NULL, call, &pairs[i]);
        pthread_create(&threads[2 * i + 1], NULL, answer, &pairs[i]);
    }
    uint64_t switches = 0;
    for (int i = 0; i < 2 * count; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        switches += 2 * pairs[i].turns;
    double seconds = (double)(now_ns(CLOCK_MONOTONIC) - began) / 1e9;
    double used = (double)now_ns(CLOCK_PROCESS_CPUTIME_ID);
    printf("%.0f %.1f\n", (double)switches / seconds, used / (double)switches);
    return 0;
}
