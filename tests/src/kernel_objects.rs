//! Which BPF programs and maps a process holds, and whether one still exists.
//!
//! Input: a process id. Output: kernel ids, from `/proc/PID/fdinfo`. Other tools may load programs at
//! the same time, so the ids of one process are followed rather than all of the machine compared.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// What a process holds in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Ids of BPF programs.
    pub programs: Vec<u32>,
    /// Ids of BPF maps.
    pub maps: Vec<u32>,
    /// How many links: what attaches programs to probes.
    pub links: usize,
    /// Bytes that the kernel charges for the maps.
    pub map_bytes: u64,
}

const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;

/// What process `pid` holds now.
pub fn held_by(pid: u32) -> io::Result<Held> {
    let mut held = Held::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor can be closed while the folder is read.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        if let Some(id) = field("prog_id:") {
            held.programs.push(id as u32);
        }
        held.links += usize::from(field("link_id:").is_some());
        if let Some(id) = field("map_id:")
            && !held.maps.contains(&(id as u32))
        {
            held.maps.push(id as u32);
            held.map_bytes += field("memlock:").unwrap_or(0);
        }
    }
    held.programs.sort_unstable();
    held.programs.dedup();
    Ok(held)
}

/// Waits until none of `held` exists any more: the kernel frees programs with a delay.
pub fn wait_until_gone(held: &Held, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        let programs: Vec<_> = held
            .programs
            .iter()
            .filter(|&&id| exists(BPF_PROG_GET_FD_BY_ID, id))
            .collect();
        let maps: Vec<_> = held
            .maps
            .iter()
            .filter(|&&id| exists(BPF_MAP_GET_FD_BY_ID, id))
            .collect();
        if programs.is_empty() && maps.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "still in the kernel: programs {programs:?}, maps {maps:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn exists(command: libc::c_int, id: u32) -> bool {
    // The part of `union bpf_attr` that BPF_*_GET_FD_BY_ID read: id, next_id, open_flags.
    let attributes = [id, 0, 0, 0];
    // SAFETY: `attributes` lives through the call, and its size is passed with it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            true
        }
        _ => false,
    }
}
