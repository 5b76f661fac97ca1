/* A library that comes and goes, and what it calls as it does: main -> known_turn -> dlopen -> its _init ->
 * __gmon_start__, and main -> known_turn -> dlclose -> its __do_global_dtors_aux -> __cxa_finalize. Both are
 * the program's own here, and take their time. Neither _init nor __do_global_dtors_aux says anything about its
 * frame. See known.h.
 *
 * Usage: startup SECONDS LIBRARY. Built with -rdynamic; the library is built of this file, too, with -DPLUGIN. */

#define _GNU_SOURCE
#include "known.h"

#ifdef PLUGIN

uint64_t known_plugin(uint64_t a);

uint64_t known_plugin(uint64_t a)
{
    return a + 1;
}

#else

#include <dlfcn.h>

/* So long is each call. */
#define CALL_NS 5000000

void __gmon_start__(void);
void __cxa_finalize(void *object);

/* Their callers' frames have no frame pointer: what is there instead must not be followed. */
FRAME static void known_wait(uint64_t a)
{
    known_until = now_ns() + CALL_NS;
    known_leaf(a);
    STAY;
}

void __gmon_start__(void)
{
    known_wait(1);
    STAY;
}

void __cxa_finalize(void *object)
{
    known_wait((uint64_t)(uintptr_t)object);
    STAY;
}

FRAME static uint64_t known_turn(const char *path, uint64_t a)
{
    void *library = dlopen(path, RTLD_LAZY);
    uint64_t (*plugin)(uint64_t);
    if (library == NULL || (*(void **)&plugin = dlsym(library, "known_plugin")) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    a = plugin(a);
    dlclose(library);
    STAY;
    return a;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    uint64_t end = now_ns() + (uint64_t)(atof(argv[1]) * 1e9);
    uint64_t a = known_seed;
    while (now_ns() < end) {
        a += known_turn(argv[2], a);
        STAY;
    }
    return a == 0;
}

#endif
