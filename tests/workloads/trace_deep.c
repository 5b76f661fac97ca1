/* A hundred pending returns, and two hundred.
 *
 * Usage: trace_deep ROUNDS [--wait]; each round
 *   deep, recursing 100 deep, with bottom at its end; ladder_a > ladder_b > ladder_a .. 200 deep
 * Output: {"calls": {..}, "returns": {..}, "good": true}; all calls return.
 *
 * The kernel keeps at most 64 pending returns of a thread: return probes report no exit of what is
 * called deeper than that. */
#include "trace.h"

enum { tally_deep, tally_bottom, tally_ladder_a, tally_ladder_b };

TRACED long bottom(long n) {
    ENTERED(bottom);
    LEFT(bottom);
    return n;
}

TRACED long deep(long depth) {
    ENTERED(deep);
    long below = depth > 1 ? deep(depth - 1) : bottom(0);
    NOT_A_TAIL_CALL();
    LEFT(deep);
    return below + 1;
}

TRACED long ladder_b(long depth);

TRACED long ladder_a(long depth) {
    ENTERED(ladder_a);
    long below = depth > 1 ? ladder_b(depth - 1) : 0;
    NOT_A_TAIL_CALL();
    LEFT(ladder_a);
    return below + 1;
}

TRACED long ladder_b(long depth) {
    ENTERED(ladder_b);
    long below = depth > 1 ? ladder_a(depth - 1) : 0;
    NOT_A_TAIL_CALL();
    LEFT(ladder_b);
    return below + 1;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 10);
    int good = 1;
    for (long i = 0; i < rounds; i++) good &= deep(100) == 100 && ladder_a(200) == 200;
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
