//! Commands of bpf(2) that no crate in use wraps: elements of maps in batches, programs with an
//! attach type, links to many uprobes at once.
//!
//! Typed arguments -> `io::Result`. Layouts are those of `union bpf_attr` in <linux/bpf.h>. With
//! `sys` the only file of this module with unsafe code; nothing here decides anything.

#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_insn, bpf_map_type, bpf_prog_type};
use profiler_common::sched::{ThreadWaits, WaitCounters, WaitRecord, WaitTotalsRecord};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::sys::owned;

/// From <linux/bpf.h>: the link's programs run when the functions return.
const UPROBE_MULTI_RETURN: u32 = 1;

/// What the kernel side keeps of waits for each processor: its `WaitCpu`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes)]
pub(super) struct WaitSlot {
    /// What was seen and lost.
    pub(super) counters: WaitCounters,
    /// What only the kernel side reads.
    private: [u64; 8 + WAIT_RECORD_BYTES / 8],
}

const WAIT_RECORD_BYTES: usize =
    size_of::<ThreadWaits>() + size_of::<WaitRecord>() + size_of::<WaitTotalsRecord>();

#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

#[repr(C)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Sets elements of a map with keys of 4 bytes in one system call, or one by one on kernels that
/// can't do that for this kind of map.
pub(super) fn update_map<V: IntoBytes + Immutable>(
    map: BorrowedFd<'_>,
    keys: &[u32],
    values: &[V],
) -> io::Result<()> {
    let count = keys.len().min(values.len());
    if count == 0 {
        return Ok(());
    }
    let batch = Batch {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: count as u32,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    if count > 1 && bpf(bpf_cmd::BPF_MAP_UPDATE_BATCH, &batch).is_ok() {
        return Ok(());
    }
    for (key, value) in keys.iter().zip(values) {
        let element = Element {
            map_fd: map.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: std::ptr::from_ref(key) as u64,
            value: std::ptr::from_ref(value) as u64,
            flags: 0,
        };
        bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &element)?;
    }
    Ok(())
}

/// Takes elements out of a hash map with keys of 4 bytes; those that are not there are passed over.
pub(super) fn remove_from_map(map: BorrowedFd<'_>, keys: &[u32]) -> io::Result<()> {
    let mut left = keys;
    while !left.is_empty() {
        let mut batch = Batch {
            in_batch: 0,
            out_batch: 0,
            keys: left.as_ptr() as u64,
            values: 0,
            count: left.len() as u32,
            map_fd: map.as_raw_fd().cast_unsigned(),
            elem_flags: 0,
            flags: 0,
        };
        match bpf_mut(bpf_cmd::BPF_MAP_DELETE_BATCH, &mut batch) {
            Ok(_) => return Ok(()),
            // It stopped at one that is not there; `count` says how many it had taken out.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                left = left.get(batch.count as usize + 1..).unwrap_or_default();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// All elements of a hash map with keys of 4 bytes and room for `entries`. Of what changes meanwhile, some
/// may be missed.
pub(super) fn read_hash<V: FromBytes + Clone + Copy + Default>(
    map: BorrowedFd<'_>,
    entries: u32,
) -> io::Result<Vec<(u32, V)>> {
    let mut keys = vec![0_u32; entries as usize];
    let mut values = vec![V::default(); entries as usize];
    let mut found = Vec::new();
    // Where the kernel goes on, in its own terms; the first call has none.
    let mut position = 0_u32;
    let mut is_first = true;
    loop {
        let at = std::ptr::from_mut(&mut position) as u64;
        let mut batch = Batch {
            in_batch: if is_first { 0 } else { at },
            out_batch: at,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: entries,
            map_fd: map.as_raw_fd().cast_unsigned(),
            elem_flags: 0,
            flags: 0,
        };
        let result = bpf_mut(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut batch);
        let is_end = match result {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) => return Err(error),
        };
        let count = batch.count.min(entries) as usize;
        found.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
        if is_end {
            return Ok(found);
        }
        is_first = false;
    }
}

/// Empties a hash map with keys of 8 bytes and at most `entries` of them. What is added meanwhile may
/// stay.
pub(super) fn clear_map(map: BorrowedFd<'_>, entries: u32) -> io::Result<()> {
    let element = |key: *const u64, value: *mut u64| Element {
        map_fd: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: key as u64,
        // Of BPF_MAP_GET_NEXT_KEY: where the next key is put.
        value: value as u64,
        flags: 0,
    };
    // The first key is taken each time: a key that is gone has no next one.
    for _ in 0..entries {
        let mut key = 0_u64;
        let first = element(std::ptr::null(), std::ptr::from_mut(&mut key));
        match bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &first) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(error),
        }
        let gone = element(std::ptr::from_ref(&key), std::ptr::null_mut());
        match bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &gone) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reads the elements `first..first + count` of an array with `per_key` values for each (for each
/// possible processor, if it is per processor) into `out`, in order.
pub(super) fn read_array<V: FromBytes + Clone>(
    map: BorrowedFd<'_>,
    first: u32,
    count: u32,
    per_key: usize,
    out: &mut Vec<V>,
) -> io::Result<()> {
    out.clear();
    out.resize(count as usize * per_key, V::new_zeroed());
    if count == 0 {
        return Ok(());
    }
    // How many processors there can be is not known.
    if per_key == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut keys = vec![0_u32; count as usize];
    // Arrays name the last element of the batch before.
    let before = first.wrapping_sub(1);
    let mut last = 0_u32;
    let batch = Batch {
        in_batch: if first == 0 {
            0
        } else {
            std::ptr::from_ref(&before) as u64
        },
        out_batch: std::ptr::from_mut(&mut last) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: out.as_mut_ptr() as u64,
        count,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    match bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &batch) {
        Ok(_) => return Ok(()),
        // The end of the array, which is what was asked for.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        Err(_) => {}
    }
    for (key, values) in (first..).zip(out.chunks_mut(per_key)) {
        let element = Element {
            map_fd: map.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: std::ptr::from_ref(&key) as u64,
            value: values.as_mut_ptr() as u64,
            flags: 0,
        };
        bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &element)?;
    }
    Ok(())
}

/// What a program is loaded as.
pub(super) struct LoadAs {
    /// Its type.
    pub(super) kind: bpf_prog_type,
    /// What for; none: the usual.
    pub(super) attach_type: Option<bpf_attach_type>,
    /// The function of the kernel that it is for, by its number among the kernel's types; 0: none.
    pub(super) function: u32,
}

/// An instruction: code, destination, source, offset, constant.
pub(super) fn instruction(code: u8, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(to, from),
        off,
        imm,
    }
}

/// Loads a program. `log` takes what the verifier has to say.
pub(super) fn load_program(
    name: &CStr,
    instructions: &[bpf_insn],
    load_as: &LoadAs,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
        // Types of the program itself, lines, functions: there are none.
        types: [u64; 4],
        lines: u32,
        function: u32,
        of_program: u32,
        relocations: u32,
    }
    let mut short_name = [0; 16];
    for (to, from) in short_name[..15].iter_mut().zip(name.to_bytes()) {
        *to = *from;
    }
    let load = Load {
        kind: load_as.kind as u32,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32,
        log: if log.is_empty() {
            0
        } else {
            log.as_mut_ptr() as u64
        },
        kernel_version: 0,
        flags: 0,
        name: short_name,
        interface: 0,
        attach_type: load_as.attach_type.map_or(0, |kind| kind as u32),
        types: [0; 4],
        lines: 0,
        function: load_as.function,
        of_program: 0,
        relocations: 0,
    };
    owned(bpf(bpf_cmd::BPF_PROG_LOAD, &load)?)
}

/// Makes an array map with values of 8 bytes. `flags` are those of the command.
pub(super) fn make_array(entries: u32, flags: u32) -> io::Result<OwnedFd> {
    make_map(bpf_map_type::BPF_MAP_TYPE_ARRAY, entries, flags)
}

/// Makes a hash map with keys of 4 and values of 8 bytes.
pub(super) fn make_hash(entries: u32) -> io::Result<OwnedFd> {
    make_map(bpf_map_type::BPF_MAP_TYPE_HASH, entries, 0)
}

fn make_map(kind: bpf_map_type, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
        flags: u32,
    }
    let create = Create {
        kind: kind as u32,
        key_bytes: 4,
        value_bytes: 8,
        entries,
        flags,
    };
    owned(bpf(bpf_cmd::BPF_MAP_CREATE, &create)?)
}

/// Places in one file for one link; all slices have the same length, or `semaphores` is empty.
pub(super) struct Places<'a> {
    /// The file.
    pub(super) path: &'a CStr,
    /// Where, as offsets in the file.
    pub(super) offsets: &'a [u64],
    /// File offsets of counters that are raised while the link is there; 0 for none.
    pub(super) semaphores: &'a [u64],
    /// What the program is told.
    pub(super) cookies: &'a [u64],
    /// When the functions return, instead of when the places are reached.
    pub(super) at_return: bool,
    /// Only in this process; 0 for all.
    pub(super) pid: u32,
}

/// Attaches a program to many places, until the link is closed.
pub(super) fn link_uprobes(program: BorrowedFd<'_>, places: &Places<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        path: u64,
        offsets: u64,
        semaphores: u64,
        cookies: u64,
        count: u32,
        uprobe_flags: u32,
        pid: u32,
        padding: u32,
    }
    assert_eq!(places.offsets.len(), places.cookies.len());
    assert!(places.semaphores.is_empty() || places.semaphores.len() == places.offsets.len());
    let create = Create {
        program: raw(program),
        target: 0,
        attach_type: bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32,
        flags: 0,
        path: places.path.as_ptr() as u64,
        offsets: places.offsets.as_ptr() as u64,
        semaphores: match places.semaphores {
            [] => 0,
            semaphores => semaphores.as_ptr() as u64,
        },
        cookies: places.cookies.as_ptr() as u64,
        count: places.offsets.len() as u32,
        uprobe_flags: if places.at_return {
            UPROBE_MULTI_RETURN
        } else {
            0
        },
        pid: places.pid,
        padding: 0,
    };
    owned(bpf(bpf_cmd::BPF_LINK_CREATE, &create)?)
}

/// Attaches a program to a perf event with a cookie, until the link is closed.
pub(super) fn link_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        program: u32,
        event: u32,
        attach_type: u32,
        flags: u32,
        cookie: u64,
    }
    let create = Create {
        program: raw(program),
        event: raw(event),
        attach_type: bpf_attach_type::BPF_PERF_EVENT as u32,
        flags: 0,
        cookie,
    };
    owned(bpf(bpf_cmd::BPF_LINK_CREATE, &create)?)
}

/// A file that runs a program for each of what it is for as it is read, and gives what the program writes.
pub(super) fn iterate(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Link {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
    }
    #[repr(C)]
    struct Create {
        link: u32,
        flags: u32,
    }
    let link = Link {
        program: raw(program),
        target: 0,
        attach_type: bpf_attach_type::BPF_TRACE_ITER as u32,
        flags: 0,
    };
    let link = owned(bpf(bpf_cmd::BPF_LINK_CREATE, &link)?)?;
    let create = Create {
        link: raw(link.as_fd()),
        flags: 0,
    };
    owned(bpf(bpf_cmd::BPF_ITER_CREATE, &create)?)
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// [`bpf`] for commands that answer in the argument.
fn bpf_mut<T>(command: bpf_cmd, argument: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: as for `bpf`; the kernel writes to fields that are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            std::ptr::from_mut(argument),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn bpf<T>(command: bpf_cmd, argument: &T) -> io::Result<libc::c_long> {
    // SAFETY: `argument` has the layout of bpf(2) for `command` and lives through the call, and so
    // does all that it points to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            std::ptr::from_ref(argument),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel copies as much as its map says.
    #[test]
    fn what_processors_keep_of_waits_is_as_large_here() {
        let object = aya_obj::Object::parse(crate::load::OBJECT).unwrap();
        let bytes = object.maps["WAIT_CPU"].value_size();
        assert_eq!(bytes as usize, size_of::<WaitSlot>());
    }
}
