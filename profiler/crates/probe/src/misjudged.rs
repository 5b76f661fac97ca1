//! Whether the loader takes this kernel for what it is.
//!
//! The library that loads finds out once in a process, by loading small programs, and the verifier gives those up
//! that a signal disturbs (a stop and a continue, say): what is not known to work then passes for missing until the
//! process ends. Its programs don't load any more, or are attached in the way of older kernels.

use std::io;

use aya_obj::generated::{bpf_insn, bpf_prog_type};

use crate::{
    bpf::{self, instruction},
    load, sys,
};

/// Whether this process goes without what the kernel has: only another one will do better. False where nothing can
/// be loaded at all.
pub fn is_kernel_misjudged() -> bool {
    let believed = {
        let _unheard = sys::Unheard::begin();
        aya::features()
    };
    // What all kernels have that it works on, and what came in one version (Linux 5.15).
    let oldest = believed.bpf_name()
        && believed.bpf_probe_read_kernel()
        && believed.bpf_global_data()
        && believed.btf().is_some();
    let cookies = believed.bpf_perf_link() && believed.bpf_cookie();
    !cookies && try_cookies().is_ok() || !oldest && try_anything().is_ok()
}

/// Loads a program that asks for its cookie.
fn try_cookies() -> io::Result<()> {
    // From <linux/bpf.h>.
    const GET_ATTACH_COOKIE: i32 = 174;
    try_program(&[instruction(0x85, 0, 0, 0, GET_ATTACH_COOKIE)])
}

/// Loads a program that does nothing.
fn try_anything() -> io::Result<()> {
    try_program(&[])
}

fn try_program(first: &[bpf_insn]) -> io::Result<()> {
    let end = [
        instruction(0xb7, 0, 0, 0, 0), // r0 = 0
        instruction(0x95, 0, 0, 0, 0), // exit
    ];
    let program = [first, &end].concat();
    let load_as = bpf::LoadAs {
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE,
        attach_type: None,
        function: 0,
    };
    load::unless_disturbed(|| bpf::load_program(c"trial", &program, &load_as, &mut [])).map(drop)
}
