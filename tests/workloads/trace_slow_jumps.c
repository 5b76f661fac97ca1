/* Calls of 3 ms each: ten of slow_return, which return, and seven of slow_jump, which longjmp leaves.
 *
 * Usage: trace_slow_jumps. */
#include <setjmp.h>
#include <unistd.h>

static jmp_buf to;

__attribute__((noinline)) int slow_return(int n) {
    usleep(3000);
    return n + 1;
}

__attribute__((noinline)) int slow_jump(int n) {
    usleep(3000);
    longjmp(to, n + 1);
    return n;
}

int main(void) {
    volatile int sum = 0;
    for (volatile int i = 0; i < 10; i++) sum += slow_return(i);
    for (volatile int i = 0; i < 7; i++)
        if (!setjmp(to)) sum += slow_jump(i);
    return sum < 0;
}
