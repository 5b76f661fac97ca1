/* Touches a number of fresh pages, one page fault each, in `touch_pages`.
 *
 * Usage: faults PAGES
 * Output: {"touched": N, "faults": N}: pages touched, and the minor faults that the kernel counted
 * while it did so. */
#include "burn.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

FUNCTION uint64_t touch_pages(volatile char *memory, uint64_t pages, uint64_t size) {
    for (uint64_t i = 0; i < pages; i++) memory[i * size] = 1;
    return pages;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    uint64_t pages = strtoull(argv[1], NULL, 10), size = (uint64_t)sysconf(_SC_PAGESIZE);
    char *memory =
        mmap(NULL, pages * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, pages * size, MADV_NOHUGEPAGE)) return 1;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    volatile uint64_t touched = touch_pages(memory, pages, size);
    getrusage(RUSAGE_SELF, &after);
    printf("{\"touched\": %llu, \"faults\": %llu}\n", (unsigned long long)touched,
           (unsigned long long)(after.ru_minflt - before.ru_minflt));
    return 0;
}
