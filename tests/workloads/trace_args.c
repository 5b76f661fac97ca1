/* Arguments of known values.
 *
 * Usage: trace_args N [--wait]; for i below N:
 *   add(i, -i), greet("hello I"), peek(a bad address: 16 + i), place((struct point){i, 2 * i}, &point)
 * Output: {"calls": {..}, "returns": {..}, "good": true}. */
#include "trace.h"

enum { tally_add, tally_greet, tally_peek, tally_place };

struct point {
    int x;
    long y;
};
static volatile long sum;

TRACED long add(int a, long b) {
    ENTERED(add);
    LEFT(add);
    return a + b;
}

TRACED unsigned greet(const char *name) {
    ENTERED(greet);
    LEFT(greet);
    return (unsigned)strlen(name);
}

/* Looks at nothing: the address is bad. */
TRACED long peek(const char *nowhere) {
    ENTERED(peek);
    LEFT(peek);
    return (long)nowhere;
}

TRACED long place(struct point by_value, const struct point *by_address) {
    ENTERED(place);
    LEFT(place);
    return by_value.x + by_address->y;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long count = number(argc, argv, 1, 10);
    int good = 1;
    for (long i = 0; i < count; i++) {
        char text[32];
        struct point point = {(int)i, 2 * i};
        good &= add((int)i, -i) == 0;
        int length = snprintf(text, sizeof text, "hello %ld", i);
        good &= greet(text) == (unsigned)length;
        sum = peek((const char *)(16 + i));
        good &= place(point, &point) == 3 * i;
    }
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
