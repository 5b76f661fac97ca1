/* A program that runs in a container and knows its calls, statically linked: nothing else is there.
 *
 * Usage: trace_container CGROUP IMAGE SPACE PROGRAM ARGUMENT | serve | N
 *   CGROUP ..: enters a cgroup (the file cgroup.procs); in a mount namespace of its own makes an
 *   overlay of the folder IMAGE, with what is written to in memory at the folder SPACE, its root; waits
 *   for a line if ARGUMENT begins with "-", which it takes away; runs PROGRAM. Status 77: it can't.
 *   serve: obeys lines: "call N": container_step N times; "run N": PROGRAM N in a child of its own;
 *   "fork N": a child that calls container_step N times; after each: {"done": PID, "calls": N}
 *   N: container_step N times
 * Output, of serve: first {"pid": PID, "step": ADDRESS} */
#include "trace.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Of a build with another one: the function is elsewhere, and has another length. */
#ifdef OTHER
TRACED long container_other(long n) {
    for (volatile long i = 0; i < n; i++) NOT_A_TAIL_CALL();
    return n ^ 3;
}
#endif

TRACED long container_step(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

static void step(long times) {
    volatile long sink = 0;
    for (long i = 0; i < times; i++) sink = container_step(sink);
}

static int unable(const char *what) {
    perror(what);
    return 77;
}

static int enter(char **argv) {
    const char *image = argv[2], *space = argv[3];
    char pid[16], options[1024];
    int procs = open(argv[1], O_WRONLY);
    int len = snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (procs < 0 || write(procs, pid, (size_t)len) != len) return unable(argv[1]);
    close(procs);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return unable("unshare");
    if (mount("none", space, "tmpfs", 0, NULL) || chdir(space)) return unable(space);
    if (mkdir("up", 0755) || mkdir("work", 0755) || mkdir("root", 0755)) return unable("mkdir");
    len = snprintf(options, sizeof options, "lowerdir=%s,upperdir=up,workdir=work", image);
    if (len < 0 || (size_t)len >= sizeof options) return 77;
    if (mount("none", "root", "overlay", 0, options)) return unable("overlay");
    if (chroot("root") || chdir("/")) return unable("chroot");
    if (argv[5] && *argv[5] == '-') {
        char line[8];
        if (read(0, line, 1) < 0) return 77;
        argv[5]++;
    }
    execv(argv[4], argv + 4);
    return unable(argv[4]);
}

int main(int argc, char **argv) {
    if (argc > 3) return enter(argv);
    if (argc < 2) return 2;
    if (strcmp(argv[1], "serve")) return step(strtol(argv[1], NULL, 10)), 0;
    printf("{\"pid\": %d, \"step\": %lu}\n", (int)getpid(), (unsigned long)container_step);
    fflush(stdout);
    char line[64], word[16], number[32];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%15s %31s", word, number) != 2) return 2;
        pid_t child = getpid();
        if (!strcmp(word, "call")) {
            step(strtol(number, NULL, 10));
        } else {
            child = fork();
            if (child == 0) {
                if (!strcmp(word, "run")) execl("/app", "/app", number, (char *)NULL);
                step(strtol(number, NULL, 10));
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        printf("{\"done\": %d, \"calls\": %s}\n", (int)child, number);
        fflush(stdout);
    }
    return 0;
}
