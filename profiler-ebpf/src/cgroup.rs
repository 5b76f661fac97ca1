//! Which cgroup the current thread is in, and whether that is wanted; cgroups that come and go.
//!
//! A verdict is found by walking from the thread's cgroup to the root, and kept by the cgroup's id.
//! User space changes what is wanted and then the generation, which makes all verdicts void. New
//! cgroups are decided before any process can enter them: the tracepoint of their making runs first.
//! In version 1 the kernel has no helper for this: its structures are read, at offsets that user
//! space gives.
//!
//! What does not belong here: what cgroups mean (containers, units), which only user space knows.

use core::ptr::addr_of_mut;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_ANY,
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_task, bpf_get_smp_processor_id,
        bpf_ktime_get_ns, bpf_probe_read_kernel, generated::bpf_probe_read_kernel_str,
    },
    programs::TracePointContext,
};
use profiler_common::{
    KIND_CGROUP, RECORD_VERSION, RecordHead,
    cgroup::{
        CGROUP_KN, CGROUP_SELF, CGROUP_UNDECIDED, CGROUP_UNWANTED, CGROUP_WANTED, CSS_CGROUP,
        CSS_PARENT, CgroupHead, EVENT_ID, EVENT_PATH, EVENT_ROOT, KN_ID, MAX_LEVELS, NAME_BYTES,
        OFFSETS_KNOWN, PATH_BYTES, SET_MEMBER, SUBSYS_UNIFIED, TASK_CGROUPS, Verdict,
    },
};

use crate::{
    emit,
    maps::{
        CGROUP_EVENT_OFFSETS, CGROUP_NAMES, CGROUP_OFFSETS, CGROUP_ROOT, CGROUP_STATE,
        CGROUP_SUBSYS, CGROUPS, CGROUPS_UNDECIDED, Scratch, VERDICTS,
    },
    sample::claim_scratch,
};

const HEAD_BYTES: usize = size_of::<CgroupHead>();

/// The id of the current thread's cgroup in the session's hierarchy; 0: not known.
#[inline(always)]
pub fn current() -> u64 {
    if CGROUP_SUBSYS.load() == SUBSYS_UNIFIED {
        // SAFETY: the helper takes no pointers.
        return unsafe { bpf_get_current_cgroup_id() };
    }
    id_of(current_cgroup()).unwrap_or(0)
}

/// Whether the cgroup `id`, which is the current thread's, is wanted: a `CGROUP_*` constant.
#[inline(always)]
pub fn verdict(id: u64) -> u32 {
    let Some(state) = CGROUP_STATE.get(0) else {
        return CGROUP_UNWANTED;
    };
    // Read before anything is looked up: what is found while user space changes it is void.
    // SAFETY: a word of the map's only value.
    let generation = unsafe { (&raw const state.generation).read_volatile() };
    // SAFETY: one word each; the pair is written as a whole or read as void.
    if let Some(known) = unsafe { VERDICTS.get(id) }
        && known.generation == generation
    {
        return known.wanted;
    }
    let wanted = decide();
    let found = Verdict { generation, wanted };
    // Without room it is decided anew each time.
    let _ = VERDICTS.insert(id, found, u64::from(BPF_ANY));
    wanted
}

/// Looks for the innermost cgroup that `CGROUPS` has, from the current thread's upwards.
#[inline(never)]
fn decide() -> u32 {
    let mut cgroup = current_cgroup();
    for _ in 0..MAX_LEVELS {
        let Some(id) = id_of(cgroup) else {
            return CGROUP_UNWANTED;
        };
        // SAFETY: a value of one word.
        if let Some(wanted) = unsafe { CGROUPS.get(id) } {
            return *wanted;
        }
        let Some(parent) = parent_of(cgroup) else {
            return CGROUP_UNWANTED;
        };
        cgroup = Some(parent);
    }
    CGROUP_UNDECIDED
}

/// The current thread's cgroup in the session's hierarchy.
#[inline(always)]
fn current_cgroup() -> Option<u64> {
    if CGROUP_OFFSETS[OFFSETS_KNOWN].load() == 0 {
        return None;
    }
    // SAFETY: the helper takes no pointers.
    let task = unsafe { bpf_get_current_task() };
    let set = member(task, TASK_CGROUPS)?;
    let found = member(set, SET_MEMBER)?;
    if CGROUP_SUBSYS.load() == SUBSYS_UNIFIED {
        return Some(found);
    }
    member(found, CSS_CGROUP)
}

#[inline(always)]
fn id_of(cgroup: Option<u64>) -> Option<u64> {
    member(member(cgroup?, CGROUP_KN)?, KN_ID)
}

#[inline(always)]
fn parent_of(cgroup: Option<u64>) -> Option<u64> {
    let css = cgroup? + u64::from(CGROUP_OFFSETS[CGROUP_SELF].load());
    member(member(css, CSS_PARENT)?, CSS_CGROUP)
}

/// The word at a member of a structure, unless it is 0.
#[inline(always)]
fn member(structure: u64, offset: usize) -> Option<u64> {
    let at = structure + u64::from(CGROUP_OFFSETS[offset].load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    match unsafe { bpf_probe_read_kernel(at as *const u64) } {
        Ok(0) | Err(_) => None,
        Ok(value) => Some(value),
    }
}

/// A cgroup was made, or is being removed. Nothing is in it yet, or any more.
#[inline(always)]
pub fn on_change<const REMOVED: bool>(ctx: &TracePointContext) -> u32 {
    // SAFETY: offsets of fields of this tracepoint's record, from its format.
    let (root, id, place) = unsafe {
        (
            ctx.read_at::<u32>(CGROUP_EVENT_OFFSETS[EVENT_ROOT].load() as usize),
            ctx.read_at::<u64>(CGROUP_EVENT_OFFSETS[EVENT_ID].load() as usize),
            ctx.read_at::<u32>(CGROUP_EVENT_OFFSETS[EVENT_PATH].load() as usize),
        )
    };
    let (Ok(root), Ok(id), Ok(place)) = (root, id, place) else {
        return 0;
    };
    if root != CGROUP_ROOT.load() {
        return 0;
    }
    if REMOVED {
        let _ = CGROUPS.remove(id);
        let _ = VERDICTS.remove(id);
    }
    let Some(scratch) = claim_scratch() else {
        return 0;
    };
    // The lower half of the word is the path's offset in the record.
    let path = ctx.as_ptr() as u64 + u64::from(place & 0xffff);
    // SAFETY: `scratch` was claimed by this run of the program and is released below.
    unsafe {
        tell(scratch, id, path, REMOVED);
        addr_of_mut!((*scratch).busy).write_volatile(0);
    }
    0
}

/// Sends the record, and enters a new cgroup into `CGROUPS` if it is one of those waited for.
///
/// # Safety
/// `scratch` is claimed by the caller.
#[inline(always)]
unsafe fn tell(scratch: *mut Scratch, id: u64, path: u64, removed: bool) {
    // SAFETY: the record has room for the head and the longest path.
    let (record, len) = unsafe {
        let record = addr_of_mut!((*scratch).record).cast::<u8>();
        let text = record.add(HEAD_BYTES);
        let len = bpf_probe_read_kernel_str(text.cast(), PATH_BYTES as u32, path as *const _);
        (record, len)
    };
    if !(1..=PATH_BYTES as i64).contains(&len) {
        return;
    }
    // Without the zero at its end.
    let len = len as u64 - 1;
    let mut wanted = CGROUP_UNWANTED;
    if !removed {
        // SAFETY: as above.
        if unsafe { is_waited_for(record, len) } {
            wanted = CGROUP_WANTED;
        } else if CGROUPS_UNDECIDED.load() != 0 {
            wanted = CGROUP_UNDECIDED;
        }
        if wanted != CGROUP_UNWANTED
            && CGROUPS.insert(id, wanted, u64::from(BPF_ANY)).is_err()
            && let Some(state) = CGROUP_STATE.get_ptr_mut(0)
        {
            // SAFETY: the map's only value; a count that two processors change at once may be off.
            unsafe { (*state).dropped += 1 };
        }
    }
    let padded = (HEAD_BYTES as u64 + len).next_multiple_of(8) & 0x7ff;
    // SAFETY: within the record, by the mask.
    unsafe {
        record.cast::<CgroupHead>().write_unaligned(CgroupHead {
            head: RecordHead {
                len: padded as u32,
                kind: KIND_CGROUP,
                version: RECORD_VERSION,
            },
            at_ns: bpf_ktime_get_ns(),
            id,
            cpu: bpf_get_smp_processor_id(),
            path_len: len as u32,
            wanted,
            removed: u32::from(removed),
        });
        let _ = emit::emit_at_once(record.cast(), padded);
    }
}

/// Whether the last part of the path, which lies behind the head of the record, is in
/// `CGROUP_NAMES`.
///
/// # Safety
/// `record` is the record of a claimed workspace, and has a path of `len` bytes and a zero.
#[inline(always)]
unsafe fn is_waited_for(record: *mut u8, len: u64) -> bool {
    let mut start = 0;
    for index in 0..PATH_BYTES as u64 {
        if index >= len {
            break;
        }
        // SAFETY: within the longest path.
        if unsafe { *record.add(HEAD_BYTES + index as usize) } == b'/' {
            start = index + 1;
        }
    }
    let mut name = [0u8; NAME_BYTES];
    if len - start >= NAME_BYTES as u64 {
        return false;
    }
    let from = (start & (PATH_BYTES as u64 - 1)) as usize;
    // SAFETY: reads up to the zero behind the path, at most as many bytes as `name` has.
    let read = unsafe {
        bpf_probe_read_kernel_str(
            name.as_mut_ptr().cast(),
            NAME_BYTES as u32,
            record.add(HEAD_BYTES + from).cast_const().cast(),
        )
    };
    read > 0 && CGROUP_NAMES.get_ptr(name).is_some()
}
