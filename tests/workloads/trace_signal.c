/* Signal handlers that call traced functions while traced functions are interrupted.
 *
 * Usage: trace_signal ROUNDS [--wait]; each round
 *   interrupted > handler_step, by raise, on the same stack
 *   interrupted > handler_step, on an alternate stack at a lower address
 *   interrupted > handler_step > nested_step, a handler interrupted by another signal's
 *   in a thread, interrupted > handler_step on an alternate stack above the thread's own
 * and for 200 ms a timer of 1 kHz interrupts busy at places that nobody chose.
 * Output: {"calls": {..}, "returns": {..}, "ticks": N, "good": true}; all calls return.
 *
 * Under return probes of the kernel on interrupted and handler_step the thread dies of SIGILL (status
 * 132): by the order of stack pointers the kernel takes the call below the alternate stack for left. */
#include "trace.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { tally_interrupted, tally_handler_step, tally_nested_step, tally_tick_step, tally_busy };
static volatile sig_atomic_t nested, ticks;
static volatile long sum;
static long rounds;

TRACED void nested_step(void) {
    ENTERED(nested_step);
    sum = sum + 1;
    LEFT(nested_step);
}

TRACED void handler_step(void) {
    ENTERED(handler_step);
    if (nested) raise(SIGUSR2);
    sum = sum + 1;
    LEFT(handler_step);
}

TRACED void tick_step(void) {
    ENTERED(tick_step);
    ticks = ticks + 1;
    LEFT(tick_step);
}

static void on_usr1(int number) {
    (void)number;
    handler_step();
}

static void on_usr2(int number) {
    (void)number;
    nested_step();
}

static void on_timer(int number) {
    (void)number;
    tick_step();
}

TRACED void interrupted(void) {
    ENTERED(interrupted);
    raise(SIGUSR1);
    sum = sum + 1;
    LEFT(interrupted);
}

TRACED void busy(void) {
    ENTERED(busy);
    spin_ns(20000);
    LEFT(busy);
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags | SA_RESTART;
    sigaction(number, &action, NULL);
}

static void alternate(void *memory, size_t size) {
    stack_t stack = {.ss_sp = memory, .ss_size = size};
    if (sigaltstack(&stack, NULL)) abort();
}

static char *both_stacks;
enum { HALF = 256 * 1024 };

static void *thread(void *none) {
    alternate(both_stacks + HALF, HALF);
    handle(SIGUSR1, on_usr1, SA_ONSTACK);
    for (long i = 0; i < rounds; i++) interrupted();
    return none;
}

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    rounds = number(argc, argv, 1, 100);
    handle(SIGUSR2, on_usr2, 0);
    static char low[64 * 1024];
    alternate(low, sizeof low);
    for (long i = 0; i < rounds; i++) {
        nested = 0;
        handle(SIGUSR1, on_usr1, 0);
        interrupted();
        handle(SIGUSR1, on_usr1, SA_ONSTACK);
        interrupted();
        nested = 1;
        interrupted();
    }
    nested = 0;

    both_stacks = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t id;
    pthread_attr_init(&attributes);
    if (both_stacks == MAP_FAILED || pthread_attr_setstack(&attributes, both_stacks, HALF) ||
        pthread_create(&id, &attributes, thread, NULL) || pthread_join(id, NULL))
        return 1;

    handle(SIGALRM, on_timer, 0);
    struct itimerval each_ms = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    uint64_t from = now_ns();
    setitimer(ITIMER_REAL, &each_ms, NULL);
    // On a machine that gives this little time, until there were enough.
    while (now_ns() - from < 200000000 || (ticks <= 20 && now_ns() - from < 20000000000)) busy();
    setitimer(ITIMER_REAL, &off, NULL);
    spin_ns(2000000);

    int good = sum == rounds * 9 && ticks > 20;
    printf("{");
    tallies_print();
    printf(", \"ticks\": %d, \"good\": %s}\n", (int)ticks, good ? "true" : "false");
    return !good;
}
