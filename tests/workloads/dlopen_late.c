/* Burns CPU time in `before_dlopen`, loads a shared object, and burns as much in its `plugin_work`.
 *
 * Usage: dlopen_late MILLISECONDS PLUGIN [MILLISECONDS_IN_PLUGIN]
 * Output: {"before_dlopen": NS, "plugin_work": NS}. */
#include "burn.h"
#include <dlfcn.h>

typedef uint64_t (*worker)(uint64_t);

FUNCTION uint64_t before_dlopen(uint64_t steps) { return spin(steps, 67); }

static uint64_t burn(worker function, uint64_t wanted, uint64_t ms) {
    uint64_t took = 0, random = 9;
    while (took < wanted) {
        uint64_t from = thread_cpu_ns();
        volatile uint64_t sink = function(jitter(ms, &random));
        (void)sink;
        took += thread_cpu_ns() - from;
    }
    return took;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000, ms = steps_per_ms();
    uint64_t before = burn(before_dlopen, wanted, ms);
    void *plugin = dlopen(argv[2], RTLD_NOW);
    worker work = plugin ? (worker)dlsym(plugin, "plugin_work") : NULL;
    if (!work) return 1;
    if (argc > 3) wanted = strtoull(argv[3], NULL, 10) * 1000000;
    uint64_t after = burn(work, wanted, ms);
    printf("{\"before_dlopen\": %llu, \"plugin_work\": %llu}\n", (unsigned long long)before,
           (unsigned long long)after);
    return 0;
}
