//! The program that runs at hits: the object's instructions -> a program for links to many uprobes, or for
//! perf events.
//!
//! What does not belong here: how programs are loaded (`instructions`).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use aya::Ebpf;
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use profiler_common::call::COOKIE_PLACE;

use crate::{
    ProbeError,
    bpf::{LoadAs, instruction},
    instructions::{self, Program},
};

const PROGRAM: Program = Program {
    name: "call_hit",
    short_name: c"call_hit",
};

/// The instructions, with the maps that `ebpf` made. Before anything else they end it for processes whose ids
/// are in `own`.
pub(super) fn instructions(ebpf: &Ebpf, own: BorrowedFd<'_>) -> Result<Vec<bpf_insn>, ProbeError> {
    let mut all = unless_in(own).to_vec();
    all.extend(instructions::of(ebpf, &PROGRAM)?);
    Ok(all)
}

/// Instructions that go before a program, and end it if the current process's id is in a map. Jumps and calls of
/// the program say how far they go, so that nothing in it changes.
fn unless_in(map: BorrowedFd<'_>) -> [bpf_insn; 13] {
    const MOVE: u8 = 0xbf;
    const CALL: u8 = 0x85;
    const GET_CURRENT_PID_TGID: i32 = 14;
    const MAP_LOOKUP_ELEM: i32 = 1;
    /// That the number is a descriptor.
    const MAP_FD: u8 = 1;
    [
        // The context, which calls do not change there.
        instruction(MOVE, 6, 1, 0, 0),
        instruction(CALL, 0, 0, 0, GET_CURRENT_PID_TGID),
        // The process, in the upper half, goes onto the stack.
        instruction(0x77, 0, 0, 0, 32),
        instruction(0x63, 10, 0, -4, 0),
        instruction(0x18, 1, MAP_FD, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE, 2, 10, 0, 0),
        instruction(0x07, 2, 0, 0, -4),
        instruction(CALL, 0, 0, 0, MAP_LOOKUP_ELEM),
        // It goes on behind the end if nothing was found.
        instruction(0x15, 0, 0, 2, 0),
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
        instruction(MOVE, 1, 6, 0, 0),
    ]
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
