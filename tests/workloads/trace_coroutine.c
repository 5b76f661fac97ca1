/* Three coroutines (ucontext), each with traced functions active while the others run.
 *
 * Usage: trace_coroutine ROUNDS [--wait]; in each round each coroutine calls
 *   co_outer > co_inner, which yields to the next one in its middle, and co_leaf before and after.
 * Output: {"calls": {..}, "returns": {..}, "good": true}; all calls return.
 *
 * Under return probes of the kernel it dies of SIGILL (status 132), because the kernel pairs returns
 * with entries by the order of a single stack. */
#include "trace.h"
#include <ucontext.h>

enum { tally_co_outer, tally_co_inner, tally_co_leaf };
enum { COROUTINES = 3, STACK = 256 * 1024 };

static ucontext_t home, contexts[COROUTINES];
static int ended[COROUTINES];
static long rounds, sums[COROUTINES];

static void yield(int from) {
    for (int step = 1; step <= COROUTINES; step++) {
        int next = (from + step) % COROUTINES;
        if (next == from) return;
        if (!ended[next]) {
            swapcontext(&contexts[from], &contexts[next]);
            return;
        }
    }
}

TRACED long co_leaf(long n) {
    ENTERED(co_leaf);
    LEFT(co_leaf);
    return n ^ 3;
}

TRACED long co_inner(int index, long n) {
    ENTERED(co_inner);
    long result = co_leaf(n);
    yield(index);
    result += co_leaf(n + 1);
    LEFT(co_inner);
    return result;
}

TRACED long co_outer(int index, long n) {
    ENTERED(co_outer);
    long result = co_inner(index, n) + 1;
    NOT_A_TAIL_CALL();
    LEFT(co_outer);
    return result;
}

static void coroutine(int index) {
    /* Not in step with each other. */
    for (long n = 0; n < rounds + index; n++) sums[index] += co_outer(index, n);
    ended[index] = 1;
    yield(index);
    /* Only the last one to end comes here. */
    setcontext(&home);
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    rounds = number(argc, argv, 1, 100);
    volatile int back = 0;
    for (int i = 0; i < COROUTINES; i++) {
        if (getcontext(&contexts[i])) return 1;
        contexts[i].uc_stack.ss_sp = malloc(STACK);
        contexts[i].uc_stack.ss_size = STACK;
        contexts[i].uc_link = NULL;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    if (getcontext(&home)) return 1;
    if (!back) {
        back = 1;
        setcontext(&contexts[0]);
    }
    int good = 1;
    for (int i = 0; i < COROUTINES; i++) {
        long wanted = 0;
        for (long n = 0; n < rounds + i; n++) wanted += (n ^ 3) + ((n + 1) ^ 3) + 1;
        good &= sums[i] == wanted;
    }
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
