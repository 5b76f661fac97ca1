/* Static markers (USDT) with known counts and arguments.
 *
 * Usage: trace_usdt N [--wait]
 *   trace_usdt:begin    N times, arguments (int i, char *text)
 *   trace_usdt:end      N times, argument (long i * i)
 *   trace_usdt:guarded  with a counter that tracers raise: passed only while it is not 0
 * Output: {"markers": {"begin": N, "end": N, "guarded": N}, "semaphore": V, "good": true}.
 *
 * The notes are written out here as <sys/sdt.h> writes them, so that it need not be installed. */
#include "trace.h"

__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");

#define NOTE(semaphore, name, arguments)                                                           \
    "990: nop\n"                                                                                   \
    ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                    \
    ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                                   \
    "991: .asciz \"stapsdt\"\n"                                                                     \
    "992: .balign 4\n"                                                                             \
    "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte " semaphore "\n"                               \
    ".asciz \"trace_usdt\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"                           \
    "994: .balign 4\n.popsection\n"

__attribute__((section(".probes"), used)) volatile unsigned short guarded_semaphore;

int main(int argc, char **argv) {
    static const char *const words[] = {"one", "two", "three"};
    tallies_begin();
    argc = wait_if_told(argc, argv);
    long count = number(argc, argv, 1, 100), guarded = 0, seen = 0;
    for (long i = 0; i < count; i++) {
        int small = (int)i;
        const char *word = words[i % 3];
        __asm__ volatile(NOTE("0", "begin", "-4@%0 8@%1")::"r"(small), "r"(word));
        long square = i * i;
        __asm__ volatile(NOTE("0", "end", "-8@%0")::"r"(square));
        if (guarded_semaphore) {
            seen = guarded_semaphore;
            guarded++;
            __asm__ volatile(NOTE("guarded_semaphore", "guarded", "-8@%0")::"r"(i));
        }
    }
    printf("{\"markers\": {\"begin\": %ld, \"end\": %ld, \"guarded\": %ld}, \"semaphore\": %ld, "
           "\"good\": true}\n",
           count, count, guarded, seen);
    return 0;
}
