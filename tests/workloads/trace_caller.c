/* Calls one function of trace_kinds.h, and says how fast.
 *
 * Usage: trace_caller KIND calls N           N calls in a row
 *        trace_caller KIND paced PER_S SECONDS  in bursts each millisecond, so many a second
 *        trace_caller KIND slots SECONDS     as many as it can
 * each with [--wait] at the end. KIND can also be `compiled`, a C function with whatever this was
 * built with (-pg, -mfentry, -fcf-protection).
 * Output: {"kind": .., "calls": N, "took_ns": NS, "from_ns": NS, "slots": [N, ..]}: slots, calls in
 * each 100 ms since from_ns. */
#include "trace.h"
#include "trace_kinds.h"

TRACED long compiled(long n) {
    NOT_A_TAIL_CALL();
    return n + 1;
}

enum { SLOTS = 1000 };
static long slots[SLOTS];

static uint64_t many(long (*function)(long), long count) {
    uint64_t from = now_ns();
    for (long i = 0; i < count; i++) function(i);
    return now_ns() - from;
}

TRACED long paced(long (*function)(long), long per_second, uint64_t from, uint64_t seconds) {
    long calls = 0;
    for (uint64_t ms = 0; ms < seconds * 1000; ms++) {
        uint64_t due = from + ms * 1000000;
        while (now_ns() < due) usleep(100);
        long wanted = (long)((double)(ms + 1) * (double)per_second / 1000);
        for (; calls < wanted; calls++) {
            function(calls);
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

int main(int argc, char **argv) {
    argc = wait_if_told(argc, argv);
    if (argc < 4) return 2;
    long (*function)(long) = strcmp(argv[1], "compiled") ? NULL : compiled;
    for (int k = 0; k < KINDS; k++)
        if (!strcmp(argv[1], kinds[k].name)) function = kinds[k].function;
    if (!function) return 2;
    long calls = number(argc, argv, 3, 0);
    uint64_t from = now_ns(), seconds = (uint64_t)number(argc, argv, 4, 1), took = 0;
    if (!strcmp(argv[2], "calls")) {
        took = many(function, calls);
    } else if (!strcmp(argv[2], "paced")) {
        calls = paced(function, calls, from, seconds);
    } else {
        seconds = (uint64_t)calls;
        calls = unpaced(function, from, seconds);
    }
    if (!took) took = now_ns() - from;
    printf("{\"kind\": \"%s\", \"calls\": %ld, \"took_ns\": %llu, \"from_ns\": %llu, \"slots\": [",
           argv[1], calls, (unsigned long long)took, (unsigned long long)from);
    for (uint64_t i = 0; i < (took + 99999999) / 100000000 && i < SLOTS; i++)
        printf("%s%ld", i ? ", " : "", slots[i]);
    printf("]}\n");
    return 0;
}
