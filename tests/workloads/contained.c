/* main -> NAME_outer -> NAME_inner -> NAME_leaf, which burns CPU time; NAME is defined by whoever builds
 * it, so that two programs at the same path are told apart by the names of their functions alone.
 *
 * Usage: contained [--wait] CPU_MS [SLICE_US PAUSE_US]
 *   Burns so much CPU time, in slices of about SLICE_US with a pause after each; with --wait it begins
 *   at SIGUSR1. SIGTERM ends it early, two minutes do so too: the first process of a container has no
 *   other end.
 * First line of the output: {"name": NAME, "pid": PID}, as it sees itself. Last line:
 * {"name": NAME, "cpu_ns": NS, "leaf_ns": NS}, the process's CPU time and what of it was in NAME_leaf.
 * What the process used before main is not in it: it was the runtime's, until the exec. */
#include "burn.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define JOIN(a, b) a##b
#define CALLED(name, suffix) JOIN(name, suffix)
#define TEXT(name) #name
#define QUOTED(name) TEXT(name)

static volatile sig_atomic_t begun, ended;
static uint64_t leaf_ns;

static void heard(int signal) {
    if (signal == SIGUSR1)
        begun = 1;
    else
        ended = 1;
}

FUNCTION uint64_t CALLED(NAME, _leaf)(uint64_t steps) { return spin(steps, 3); }

FUNCTION uint64_t CALLED(NAME, _inner)(uint64_t steps) {
    uint64_t from = thread_cpu_ns(), result = CALLED(NAME, _leaf)(steps);
    leaf_ns += thread_cpu_ns() - from;
    return result;
}

FUNCTION uint64_t CALLED(NAME, _outer)(uint64_t steps) {
    uint64_t result = CALLED(NAME, _inner)(steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

int main(int argc, char **argv) {
    int waits = argc > 1 && !strcmp(argv[1], "--wait");
    argc -= waits, argv += waits;
    if (argc < 2) return 2;
    uint64_t begin = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t wanted_ns = strtoull(argv[1], NULL, 10) * 1000000;
    uint64_t slice_us = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    uint64_t pause_us = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    struct sigaction action = {.sa_handler = heard};
    sigset_t blocked, before;
    sigemptyset(&blocked);
    for (int i = 0; i < 3; i++) {
        sigaction((int[]){SIGTERM, SIGALRM, SIGUSR1}[i], &action, NULL);
        sigaddset(&blocked, (int[]){SIGTERM, SIGALRM, SIGUSR1}[i]);
    }
    alarm(120);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    printf("{\"name\": \"%s\", \"pid\": %d}\n", QUOTED(NAME), (int)getpid());
    fflush(stdout);
    while (waits && !begun && !ended) sigsuspend(&before);
    sigprocmask(SIG_SETMASK, &before, NULL);

    uint64_t slice = steps_per_ms() * slice_us / 1000, random = 42;
    volatile uint64_t sink;
    while (!ended && clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin < wanted_ns) {
        sink = CALLED(NAME, _outer)(jitter(slice, &random));
        if (pause_us) {
            struct timespec pause = {pause_us / 1000000, (long)(pause_us % 1000000) * 1000};
            nanosleep(&pause, NULL);
        }
    }
    (void)sink;
    printf("{\"name\": \"%s\", \"cpu_ns\": %llu, \"leaf_ns\": %llu}\n", QUOTED(NAME),
           (unsigned long long)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin), (unsigned long long)leaf_ns);
    return 0;
}
