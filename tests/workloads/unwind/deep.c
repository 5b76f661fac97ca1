/* A chain of calls of a known depth, without frame pointers, for comparing tools. See known.h.
 *
 * Usage: deep DEPTH SECONDS
 */

#include <string.h>

#include "known.h"

static volatile uint64_t sink;
static uint64_t end;

FRAME static uint64_t known_level(uint64_t a, unsigned left)
{
    volatile uint64_t room[10];
    room[a & 7] = a;
    if (left > 1) {
        a = known_level(a + left, left - 1);
    } else {
        while (now_ns() < end) {
            known_until = end;
            for (int i = 0; i < 200000; i++)
                a = a * 6364136223846793005u + 1;
            STAY;
        }
    }
    STAY;
    return a + room[a & 7];
}

int main(int argc, char **argv)
{
    unsigned depth = argc > 1 ? (unsigned)atoi(argv[1]) : 10;
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    end = now_ns() + (uint64_t)(seconds * 1e9);
    sink = known_level(known_seed, depth);
    STAY;
    return 0;
}
