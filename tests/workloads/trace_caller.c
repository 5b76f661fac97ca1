/* Calls one function of trace_kinds.h, and says how fast.
 *
 * Usage: trace_caller KIND calls N           N calls in a row
 *        trace_caller KIND paced PER_S SECONDS  in bursts each millisecond, so many a second
 *        trace_caller KIND told PER_S SECONDS   the same, until its input ends; so long at most
 *        trace_caller KIND slots SECONDS     as many as it can
 *        trace_caller compiled turns SECONDS the same, but in turns of 5 ms of it and of `twin`
 * each with [--wait] at the end, or [--probed]: it begins by itself, soon after it has seen that its
 * function's code has changed, or ends with status 4 after 60 s. KIND can also be `compiled`, a C function with whatever this was
 * built with (-pg, -mfentry, -fcf-protection).
 * Output: {"kind": .., "calls": N, "took_ns": NS, "cpu_ns": NS, "from_ns": NS, "slots": [N, ..],
 * "slots_cpu_ns": [NS, ..], "twins": [N, ..], "twins_cpu_ns": [NS, ..]}: cpu_ns, the thread's CPU time of the
 * calls; slots, calls in each 100 ms since from_ns; twins, those of `twin`, which does what `compiled`
 * does; in turns, the thread's CPU time of both. */
#include "trace.h"
#include "trace_kinds.h"
#include <poll.h>

/* These two lie alike, and are called by code that lies alike: nothing but a tracer makes one slower than the other. */
#define ALIKE __attribute__((aligned(256)))

ALIKE TRACED long compiled(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

ALIKE TRACED long twin(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

#define CALLS_OF(function)                                      \
    ALIKE TRACED static long calls_of_##function(long from) {   \
        for (int i = 0; i < 64; i++) function(from++);          \
        return from;                                            \
    }
CALLS_OF(compiled)
CALLS_OF(twin)

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

enum { SLOTS = 1000 };
static long slots[SLOTS], twins[SLOTS], slots_cpu[SLOTS], twins_cpu[SLOTS];

static void print_slots(const char *name, const long *of, uint64_t count) {
    printf(", \"%s\": [", name);
    for (uint64_t i = 0; i < count && i < SLOTS; i++) printf("%s%ld", i ? ", " : "", of[i]);
    printf("]");
}

static uint64_t many(long (*function)(long), long count) {
    uint64_t from = now_ns();
    for (long i = 0; i < count; i++) function(i);
    return now_ns() - from;
}

static uint64_t longest;

static int input_ends(void) {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

TRACED long paced(long (*function)(long), long per_second, uint64_t from, uint64_t seconds, int told) {
    long calls = 0;
    for (uint64_t ms = 0; ms < seconds * 1000 && !(told && input_ends()); ms++) {
        uint64_t due = from + ms * 1000000;
        while (now_ns() < due) usleep(100);
        long wanted = (long)((double)(ms + 1) * (double)per_second / 1000);
        for (; calls < wanted; calls++) {
            uint64_t began = now_ns();
            function(calls);
            uint64_t took = now_ns() - began;
            if (took > longest) longest = took;
            if (calls % 64 == 0) slots[(now_ns() - from) / 100000000 % SLOTS] += 64;
        }
    }
    return calls;
}

TRACED long unpaced(long (*function)(long), uint64_t from, uint64_t seconds) {
    long calls = 0;
    for (;;) {
        uint64_t since = now_ns() - from;
        if (since >= seconds * 1000000000) return calls;
        for (int i = 0; i < 64; i++) function(calls++);
        slots[since / 100000000 % SLOTS] += 64;
    }
}

/* What slows the machine down slows both, and what slows the function down only one. Whose turn it is goes by the golden ratio: others'
 * work comes and goes with the kernel's ticks, and would meet the same one of two that alternate for seconds. Each has a call of its own: of an indirect one processors
 * foretell one place sooner than the other, for seconds: 1.7 ns a call, and 2.6. */
TRACED long in_turns(uint64_t from, uint64_t seconds) {
    long calls = 0, others = 0;
    for (;;) {
        uint64_t since = now_ns() - from, turn = since / 5000000, cpu = cpu_ns();
        if (since >= seconds * 1000000000) return calls;
        uint64_t slot = since / 100000000 % SLOTS;
        int is_other = (int)(turn * 0x9e3779b97f4a7c15ull >> 63);
        long *count = is_other ? &others : &calls, before = *count;
        do {
            *count = is_other ? calls_of_twin(*count) : calls_of_compiled(*count);
        } while ((now_ns() - from) / 5000000 == turn);
        (is_other ? twins : slots)[slot] += *count - before;
        (is_other ? twins_cpu : slots_cpu)[slot] += (long)(cpu_ns() - cpu);
    }
}

/* Waits for a probe on a function: reading its code shows what a tracer has written there. */
static int wait_for_probe(long (*function)(long)) {
    unsigned char before[32], now[32];
    memcpy(before, (const void *)function, sizeof before);
    for (int ms = 0; ms < 60000; ms++) {
        memcpy(now, (const void *)function, sizeof now);
        if (memcmp(before, now, sizeof now)) {
            usleep(300000);
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

int main(int argc, char **argv) {
    argc = wait_if_told(argc, argv);
    int probed = argc > 1 && !strcmp(argv[argc - 1], "--probed");
    argc -= probed;
    if (argc < 4) return 2;
    long (*function)(long) = strcmp(argv[1], "compiled") ? NULL : compiled;
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(argv[1], kinds[k].name)) function = kinds[k].function;
    if (!function) return 2;
    if (probed && !wait_for_probe(function)) return 4;
    long calls = number(argc, argv, 3, 0);
    uint64_t from = now_ns(), cpu = cpu_ns(), took = 0;
    uint64_t seconds = (uint64_t)number(argc, argv, 4, 1);
    if (!strcmp(argv[2], "calls")) {
        took = many(function, calls);
    } else if (!strcmp(argv[2], "paced")) {
        calls = paced(function, calls, from, seconds, 0);
    } else if (!strcmp(argv[2], "told")) {
        calls = paced(function, calls, from, seconds, 1);
    } else if (!strcmp(argv[2], "turns")) {
        seconds = (uint64_t)calls;
        if (function != compiled) return 2;
        calls = in_turns(from, seconds);
    } else {
        seconds = (uint64_t)calls;
        calls = unpaced(function, from, seconds);
    }
    if (!took) took = now_ns() - from;
    cpu = cpu_ns() - cpu;
    printf("{\"kind\": \"%s\", \"calls\": %ld, \"took_ns\": %llu, \"cpu_ns\": %llu, \"from_ns\": %llu",
           argv[1], calls, (unsigned long long)took, (unsigned long long)cpu,
           (unsigned long long)from);
    printf(", \"longest_ns\": %llu", (unsigned long long)longest);
    uint64_t count = (took + 99999999) / 100000000;
    print_slots("slots", slots, count);
    print_slots("slots_cpu_ns", slots_cpu, count);
    print_slots("twins", twins, count);
    print_slots("twins_cpu_ns", twins_cpu, count);
    printf("}\n");
    return 0;
}
