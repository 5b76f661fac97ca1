/* Threads that call, recurse and throw, and count who called whom.
 *
 * Usage: stream_threads THREADS ROUNDS STEP_US [FILE] [--wait]. Each thread is called `first-N`, and
 * `second-N` from the middle of its rounds on. Each round calls app::work, which calls
 *   app::recurse, one to five deep, the innermost of which calls app::leaf
 *   app::catches > app::passes > app::passes_on > app::fails, which throws in every third round
 * and then waits STEP_US. FILE gets the number of finished rounds, 64 bits, as they go by.
 * Output: {"calls": {F: N}, "returns": {F: N}, "pairs": {"F>G": N}, "throws": N, "good": true}. Of each
 * function, calls less returns were left by an exception; a pair's F is empty outermost. */
#include "trace.h"
#include <atomic>
#include <exception>
#include <fcntl.h>
#include <pthread.h>

enum { NONE, WORK, RECURSE, LEAF, CATCHES, PASSES, PASSES_ON, FAILS, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"",
                                             "app::work",
                                             "app::recurse",
                                             "app::leaf",
                                             "app::catches",
                                             "app::passes",
                                             "app::passes_on",
                                             "app::fails"};

static std::atomic<long> calls[FUNCTIONS], returns[FUNCTIONS], pairs[FUNCTIONS][FUNCTIONS];
static std::atomic<long> throws, caught;
static thread_local int current;
static long rounds, step_us;
static std::atomic<uint64_t> *finished;

/* One call, from its beginning to its end in whatever way. */
struct counted {
    int function, outer;
    __attribute__((always_inline)) explicit counted(int called) : function(called), outer(current) {
        calls[function]++;
        pairs[outer][function]++;
        current = function;
    }
    __attribute__((always_inline)) ~counted() {
        current = outer;
        if (!std::uncaught_exceptions()) returns[function]++;
    }
};

namespace app {
struct failure {
    long code;
};

TRACED long leaf(long n) {
    counted call(LEAF);
    return n ^ 1;
}

TRACED long recurse(long depth) {
    counted call(RECURSE);
    return depth > 1 ? recurse(depth - 1) + 1 : leaf(depth);
}

TRACED long fails(long n) {
    counted call(FAILS);
    if (n % 3 == 0) {
        throws++;
        throw failure{n};
    }
    return n;
}

TRACED long passes_on(long n) {
    counted call(PASSES_ON);
    return fails(n) + 1;
}

TRACED long passes(long n) {
    counted call(PASSES);
    return passes_on(n) + 1;
}

TRACED long catches(long n) {
    counted call(CATCHES);
    try {
        return passes(n);
    } catch (const failure &failed) {
        caught++;
        return failed.code + 2;
    }
}

TRACED bool work(long n) {
    counted call(WORK);
    long depth = n % 5 + 1;
    return recurse(depth) == depth - 1 && catches(n) == n + 2;
}
} // namespace app

static void *thread(void *argument) {
    long number = (long)argument;
    bool good = true;
    char name[16];
    for (long n = 0; n < rounds; n++) {
        if (n == 0 || n == rounds / 2) {
            snprintf(name, sizeof name, "%s-%ld", n ? "second" : "first", number);
            pthread_setname_np(pthread_self(), name);
        }
        good &= app::work(n);
        ++*finished;
        if (step_us) usleep((useconds_t)step_us);
    }
    return (void *)(long)good;
}

int main(int argc, char **argv) {
    argc = wait_if_told(argc, argv);
    long threads = number(argc, argv, 1, 2);
    rounds = number(argc, argv, 2, 100);
    step_us = number(argc, argv, 3, 0);
    int flags = MAP_SHARED, file = -1;
    if (argc > 4) {
        file = open(argv[4], O_RDWR | O_CREAT, 0644);
        if (file < 0 || ftruncate(file, 8)) return 2;
    } else
        flags |= MAP_ANONYMOUS;
    void *shared = mmap(NULL, 8, PROT_READ | PROT_WRITE, flags, file, 0);
    if (shared == MAP_FAILED || threads > 64) return 2;
    finished = (std::atomic<uint64_t> *)shared;
    pthread_t ids[64];
    for (long i = 0; i < threads; i++) pthread_create(&ids[i], NULL, thread, (void *)i);
    bool good = true;
    for (long i = 0; i < threads; i++) {
        void *result;
        pthread_join(ids[i], &result);
        good &= result != NULL;
    }
    good &= throws == caught;
    for (int which = 0; which < 2; which++) {
        printf(which ? "}, \"returns\": {" : "{\"calls\": {");
        for (int f = 1; f < FUNCTIONS; f++)
            printf("%s\"%s\": %ld", f > 1 ? ", " : "", names[f],
                   which ? returns[f].load() : calls[f].load());
    }
    printf("}, \"pairs\": {");
    const char *comma = "";
    for (int f = 0; f < FUNCTIONS; f++)
        for (int g = 1; g < FUNCTIONS; g++)
            if (pairs[f][g]) {
                printf("%s\"%s>%s\": %ld", comma, names[f], names[g], pairs[f][g].load());
                comma = ", ";
            }
    printf("}, \"throws\": %ld, \"good\": %s}\n", throws.load(), good ? "true" : "false");
    return !good;
}
