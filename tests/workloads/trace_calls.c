/* Known numbers of calls of functions of every kind, known nesting, known durations.
 *
 * Usage: trace_calls N [--wait]
 *   every kind of trace_kinds.h, N times
 *   recurse: chains of depth 5, 63, 64, 65 and 200; even_step / odd_step: each other, 100 deep
 *   pick: a switch with a jump table; rare: a part in .text.unlikely; many_ways: several returns
 *   walk_outer > walk_middle > walk_leaf, with times: see below
 *   thread_outer > thread_leaf: four threads, N times each
 * Output: {"calls": {..}, "returns": {..}, "threads": {TID: N, ..}, "walk": [[..], ..], "good": true}.
 * Each of "walk" is one call of walk_*: function, then the clock before the call, at its beginning,
 * at its end, and after the call. */
#include "trace.h"
#include "trace_kinds.h"
#include <pthread.h>
#include <sys/syscall.h>

enum {
    tally_recurse,
    tally_even_step,
    tally_odd_step,
    tally_pick,
    tally_rare,
    tally_many_ways,
    tally_variadic,
    tally_big_frame,
    tally_walk_outer,
    tally_walk_middle,
    tally_walk_leaf,
    tally_thread_outer,
    tally_thread_leaf,
    tally_kinds /* and as many as there are */
};

TRACED long recurse(long depth) {
    ENTERED(recurse);
    long below = depth > 1 ? recurse(depth - 1) : 0;
    NOT_A_TAIL_CALL();
    LEFT(recurse);
    return below + 1;
}

TRACED long odd_step(long left);

TRACED long even_step(long left) {
    ENTERED(even_step);
    long below = left ? odd_step(left - 1) : 0;
    NOT_A_TAIL_CALL();
    LEFT(even_step);
    return below + 1;
}

TRACED long odd_step(long left) {
    ENTERED(odd_step);
    long below = left ? even_step(left - 1) : 0;
    NOT_A_TAIL_CALL();
    LEFT(odd_step);
    return below + 1;
}

/* Cases that do too different things for a table of results: a table of jumps. */
TRACED long pick(long which, long *memory) {
    ENTERED(pick);
    LEFT(pick);
    switch (which) {
    case 0: return *memory += 3;
    case 1: *memory ^= 5; return 1;
    case 2: return *memory * 7;
    case 3: *memory = -*memory; return 4;
    case 4: return (*memory)--;
    case 5: *memory <<= 1; *memory %= 9973; return *memory;
    case 6: return *memory | 1;
    case 7: *memory >>= 1; return 2;
    case 8: return *memory & 0xff;
    default: return 0;
    }
}

__attribute__((cold, noinline)) static void complain(long *memory) { *memory += 1000; }

TRACED long rare(long n, long *memory) {
    ENTERED(rare);
    LEFT(rare);
    if (__builtin_expect(n % 10 == 0, 0)) {
        complain(memory);
        if (*memory > 1000000) {
            *memory = 0;
            return -1;
        }
        return *memory;
    }
    return n;
}

TRACED long many_ways(long n) {
    ENTERED(many_ways);
    LEFT(many_ways);
    if (n % 7 == 0) return n * 3;
    if (n % 5 == 0) return recurse(1) + n;
    for (long i = 2; i * i <= n; i++)
        if (n % i == 0) return i;
    return n;
}

TRACED long variadic(int count, ...) {
    ENTERED(variadic);
    LEFT(variadic);
    __builtin_va_list list;
    __builtin_va_start(list, count);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += __builtin_va_arg(list, double);
    __builtin_va_end(list);
    return (long)sum;
}

TRACED long big_frame(long n) {
    ENTERED(big_frame);
    volatile char room[20000];
    room[n % 20000] = (char)n;
    LEFT(big_frame);
    return room[n % 20000] & 1;
}

struct walk {
    const char *function;
    uint64_t before, begun, ended, after;
};
enum { WALKS = 7 * 20 };
static struct walk walks[WALKS];
static int walked;

#define WALK(function, call)                                                                       \
    do {                                                                                           \
        struct walk *w = &walks[walked++];                                                         \
        w->before = now_ns();                                                                      \
        call;                                                                                      \
        w->after = now_ns();                                                                       \
    } while (0)

TRACED void walk_leaf(struct walk *w, long us) {
    w->begun = now_ns();
    w->function = "walk_leaf";
    ENTERED(walk_leaf);
    spin_ns((uint64_t)us * 1000);
    LEFT(walk_leaf);
    w->ended = now_ns();
}

TRACED void walk_middle(struct walk *w, long us) {
    w->begun = now_ns();
    w->function = "walk_middle";
    ENTERED(walk_middle);
    WALK(walk_leaf, walk_leaf(w, us));
    spin_ns((uint64_t)us * 1000);
    WALK(walk_leaf, walk_leaf(w, 2 * us));
    LEFT(walk_middle);
    w->ended = now_ns();
}

TRACED void walk_outer(struct walk *w, long us) {
    w->begun = now_ns();
    w->function = "walk_outer";
    ENTERED(walk_outer);
    WALK(walk_middle, walk_middle(w, us));
    spin_ns((uint64_t)us * 2000);
    WALK(walk_middle, walk_middle(w, us));
    LEFT(walk_outer);
    w->ended = now_ns();
}

enum { THREADS = 4 };
static long rounds;
static int tids[THREADS];

TRACED long thread_leaf(long n) {
    ENTERED(thread_leaf);
    LEFT(thread_leaf);
    return n ^ 1;
}

TRACED long thread_outer(long n) {
    ENTERED(thread_outer);
    long result = thread_leaf(n) + thread_leaf(n + 1);
    LEFT(thread_outer);
    return result;
}

static void *thread(void *argument) {
    tids[(long)argument] = (int)syscall(SYS_gettid);
    volatile long sink = 0;
    for (long i = 0; i < rounds; i++) sink = sink + thread_outer(i);
    return NULL;
}

static int run_kinds(void) {
    int good = 1;
    for (int k = 0; k < KINDS; k++) {
        struct tally *tally = &tallies[tally_kinds + k];
        tally->function = kinds[k].name;
        int void_result = !strcmp(kinds[k].name, "kind_ret") || !strcmp(kinds[k].name, "kind_rep_ret");
        for (long i = 0; i < rounds; i++) {
            kind_again = 1;
            long result = kinds[k].function(i);
            good &= void_result || result == i + 1;
        }
        tally->calls = tally->returns = rounds;
    }
    /* What the kinds themselves call or jump to. kind_tail_branch does so for odd numbers. */
    tallies[tally_kinds + KINDS] = (struct tally){"kind_helper", rounds, rounds};
    long tails = 3 * rounds + rounds / 2;
    tallies[tally_kinds + KINDS + 1] = (struct tally){"kind_tail_target", tails, tails};
    return good;
}

int main(int argc, char **argv) {
    _Static_assert(tally_kinds + KINDS + 2 <= TALLIES, "too many functions");
    tallies_begin();
    argc = wait_if_told(argc, argv);
    rounds = number(argc, argv, 1, 100);
    int good = run_kinds();

    static const long depths[] = {5, 63, 64, 65, 200};
    for (int i = 0; i < 5; i++) good &= recurse(depths[i]) == depths[i];
    good &= even_step(100) == 101;
    long memory = 1;
    volatile long sink = 0;
    for (long i = 0; i < rounds; i++) {
        sink = sink + pick(i % 10, &memory) + rare(i, &memory) + many_ways(i);
        good &= variadic(3, 1.0, 2.0, (double)i) == 3 + i;
        good &= big_frame(i) == (i & 1);
    }
    while (walked < WALKS) WALK(walk_outer, walk_outer(w, 200));

    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)i)) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    printf("{");
    tallies_print();
    printf(", \"threads\": {");
    for (int i = 0; i < THREADS; i++) printf("%s\"%d\": %ld", i ? ", " : "", tids[i], rounds);
    printf("}, \"walk\": [");
    for (int i = 0; i < walked; i++)
        printf("%s[\"%s\", %llu, %llu, %llu, %llu]", i ? ", " : "", walks[i].function,
               (unsigned long long)walks[i].before, (unsigned long long)walks[i].begun,
               (unsigned long long)walks[i].ended, (unsigned long long)walks[i].after);
    printf("], \"checksum\": %ld, \"good\": %s}\n", sink, good ? "true" : "false");
    return !good;
}
