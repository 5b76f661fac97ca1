/* Programs to which a system call that they did not make themselves matters: newer kernels end a return probe
 * by one.
 *
 * Usage: trace_watched dispatch ROUNDS [--wait]  handles its system calls itself while it calls `guarded`
 *        trace_watched traces ROUNDS [--wait]    counts the system calls of a child that calls `guarded`
 * Output: {"calls": {..}, "returns": {..}, "foreign": system calls that are not its own, "good": true if there
 * are none}. In `traces` the calls are the child's. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "trace.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { tally_guarded };
static volatile char selector;
static volatile long foreign;

TRACED long guarded(long n) {
    ENTERED(guarded);
    n = n * 3 + 1;
    LEFT(guarded);
    return n;
}

static void handle(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    selector = 0;
    foreign++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -38;
}

static int dispatch(long rounds) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector)) return 0;
    for (long i = 0; i < rounds; i++) {
        selector = 1;
        guarded(i);
        selector = 0;
    }
    return 1;
}

/* The child makes one system call in each round: getppid. */
static int traces(long rounds) {
    pid_t child = fork();
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (long i = 0; i < rounds; i++) {
            guarded(i);
            syscall(SYS_getppid);
        }
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
    long own = 0;
    for (;;) {
        ptrace(PTRACE_SYSCALL, child, 0, 0);
        waitpid(child, &status, 0);
        if (WIFEXITED(status) || WIFSIGNALED(status)) break;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        /* The rest of raise, and the last one. */
        if (registers.orig_rax == SYS_getppid) own++;
        else if (registers.orig_rax > 320 && registers.orig_rax < 424) foreign++;
    }
    return WIFEXITED(status) && own == 2 * rounds;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    if (argc < 2) return 2;
    long rounds = number(argc, argv, 2, 1);
    int good = strcmp(argv[1], "traces") ? dispatch(rounds) : traces(rounds);
    printf("{");
    tallies_print();
    good = good && !foreign;
    printf(", \"foreign\": %ld, \"good\": %s}\n", foreign, good ? "true" : "false");
    return !good;
}
