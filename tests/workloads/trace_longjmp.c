/* longjmp over traced functions.
 *
 * Usage: trace_longjmp ROUNDS [--wait]; each round:
 *   jump_base > jump_1 > jump_2 > jump_3, which jumps back into jump_base; after that jump_base calls
 *   after_jump, and every second time the same functions return in order
 *   signal_base > signal_inner, whose signal handler jumps back into signal_base (siglongjmp)
 * Output: {"calls": {..}, "returns": {..}, "good": true}. Calls less returns were jumped over.
 *
 * Under return probes of the kernel it survives, but the exits of what was jumped over are never
 * reported, and each leaves a pending return behind until an outer one returns. */
#include "trace.h"
#include <setjmp.h>
#include <signal.h>

enum {
    tally_jump_base,
    tally_jump_1,
    tally_jump_2,
    tally_jump_3,
    tally_after_jump,
    tally_signal_base,
    tally_signal_inner
};

static jmp_buf base;
static sigjmp_buf signal_point;
static volatile long sum;

TRACED void after_jump(long n) {
    ENTERED(after_jump);
    sum = sum + n;
    LEFT(after_jump);
}

TRACED void jump_3(long n, int jump) {
    ENTERED(jump_3);
    if (jump) longjmp(base, 1);
    sum = sum + n;
    LEFT(jump_3);
}

TRACED void jump_2(long n, int jump) {
    ENTERED(jump_2);
    jump_3(n, jump);
    LEFT(jump_2);
}

TRACED void jump_1(long n, int jump) {
    ENTERED(jump_1);
    jump_2(n, jump);
    LEFT(jump_1);
}

TRACED void jump_base(long n) {
    ENTERED(jump_base);
    if (!setjmp(base)) jump_1(n, n % 2 == 0);
    after_jump(n);
    LEFT(jump_base);
}

static void on_signal(int number) {
    (void)number;
    siglongjmp(signal_point, 1);
}

TRACED void signal_inner(void) {
    ENTERED(signal_inner);
    raise(SIGUSR1);
    LEFT(signal_inner);
}

TRACED void signal_base(void) {
    ENTERED(signal_base);
    if (!sigsetjmp(signal_point, 1)) signal_inner();
    sum = sum + 1;
    LEFT(signal_base);
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 100), wanted = 0;
    signal(SIGUSR1, on_signal);
    for (long n = 0; n < rounds; n++) {
        jump_base(n);
        signal_base();
        wanted += n % 2 ? 2 * n + 1 : n + 1;
    }
    printf("{");
    tallies_print();
    printf(", \"good\": %s}\n", sum == wanted ? "true" : "false");
    return sum != wanted;
}
