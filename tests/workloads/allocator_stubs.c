/* Calls malloc and free by way of its stubs, in which it is most of its time.
 *
 * A stub is one jump. Whether an interrupt is ever seen there is up to the processor: some say where it goes on, others which
 * instruction they wait for. So now and then both are waited for: the call that comes before, which finds in memory where
 * the stub is, and the jump, which finds there where the library is. Build with -mno-red-zone. */
#include <link.h>
#include <stdlib.h>

enum { TURNS = 15000000, SLOW_EACH = 32 };

#ifdef __x86_64__
extern ElfW(Dyn) _DYNAMIC[];
static void *stub_of_malloc, *stub_of_free;

static void forget(const void *address) { __asm__ volatile("clflush (%0)" : : "r"(address) : "memory"); }

static void *call(void **stub, void *argument) {
    void *result;
    __asm__ volatile("call *%2"
                     : "=a"(result), "+D"(argument)
                     : "m"(*stub)
                     : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return result;
}

int main(void) {
    const ElfW(Rela) *slots = NULL;
    size_t count = 0;
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag; entry++) {
        if (entry->d_tag == DT_JMPREL) slots = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_PLTRELSZ) count = entry->d_un.d_val / sizeof *slots;
    }
    __asm__("lea malloc@PLT(%%rip), %0" : "=r"(stub_of_malloc));
    __asm__("lea free@PLT(%%rip), %0" : "=r"(stub_of_free));
    for (long turn = 0; turn < TURNS; turn++) {
        void *memory = (void *)16;
        for (int is_free = 0; is_free < 2; is_free++) {
            void **stub = is_free ? &stub_of_free : &stub_of_malloc;
            if (turn % SLOW_EACH == 0) {
                for (size_t slot = 0; slot < count; slot++) forget((const void *)slots[slot].r_offset);
                forget(stub);
            }
            memory = call(stub, memory);
        }
    }
    return 0;
}
#else
int main(void) {
    for (long turn = 0; turn < TURNS * 4L; turn++) {
        void *memory = malloc(16);
        __asm__ volatile("" : : "r"(memory) : "memory");
        free(memory);
    }
    return 0;
}
#endif
