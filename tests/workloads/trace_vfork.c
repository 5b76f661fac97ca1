/* Children: by vfork and exec, by vfork and exit, by fork without exec.
 *
 * Usage: trace_vfork ROUNDS [--wait]; each round
 *   parent_step twice; around_vfork, in which a child of vfork calls vfork_step and executes this
 *   program, which calls exec_step ten times; around_fork, in which a forked child calls fork_step
 *   ten times and ends by _exit within last_step
 * Output: {"calls": {..}, "returns": {..}, "good": true}, the sums of all processes. last_step is
 * never left.
 *
 * Return probes of the kernel count this right. */
#include "trace.h"
#include <sys/wait.h>

enum {
    tally_parent_step,
    tally_around_vfork,
    tally_vfork_step,
    tally_exec_step,
    tally_around_fork,
    tally_fork_step,
    tally_last_step
};

static char *self;

TRACED void parent_step(void) {
    ENTERED(parent_step);
    NOT_A_TAIL_CALL();
    LEFT(parent_step);
}

TRACED void vfork_step(void) {
    ENTERED(vfork_step);
    NOT_A_TAIL_CALL();
    LEFT(vfork_step);
}

TRACED void exec_step(void) {
    ENTERED(exec_step);
    NOT_A_TAIL_CALL();
    LEFT(exec_step);
}

TRACED void fork_step(void) {
    ENTERED(fork_step);
    NOT_A_TAIL_CALL();
    LEFT(fork_step);
}

TRACED void last_step(void) {
    ENTERED(last_step);
    _exit(7);
}

static int ends_with(pid_t child, int wanted) {
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == wanted;
}

TRACED int around_vfork(void) {
    ENTERED(around_vfork);
    pid_t child = vfork();
    if (!child) {
        vfork_step();
        execl(self, self, "child", (char *)NULL);
        _exit(9);
    }
    int good = ends_with(child, 7);
    LEFT(around_vfork);
    return good;
}

TRACED int around_fork(void) {
    ENTERED(around_fork);
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 10; i++) fork_step();
        last_step();
    }
    int good = ends_with(child, 7);
    LEFT(around_fork);
    return good;
}

int main(int argc, char **argv) {
    static char path[4096];
    tallies_begin();
    if (argc == 2 && !strcmp(argv[1], "child")) {
        for (int i = 0; i < 10; i++) exec_step();
        return 7;
    }
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 20);
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) return 1;
    self = path;
    int good = 1;
    for (long i = 0; i < rounds; i++) {
        parent_step();
        good &= around_vfork();
        parent_step();
        good &= around_fork();
    }
    /* The memory of an executed program is its own: by construction. */
    tallies[tally_exec_step] = (struct tally){"exec_step", 10 * rounds, 10 * rounds};
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
