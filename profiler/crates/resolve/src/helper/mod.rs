//! Symbols are read in a process apart.
//!
//! Files of targets -> names of addresses in them. What a file says it unpacks to, which files it names
//! and how deep its names nest is its author's choice, and the library that reads it (blazesym) follows, without
//! limits and without an end that could be set from outside. So it runs in a process that has nothing to
//! lose: this program once more, under the name [`NAME`], which is given descriptors and asked about
//! addresses (`client`, `wire`, `serve`), behind all the walls that the machine has (`walls`, `seccomp`).
//! Where it can't be started nothing is named; programs that use this crate as a library and never called
//! [`offer_names`] have a thread in its place, and no walls.
//!
//! What does not belong here: which files belong together (`material`), how one is read (`loaded`).

mod client;
mod memory;
mod one_user;
mod opener;
mod pieces;
mod place;
mod questions;
mod seccomp;
mod serve;
mod walls;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

pub use client::for_each_helper;
#[cfg(test)]
pub(super) use client::leave_dying;
pub(super) use client::{Client, Death, Limits, Number, is_dying};
pub(super) use memory::Memory;
pub use memory::{MemoryOfThreads, start_reading};
pub(super) use one_user::{Loss, OneUser};
pub use opener::start_opening;
pub(super) use opener::{
    Opening, Slow, await_opening, open_below, open_elsewhere, open_local, open_soon,
};
pub(super) use place::Place;
pub use questions::{Answering, Questions};
pub use serve::serve_names;
pub use walls::Walls;
pub(super) use wire::Found;
pub use wire::is_understood;

/// What the process is called.
const NAME: &str = profiler_model::helpers::NAMES;
/// What it is told in place of a limit of memory when it is to open files.
const OPENS: &str = "opens";
/// The same when it is to read the memory of processes.
const READS: &str = "reads";

static OFFERED: AtomicBool = AtomicBool::new(false);

/// Whether this program was started to read symbols: it calls [`serve_names`] then, and nothing else.
pub fn is_for_names(called: &std::ffi::OsStr) -> bool {
    called == NAME
}

/// From now on symbols are read by a process: this program looks whether it [`is_for_names`].
pub fn offer_names() {
    OFFERED.store(true, Ordering::Relaxed);
}

/// Which walls this machine gives; none if there is no such process.
pub fn walls() -> std::io::Result<Walls> {
    Client::new(Limits::default()).walls()
}
