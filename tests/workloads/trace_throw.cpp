/* C++ exceptions through traced functions.
 *
 * Usage: trace_throw ROUNDS [--wait]; each round throws five times, of types that take turns:
 *   here:     thrown and caught in one function
 *   near:     near_catch > near_throw: caught one frame up
 *   far:      far_catch > far_outer > far_inner > far_throw: caught three frames up; far_outer has a
 *             destructor to run, which calls cleanup
 *   again:    again_catch > again_rethrow > again_throw: caught, thrown again, caught
 *   inside:   inside_catch > inside_frame > inside_throw: a destructor that runs while it passes
 *             throws and catches one of its own in cleanup_throw
 * Output: {"calls": {..}, "returns": {..}, "throws": {TYPE: N}, "rethrows": N, "good": true}. Of each
 * function, calls less returns were left by an exception.
 *
 * Under a return probe of the kernel on any of the functions that are passed: "terminate called
 * after throwing", status 134 (the unwinder finds the trampoline's address and no way on). */
#include "trace.h"
#include <stdexcept>

namespace app {
struct parse_error {
    long code;
};
} // namespace app

enum {
    tally_here,
    tally_near_catch,
    tally_near_throw,
    tally_far_catch,
    tally_far_outer,
    tally_far_inner,
    tally_far_throw,
    tally_again_catch,
    tally_again_rethrow,
    tally_again_throw,
    tally_inside_catch,
    tally_inside_frame,
    tally_inside_throw,
    tally_cleanup,
    tally_cleanup_throw
};

enum { RUNTIME, PARSE, INT, TYPES };
static long throws[TYPES], rethrows;
static volatile long sum;

__attribute__((always_inline)) static inline void raise_one(long n) {
    throws[n % TYPES]++;
    switch (n % TYPES) {
    case RUNTIME: throw std::runtime_error("as wanted");
    case PARSE: throw app::parse_error{n};
    default: throw static_cast<int>(n);
    }
}

#define CATCH(then)                                                                                \
    catch (const std::runtime_error &error) { sum = sum + (error.what()[0] == 'a'); then; }        \
    catch (const app::parse_error &error) { sum = sum + (error.code % 3 == 1); then; }             \
    catch (int error) { sum = sum + (error % 3 == 2); then; }

extern "C" {

TRACED void here(long n) {
    ENTERED(here);
    try {
        raise_one(n);
    }
    CATCH()
    LEFT(here);
}

TRACED void near_throw(long n) {
    ENTERED(near_throw);
    raise_one(n);
}

TRACED void near_catch(long n) {
    ENTERED(near_catch);
    try {
        near_throw(n);
    }
    CATCH()
    LEFT(near_catch);
}

TRACED void cleanup(void) {
    ENTERED(cleanup);
    sum = sum + 1;
    LEFT(cleanup);
}

TRACED void far_throw(long n) {
    ENTERED(far_throw);
    raise_one(n);
}

TRACED void far_inner(long n) {
    ENTERED(far_inner);
    far_throw(n);
    LEFT(far_inner);
}

struct cleans {
    ~cleans() { cleanup(); }
};

TRACED void far_outer(long n) {
    ENTERED(far_outer);
    cleans at_end;
    far_inner(n);
    LEFT(far_outer);
}

TRACED void far_catch(long n) {
    ENTERED(far_catch);
    try {
        far_outer(n);
    }
    CATCH()
    LEFT(far_catch);
}

TRACED void again_throw(long n) {
    ENTERED(again_throw);
    raise_one(n);
}

TRACED void again_rethrow(long n) {
    ENTERED(again_rethrow);
    try {
        again_throw(n);
    } catch (...) {
        rethrows++;
        throw;
    }
    LEFT(again_rethrow);
}

TRACED void again_catch(long n) {
    ENTERED(again_catch);
    try {
        again_rethrow(n);
    }
    CATCH()
    LEFT(again_catch);
}

TRACED void cleanup_throw(long n) {
    ENTERED(cleanup_throw);
    try {
        raise_one(n);
    }
    CATCH()
    LEFT(cleanup_throw);
}

struct throws_inside {
    long n;
    ~throws_inside() { cleanup_throw(n + 1); }
};

TRACED void inside_throw(long n) {
    ENTERED(inside_throw);
    raise_one(n);
}

TRACED void inside_frame(long n) {
    ENTERED(inside_frame);
    throws_inside at_end{n};
    inside_throw(n);
    LEFT(inside_frame);
}

TRACED void inside_catch(long n) {
    ENTERED(inside_catch);
    try {
        inside_frame(n);
    }
    CATCH()
    LEFT(inside_catch);
}

} /* extern "C" */

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 100);
    for (long n = 0; n < rounds; n++) {
        here(n);
        near_catch(n + 1);
        far_catch(n + 2);
        again_catch(n);
        inside_catch(n + 1);
    }
    /* One for each that was caught, and one for each cleanup. */
    bool good = sum == rounds * 7;
    printf("{");
    tallies_print();
    printf(", \"throws\": {\"std::runtime_error\": %ld, \"app::parse_error\": %ld, \"int\": %ld}, "
           "\"rethrows\": %ld, \"good\": %s}\n",
           throws[RUNTIME], throws[PARSE], throws[INT], rethrows, good ? "true" : "false");
    return !good;
}
