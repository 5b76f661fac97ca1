/* What trace_dlopen loads: functions that are traced by name before they are there. */
#include "trace.h"

TRACED long plugin_leaf(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

TRACED long plugin_step(long n) {
    long result = plugin_leaf(n);
    NOT_A_TAIL_CALL();
    return result + 1;
}
