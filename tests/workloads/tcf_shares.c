/* Three named threads that burn CPU time in known shares until their input ends: `burner-0` and
 * `burner-1` in leaf_a, leaf_b and leaf_c below middle and their own outer_0 and outer_1, `reader`
 * mostly in the kernel, below read_zeros.
 *
 * Usage: tcf_shares [PAUSE_MS]
 *   With a pause of each thread after every turn, for who wants threads, but not all of the machine: of random
 *   length as well, around that. With one length the turns of a few ms keep step with a sampler's clock for dozens of
 *   turns, which hits the same leaf in all of them: shares were off by five standard deviations, perf's too.
 * First line of the output, before anything is burnt: {"tids": [..]}. For each line of the input one
 * with what was used so far, in nanoseconds of the threads' CPU time: {"threads": [{"leaf_a": NS,
 * "leaf_b": NS, "leaf_c": NS}, .., {"read_zeros": NS}]}. */
#include "burn.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BURNERS = 2, THREADS = BURNERS + 1, LEAVES = 3 };
static const uint64_t tenths[BURNERS][LEAVES] = {{5, 3, 2}, {1, 2, 7}};
static _Atomic uint64_t took[THREADS][LEAVES];
static _Atomic int stopped;
static int tids[THREADS];
static uint64_t ms;
static uint64_t pause_ns;
static pthread_barrier_t ready;

FUNCTION uint64_t leaf_a(uint64_t steps) { return spin(steps, 3); }
FUNCTION uint64_t leaf_b(uint64_t steps) { return spin(steps, 5); }
FUNCTION uint64_t leaf_c(uint64_t steps) { return spin(steps, 7); }

FUNCTION uint64_t middle(int thread, int leaf, uint64_t steps) {
    static uint64_t (*const functions[LEAVES])(uint64_t) = {leaf_a, leaf_b, leaf_c};
    uint64_t from = thread_cpu_ns(), result = functions[leaf](steps);
    took[thread][leaf] += thread_cpu_ns() - from;
    return result;
}

FUNCTION uint64_t outer_0(int leaf, uint64_t steps) {
    uint64_t result = middle(0, leaf, steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

FUNCTION uint64_t outer_1(int leaf, uint64_t steps) {
    uint64_t result = middle(1, leaf, steps);
    NOT_A_TAIL_CALL();
    return result + 2;
}

static inline void pause_if_told(uint64_t *random) {
    struct timespec pause = {0};
    if (!pause_ns) return;
    pause.tv_nsec = (long)jitter(pause_ns, random);
    nanosleep(&pause, NULL);
}

/* All leaves, beginning anywhere among them. On a busy machine a thread comes back from its pause when the kernel's clock ticks,
 * and a sampler's tick follows at the same distance for seconds: it would always find the same leaf. */
static inline __attribute__((always_inline)) void turn(int thread, uint64_t *random) {
    uint64_t whole = 10 * ms, at = jitter(whole, random) % whole, left = whole;
    while (left) {
        int leaf = 0;
        uint64_t end = tenths[thread][0] * ms;
        while (at >= end) end += tenths[thread][++leaf] * ms;
        uint64_t part = end - at < left ? end - at : left, steps = jitter(part, random);
        volatile uint64_t sink = thread ? outer_1(leaf, steps) : outer_0(leaf, steps);
        (void)sink;
        at = (at + part) % whole;
        left -= part;
    }
}

FUNCTION void *burn(void *argument) {
    int thread = (int)(long)argument;
    char name[16];
    uint64_t random = 1 + (uint64_t)thread;
    snprintf(name, sizeof name, "burner-%d", thread);
    pthread_setname_np(pthread_self(), name);
    tids[thread] = (int)syscall(SYS_gettid);
    pthread_barrier_wait(&ready);
    while (!stopped) {
        turn(thread, &random);
        pause_if_told(&random);
    }
    return NULL;
}

/* The C library's `read` has no frame pointer, and a walk along them would miss its caller. */
static inline __attribute__((always_inline)) long system_read(long file, void *memory, long size) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_read), "D"(file), "S"(memory), "d"(size)
                     : "rcx", "r11", "memory");
    return result;
#else
    return read((int)file, memory, (size_t)size);
#endif
}

FUNCTION long read_zeros(int file, char *memory, long size) {
    long result = 0;
    __asm__ volatile("" ::"r"(__builtin_frame_address(0)));
    for (int i = 0; i < 64; i++) result = system_read(file, memory, size);
    return result;
}

FUNCTION void *reader(void *argument) {
    static char memory[1 << 18];
    uint64_t random = 1 + BURNERS;
    int file = open("/dev/zero", O_RDONLY);
    (void)argument;
    pthread_setname_np(pthread_self(), "reader");
    tids[BURNERS] = (int)syscall(SYS_gettid);
    pthread_barrier_wait(&ready);
    while (!stopped) {
        uint64_t from = thread_cpu_ns();
        if (read_zeros(file, memory, sizeof memory) < 0) _exit(1);
        took[BURNERS][0] += thread_cpu_ns() - from;
        pause_if_told(&random);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    char line[16];
    if (argc > 1) pause_ns = strtoull(argv[1], NULL, 10) * 1000000;
    ms = steps_per_ms() / 10;
    pthread_barrier_init(&ready, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, i < BURNERS ? burn : reader, (void *)i)) return 1;
    pthread_barrier_wait(&ready);
    printf("{\"tids\": [%d, %d, %d]}\n", tids[0], tids[1], tids[2]);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("{\"threads\": [");
        for (int i = 0; i < BURNERS; i++)
            printf("{\"leaf_a\": %llu, \"leaf_b\": %llu, \"leaf_c\": %llu}, ",
                   (unsigned long long)took[i][0], (unsigned long long)took[i][1],
                   (unsigned long long)took[i][2]);
        printf("{\"read_zeros\": %llu}]}\n", (unsigned long long)took[BURNERS][0]);
        fflush(stdout);
    }
    stopped = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
