/* Children that burn CPU time one after the other, all with the process id of the first. The last has a name of its own:
 * last_life.
 *
 * Usage: reused COUNT MS
 * Output: {"reused": whether ids could be chosen, "lives": [[began, ended], ..], "cpu_ns": CPU time of all};
 * nanoseconds of CLOCK_MONOTONIC. */
#include "burn.h"
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

FUNCTION static void burn_for(uint64_t ns) {
    uint64_t until = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + ns;
    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < until) spin(10000, until);
    NOT_A_TAIL_CALL();
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = strtol(argv[1], NULL, 10);
    uint64_t ns = strtoull(argv[2], NULL, 10) * 1000000;
    pid_t wanted = 0;
    int reused = 1;
    printf("{\"lives\": [");
    for (long i = 0; i < count && reused; i++) {
        struct clone_args args;
        memset(&args, 0, sizeof args);
        args.exit_signal = SIGCHLD;
        if (wanted) {
            args.set_tid = (uint64_t)(uintptr_t)&wanted;
            args.set_tid_size = 1;
        }
        fflush(stdout);
        uint64_t began = clock_ns(CLOCK_MONOTONIC);
        pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
        if (pid == 0) {
            if (i == count - 1) prctl(PR_SET_NAME, "last_life");
            burn_for(ns);
            _exit(0);
        }
        if (pid < 0) {
            reused = 0;
            break;
        }
        wanted = pid;
        if (waitpid(pid, NULL, 0) != pid) return 1;
        printf("%s[%llu, %llu]", i ? ", " : "", (unsigned long long)began,
               (unsigned long long)clock_ns(CLOCK_MONOTONIC));
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    uint64_t us = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ull +
                  (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    printf("], \"reused\": %s, \"cpu_ns\": %llu}\n", reused ? "true" : "false",
           (unsigned long long)us * 1000);
    return 0;
}
