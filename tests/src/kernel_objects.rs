//! Which BPF programs, links and maps a process holds, and whether one still exists.
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
    /// Ids of links: what attaches programs to probes.
    pub links: Vec<u32>,
    /// Bytes that the kernel charges for the maps.
    pub map_bytes: u64,
}

const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;

/// What process `pid` holds now, and what the processes do that it has hold its links.
pub fn held_by(pid: u32) -> io::Result<Held> {
    let mut held = Held::default();
    add_held(pid, &mut held)?;
    for keeper in keepers_of(pid) {
        // It may end meanwhile.
        let _ = add_held(keeper, &mut held);
    }
    held.programs.sort_unstable();
    held.programs.dedup();
    Ok(held)
}

/// Whether a process is one that the profiler has started to help it: holds links, opens files, finds names. None is a command
/// that it was asked to run.
pub fn is_helper(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with(b"profiler-")
}

/// The processes that hold the links of process `pid`.
pub fn keepers_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    let is_keeper = |id: &u32| {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        name.trim_end() == profiler_probe::KEEPER
    };
    children.filter(is_keeper).collect()
}

fn add_held(pid: u32, held: &mut Held) -> io::Result<()> {
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
        if let Some(id) = field("link_id:") {
            held.links.push(id as u32);
        }
        if let Some(id) = field("map_id:")
            && !held.maps.contains(&(id as u32))
        {
            held.maps.push(id as u32);
            held.map_bytes += field("memlock:").unwrap_or(0);
        }
    }
    Ok(())
}

/// Waits until a process has ended. Whether its parent has taken notice does not matter.
pub fn wait_until_ended(pid: u32, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if matches!(state, None | Some('Z' | 'X')) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("process {pid} is still there: {stat}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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
        let links: Vec<_> = held
            .links
            .iter()
            .filter(|&&id| exists(BPF_LINK_GET_FD_BY_ID, id))
            .collect();
        if programs.is_empty() && maps.is_empty() && links.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "still in the kernel: programs {programs:?}, maps {maps:?}, links {links:?}"
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
