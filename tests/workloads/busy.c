/* So many threads that never wait, in a session of their own: until standard input ends.
 *
 * Usage: busy THREADS [NICE COMMAND ...]. A session has its share of the processors, whatever nice values there are in
 * others. With a command: until that ends, which runs in the same session, beside threads of this nice value. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int value;

static void *spin(void *unused) {
    (void)unused;
    /* Of this thread alone. */
    if (value != 0 && setpriority(PRIO_PROCESS, 0, value) != 0)
        abort();
    for (volatile unsigned long turns = 0;; turns++) {
    }
    return NULL;
}

int main(int count, char **words) {
    char byte;
    int threads = count > 1 ? atoi(words[1]) : 1;
    int status = 1;
    value = count > 3 ? atoi(words[2]) : 0;
    setsid();
    for (int started = 0; started < threads; started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, spin, NULL) != 0)
            return 1;
    }
    puts("busy");
    fflush(stdout);
    if (count > 3) {
        pid_t command = fork();
        if (command == 0) {
            execvp(words[3], words + 3);
            _exit(127);
        }
        waitpid(command, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return read(0, &byte, 1) < 0;
}
