// One of two classes with a function of the same name; see main.c.
#include "../burn.h"

struct B {
    FUNCTION static uint64_t work(uint64_t steps);
};

uint64_t B::work(uint64_t steps) { return spin(steps, 5); }

extern "C" uint64_t call_b(uint64_t steps) {
    uint64_t result = B::work(steps);
    NOT_A_TAIL_CALL();
    return result;
}
