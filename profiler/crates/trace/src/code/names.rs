//! Functions that are known by name: those that never return, and those that change stacks.
//!
//! What does not belong here: what follows from it.

/// Whether the function of this name (as in the symbol table, or demangled) never returns.
pub(super) fn never_returns(name: &str) -> bool {
    // Symbols may carry a version.
    let name = name.split('@').next().unwrap_or(name);
    const NAMES: &[&str] = &[
        "abort",
        "exit",
        "_exit",
        "_Exit",
        "quick_exit",
        "pthread_exit",
        "thrd_exit",
        "__stack_chk_fail",
        "__stack_chk_fail_local",
        "__fortify_fail",
        "__chk_fail",
        "__assert_fail",
        "__assert",
        "__assert_perror_fail",
        "__libc_fatal",
        "__libc_message",
        "longjmp",
        "_longjmp",
        "siglongjmp",
        "__longjmp_chk",
        "__longjmp",
        "__libc_longjmp",
        "__libc_siglongjmp",
        "__pthread_unwind",
        "__pthread_unwind_next",
        "_Unwind_Resume",
        "__cxa_throw",
        "__cxa_rethrow",
        "__cxa_bad_cast",
        "__cxa_bad_typeid",
        "__cxa_throw_bad_array_new_length",
        "__cxa_pure_virtual",
        "__cxa_deleted_virtual",
        "__cxa_call_unexpected",
        "__cxa_call_terminate",
        "__clang_call_terminate",
        "_ZSt9terminatev",
        "std::terminate()",
        "_ZSt10unexpectedv",
        "__gnu_cxx::__verbose_terminate_handler()",
        "err",
        "errx",
        "verr",
        "verrx",
        "__libc_start_main",
        "rust_begin_unwind",
        "rust_panic",
        "runtime.gopanic",
        "runtime.throw",
        "runtime.fatalthrow",
        "runtime.goexit0",
        "runtime.panicIndex",
        "runtime.panicdivide",
        "runtime.panicnil",
        "runtime.panicwrap",
        "runtime.panicshift",
        "runtime.panicmem",
        "runtime.panicoverflow",
        "runtime.panicunsafeslicelen",
    ];
    NAMES.contains(&name)
        || name.starts_with("_ZSt") && name.contains("__throw_")
        || name.starts_with("std::__throw_")
        || name.starts_with("core::panicking::")
        || name.starts_with("_ZN4core9panicking")
        || name.starts_with("runtime.panicSlice")
        || name.starts_with("runtime.goPanic")
}

/// Whether the function of this name looks at the return address of the function that calls it:
/// profilers of calls, which compilers put at the beginning of functions (`-pg`, `-mfentry`).
pub(super) fn reads_callers_return_address(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    matches!(name, "mcount" | "_mcount" | "__fentry__")
}

/// Whether the function of this name, of another object, reads its own return address, so that nobody
/// may jump to it with one that was replaced: it asks who calls it, keeps the address to return there
/// again, or takes it off the stack.
pub(super) fn reads_return_address(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    const NAMES: &[&str] = &[
        "dlopen",
        "dlmopen",
        "dlsym",
        "dlvsym",
        "dl_iterate_phdr",
        "setjmp",
        "_setjmp",
        "sigsetjmp",
        "__sigsetjmp",
        "getcontext",
        "swapcontext",
        "vfork",
        "__vfork",
        "backtrace",
        "mcount",
        "_mcount",
        "__fentry__",
    ];
    NAMES.contains(&name) || name.starts_with("_Unwind_")
}

/// Whether the function of this name changes to another stack, or leaves frames without returning to
/// them.
pub fn switches_stack(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    const NAMES: &[&str] = &[
        "swapcontext",
        "makecontext",
        "setcontext",
        "getcontext",
        "jump_fcontext",
        "make_fcontext",
        "ontop_fcontext",
        "co_switch",
        "co_create",
        "co_derive",
        "coro_transfer",
        "coro_create",
        "aco_resume",
        "acosw",
        "task_switch",
        "tb_context_jump",
        "st_thread_create",
        "sigaltstack",
        "__splitstack_getcontext",
        "__morestack",
    ];
    NAMES.contains(&name) || name.ends_with("_jump_fcontext")
}
