/* Burns CPU time in `five_ms_work` until the process has used 5 ms of it there, then exits. */
#include "burn.h"

FUNCTION uint64_t five_ms_work(uint64_t until_ns) {
    uint64_t x = 1;
    do {
        x = spin(20000, x);
    } while (thread_cpu_ns() < until_ns);
    return x;
}

int main(void) {
    volatile uint64_t sink = five_ms_work(thread_cpu_ns() + 5000000);
    (void)sink;
    return 0;
}
