/* Markers by which a program says what is to be traced, whoever traces it: console.startTrace() and
 * console.stopTrace() of "Tracing Profiler Protocol Spec", for programs of machine code.
 *
 *   profiler_start_trace("request", "name,time,arguments");
 *   ...
 *   profiler_stop_trace("request");
 *
 * They say so of the thread that calls them, to those clients of `profiler serve --rdp` that are attached to it. While
 * there are none, each costs a look at a counter. No library is needed; a marker is a static probe (USDT) with a note in
 * the section .note.stapsdt, as SystemTap, bpftrace, perf and gdb read them as well:
 *
 *   profiler:start_trace(const char *name, const char *types)
 *   profiler:stop_trace(const char *name)
 *
 * C and C++, GCC and Clang, Linux on x86-64; elsewhere the functions do nothing. Who can't include this writes the same
 * note: a no-operation of one byte, its address, and where the addresses of the texts are.
 *
 * This file may be copied into any program; it is licensed as the profiler is. */
#ifndef PROFILER_H
#define PROFILER_H

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__ILP32__)

#ifdef __cplusplus
extern "C" {
#endif

/* How many trace each of them: the kernel counts. One of each in a program or library. */
#define PROFILER_COUNTER_                                                                           \
    __attribute__((section(".probes"), weak, visibility("hidden"), used)) volatile unsigned short
PROFILER_COUNTER_ profiler_start_trace_semaphore = 0;
PROFILER_COUNTER_ profiler_stop_trace_semaphore = 0;
#undef PROFILER_COUNTER_

#ifdef __cplusplus
}
#endif

/* Version 3 of the notes. Addresses in them are those of the linker; the base tells how far a later tool has moved
 * them. The note is in the group of the code that it is about, and goes with it where that is there twice. */
#define PROFILER_NOTE_(name, arguments)                                                             \
    "990: nop\n"                                                                                    \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                                    \
    ".balign 4\n"                                                                                   \
    ".4byte 992f-991f, 994f-993f, 3\n"                                                              \
    "991: .asciz \"stapsdt\"\n"                                                                     \
    "992: .balign 4\n"                                                                              \
    "993: .8byte 990b, _.stapsdt.base, profiler_" name "_semaphore\n"                               \
    ".asciz \"profiler\"\n"                                                                         \
    ".asciz \"" name "\"\n"                                                                         \
    ".asciz \"" arguments "\"\n"                                                                    \
    "994: .balign 4\n"                                                                              \
    ".popsection\n"                                                                                 \
    ".ifndef _.stapsdt.base\n"                                                                      \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                          \
    ".weak _.stapsdt.base\n"                                                                        \
    ".hidden _.stapsdt.base\n"                                                                      \
    "_.stapsdt.base: .space 1\n"                                                                    \
    ".size _.stapsdt.base, 1\n"                                                                     \
    ".popsection\n"                                                                                 \
    ".endif\n"

/* The kernel reads text only where it is in memory: what the program has never looked at need not be. */
static inline void profiler_touch_(const char *text) {
    const volatile char *at = text;
    while (at && *at) at++;
}

/* Whether somebody is attached who would be told of a trace. */
static inline int profiler_is_watched(void) {
    return profiler_start_trace_semaphore != 0;
}

/* Begins a trace of the calling thread. `name` may be null: one is made up. One of the same name is replaced. `types` are
 * those that are wanted of each frame, with commas in between (name, callsite, time, parameterNames, arguments, return,
 * throw, yield, location, depth, hitCount, blackBoxed); null: the first eight. Of either up to 255 bytes count. */
static inline void profiler_start_trace(const char *name, const char *types) {
    if (__builtin_expect(profiler_start_trace_semaphore != 0, 0)) {
        profiler_touch_(name);
        profiler_touch_(types);
        __asm__ volatile(PROFILER_NOTE_("start_trace", "8@%0 8@%1") : : "r"(name), "r"(types) : "memory");
    }
}

/* Ends the trace of this name of the calling thread; null: that which was begun last, whoever did. */
static inline void profiler_stop_trace(const char *name) {
    if (__builtin_expect(profiler_stop_trace_semaphore != 0, 0)) {
        profiler_touch_(name);
        __asm__ volatile(PROFILER_NOTE_("stop_trace", "8@%0") : : "r"(name) : "memory");
    }
}

#else

static inline int profiler_is_watched(void) {
    return 0;
}
static inline void profiler_start_trace(const char *name, const char *types) {
    (void)name;
    (void)types;
}
static inline void profiler_stop_trace(const char *name) {
    (void)name;
}

#endif
#endif
