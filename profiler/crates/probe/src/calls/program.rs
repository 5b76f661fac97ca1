//! The program that runs at hits: the object's instructions -> a program for links to many uprobes, or for
//! perf events.
//!
//! What does not belong here: how programs are loaded (`instructions`).

use std::{io, os::fd::OwnedFd};

use aya::Ebpf;
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use profiler_common::call::COOKIE_PLACE;

use crate::{
    ProbeError,
    bpf::LoadAs,
    instructions::{self, Program},
};

const PROGRAM: Program = Program {
    name: "call_hit",
    short_name: c"call_hit",
};

/// The instructions, with the maps that `ebpf` made.
pub(super) fn instructions(ebpf: &Ebpf) -> Result<Vec<bpf_insn>, ProbeError> {
    instructions::of(ebpf, &PROGRAM)
}

/// Loads it for links to many uprobes, or for perf events.
pub(super) fn load(instructions: &[bpf_insn], multi: bool) -> Result<OwnedFd, ProbeError> {
    let attach_type = multi.then_some(bpf_attach_type::BPF_TRACE_UPROBE_MULTI);
    let load_as = LoadAs {
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE,
        attach_type,
        function: 0,
    };
    instructions::load(&PROGRAM, instructions, &load_as)
}

/// The instructions with a cookie written into them, for kernels that hand none over.
pub(super) fn with_cookie(
    instructions: &[bpf_insn],
    cookie: u64,
) -> Result<Vec<bpf_insn>, ProbeError> {
    let halves = |value: u64| (value as u32 as i32, (value >> 32) as u32 as i32);
    let place = halves(COOKIE_PLACE);
    let mut patched = instructions.to_vec();
    let at = patched
        .windows(2)
        .position(|pair| (pair[0].imm, pair[1].imm) == place)
        .ok_or_else(|| {
            ProbeError::from_io(
                "find the place of the cookie in the kernel-side object",
                io::Error::from(io::ErrorKind::InvalidData),
            )
        })?;
    (patched[at].imm, patched[at + 1].imm) = halves(cookie);
    Ok(patched)
}
