/* Chains of calls through what compilers and C libraries do to stacks. See known.h.
 *
 * Usage: chains SECONDS. Built with all optimisation levels and flags that change frames.
 */

#define _GNU_SOURCE
#include <alloca.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "known.h"

static volatile uint64_t sink;

/* Frames of different sizes, with callee-saved registers in use. */
FRAME static uint64_t known_plain_3(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t kept[5] = {a, b, c, d, a ^ d};
    uint64_t x = known_leaf(a);
    STAY;
    return x + kept[x & 3] + b * c - d;
}

FRAME static uint64_t known_plain_2(uint64_t a)
{
    char large[9000];
    memset(large, (int)a, sizeof large);
    uint64_t x = known_plain_3(a, a + 1, a + 2, a + 3);
    STAY;
    return x + (uint64_t)large[x % sizeof large];
}

FRAME static uint64_t known_plain_1(uint64_t a)
{
    uint64_t x = known_plain_2(a);
    STAY;
    return x + 1;
}

/* A stack of a length that only the run decides. */
FRAME static uint64_t known_alloca(uint64_t a)
{
    size_t len = 16 + (a & 511);
    volatile char *room = alloca(len);
    room[0] = (char)a;
    uint64_t x = known_leaf(a);
    STAY;
    return x + (uint64_t)room[0];
}

FRAME static uint64_t known_vla(uint64_t a)
{
    volatile uint64_t room[1 + (a & 63)];
    room[0] = a;
    uint64_t x = known_alloca(a);
    STAY;
    return x + room[0];
}

/* An aligned frame: the stack pointer before is kept in a register, and then in memory. */
FRAME static uint64_t known_aligned_2(uint64_t a)
{
    _Alignas(64) volatile uint64_t room[16];
    room[a & 15] = a;
    uint64_t x = known_leaf(a);
    STAY;
    return x + room[a & 15];
}

FRAME static uint64_t known_aligned(uint64_t a)
{
    _Alignas(128) volatile uint64_t room[1 + (a & 15)];
    room[0] = a;
    uint64_t x = known_aligned_2(a);
    STAY;
    return x + room[0];
}

/* A prologue within the function, and a part that is placed elsewhere. */
FRAME __attribute__((cold)) static uint64_t known_cold(uint64_t a)
{
    uint64_t x = known_leaf(a);
    STAY;
    return x + 3;
}

FRAME static uint64_t known_shrunk(uint64_t a, uint64_t b)
{
    if (__builtin_expect(a == 0, 1))
        return b;
    uint64_t x = a;
    for (int i = 0; i < 3; i++)
        x += known_cold(x | 1) * b;
    STAY;
    return x;
}

/* Back by longjmp, then down again. */
static jmp_buf known_back;

FRAME static uint64_t known_jumped(uint64_t a)
{
    uint64_t x = known_leaf(a);
    STAY;
    return x;
}

FRAME static void known_jumper(int times)
{
    volatile char room[777];
    room[times] = 1;
    sink += (uint64_t)room[times];
    longjmp(known_back, times);
}

FRAME static uint64_t known_jumps(uint64_t a)
{
    volatile int times = 0;
    if (setjmp(known_back) < 20)
        known_jumper(++times);
    uint64_t x = known_jumped(a);
    STAY;
    return x + (uint64_t)times;
}

/* Through a function of the C library. */
FRAME static int known_compare(const void *a, const void *b)
{
    if (known_until != 0)
        sink += known_leaf(*(const uint64_t *)a);
    STAY;
    return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}

FRAME static uint64_t known_sorts(uint64_t a)
{
    uint64_t values[40];
    for (int i = 0; i < 40; i++)
        values[i] = (a + (uint64_t)i * 7919) % 41;
    qsort(values, 40, sizeof values[0], known_compare);
    STAY;
    return values[0];
}

/* Within a signal handler, on the same stack or its own. */
FRAME static void known_handler(int number)
{
    sink += known_leaf((uint64_t)number);
    STAY;
}

FRAME static uint64_t known_raises(uint64_t a)
{
    kill(getpid(), SIGUSR1);
    STAY;
    return a + sink;
}

FRAME static uint64_t known_raises_elsewhere(uint64_t a)
{
    kill(getpid(), SIGUSR2);
    STAY;
    return a + sink;
}

/* At an instruction that is no call. */
FRAME static void known_fault_handler(int number, siginfo_t *info, void *context)
{
    (void)info;
    sink += known_leaf((uint64_t)number);
    /* Behind the two bytes of ud2. */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    STAY;
}

FRAME static uint64_t known_faults(uint64_t a)
{
    __asm__ volatile("ud2" ::: "memory");
    return a + 1;
}

/* The time of day: code that the kernel maps. */
FRAME static uint64_t known_clock(uint64_t a)
{
    struct timespec now;
    while (now_ns() < known_until)
        for (int i = 0; i < 100; i++) {
            clock_gettime(CLOCK_REALTIME, &now);
            a += (uint64_t)now.tv_nsec;
        }
    STAY;
    return a;
}

/* Short functions of a library, called again and again. */
FRAME static uint64_t known_library(uint64_t a)
{
    double sum = (double)a;
    while (now_ns() < known_until)
        for (int i = 0; i < 200; i++) {
            sum += cbrt((double)i);
            sum += (double)strlen((const char *)&known_seed) + (double)getpagesize();
        }
    STAY;
    return (uint64_t)sum;
}

/* Calls that do next to nothing, so that prologues and epilogues are met. */
FRAME static uint64_t known_brief_2(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * b;
    STAY;
    return x + c;
}

FRAME static uint64_t known_brief_1(uint64_t a)
{
    volatile uint64_t room[20];
    room[a & 15] = a;
    uint64_t x = known_brief_2(a, room[a & 15], a + 1);
    uint64_t y = known_brief_2(x, a, x + 1);
    STAY;
    return x ^ y;
}

FRAME static uint64_t known_briefs(uint64_t a)
{
    while (now_ns() < known_until)
        for (int i = 0; i < 500; i++)
            a += known_brief_1(a);
    STAY;
    return a;
}

/* Deep, with a frame pointer that is used for something else. */
FRAME static uint64_t known_deep(uint64_t a, unsigned depth)
{
    uint64_t x = depth == 0 ? known_leaf(a) : known_deep(a + depth, depth - 1);
    STAY;
    return x + a;
}

/* Written by hand: a frame whose registers are saved in an order of its own, one that is addressed by
   a register that no compiler would take, and one without any rows but with a frame pointer. */
__asm__(".text\n"
        ".type known_by_hand, @function\n"
        "known_by_hand:\n"
        ".cfi_startproc\n"
        "  push %r12\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_rel_offset %r12, 0\n"
        "  push %rbp\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_rel_offset %rbp, 0\n"
        "  sub $264, %rsp\n"
        ".cfi_adjust_cfa_offset 264\n"
        "  mov $0x1234, %ebp\n"
        "  call known_through_hand\n"
        "  add $264, %rsp\n"
        ".cfi_adjust_cfa_offset -264\n"
        "  pop %rbp\n"
        ".cfi_adjust_cfa_offset -8\n"
        ".cfi_restore %rbp\n"
        "  pop %r12\n"
        ".cfi_adjust_cfa_offset -8\n"
        ".cfi_restore %r12\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size known_by_hand, . - known_by_hand\n"
        ".type known_by_pointer, @function\n"
        "known_by_pointer:\n"
        "  push %rbp\n"
        "  mov %rsp, %rbp\n"
        "  sub $32, %rsp\n"
        "  call known_through_pointer\n"
        "  leave\n"
        "  ret\n"
        ".size known_by_pointer, . - known_by_pointer\n"
        ".type known_by_register, @function\n"
        "known_by_register:\n"
        ".cfi_startproc\n"
        "  mov %rsp, %r10\n"
        ".cfi_def_cfa %r10, 8\n"
        "  sub $40, %rsp\n"
        "  mov $20000, %eax\n"
        "1: dec %eax\n"
        "  jnz 1b\n"
        "  mov %r10, %rsp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size known_by_register, . - known_by_register\n");

uint64_t known_by_hand(uint64_t a);
uint64_t known_by_pointer(uint64_t a);
uint64_t known_by_register(uint64_t a);

FRAME uint64_t known_through_hand(uint64_t a)
{
    uint64_t x = known_leaf(a);
    STAY;
    return x;
}

FRAME uint64_t known_through_pointer(uint64_t a)
{
    uint64_t x = known_leaf(a);
    STAY;
    return x;
}

FRAME static uint64_t known_calls_pointer(uint64_t a)
{
    uint64_t x = known_by_pointer(a);
    STAY;
    return x;
}

FRAME static uint64_t known_registers(uint64_t a)
{
    while (now_ns() < known_until)
        for (int i = 0; i < 500; i++)
            a += known_by_register(a);
    STAY;
    return a;
}

FRAME static void *known_thread(void *argument)
{
    sink += known_leaf((uint64_t)(uintptr_t)argument);
    STAY;
    return NULL;
}

static void say_chains(void)
{
    const char *const spin = "known_spin known_leaf ";
    const char *const chains[] = {
        "known_plain_3 known_plain_2 known_plain_1 main",
        "known_alloca known_vla main",
        "known_aligned_2 known_aligned main",
        "known_cold known_shrunk main",
        "known_jumped known_jumps main",
        "known_compare known_sorts main",
        "known_handler known_raises main",
        "known_handler known_raises_elsewhere main",
        "known_fault_handler known_faults main",
        "known_through_hand known_by_hand main",
        "known_through_pointer known_by_pointer known_calls_pointer main",
        "known_thread",
    };
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)
        printf("chain: %s%s\n", spin, chains[i]);
    chain("known_jumper known_jumps main");
    chain("known_clock main");
    chain("known_library main");
    chain("known_by_register known_registers main");
    chain("known_brief_2 known_brief_1 known_briefs main");
    printf("chain: %s", spin);
    for (int i = 0; i <= 100; i++)
        printf("known_deep ");
    printf("main\n");
}

int main(int argc, char **argv)
{
    static char elsewhere[64 << 10];
    stack_t stack = {.ss_sp = elsewhere, .ss_size = sizeof elsewhere};
    struct sigaction action = {.sa_handler = known_handler};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_sigaction = known_fault_handler;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, NULL);
    say_chains();
    begin();
    uint64_t end = now_ns() + (uint64_t)(argc > 1 ? atof(argv[1]) * 1e9 : 1e9);
    while (now_ns() < end) {
        uint64_t a = known_seed;
        turn(); sink += known_plain_1(a); STAY;
        turn(); sink += known_vla(a); STAY;
        turn(); sink += known_aligned(a); STAY;
        turn(); sink += known_shrunk(a, a + 1); STAY;
        turn(); sink += known_jumps(a); STAY;
        turn(); sink += known_sorts(a); STAY;
        turn(); sink += known_raises(a); STAY;
        turn(); sink += known_raises_elsewhere(a); STAY;
        turn(); sink += known_faults(a); STAY;
        turn(); sink += known_clock(a); STAY;
        turn(); sink += known_library(a); STAY;
        turn(); sink += known_by_hand(a); STAY;
        turn(); sink += known_calls_pointer(a); STAY;
        turn(); sink += known_registers(a); STAY;
        turn(); sink += known_briefs(a); STAY;
        turn(); sink += known_deep(a, 100); STAY;
        turn();
        pthread_t thread;
        if (pthread_create(&thread, NULL, known_thread, NULL) != 0)
            return 1;
        pthread_join(thread, NULL);
    }
    return 0;
}
