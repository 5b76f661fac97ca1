//! Kernel-side programs: thin entry points only.
//!
//! Perf events, tracepoints and uprobes -> records of `profiler-common` in per-CPU ring buffers. The sampler
//! has one entry point per event source, because kernels before 5.15 give a program no other way to
//! know which event fired; user space loads those that a session uses. Times are nanoseconds of
//! CLOCK_MONOTONIC.
//!
//! What does not belong here: anything but entry points; the work is in the modules. On other
//! targets than BPF the crate is an empty program, so that workspace-wide commands stay usable.

#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod call;
#[cfg(target_arch = "bpf")]
mod call_limits;
#[cfg(target_arch = "bpf")]
mod cgroup;
#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod fetch;
#[cfg(target_arch = "bpf")]
mod filter;
#[cfg(target_arch = "bpf")]
mod interpreter;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod proof;
#[cfg(target_arch = "bpf")]
mod python;
#[cfg(target_arch = "bpf")]
mod record;
#[cfg(target_arch = "bpf")]
mod registers;
#[cfg(target_arch = "bpf")]
mod sample;
#[cfg(target_arch = "bpf")]
mod sched;
#[cfg(target_arch = "bpf")]
mod self_jump;
#[cfg(target_arch = "bpf")]
mod stack;
#[cfg(target_arch = "bpf")]
mod task;
#[cfg(target_arch = "bpf")]
mod unwind;
#[cfg(target_arch = "bpf")]
mod user_memory;

#[cfg(target_arch = "bpf")]
mod entry {
    use core::ffi::c_void;

    use aya_ebpf::{
        EbpfContext,
        macros::{perf_event, raw_tracepoint, uprobe},
        programs::{PerfEventContext, ProbeContext, RawTracePointContext, TracePointContext},
    };

    use crate::{call, cgroup, sample, sched, task};

    /// What a program on a tracepoint's perf event returns so that the perf events of others, which
    /// share the tracepoint, get the hit as well; 0 would end it for all of them. Ours has no buffer and
    /// is not enabled: nothing more comes of it for us. Raw tracepoints and other events don't ask.
    const LET_PASS: u32 = 1;

    /// A program on a tracepoint's perf event. The library's own attribute for such programs would have
    /// it return 0 whatever the function returns.
    macro_rules! on_tracepoint {
        ($(#[$doc:meta])* fn $name:ident($ctx:ident) $body:block) => {
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "tracepoint")]
            extern "C" fn $name(record: *mut c_void) -> u32 {
                let $ctx = &TracePointContext::new(record);
                $body
                LET_PASS
            }
        };
    }

    macro_rules! samplers {
        ($($source:literal $on_perf_event:ident $on_tracepoint:ident)*) => {$(
            #[perf_event]
            fn $on_perf_event(ctx: PerfEventContext) -> u32 {
                sample::on_perf_event::<$source>(&ctx)
            }

            on_tracepoint! {
                fn $on_tracepoint(ctx) {
                    sample::on_tracepoint::<$source>(ctx.as_ptr());
                }
            }
        )*};
    }

    samplers! {
        0 sample_event_0 sample_tracepoint_0
        1 sample_event_1 sample_tracepoint_1
        2 sample_event_2 sample_tracepoint_2
        3 sample_event_3 sample_tracepoint_3
        4 sample_event_4 sample_tracepoint_4
        5 sample_event_5 sample_tracepoint_5
        6 sample_event_6 sample_tracepoint_6
        7 sample_event_7 sample_tracepoint_7
    }

    /// On the raw tracepoint `task_newtask`: follows the children of watched tasks.
    #[raw_tracepoint]
    fn watch_child(ctx: RawTracePointContext) -> u32 {
        task::watch_child(&ctx);
        0
    }

    /// On the raw tracepoint `sched_process_free`: forgets a watched task before its id can be given
    /// out again.
    #[raw_tracepoint]
    fn forget_task(ctx: RawTracePointContext) -> u32 {
        task::forget(&ctx);
        0
    }

    on_tracepoint! {
        /// On `task:task_newtask`, for kernels that don't describe their types.
        fn watch_child_in_record(ctx) {
            task::watch_child_in_record(ctx);
        }
    }

    on_tracepoint! {
        /// On `sched:sched_process_free`, for kernels that don't describe their types.
        fn forget_task_in_record(ctx) {
            task::forget_in_record(ctx);
        }
    }

    /// On the raw tracepoint `cgroup_mkdir`: tells of a new cgroup, and whether it is wanted.
    #[raw_tracepoint]
    fn cgroup_made(ctx: RawTracePointContext) -> u32 {
        cgroup::on_change::<false>(&ctx)
    }

    /// On the raw tracepoint `cgroup_rmdir`: forgets a cgroup.
    #[raw_tracepoint]
    fn cgroup_removed(ctx: RawTracePointContext) -> u32 {
        cgroup::on_change::<true>(&ctx)
    }

    /// On the raw tracepoint `sched_switch`: a thread begins to wait, another one goes on.
    #[raw_tracepoint]
    fn wait_switch(ctx: RawTracePointContext) -> u32 {
        sched::on_switch(&ctx)
    }

    /// On the raw tracepoint `sched_waking`: a thread that waits is made runnable.
    #[raw_tracepoint]
    fn wait_waking(ctx: RawTracePointContext) -> u32 {
        sched::on_waking(&ctx)
    }

    /// On the raw tracepoint `sched_wakeup_new`: a new thread can run.
    #[raw_tracepoint]
    fn wait_new(ctx: RawTracePointContext) -> u32 {
        sched::on_new(&ctx)
    }

    /// On the raw tracepoint `sched_process_exec`: stacks seen before are another program's.
    #[raw_tracepoint]
    fn wait_exec(ctx: RawTracePointContext) -> u32 {
        sched::on_exec(&ctx)
    }

    /// For each task, when a recording of waits begins.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "iter/task")]
    extern "C" fn wait_begun(ctx: *mut c_void) -> u32 {
        sched::on_task(ctx)
    }

    /// On every place of every traced function; the cookie says which.
    #[uprobe]
    fn call_hit(ctx: ProbeContext) -> u32 {
        call::on_hit(ctx.as_ptr())
    }

    /// Helpers such as `bpf_get_stack` are reserved to programs under a GPL-compatible licence.
    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

    #[panic_handler]
    fn panic(_info: &core::panic::PanicInfo) -> ! {
        // No panic survives optimisation: the verifier would refuse an endless loop.
        loop {}
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
