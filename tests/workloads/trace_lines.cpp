/* Functions of C++ that are left from several lines: by calling others last of all (which become jumps,
 * each on the line of its call), and by returning (on the line of the closing brace).
 *
 * Usage: trace_lines ROUNDS [--wait]. Output: {"lines": {"FUNCTION": {"LINE": N, ..}, ..}, "good": true}:
 * how often each function was left from each of its lines, as counted right before. Optimised. */
#include "trace.h"

enum { LINES = 200 };
/* By line: of which function, and how often. */
static const char *functions[LINES];
static long counts[LINES];

/* It is left on the line that is this many below. */
#define LEAVES(function, below)                                                                    \
    (functions[__LINE__ + below] = function, ++counts[__LINE__ + below])

static volatile long sum;

TRACED static long even(long n) {
    sum = sum + n;
    LEAVES("even", 2);
    return n + 1;
}

TRACED static long odd(long n) {
    sum = sum - n;
    LEAVES("odd", 2);
    return n + 2;
}

namespace app {
struct shape {
    long sides;
    TRACED long kind(long n) const;
    TRACED static long pick(long n);
};

TRACED long shape::kind(long n) const {
    if (n % 4 == 0) {
        LEAVES("kind", 1);
        return even(n + sides);
    }
    if (n % 4 == 1) {
        LEAVES("kind", 1);
        return odd(n + sides);
    }
    sum = sum + 1;
    LEAVES("kind", 1);
    return pick(n);
}

TRACED long shape::pick(long n) {
    if (n % 3 == 0) {
        LEAVES("pick", 1);
        return odd(n);
    }
    LEAVES("pick", 1);
    return even(n);
}
} // namespace app

int main(int argc, char **argv) {
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 100);
    app::shape shape{3};
    bool good = true;
    for (long n = 0; n < rounds; n++) {
        long kind = shape.kind(n);
        good &= kind == (n % 4 == 0 ? n + 4 : n % 4 == 1 ? n + 5 : n % 3 == 0 ? n + 2 : n + 1);
    }
    printf("{\"lines\": {");
    const char *function = "";
    for (int line = 0; line < LINES; line++) {
        if (!functions[line]) continue;
        /* Functions don't overlap: the lines of each are one run. */
        if (functions[line] != function) {
            printf("%s\"%s\": {\"%d\": %ld", *function ? "}, " : "", functions[line], line,
                   counts[line]);
            function = functions[line];
        } else {
            printf(", \"%d\": %ld", line, counts[line]);
        }
    }
    printf("}}, \"good\": %s}\n", good ? "true" : "false");
    return 0;
}
