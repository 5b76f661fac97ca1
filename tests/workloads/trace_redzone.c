/* Leaf functions that keep a value below the stack pointer, in the red zone, around a place for a
 * probe, and return it. What a probe writes there comes back as a wrong result.
 *
 * Usage: trace_redzone N [--wait]
 *   leaf_long     a marker on a no-operation of 5 bytes        frame_long   the same, in a frame
 *   leaf_short    a marker on one of 1 byte                    leaf_entry   5 bytes at the entry
 *   leaf_pair     1 byte and 5, the note names the first       leaf_pair5   the note names the second
 *   leaf_pair10   1 byte and 10                                leaf_exit    5 bytes before the return
 *   leaf_loop     5 bytes at the entry, which a loop comes back to
 * Output: {"rounds": N, "wrong": {"leaf_long": K, ...}, "good": true if all are 0}. */
#include "trace.h"

#define NOTE(at, name)                                                                             \
    ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                    \
    ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                                   \
    "991: .asciz \"stapsdt\"\n"                                                                     \
    "992: .balign 4\n"                                                                             \
    "993: .8byte " at "\n.8byte _.stapsdt.base\n.8byte 0\n"                                         \
    ".asciz \"trace_redzone\"\n.asciz \"" name "\"\n.asciz \"\"\n"                                   \
    "994: .balign 4\n.popsection\n"

#define FUNCTION(name, body)                                                                       \
    ".p2align 6\n.globl " name "\n.type " name ",@function\n" name ":\n" body ".size " name ",.-" name \
    "\n"

#define NOP5 ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define NOP10 ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00\n"
#define KEEP "mov %rdi, -8(%rsp)\nmov %rdi, -16(%rsp)\nmov %rdi, -32(%rsp)\n"
/* The sum of what was kept three times, less two of them. */
#define GIVE                                                                                       \
    "mov -8(%rsp), %rax\nadd -16(%rsp), %rax\nadd -32(%rsp), %rax\nsub %rdi, %rax\nsub %rdi, %rax\n"

__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n"
        ".text\n"
        FUNCTION("leaf_long", KEEP "990: " NOP5 NOTE("990b", "long") GIVE "ret\n")
        FUNCTION("leaf_short", KEEP "990: nop\n" NOTE("990b", "short") GIVE "ret\n")
        FUNCTION("leaf_pair", KEEP "990: nop\n" NOP5 NOTE("990b", "pair") GIVE "ret\n")
        FUNCTION("leaf_pair5", KEEP "nop\n990: " NOP5 NOTE("990b", "pair5") GIVE "ret\n")
        FUNCTION("leaf_pair10", KEEP "990: nop\n" NOP10 NOTE("990b", "pair10") GIVE "ret\n")
        FUNCTION("leaf_entry", NOP5 KEEP GIVE "ret\n")
        FUNCTION("leaf_exit", KEEP GIVE NOP5 "ret\n")
        /* Counts rsi down; the value is kept in the first turn only. */
        FUNCTION("leaf_loop",
                 NOP5 "test %rsi, %rsi\njz 1f\nxor %rsi, %rsi\n" KEEP "jmp leaf_loop\n1: " GIVE "ret\n")
        FUNCTION("frame_long", "sub $24, %rsp\nmov %rdi, 8(%rsp)\n990: " NOP5 NOTE("990b", "frame")
                               "mov 8(%rsp), %rax\nadd $24, %rsp\nret\n"));

long leaf_long(long, long), leaf_short(long, long), leaf_pair(long, long), leaf_pair5(long, long);
long leaf_pair10(long, long), leaf_entry(long, long), leaf_exit(long, long), leaf_loop(long, long);
long frame_long(long, long);

static const struct {
    const char *name;
    long (*function)(long, long);
} all[] = {
    {"leaf_long", leaf_long},     {"leaf_short", leaf_short}, {"leaf_pair", leaf_pair},
    {"leaf_pair5", leaf_pair5},   {"leaf_pair10", leaf_pair10}, {"leaf_entry", leaf_entry},
    {"leaf_exit", leaf_exit},     {"leaf_loop", leaf_loop},   {"frame_long", frame_long},
};

int main(int argc, char **argv) {
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long rounds = number(argc, argv, 1, 100), total = 0;
    printf("{\"rounds\": %ld, \"wrong\": {", rounds);
    for (unsigned which = 0; which < sizeof all / sizeof *all; which++) {
        long wrong = 0;
        for (long i = 1; i <= rounds; i++) wrong += all[which].function(i * 7919, 1) != i * 7919;
        printf("%s\"%s\": %ld", which ? ", " : "", all[which].name, wrong);
        total += wrong;
    }
    printf("}, \"good\": %s}\n", total ? "false" : "true");
    return total != 0;
}
