/* Forks children at a rate; each burns a little CPU in `storm_child` and exits.
 *
 * Usage: fork_storm PER_SECOND SECONDS MICROSECONDS
 * Output: {"children": N, "cpu_ns": NS}: how many, and the user and system time of all of them and
 * of the parent (getrusage), in nanoseconds. */
#include "burn.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

FUNCTION uint64_t storm_child(uint64_t steps) { return spin(steps, 47); }

static uint64_t rusage_ns(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000ull +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000ull;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    uint64_t gap = 1000000000ull / strtoull(argv[1], NULL, 10);
    uint64_t duration = strtoull(argv[2], NULL, 10) * 1000000000ull;
    uint64_t steps = steps_per_ms() * strtoull(argv[3], NULL, 10) / 1000;
    uint64_t begin = clock_ns(CLOCK_MONOTONIC), next = begin, children = 0;
    while (next < begin + duration) {
        struct timespec until = {(time_t)(next / 1000000000ull), (long)(next % 1000000000ull)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        pid_t pid = fork();
        if (pid < 0) return 1;
        if (pid == 0) {
            volatile uint64_t sink = storm_child(steps);
            (void)sink;
            _exit(0);
        }
        children++;
        next += gap;
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
    while (wait(NULL) > 0) {}
    printf("{\"children\": %llu, \"cpu_ns\": %llu}\n", (unsigned long long)children,
           (unsigned long long)(rusage_ns(RUSAGE_CHILDREN) + rusage_ns(RUSAGE_SELF)));
    return 0;
}
