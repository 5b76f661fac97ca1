/* Loads libraries in turn, each in the place of the one before: main -> turn -> plugin_outer -> plugin_inner ->
 * plugin_work of the one (see unwind_plugin.c), for 2 ms, and then of the next one.
 *
 * Usage: dlopen_turns MILLISECONDS LIBRARY LIBRARY.. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t (*Outer)(uint64_t);

static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_nsec / 1000u;
}

__attribute__((noinline, noclone)) uint64_t turn(const char *path, uint64_t seed) {
    void *library = dlopen(path, RTLD_NOW);
    Outer outer = library ? (Outer)dlsym(library, "plugin_outer") : NULL;
    if (!outer) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    uint64_t end = now_us() + 2000;
    while (now_us() < end) seed += outer(seed);
    dlclose(library);
    return seed;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    uint64_t end = now_us() + strtoull(argv[1], NULL, 10) * 1000u, seed = 1;
    while (now_us() < end)
        for (int index = 2; index < argc; index++) seed = turn(argv[index], seed);
    printf("%llu\n", (unsigned long long)seed);
    return 0;
}
