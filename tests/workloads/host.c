/* One of the many processes of a busy machine: burns a little CPU time now and then, in functions
 * whose names end in VARIANT, until its standard input is closed. Without an argument it burns once
 * and exits, as a short-lived command does.
 *
 * Built once per variant with -DVARIANT=N. Usage: host [MICROSECONDS MILLISECONDS]: how much, and
 * how long to sleep in between. */
#include "burn.h"
#include <poll.h>
#include <unistd.h>

#ifndef VARIANT
#define VARIANT 0
#endif
#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)

FUNCTION uint64_t NAMED(host_leaf_, VARIANT)(uint64_t steps) { return spin(steps, 2 * VARIANT + 79); }

FUNCTION uint64_t NAMED(host_work_, VARIANT)(int depth, uint64_t steps) {
    uint64_t result = depth ? NAMED(host_work_, VARIANT)(depth - 1, steps)
                            : NAMED(host_leaf_, VARIANT)(steps);
    NOT_A_TAIL_CALL();
    return result + 1;
}

int main(int argc, char **argv) {
    uint64_t steps = 300 * strtoull(argc > 1 ? argv[1] : "500", NULL, 10);
    int pause = argc > 2 ? atoi(argv[2]) : 0;
    uint64_t random = (uint64_t)getpid();
    struct pollfd input = {.fd = 0, .events = POLLIN};
    volatile uint64_t sink;
    do {
        sink = NAMED(host_work_, VARIANT)((int)(random >> 40) % 12, jitter(steps, &random));
        (void)sink;
    } while (pause && poll(&input, 1, (int)jitter((uint64_t)pause, &random)) == 0);
    return 0;
}
