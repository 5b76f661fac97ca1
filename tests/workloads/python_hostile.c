// A program that says it is CPython 3.11 and has nothing but traps: lists without end, pointers to
// nowhere, texts of 4 GiB. Usage: python_hostile KIND; uses the processor for a second.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct { uint64_t words[64]; } block;

extern const uint64_t Py_Version;
const uint64_t Py_Version = 0x030b02f0;
extern block _PyRuntime, PyCode_Type;
block _PyRuntime = {{1}};
block PyCode_Type = {{1}};
static block interpreter, threads[2], holder, frames[2], code, text;

static uint64_t at(const void *place) { return (uint64_t)place; }

__attribute__((noinline)) static void spin(void) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < 1000000000L);
}

int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "";
    uint64_t self = (uint64_t)pthread_self();
    _PyRuntime.words[5] = at(&interpreter);
    interpreter.words[0] = at(&interpreter);
    interpreter.words[2] = at(&threads[0]);
    threads[0].words[1] = at(&threads[1]);
    threads[1].words[1] = at(&threads[0]);
    threads[1].words[19] = strcmp(kind, "threads") ? self : 0;
    threads[1].words[7] = at(&holder);
    holder.words[1] = at(&frames[0]);
    for (int i = 0; i < 2; i++) {
        frames[i].words[4] = at(&code);
        frames[i].words[6] = at(&frames[1 - i]);
        frames[i].words[7] = at(&code) + 184;
    }
    code.words[0] = 1;
    code.words[1] = at(&PyCode_Type);
    code.words[2] = UINT64_MAX;
    code.words[14] = code.words[16] = at(&text);
    code.words[17] = at(&text);
    // A text of 2^32 characters, of 4 bytes each, and bytes of that length.
    text.words[2] = 1ULL << 32;
    text.words[4] = 4 << 2 | 1 << 5;
    if (!strcmp(kind, "nowhere")) {
        holder.words[1] = UINT64_MAX - 63;
        threads[0].words[1] = 0x10;
        interpreter.words[0] = 8;
        code.words[14] = UINT64_MAX;
    }
    if (!strcmp(kind, "broken")) {
        frames[1].words[6] = 0xffffffffff600000;
        frames[1].words[4] = UINT64_MAX;
        code.words[16] = 0xffffffff80000000;
    }
    spin();
    return 0;
}
