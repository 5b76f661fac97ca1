/* A call that lasts, in which a short one is made again and again.
 *
 * Usage: trace_long MS [stubborn | prompt] [--wait]
 *   outer(MS)  lasts so many milliseconds, or until SIGUSR1, in which it calls, every half of a
 *              millisecond,
 *   inner(n)   with n = 0, 1, 2 ..; it returns 3 * n + 1
 * With `stubborn` it does not care for SIGINT. With `prompt` (root's) whatever else runs comes after it, so
 * that it is never long between two calls. It exits with status 7, so that it shows whose status is
 * told.
 * Output: {"calls": {..}, "returns": {..}, "inner": [[before, after], ..], "good": true}: between which
 * times each call of `inner` was made. */
#include <sched.h>
#include <signal.h>

#include "trace.h"

enum { tally_outer, tally_inner };
enum { MOST = 100000 };

static volatile sig_atomic_t is_over;

static void end(int signal) {
    (void)signal;
    is_over = 1;
}

static struct {
    uint64_t before, after;
} when[MOST];

TRACED long inner(long n) {
    ENTERED(inner);
    LEFT(inner);
    return 3 * n + 1;
}

TRACED long outer(long ms) {
    ENTERED(outer);
    uint64_t until = now_ns() + (uint64_t)ms * 1000000;
    struct timespec pause = {0, 500000};
    long n = 0, good = 1;
    while (!is_over && now_ns() < until && n < MOST) {
        when[n].before = now_ns();
        good &= inner(n) == 3 * n + 1;
        when[n].after = now_ns();
        n++;
        nanosleep(&pause, NULL);
    }
    LEFT(outer);
    return good ? n : -1;
}

int main(int argc, char **argv) {
    tallies_begin();
    signal(SIGUSR1, end);
    argc = wait_if_told(argc, argv);
    if (argc > 2 && !strcmp(argv[2], "stubborn")) signal(SIGINT, SIG_IGN);
    struct sched_param first = {.sched_priority = 1};
    if (argc > 2 && !strcmp(argv[2], "prompt") && sched_setscheduler(0, SCHED_RR, &first)) return 4;
    long calls = outer(number(argc, argv, 1, 1000));
    printf("{");
    tallies_print();
    printf(", \"inner\": [");
    for (long n = 0; n < calls; n++)
        printf("%s[%llu, %llu]", n ? ", " : "", (unsigned long long)when[n].before,
               (unsigned long long)when[n].after);
    printf("], \"good\": %s}\n", calls >= 0 ? "true" : "false");
    return 7;
}
