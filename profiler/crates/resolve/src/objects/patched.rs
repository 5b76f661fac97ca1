//! Whether somebody has put probes into the code of a process.
//!
//! A process and places of a file -> whether its memory differs from the file there. Read only; places
//! are file offsets.
//!
//! What does not belong here: whose probes these are.

use std::os::unix::fs::FileExt;

use super::FileId;
use crate::files::MappedFile;
use crate::helper::{Memory, open_local};
use crate::proc_fs;
use profiler_model::Pid;
use profiler_model::raw::RawMmap;

/// Whether the code of process `pid` differs from any of these files, as far as it maps them, at any of
/// the places. A process that can't be looked at has not.
pub fn is_patched(pid: Pid, files: &[(FileId, Vec<u64>)]) -> bool {
    let maps = proc_fs::mappings(pid);
    maps.iter().any(|map| {
        let mut files = files.iter().filter(|(id, _)| is_of(map, id.inode()));
        files.any(|(id, offsets)| differs(pid, map, *id, offsets).unwrap_or(false))
    })
}

/// Whether a mapping is of a file of that number. Devices of overlays are many.
fn is_of(map: &RawMmap, number: u64) -> bool {
    const INODE: u64 = (1 << 48) - 1;
    map.file.inode & INODE == number & INODE
}

fn differs(pid: Pid, map: &RawMmap, id: FileId, offsets: &[u64]) -> Option<bool> {
    let end = map.start.checked_add(map.len)?;
    let mapped = MappedFile {
        pid,
        range: (map.start, end),
        path: "",
        identity: map.file,
        root: None,
    };
    let file = open_local(&mapped).ok()?.file;
    if FileId::of(&file, &rustix::fs::fstat(&file).ok()?) != id {
        return Some(false);
    }
    let memory = Memory::open(pid).ok()?;
    let inside = |offset: &&u64| (0..map.len).contains(&offset.wrapping_sub(map.file_offset));
    let mut offsets = offsets.iter().filter(inside);
    Some(offsets.any(|offset| {
        let address = map.start + (offset - map.file_offset);
        let mut was = [0];
        memory
            .read(address, 1)
            .is_some_and(|is| file.read_exact_at(&mut was, *offset).is_ok() && is != was)
    }))
}
