// What C programs ask of their library, in shared and static forms and of other C libraries: signals,
// longjmp, sorting, threads, cancellation, environment, formatting, timers. Output: results of each, the
// same in every run. Ends with status 7.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile sig_atomic_t signals, ticks;

static void on_signal(int number) {
    (void)number;
    signals++;
}

static void on_tick(int number) {
    (void)number;
    ticks++;
}

static void on_fault(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static void *formats(void *sum) {
    char text[64];
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "%d %s %x", i, "text", i);
        *(long *)sum += (long)strlen(text);
    }
    return sum;
}

static void *waits(void *none) {
    for (;;)
        pause();
    return none;
}

static int by_value(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

int main(void) {
    signal(SIGUSR1, on_signal);
    for (int i = 0; i < 50; i++)
        raise(SIGUSR1);

    volatile int jumps = 0;
    for (volatile int i = 0; i < 50; i++)
        if (sigsetjmp(back, 1) == 0)
            siglongjmp(back, 1);
        else
            jumps++;
    struct sigaction fault = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &fault, NULL);
    if (sigsetjmp(back, 1) == 0)
        *(volatile int *)8 = 0;
    else
        jumps++;

    int numbers[500];
    for (int i = 0; i < 500; i++)
        numbers[i] = i * 7919 % 1009;
    qsort(numbers, 500, sizeof *numbers, by_value);
    int key = numbers[100];
    int *found = bsearch(&key, numbers, 500, sizeof *numbers, by_value);

    long sums[4] = {0};
    pthread_t threads[4], waiting;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, formats, &sums[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    void *end;
    pthread_create(&waiting, NULL, waits, NULL);
    pthread_cancel(waiting);
    pthread_join(waiting, &end);

    signal(SIGALRM, on_tick);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (ticks < 20)
        free(malloc(100 + (size_t)ticks));
    setitimer(ITIMER_REAL, &never, NULL);

    setenv("VARIABLE", "value", 1);
    printf("%d signals, %d jumps, %d, %ld, %ld %ld %ld %ld, %d, %s, %.3f\n", (int)signals, jumps,
           numbers[250], (long)(found - numbers), sums[0], sums[1], sums[2], sums[3],
           end == PTHREAD_CANCELED, getenv("VARIABLE"), strtod("2.5e3", NULL));
    return 7;
}
