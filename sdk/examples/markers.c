/* A program that says itself what is to be traced: `profiler serve --rdp --trace 'main:work'`, a client that is attached
 * to its thread, and this.
 *
 * Each line of the input is a request; each is a trace of its own. Built by `cc -O2 -g markers.c`. */
#include "../profiler.h"
#include <stdio.h>
#include <unistd.h>

__attribute__((noinline)) long work(unsigned char byte) {
    __asm__ volatile("" ::: "memory");
    return byte;
}

int main(void) {
    char line[256];
    printf("%d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        profiler_start_trace("request", "name,time,depth");
        for (const char *at = line; *at && *at != '\n'; at++) sum += work((unsigned char)*at);
        profiler_stop_trace("request");
        printf("%ld %d\n", sum, profiler_is_watched());
        fflush(stdout);
    }
    return 0;
}
