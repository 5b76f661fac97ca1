// Preloaded into other programs: counts allocations, says nothing. A function of the program's library is
// called through one of ours.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static unsigned long count;

void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (!next)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    count++;
    return next(bytes);
}
