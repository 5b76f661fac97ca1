/* Maps a file as code without running it, then burns CPU time in `beside_mapping`: what a loader of
 * a damaged, huge or odd library looks like to a profiler.
 *
 * Usage: map_file MILLISECONDS FILE
 * Output: {"beside_mapping": NS}. */
#include "burn.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

FUNCTION uint64_t beside_mapping(uint64_t steps) { return spin(steps, 71); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    uint64_t wanted = strtoull(argv[1], NULL, 10) * 1000000, ms = steps_per_ms(), took = 0;
    struct stat status;
    int file = open(argv[2], O_RDONLY);
    if (file < 0 || fstat(file, &status)) return 1;
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) return 1;
    while (took < wanted) {
        uint64_t from = thread_cpu_ns();
        volatile uint64_t sink = beside_mapping(ms);
        (void)sink;
        took += thread_cpu_ns() - from;
    }
    printf("{\"beside_mapping\": %llu}\n", (unsigned long long)took);
    return 0;
}
