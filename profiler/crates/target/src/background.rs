//! Processes of this program that do one thing apart: how they are started, and what they give up first.
//!
//! A command and its end of a socket -> a process in the background ([`start`]). In that process: what it has inherited
//! is closed ([`close_inherited`]), and rights go but those that it needs ([`keep_rights`]).
//!
//! What does not belong here: what one does, and the other walls around it (`container::engines::apart`; of other crates
//! `resolve::helper`, `probe::calls::keeper`).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Starts it, with the socket for standard input.
pub fn start(command: &mut Command, socket: OwnedFd) -> io::Result<Child> {
    command
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Out of reach of the terminal's Ctrl-C.
        .process_group(0)
        // Its folder must not keep a file system from being unmounted.
        .current_dir("/")
        .spawn()
}

/// Closes all descriptors but the standard ones, in a process that has opened none yet: they are its parent's.
#[allow(unsafe_code)]
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns any of them.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all capabilities of this thread but these.
pub fn keep_rights(kept: CapabilitySet) -> io::Result<()> {
    // It has none to be told of at the most.
    let _ = rustix::thread::clear_ambient_capability_set();
    let permitted = rustix::thread::capabilities(None)?.permitted & kept;
    let sets = CapabilitySets {
        effective: permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
