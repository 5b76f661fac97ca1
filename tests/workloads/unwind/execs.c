/* Programs that follow each other in one process: two, with different functions at the same addresses, which
 * exec each other all the time. What lies in their frames looks like return addresses, so that a row of the
 * other program leads to a function that is never called. See known.h.
 *
 * Usage: execs SECONDS OTHER. Built twice, with -DSIDE=1 and 2.
 */

#include <unistd.h>

#include "known.h"

/* Milliseconds of each program. */
#define LIFE_MS 5

FRAME uint64_t known_decoy(uint64_t a)
{
    a = known_leaf(a);
    STAY;
    return a + 1;
}

/* A function with some words of room, all of which point into known_decoy. */
#define LINK(name, callee, words)                                  \
    FRAME static uint64_t name(uint64_t a)                         \
    {                                                              \
        volatile uint64_t room[words];                             \
        for (int i = 0; i < (words); i++)                          \
            room[i] = (uint64_t)(uintptr_t)known_decoy + 8;        \
        a = callee(a);                                             \
        STAY;                                                      \
        return a + room[a % (words)];                              \
    }

#if SIDE == 1
LINK(known_first_4, known_leaf, 3)
LINK(known_first_3, known_first_4, 90)
LINK(known_first_2, known_first_3, 7)
LINK(known_first_1, known_first_2, 31)
#define OUTERMOST known_first_1
#else
LINK(known_second_6, known_leaf, 61)
LINK(known_second_5, known_second_6, 5)
LINK(known_second_4, known_second_5, 121)
LINK(known_second_3, known_second_4, 15)
LINK(known_second_2, known_second_3, 2)
LINK(known_second_1, known_second_2, 43)
#define OUTERMOST known_second_1
#endif

int main(int argc, char **argv)
{
    char until[32];
    if (argc < 3)
        return 2;
    if (argc < 4) {
        chain("known_spin known_leaf known_first_4 known_first_3 known_first_2 known_first_1 main");
        chain("known_spin known_leaf known_second_6 known_second_5 known_second_4 known_second_3 "
              "known_second_2 known_second_1 main");
        begin();
        snprintf(until, sizeof until, "%llu",
                 (unsigned long long)(now_ns() + (uint64_t)(atof(argv[1]) * 1e9)));
        argv[3] = until;
    }
    known_until = now_ns() + LIFE_MS * 1000000ull;
    uint64_t a = OUTERMOST(known_seed);
    if (now_ns() < strtoull(argv[3], NULL, 10)) {
        execl(argv[2], argv[2], argv[1], argv[0], argv[3], (char *)NULL);
        perror(argv[2]);
        return 1;
    }
    return a == 0;
}
