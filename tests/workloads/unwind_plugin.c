/* A library without frame pointers: plugin_outer -> plugin_inner -> plugin_work, which burns CPU time.
 * For unwind_chain; with WHICH, for dlopen_turns: libraries that differ and are as large. */
#include <stdint.h>

#define FUNCTION __attribute__((noinline, noclone, visibility("default")))

FUNCTION uint64_t plugin_work(uint64_t seed) {
    for (int turn = 0; turn < 200000; turn++)
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed;
}

FUNCTION uint64_t plugin_inner(uint64_t seed) {
    volatile uint64_t kept[20];
    kept[seed % 20] = seed;
    return plugin_work(seed + 1) ^ kept[seed % 20];
}

FUNCTION uint64_t plugin_outer(uint64_t seed) {
    volatile uint64_t kept = seed;
    return plugin_inner(seed + 1) ^ kept;
}

#ifdef WHICH
FUNCTION uint64_t plugin_which(void) { return WHICH; }
#endif
