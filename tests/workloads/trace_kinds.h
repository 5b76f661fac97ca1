/* Functions that differ in their first instruction, or in how they are left; in assembly, so that no
 * compiler decides. All but kind_ret and kind_rep_ret: long kind_X(long n) gives n + 1.
 *
 * The first instruction decides what a probe on the entry costs, and where it may be moved to; the
 * ways out decide where the exits are. */
#ifndef TRACE_KINDS_H
#define TRACE_KINDS_H

#include <stddef.h>

#define KIND(name, body)                                                                           \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" body    \
            "\n.size " #name ", .-" #name "\n");                                                   \
    extern long name(long);

/* First instructions that the kernel emulates. */
KIND(kind_nop5, ".byte 0x0f,0x1f,0x44,0,0\n lea 1(%rdi),%rax\n ret")
KIND(kind_nop1, "nop\n lea 1(%rdi),%rax\n ret")
KIND(kind_nop4, ".byte 0x0f,0x1f,0x40,0\n lea 1(%rdi),%rax\n ret")
KIND(kind_nop7, ".byte 0x0f,0x1f,0x80,0,0,0,0\n lea 1(%rdi),%rax\n ret")
KIND(kind_push, "push %rbx\n lea 1(%rdi),%rbx\n mov %rbx,%rax\n pop %rbx\n ret")
KIND(kind_push_high, "push %r12\n lea 1(%rdi),%r12\n mov %r12,%rax\n pop %r12\n ret")
KIND(kind_jump, "jmp 1f\n ud2\n 1: lea 1(%rdi),%rax\n ret")
KIND(kind_branch, "jz 1f\n nop\n 1: lea 1(%rdi),%rax\n ret")
KIND(kind_helper, "ret")
KIND(kind_call, "call kind_helper\n lea 1(%rdi),%rax\n ret")

/* Behind endbr64, as -fcf-protection makes them. */
KIND(kind_endbr_push, "endbr64\n push %rbx\n lea 1(%rdi),%rbx\n mov %rbx,%rax\n pop %rbx\n ret")
KIND(kind_endbr_nop5, "endbr64\n .byte 0x0f,0x1f,0x44,0,0\n lea 1(%rdi),%rax\n ret")
KIND(kind_endbr_sub, "endbr64\n sub $24,%rsp\n lea 1(%rdi),%rax\n add $24,%rsp\n ret")
KIND(kind_endbr_jump, "endbr64\n jmp 1f\n ud2\n 1: lea 1(%rdi),%rax\n ret")

/* First instructions that are single-stepped. Where an emulated one follows, a probe may move there
 * only if nothing that it passes changes what it looks at: not in kind_sub_push, kind_pushed, ... */
KIND(kind_sub, "sub $24,%rsp\n lea 1(%rdi),%rax\n add $24,%rsp\n ret")
KIND(kind_mov, "mov %rdi,%rax\n add $1,%rax\n ret")
KIND(kind_mov_push, "mov %rdi,%rax\n push %rbx\n lea 1(%rax),%rbx\n mov %rbx,%rax\n pop %rbx\n ret")
KIND(kind_lea, "lea 1(%rdi),%rax\n ret")
KIND(kind_xor, "xor %eax,%eax\n lea 1(%rdi,%rax),%rax\n ret")
KIND(kind_test, "test %rdi,%rdi\n lea 1(%rdi),%rax\n ret")
KIND(kind_relative, "mov kind_zero(%rip),%rax\n lea 1(%rdi,%rax),%rax\n ret")
KIND(kind_sub_push, "sub $8,%rsp\n push %rbx\n lea 1(%rdi),%rbx\n mov %rbx,%rax\n pop %rbx\n add $8,%rsp\n ret")
KIND(kind_argument, "add $1,%rdi\n push %rbx\n mov %rdi,%rbx\n mov %rbx,%rax\n pop %rbx\n ret")
KIND(kind_target, "mov %rdi,%rax\n jmp 2f\n 1: push %rbx\n mov %rax,%rbx\n mov %rbx,%rax\n pop %rbx\n ret\n 2: inc %rax\n jmp 1b")
__asm__(".section .rodata\n.p2align 3\nkind_zero: .quad 0\n.text\n");

/* Nothing but a return. */
KIND(kind_ret, "ret")
KIND(kind_rep_ret, "repz ret")

/* Other ways out. */
KIND(kind_ret_pop, "lea 1(%rdi),%rax\n jmp 1f\n ud2\n 1: .byte 0xc2,0,0")
KIND(kind_tail_target, "lea 1(%rdi),%rax\n ret")
KIND(kind_tail, "jmp kind_tail_target")
KIND(kind_tail_late, "push %rbx\n mov %rdi,%rbx\n pop %rbx\n jmp kind_tail_target")
KIND(kind_tail_computed, "lea kind_tail_target(%rip),%rax\n jmp *%rax")
/* Left by a conditional jump, or not: a probe on it is hit in both cases. */
KIND(kind_tail_branch, "test $1,%dil\n jnz kind_tail_target\n lea 1(%rdi),%rax\n ret")
/* Its first instruction is the target of a jump of its own: a probe there is hit again and again. */
KIND(kind_loop, "lea 1(%rdi),%rax\n cmpb $0,kind_again(%rip)\n je 1f\n movb $0,kind_again(%rip)\n jmp kind_loop\n 1: ret")
__asm__(".data\nkind_again: .byte 0\n.text\n");
extern char kind_again;

/* An instruction on which the kernel refuses probes, for its prefix, and nothing behind it to move to. */
KIND(kind_refused, "lock incl -8(%rsp)\n lea 1(%rdi),%rax\n ret")

struct kind {
    const char *name;
    long (*function)(long);
    /* Functions that it calls or jumps to, by name. */
    const char *into;
};
#define PLAIN(name) {#name, name, NULL}

static const struct kind kinds[] = {
    PLAIN(kind_nop5), PLAIN(kind_nop1), PLAIN(kind_nop4), PLAIN(kind_nop7), PLAIN(kind_push),
    PLAIN(kind_push_high), PLAIN(kind_jump), PLAIN(kind_branch), {"kind_call", kind_call, "kind_helper"},
    PLAIN(kind_endbr_push), PLAIN(kind_endbr_nop5), PLAIN(kind_endbr_sub), PLAIN(kind_endbr_jump),
    PLAIN(kind_sub), PLAIN(kind_mov), PLAIN(kind_mov_push), PLAIN(kind_lea), PLAIN(kind_xor),
    PLAIN(kind_test), PLAIN(kind_relative), PLAIN(kind_sub_push), PLAIN(kind_argument),
    PLAIN(kind_target), PLAIN(kind_ret), PLAIN(kind_rep_ret), PLAIN(kind_ret_pop),
    {"kind_tail", kind_tail, "kind_tail_target"},
    {"kind_tail_late", kind_tail_late, "kind_tail_target"},
    {"kind_tail_computed", kind_tail_computed, "kind_tail_target"},
    {"kind_tail_branch", kind_tail_branch, "kind_tail_target"},
    PLAIN(kind_loop), PLAIN(kind_refused),
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

#endif
