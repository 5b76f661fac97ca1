/* So many threads that never wait, in a session of their own: until standard input ends.
 *
 * Usage: busy THREADS. A session has its share of the processors, whatever nice values there are in others. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *spin(void *unused) {
    (void)unused;
    for (volatile unsigned long turns = 0;; turns++) {
    }
    return NULL;
}

int main(int count, char **words) {
    char byte;
    int threads = count > 1 ? atoi(words[1]) : 1;
    setsid();
    for (int started = 0; started < threads; started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, spin, NULL) != 0)
            return 1;
    }
    puts("busy");
    fflush(stdout);
    return read(0, &byte, 1) < 0;
}
