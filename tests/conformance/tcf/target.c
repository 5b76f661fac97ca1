/* Burns time in a known stack: `target DEPTH`. Its thread "burner" is DEPTH calls deep, in `leaf`; a line on standard
 * input makes it run itself anew as `again`, with its first argument. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long count;

__attribute__((noinline)) static void leaf(void) {
    for (;;)
        count++; /* the line that is hot */
}

__attribute__((noinline)) static void deep(int more) {
    if (more > 1)
        deep(more - 1);
    else
        leaf();
    count--;
}

static void *burner(void *depth) {
    pthread_setname_np(pthread_self(), "burner");
    deep(atoi(depth) - 1);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    char line[16];
    if (argc > 1 && pthread_create(&thread, NULL, burner, argv[1]))
        return 1;
    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) && argc > 1)
        execl("/proc/self/exe", "again", "a b", "c", (char *)NULL);
    pause();
    return 0;
}
