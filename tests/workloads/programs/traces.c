// A debugger of its own program: starts it anew, as debuggers do, runs it to a breakpoint that it writes, step by
// step, and to its end. It is linked to lie where it says. Output: what it met. Status 0.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static int met(int number) {
    __asm__ volatile("");
    return number * 2;
}

static int debugged(void) {
    int sum = 0;
    for (int i = 0; i < 10; i++) {
        free(malloc(100));
        sum += met(i);
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc > 1) _exit(debugged());
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execl("/proc/self/exe", argv[0], "debugged", (char *)NULL);
        _exit(99);
    }
    int status, hits = 0, others = 0;
    // The trap behind the exec.
    waitpid(child, &status, 0);
    long before = ptrace(PTRACE_PEEKTEXT, child, (void *)met, NULL);
    long with = (before & ~0xffL) | 0xcc;
    ptrace(PTRACE_POKETEXT, child, (void *)met, (void *)with);
    ptrace(PTRACE_CONT, child, NULL, NULL);
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) != SIGTRAP) {
            others++;
            ptrace(PTRACE_CONT, child, NULL, (void *)(intptr_t)WSTOPSIG(status));
            continue;
        }
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, NULL, &registers);
        if (registers.rip != (uintptr_t)met + 1) {
            others++;
            ptrace(PTRACE_CONT, child, NULL, NULL);
            continue;
        }
        hits++;
        registers.rip--;
        ptrace(PTRACE_SETREGS, child, NULL, &registers);
        ptrace(PTRACE_POKETEXT, child, (void *)met, (void *)before);
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
        ptrace(PTRACE_POKETEXT, child, (void *)met, (void *)with);
        ptrace(PTRACE_CONT, child, NULL, NULL);
    }
    printf("%d hits, %d others, status %d\n", hits, others,
           WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    return 0;
}
