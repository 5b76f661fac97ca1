// Processes: fork, vfork, posix_spawn, popen, daemons' double fork. Output: how each ended. Status 0.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int status_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int main(void) {
    int forked = 0, vforked = 0, spawned = 0, read = 0, twice = 0;
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(1000));
            _exit(i % 50);
        }
        forked += status_of(child);
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
            _exit(99);
        }
        vforked += status_of(child);
    }
    for (int i = 0; i < 20; i++) {
        char *arguments[] = {"sh", "-c", "exit 4", NULL};
        pid_t child;
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0)
            spawned += status_of(child);
    }
    for (int i = 0; i < 10; i++) {
        char line[100] = "";
        FILE *pipe = popen("echo 17", "r");
        if (pipe && fgets(line, sizeof line, pipe))
            read += atoi(line);
        if (pipe)
            read += pclose(pipe);
    }
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            pid_t inner = fork();
            if (inner == 0)
                exit(5);
            _exit(status_of(inner));
        }
        twice += status_of(child);
    }
    printf("%d %d %d %d %d\n", forked, vforked, spawned, read, twice);
    return 0;
}
