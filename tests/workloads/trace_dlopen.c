/* Loads a shared object after its start, calls it, unloads it, and does all that again.
 *
 * Usage: trace_dlopen PLUGIN N ROUNDS [--wait]
 * Each round: loads PLUGIN, calls plugin_step N times at once (nobody can have a probe there yet),
 * says {"at": "loaded", ..} and waits for a line; calls it N times; unloads it. host_step is called
 * once before and once after all.
 * Output: [BEFORE_NS, LOADED_NS, SAID_NS, RESUMED_NS, ENDED_NS] of each round in "rounds": before
 * dlopen, behind it, before the pause, behind it, before dlclose. */
#include "trace.h"
#include <dlfcn.h>

enum { tally_host_step };

TRACED long host_step(long n) {
    ENTERED(host_step);
    LEFT(host_step);
    return n + 1;
}

int main(int argc, char **argv) {
    enum { ROUNDS = 16 };
    static unsigned long long times[ROUNDS][5];
    tallies_begin();
    argc = wait_if_told(argc, argv);
    if (argc < 4) return 2;
    long calls = number(argc, argv, 2, 10), rounds = number(argc, argv, 3, 2);
    if (rounds > ROUNDS) return 2;
    int good = host_step(0) == 1;
    for (long round = 0; round < rounds; round++) {
        unsigned long long *time = times[round];
        time[0] = now_ns();
        void *plugin = dlopen(argv[1], RTLD_NOW);
        long (*step)(long) = plugin ? (long (*)(long))dlsym(plugin, "plugin_step") : NULL;
        if (!step) return 1;
        time[1] = now_ns();
        for (long i = 0; i < calls; i++) good &= step(i) == i + 2;
        time[2] = now_ns();
        if (!meet("loaded")) return 1;
        time[3] = now_ns();
        for (long i = 0; i < calls; i++) good &= step(i) == i + 2;
        time[4] = now_ns();
        dlclose(plugin);
    }
    good &= host_step(1) == 2;
    printf("{");
    tallies_print();
    printf(", \"rounds\": [");
    for (long i = 0; i < rounds; i++)
        printf("%s[%llu, %llu, %llu, %llu, %llu]", i ? ", " : "", times[i][0], times[i][1],
               times[i][2], times[i][3], times[i][4]);
    printf("], \"good\": %s}\n", good ? "true" : "false");
    return !good;
}
