/* Libraries that come and go: two with different frames, in turn at the same addresses. What lies in the
 * frames looks like return addresses, so that a row of the other library leads to a function that is never
 * called. See known.h.
 *
 * Usage: reopens SECONDS FIRST SECOND. The libraries are built of this file, too, with -DPLUGIN=1 and 2.
 */

#define _GNU_SOURCE
#include "known.h"

#ifdef PLUGIN

uint64_t known_plugin(uint64_t (*call)(uint64_t), uint64_t a, uint64_t decoy);

FRAME uint64_t known_plugin(uint64_t (*call)(uint64_t), uint64_t a, uint64_t decoy)
{
    volatile uint64_t room[PLUGIN * PLUGIN * 40];
    for (int i = 0; i < PLUGIN * PLUGIN * 40; i++)
        room[i] = decoy;
    room[a & 7] = a;
    a = call(a);
    STAY;
    return a + room[a & 7];
}

#else

#include <dlfcn.h>

FRAME uint64_t known_decoy(uint64_t a)
{
    a = known_leaf(a);
    STAY;
    return a + 1;
}

FRAME static uint64_t known_reopens(const char *path, uint64_t a)
{
    void *library = dlopen(path, RTLD_NOW);
    uint64_t (*plugin)(uint64_t (*)(uint64_t), uint64_t, uint64_t);
    static Dl_info first;
    Dl_info here;
    if (library == NULL || (*(void **)&plugin = dlsym(library, "known_plugin")) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    if (dladdr((void *)plugin, &here) == 0)
        exit(1);
    if (first.dli_fbase == NULL)
        first = here;
    if (here.dli_fbase != first.dli_fbase) {
        fprintf(stderr, "%s is at another address than the first library\n", path);
        exit(3);
    }
    known_until = now_ns() + 40000000;
    a = plugin(known_leaf, a, (uint64_t)(uintptr_t)known_decoy + 8);
    dlclose(library);
    STAY;
    return a;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    chain("known_spin known_leaf known_plugin known_reopens main");
    begin();
    uint64_t end = now_ns() + (uint64_t)(atof(argv[1]) * 1e9);
    uint64_t a = known_seed;
    for (int turn = 0; now_ns() < end; turn++) {
        a += known_reopens(argv[2 + turn % 2], a);
        STAY;
    }
    return a == 0;
}

#endif
