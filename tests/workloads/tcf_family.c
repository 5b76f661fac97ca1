/* A process that forks, executes and ends when it is told to; it and its children burn CPU time, each
 * in a function of its own.
 *
 * Usage: tcf_family
 * Lines of the input, each answered by one of the output:
 *   fork          a child that burns in `child_work`: {"pid": PID}
 *   reap          ends all children and waits for them: {"children": N}
 *   thread        a thread `helper` that burns in `thread_work`: {"tid": TID}
 *   name NAME     changes the name of the main thread: {}
 *   exec PROGRAM [ARGUMENT]   becomes another program; no answer
 *   end           ends; so does the end of the input
 * Between them the main thread burns in `parent_work`. */
#include "burn.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t ms;
static _Atomic int tid;

FUNCTION uint64_t parent_work(uint64_t steps) { return spin(steps, 11); }
FUNCTION uint64_t child_work(uint64_t steps) { return spin(steps, 13); }
FUNCTION uint64_t thread_work(uint64_t steps) { return spin(steps, 17); }

FUNCTION void *helper(void *argument) {
    volatile uint64_t sink;
    (void)argument;
    pthread_setname_np(pthread_self(), "helper");
    tid = (int)syscall(SYS_gettid);
    for (;;) sink = thread_work(ms);
    (void)sink;
    return NULL;
}

FUNCTION static void child(pid_t parent) {
    volatile uint64_t sink;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) sink = child_work(ms);
    (void)sink;
    _exit(0);
}

int main(void) {
    static pid_t children[64];
    size_t count = 0;
    char line[4096];
    pid_t self = getpid();
    ms = steps_per_ms();
    /* Lines are read one by one as they come: poll and stdio's buffer don't mix. */
    setvbuf(stdin, NULL, _IONBF, 0);
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        volatile uint64_t sink = parent_work(ms);
        (void)sink;
        if (poll(&input, 1, 0) <= 0) continue;
        if (!fgets(line, sizeof line, stdin)) break;
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "end")) break;
        if (!strcmp(line, "fork") && count < 64) {
            pid_t pid = fork();
            if (pid == 0) child(self);
            children[count++] = pid;
            printf("{\"pid\": %d}\n", (int)pid);
        } else if (!strcmp(line, "reap")) {
            for (size_t i = 0; i < count; i++) {
                kill(children[i], SIGKILL);
                waitpid(children[i], NULL, 0);
            }
            printf("{\"children\": %zu}\n", count);
            count = 0;
        } else if (!strcmp(line, "thread")) {
            pthread_t thread;
            tid = 0;
            if (pthread_create(&thread, NULL, helper, NULL)) return 1;
            while (!tid) usleep(1000);
            printf("{\"tid\": %d}\n", tid);
        } else if (!strncmp(line, "name ", 5)) {
            prctl(PR_SET_NAME, line + 5);
            printf("{}\n");
        } else if (!strncmp(line, "exec ", 5)) {
            char *program = strtok(line + 5, " "), *argument = strtok(NULL, " ");
            execl(program, program, argument, (char *)NULL);
            return 1;
        }
        fflush(stdout);
    }
    for (size_t i = 0; i < count; i++) kill(children[i], SIGKILL);
    return 0;
}
