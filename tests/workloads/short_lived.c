/* Runs a program many times, one after the other.
 *
 * Usage: short_lived COUNT PROGRAM
 * Output: {"pids": [..]}, the process id of each run. */
#include "burn.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = strtol(argv[1], NULL, 10);
    char *arguments[] = {argv[2], NULL};
    printf("{\"pids\": [");
    for (long i = 0; i < count; i++) {
        pid_t pid;
        if (posix_spawn(&pid, argv[2], NULL, NULL, arguments, environ)) return 1;
        if (waitpid(pid, NULL, 0) != pid) return 1;
        printf("%s%d", i ? ", " : "", (int)pid);
    }
    printf("]}\n");
    return 0;
}
