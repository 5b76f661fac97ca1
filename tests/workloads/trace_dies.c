/* A program whose children die within traced functions, while others of it live on.
 *
 * Usage: trace_dies [--wait]; obeys lines of its input until that ends:
 *   call   step, 100 times: {"called": 100}
 *   fork   the same in a child: {"forked": PID}
 *   die    first, second, and fatal, which writes where nothing is, in a child that has lived for half a
 *          second: {"died": PID}
 * Output: those, and last {"calls": {..}, "returns": {..}, "good": true}. */
#include "trace.h"
#include <signal.h>
#include <sys/wait.h>

enum { tally_step, tally_first, tally_second, tally_fatal };
static volatile long sum;
static int *volatile nothing;

TRACED void step(void) {
    ENTERED(step);
    sum = sum + 1;
    LEFT(step);
}

TRACED void first(void) {
    ENTERED(first);
    sum = sum + 1;
    LEFT(first);
}

TRACED void second(void) {
    ENTERED(second);
    sum = sum + 1;
    LEFT(second);
}

TRACED void fatal(void) {
    ENTERED(fatal);
    *nothing = 1;
    LEFT(fatal);
}

static void call(void) {
    for (int i = 0; i < 100; i++) step();
}

int main(int argc, char **argv) {
    char line[16];
    int good = 1;
    tallies_begin();
    argc = wait_if_told(argc, argv);
    while (fgets(line, sizeof line, stdin)) {
        int dies = !strcmp(line, "die\n"), status = 0;
        pid_t child = 0;
        if (!strcmp(line, "call\n")) {
            call();
            printf("{\"called\": 100}\n");
        } else if ((child = fork()) == 0) {
            if (!dies) {
                call();
                _exit(0);
            }
            usleep(500000);
            first();
            second();
            fatal();
            _exit(1);
        } else {
            if (waitpid(child, &status, 0) != child) return 1;
            good &= dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV : status == 0;
            printf("{\"%s\": %d}\n", dies ? "died" : "forked", (int)child);
        }
        fflush(stdout);
    }
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
