//! Programs that the crate which loads the object does not know how to load: their instructions -> programs in
//! the kernel.
//!
//! That crate makes the maps. The instructions are taken from the object once more, pointed at those maps, and
//! loaded here.
//!
//! What does not belong here: what they are attached to (`calls`, `waiting`).

use std::{
    collections::HashSet,
    ffi::CStr,
    os::fd::{AsRawFd, OwnedFd},
};

use aya::Ebpf;
use aya_obj::{Object, generated::bpf_insn};

use super::{
    ProbeError,
    bpf::{self, LoadAs},
    load, memory,
};

/// How much of the verifier's log is asked for, and how much of its end is said.
const LOG_BYTES: usize = 1 << 20;
const SAID_LOG_BYTES: usize = 2000;

/// A program of the object.
pub(super) struct Program {
    /// Its name there.
    pub(super) name: &'static str,
    /// What the kernel calls it.
    pub(super) short_name: &'static CStr,
}

/// The instructions of a program, with the maps that `ebpf` made.
pub(super) fn of(ebpf: &Ebpf, program: &Program) -> Result<Vec<bpf_insn>, ProbeError> {
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
    let missing = || load::missing(program.name);
    let program = object.programs.get(program.name).ok_or_else(missing)?;
    let function = object.functions.get(&program.function_key());
    Ok(function.ok_or_else(missing)?.instructions.clone())
}

/// Loads a program.
pub(super) fn load(
    program: &Program,
    instructions: &[bpf_insn],
    load_as: &LoadAs,
) -> Result<OwnedFd, ProbeError> {
    let load = || bpf::load_program(program.short_name, instructions, load_as, &mut []);
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
    match bpf::load_program(program.short_name, instructions, load_as, &mut log) {
        Ok(program) => Ok(program),
        Err(_) => {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let said = &log[end.saturating_sub(SAID_LOG_BYTES)..end];
            Err(ProbeError::Load(format!(
                "{}: {error}: {}",
                program.name,
                String::from_utf8_lossy(said)
            )))
        }
    }
}
