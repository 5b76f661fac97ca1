/* Functions that leave by a jump to another one.
 *
 * Usage: trace_tail N [--wait]; N times each:
 *   square     returns n * n
 *   forward    jumps to square: its result is square's
 *   choose     returns -1 if n is odd, else jumps to square
 * Output: {"calls": {..}, "returns": {..}, "good": true}. Built with -O2: otherwise nothing jumps.
 * All are left, but a jump is no place for LEFT, so what is left is counted where it is called. */
#include "trace.h"

enum { tally_square, tally_forward, tally_choose };

TRACED long square(long n) {
    ENTERED(square);
    return n * n;
}

TRACED long forward(long n) {
    ENTERED(forward);
    return square(n + 1);
}

TRACED long choose(long n) {
    ENTERED(choose);
    if (n % 2) return -1;
    return square(n);
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long count = number(argc, argv, 1, 100), good = 1;
    for (long n = 0; n < count; n++) {
        good &= square(n) == n * n;
        LEFT(square);
        good &= forward(n) == (n + 1) * (n + 1);
        LEFT(square);
        LEFT(forward);
        good &= choose(n) == (n % 2 ? -1 : n * n);
        if (n % 2 == 0) LEFT(square);
        LEFT(choose);
    }
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
