/* A chain of calls below an outermost function that does not say that it is one.
 *
 * Usage: outermost main|context MILLISECONDS of CPU time: below `main`, or on a context's own stack, which musl
 * has not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef NO_CONTEXT
#include <ucontext.h>
#endif

#define FUNCTION __attribute__((noipa))
static uint64_t until_ns;

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

FUNCTION static uint64_t burn(uint64_t steps) {
    volatile uint64_t value = 1;
    for (; steps > 0; steps--)
        value = value * 6364136223846793005u + 1442695040888963407u;
    return value;
}

FUNCTION static uint64_t work(void) {
    uint64_t sum = 0;
    while (cpu_ns() < until_ns)
        sum += burn(1000000);
    return sum + 1;
}

#ifndef NO_CONTEXT
static ucontext_t before, context;

static void entry(void) {
    volatile uint64_t sink = work();
    (void)sink;
}
#endif

int main(int count, char **words) {
    until_ns = cpu_ns() + (count > 2 ? strtoull(words[2], NULL, 10) : 1000) * 1000000u;
#ifndef NO_CONTEXT
    if (count > 1 && strcmp(words[1], "context") == 0) {
        getcontext(&context);
        context.uc_stack.ss_size = 1 << 18;
        context.uc_stack.ss_sp = malloc(context.uc_stack.ss_size);
        context.uc_link = &before;
        makecontext(&context, entry, 0);
        return swapcontext(&before, &context);
    }
#endif
    volatile uint64_t sink = work();
    return sink == 0;
}
