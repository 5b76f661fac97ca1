/* A shared object that is loaded late: `plugin_work` burns CPU time. */
#include "burn.h"

FUNCTION uint64_t plugin_work(uint64_t steps) { return spin(steps, 61); }
