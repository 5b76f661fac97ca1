// Sandboxes: forbids itself, and a child more strictly, all system calls but a few, as a browser or sshd
// does, and goes on calling the library. A call that is not allowed kills. Output: that it went on. Status 5.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static void work(const char *name) {
    char line[100];
    int numbers[100];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 100; i++)
            numbers[i] = i * 7919 % 101;
        qsort(numbers, 100, sizeof *numbers, by_value);
        int length = snprintf(line, sizeof line, "%s: %d %d\n", name, round, numbers[50]);
        if (write(1, line, (size_t)length) != length)
            syscall(SYS_exit, 98);
    }
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        work("strict");
        syscall(SYS_exit, 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 4)
        return 97;

    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_brk, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 96;
    work("filtered");
    _exit(5);
}
