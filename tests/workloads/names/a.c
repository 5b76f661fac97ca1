/* One of two files with a function of the same name; see main.c. */
#include "../burn.h"

FUNCTION static uint64_t work(uint64_t steps) { return spin(steps, 3); }

uint64_t call_a(uint64_t steps) {
    uint64_t result = work(steps);
    NOT_A_TAIL_CALL();
    return result;
}
