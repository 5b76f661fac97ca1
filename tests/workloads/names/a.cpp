// One of two classes with a function of the same name; see main.c.
#include "../burn.h"

struct A {
    FUNCTION static uint64_t work(uint64_t steps);
};

uint64_t A::work(uint64_t steps) { return spin(steps, 3); }

extern "C" uint64_t call_a(uint64_t steps) {
    uint64_t result = A::work(steps);
    NOT_A_TAIL_CALL();
    return result;
}
