/* Frames that reach into pages of the stack which are not there: main -> deeper_at -> deeper_still. Of 5,000 turns most
 * of the time is spent on making these pages.
 *
 * Usage: deeper TURNS */
#define _GNU_SOURCE
#include <alloca.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define FUNCTION __attribute__((noinline, noclone))
#define STAY __asm__ volatile("" ::: "memory")
enum { PAGE = 4096, BELOW = 16 * PAGE };

FUNCTION void deeper_still(void) {
    char frame[1200];
    *(volatile char *)frame = 1;
    STAY;
}

FUNCTION void deeper_at(size_t bytes) {
    char *frame = alloca(bytes);
    *(volatile char *)frame = 1;
    deeper_still();
    STAY;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    volatile char here;
    /* Behind what this function and those it calls need themselves. */
    uintptr_t top = ((uintptr_t)&here & ~(uintptr_t)(PAGE - 1)) - PAGE;
    for (long turn = 0; turn < atol(argv[1]); turn++) {
        madvise((void *)(top - BELOW), BELOW, MADV_DONTNEED);
        deeper_at(2 * PAGE + (size_t)turn * 16 % PAGE);
    }
    return 0;
}
