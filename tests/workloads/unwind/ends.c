/* Processes that end and programs that are replaced, with some memory each, so that giving it back takes
 * a while.
 *
 * Usage: ends MODE MILLISECONDS
 *   vforks   main -> fork_loop -> fork_call -> vfork; the child ends at once
 *   threads  main -> fork_loop -> fork_call -> the C library's creation of a thread, which ends at once
 *   spawns   the same with its start of a program: this one, which ends
 * MILLISECONDS are processor time of these two, and time of the others
 *   execs    children that run this program again, which ends */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))
#define STAY __asm__ volatile("" ::: "memory")
#define BYTES (16u << 20)

static clockid_t clock_id = CLOCK_MONOTONIC;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(clock_id, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

FUNCTION static void take_memory(void) {
    char *memory =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        _exit(4);
    madvise(memory, BYTES, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < BYTES; at += 4096)
        ((volatile char *)memory)[at] = 1;
}

extern char **environ;

static void *thread_start(void *argument) {
    return argument;
}

FUNCTION static int fork_call(char **arguments) {
    pid_t pid = 0;
    if (arguments[1][0] == 't') {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_start, NULL) == 0)
            pthread_join(thread, NULL);
        STAY;
        return 0;
    }
    if (arguments[1][0] == 's') {
        char *words[] = {arguments[0], "nothing", "0", NULL};
        if (posix_spawn(&pid, arguments[0], NULL, NULL, words, environ) != 0)
            _exit(6);
    } else {
        pid = vfork();
        if (pid == 0)
            _exit(0);
    }
    waitpid(pid, NULL, 0);
    STAY;
    return (int)pid;
}

FUNCTION static int fork_loop(uint64_t end, char **arguments) {
    int last = 0;
    while (now_ns() < end) {
        last ^= fork_call(arguments);
        STAY;
    }
    return last;
}

FUNCTION static void exec_call(char *program) {
    pid_t pid = fork();
    if (pid == 0) {
        take_memory();
        char *words[] = {program, "child", "0", NULL};
        execv(program, words);
        _exit(5);
    }
    waitpid(pid, NULL, 0);
    STAY;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    if (argv[1][0] == 't' || argv[1][0] == 's')
        clock_id = CLOCK_PROCESS_CPUTIME_ID;
    uint64_t end = now_ns() + strtoull(argv[2], NULL, 10) * 1000000u;
    if (strcmp(argv[1], "child") == 0) {
        take_memory();
        _exit(0);
    }
    if (strcmp(argv[1], "nothing") == 0)
        _exit(0);
    if (strcmp(argv[1], "execs") != 0)
        return fork_loop(end, argv) < 0;
    while (now_ns() < end)
        exec_call(argv[0]);
    return 0;
}
