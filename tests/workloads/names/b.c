/* One of two files with a function of the same name; see main.c. */
#include "../burn.h"

#if defined(SHARED)
#include "shared.h"
#else
FUNCTION static uint64_t work(uint64_t steps) { return spin(steps, 5); }
#endif

uint64_t call_b(uint64_t steps) {
    uint64_t result = work(steps);
    NOT_A_TAIL_CALL();
    return result;
}
