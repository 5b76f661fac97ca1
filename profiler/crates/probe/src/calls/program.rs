//! The program that runs at hits: the object's instructions -> a program for links to many uprobes.
//!
//! The crate that loads the object knows no attach types for uprobes. So it makes the maps, and the
//! instructions are taken from the object once more, pointed at those maps, and loaded here.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use aya::Ebpf;
use aya_obj::{
    Object,
    generated::{bpf_attach_type, bpf_insn},
};
use profiler_common::call::COOKIE_PLACE;

use crate::{ProbeError, bpf, load, memory};

const NAME: &str = "call_hit";

/// How much of the verifier's log is asked for, and how much of its end is said.
const LOG_BYTES: usize = 1 << 20;
const SAID_LOG_BYTES: usize = 2000;

/// The instructions, with the maps that `ebpf` made.
pub(super) fn instructions(ebpf: &Ebpf) -> Result<Vec<bpf_insn>, ProbeError> {
    let damaged = |error: &dyn std::fmt::Display| ProbeError::Load(error.to_string());
    let mut object = Object::parse(load::OBJECT).map_err(|error| damaged(&error))?;
    let sections: HashSet<usize> = object.functions.keys().map(|key| key.0).collect();
    let maps = object.maps.clone();
    let fds = ebpf.maps().filter_map(|(name, map)| {
        let known = maps.get(name)?;
        Some((name, memory::map_fd(map)?.as_raw_fd(), known))
    });
    object
        .relocate_maps(fds, &sections)
        .map_err(|error| damaged(&error))?;
    object
        .relocate_calls(&sections)
        .map_err(|error| damaged(&error))?;
    let program = object
        .programs
        .get(NAME)
        .ok_or_else(|| load::missing(NAME))?;
    let function = object.functions.get(&program.function_key());
    let function = function.ok_or_else(|| load::missing(NAME))?;
    Ok(function.instructions.clone())
}

/// Loads it for links to many uprobes, or for perf events.
pub(super) fn load(instructions: &[bpf_insn], multi: bool) -> Result<OwnedFd, ProbeError> {
    let attach_type = multi.then_some(bpf_attach_type::BPF_TRACE_UPROBE_MULTI);
    let load = || bpf::load_kprobe(c"call_hit", instructions, attach_type, &mut []);
    let error = match load::unless_disturbed(load) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let verifier = matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EINVAL | libc::E2BIG)
    );
    if !verifier {
        return Err(ProbeError::from_io("load the kernel-side programs", error));
    }
    let mut log = vec![0; LOG_BYTES];
    // Fails as before, now with reasons (or for want of room for them: then it is cut).
    match bpf::load_kprobe(c"call_hit", instructions, attach_type, &mut log) {
        Ok(program) => Ok(program),
        Err(_) => {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let said = &log[end.saturating_sub(SAID_LOG_BYTES)..end];
            Err(ProbeError::Load(format!(
                "{NAME}: {error}: {}",
                String::from_utf8_lossy(said)
            )))
        }
    }
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
