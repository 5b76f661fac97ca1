/* A program that asks for its own stack, for the first time within traced functions: the C library loads
 * what unwinds only then, when return addresses may have been replaced already.
 *
 * Usage: trace_backtrace ROUNDS [--wait]
 *   serve -> handle -> parse -> report, which asks for the stack
 * Output: {"calls": {..}, "returns": {..}, "frames": frames that report saw first, "good": true if it always
 * saw the four of them more than main does}. */
#include <execinfo.h>

#include "trace.h"

enum { tally_serve, tally_handle, tally_parse, tally_report };
static int first;

TRACED int report(void) {
    ENTERED(report);
    void *frames[64];
    int count = backtrace(frames, 64);
    if (!first) first = count;
    LEFT(report);
    return count;
}

TRACED int parse(void) {
    ENTERED(parse);
    int count = report();
    NOT_A_TAIL_CALL();
    LEFT(parse);
    return count;
}

TRACED int handle(void) {
    ENTERED(handle);
    int count = parse();
    NOT_A_TAIL_CALL();
    LEFT(handle);
    return count;
}

TRACED int serve(void) {
    ENTERED(serve);
    int count = handle();
    NOT_A_TAIL_CALL();
    LEFT(serve);
    return count;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 1);
    int good = 1;
    for (long i = 0; i < rounds; i++) {
        int within = serve();
        void *frames[64];
        good &= within == backtrace(frames, 64) + 4;
    }
    printf("{");
    tallies_print();
    printf(", \"frames\": %d, \"good\": %s}\n", first, good ? "true" : "false");
    return !good;
}
