/* Calls that a scripted HQ of Bytefrog watches: outer calls inner, once in each round.
 *
 * Usage: calls ROUNDS STEP_US FILE. FILE gets the number of finished rounds, 64 bits, as they go by; it is made
 * when the program begins. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((noinline)) long inner(long n) {
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline)) long outer(long n) {
    long result = inner(n);
    __asm__ volatile("" : "+r"(result));
    return result + 1;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    long rounds = atol(argv[1]), step_us = atol(argv[2]);
    int file = open(argv[3], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, 8)) return 2;
    volatile uint64_t *finished = mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (finished == MAP_FAILED) return 2;
    for (long n = 0; n < rounds; n++) {
        if (outer(n) != n + 2) return 1;
        *finished = (uint64_t)n + 1;
        if (step_us) usleep((useconds_t)step_us);
    }
    return 0;
}
