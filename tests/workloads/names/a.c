/* One of two files with a function of the same name; see main.c.
 *
 * SHARED: both have it from one header. PARTED: a part of it is moved away, and half of the calls come there. */
#include "../burn.h"

#if defined(SHARED)
#include "shared.h"
#elif defined(PARTED)
__attribute__((cold, noinline)) static uint64_t seldom(uint64_t steps) { return spin(steps, 7); }

FUNCTION static uint64_t work(uint64_t steps) {
    if (steps & 1) return seldom(steps) + 1;
    return spin(steps, 3);
}
#else
FUNCTION static uint64_t work(uint64_t steps) { return spin(steps, 3); }
#endif

uint64_t call_a(uint64_t steps) {
    uint64_t result = work(steps);
    NOT_A_TAIL_CALL();
    return result;
}
