//! Which cgroup the current thread is in, and whether that is wanted; cgroups that come and go.
//!
//! A verdict is found by walking from the thread's cgroup to the root, and kept by its place.
//! User space changes what is wanted and then the generation, which makes all verdicts void. New
//! cgroups are decided before any process can enter them: the tracepoint of their making runs first.
//! The kernel has helpers for little of this: its structures are read, at offsets that user space
//! gives.
//!
//! What does not belong here: what cgroups mean (containers, units), which only user space knows.

use core::{arch::asm, ptr::addr_of_mut};

use aya_ebpf::{
    bindings::BPF_ANY,
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_task, bpf_get_smp_processor_id,
        bpf_ktime_get_ns, bpf_probe_read_kernel, generated::bpf_probe_read_kernel_str,
    },
    programs::RawTracePointContext,
};
use profiler_common::{
    KIND_CGROUP, RECORD_VERSION, RecordHead,
    cgroup::{
        CGROUP_KN, CGROUP_ROOT_POINTER, CGROUP_SELF, CGROUP_UNDECIDED, CGROUP_UNWANTED,
        CGROUP_WANTED, CSS_CGROUP, CSS_PARENT, CgroupHead, CgroupLosses, DECIDED, KN_ID, KN_NAME,
        MADE, MAX_LEVELS, NAME_BYTES, OFFSETS_KNOWN, PATH_BYTES, ROOT_NUMBER, SET_MEMBER,
        SUBSYS_NONE, SUBSYS_UNIFIED, TASK_CGROUPS, Verdict, verdict_slot,
    },
    control::FILTER_CGROUPS,
};

use crate::{
    emit,
    maps::{
        CGROUP_LOSSES, CGROUP_NAMES, CGROUP_OFFSETS, CGROUP_ROOT, CGROUP_STATE, CGROUP_SUBSYS,
        CGROUPS, CGROUPS_UNDECIDED, FILTER, RECORD_BYTES, Scratch, VERDICTS,
    },
    record,
};

const HEAD_BYTES: usize = size_of::<CgroupHead>();

/// What tells the current thread's cgroup in the session's hierarchy from others that there are at
/// present: its id, or in version 1, where that takes five reads, the address of its state for the
/// hierarchy's controller, which takes two. 0: not known.
#[inline(always)]
pub fn place() -> u64 {
    match CGROUP_SUBSYS.load() {
        SUBSYS_NONE => 0,
        // SAFETY: the helper takes no pointers.
        SUBSYS_UNIFIED => unsafe { bpf_get_current_cgroup_id() },
        _ => current_member().unwrap_or(0),
    }
}

/// The id of the cgroup at a [`place`]; 0: not known.
#[inline(always)]
pub fn id_at(place: u64) -> u64 {
    match CGROUP_SUBSYS.load() {
        SUBSYS_NONE | SUBSYS_UNIFIED => place,
        _ => cgroup_at(place).and_then(id_of).unwrap_or(0),
    }
}

/// Whether the cgroup at `place`, which is the current thread's, is wanted: a `CGROUP_*` constant.
#[inline(always)]
pub fn verdict(place: u64) -> u32 {
    let (Some(decided), Some(made), Some(slot)) = (
        CGROUP_STATE.get_ptr(DECIDED),
        CGROUP_STATE.get_ptr(MADE),
        VERDICTS.get_ptr_mut(verdict_slot(place)),
    ) else {
        return CGROUP_UNWANTED;
    };
    // The generation before anything is looked up: what is found while that changes is void.
    // SAFETY: words of what the lookups returned. Other processors write them at the same time; the
    // check tells a pair of which one half is another's.
    let (generation, known) = unsafe {
        (
            decided.read_volatile().wrapping_add(made.read_volatile()),
            Verdict {
                check: (&raw const (*slot).check).read_volatile(),
                word: (&raw const (*slot).word).read_volatile(),
            },
        )
    };
    if let Some(wanted) = known.of(place, generation) {
        return wanted;
    }
    let cgroup = match CGROUP_SUBSYS.load() {
        SUBSYS_UNIFIED => current_member(),
        _ => cgroup_at(place),
    };
    let wanted = innermost(cgroup.unwrap_or(0));
    let found = Verdict::new(place, generation, wanted);
    // SAFETY: as above.
    unsafe {
        (&raw mut (*slot).check).write_volatile(found.check);
        (&raw mut (*slot).word).write_volatile(found.word);
    }
    wanted
}

/// Id of the cgroup of any task (0: not known), and whether that is wanted: a `CGROUP_*` constant. Nothing is
/// kept of that.
#[inline(always)]
pub fn of_task(task: u64) -> (u64, u32) {
    let cgroup = match CGROUP_SUBSYS.load() {
        SUBSYS_NONE => None,
        SUBSYS_UNIFIED => member_of(task),
        _ => member_of(task).and_then(cgroup_at),
    };
    let id = cgroup.and_then(id_of).unwrap_or(0);
    if FILTER.load() & FILTER_CGROUPS == 0 {
        return (id, CGROUP_WANTED);
    }
    (id, innermost(cgroup.unwrap_or(0)))
}

/// What `CGROUPS` says of the innermost cgroup that it has, from `cgroup` (0: none) upwards.
#[inline(never)]
fn innermost(mut cgroup: u64) -> u32 {
    for _ in 0..MAX_LEVELS {
        if cgroup == 0 {
            return CGROUP_UNWANTED;
        }
        let Some(id) = id_of(cgroup) else {
            return CGROUP_UNWANTED;
        };
        // SAFETY: a value of one word.
        if let Some(wanted) = unsafe { CGROUPS.get(id) } {
            return *wanted;
        }
        cgroup = parent_of(cgroup).unwrap_or(0);
    }
    CGROUP_UNDECIDED
}

/// The member for the session's hierarchy of the current thread's set of cgroups: in version 2 the
/// cgroup, in version 1 its state for the hierarchy's controller.
#[inline(always)]
fn current_member() -> Option<u64> {
    // SAFETY: the helper takes no pointers.
    member_of(unsafe { bpf_get_current_task() })
}

/// The same of any task.
#[inline(always)]
fn member_of(task: u64) -> Option<u64> {
    if CGROUP_OFFSETS[OFFSETS_KNOWN].load() == 0 {
        return None;
    }
    member(member(task, TASK_CGROUPS)?, SET_MEMBER)
}

/// The cgroup of a state.
#[inline(always)]
fn cgroup_at(state: u64) -> Option<u64> {
    if state == 0 {
        return None;
    }
    member(state, CSS_CGROUP)
}

#[inline(always)]
fn id_of(cgroup: u64) -> Option<u64> {
    member(member(cgroup, CGROUP_KN)?, KN_ID)
}

/// The cgroup above. What a cgroup is to its parent's children is a member of the cgroup itself.
#[inline(always)]
fn parent_of(cgroup: u64) -> Option<u64> {
    let own = u64::from(CGROUP_OFFSETS[CGROUP_SELF].load());
    Some(member(cgroup + own, CSS_PARENT)?.wrapping_sub(own))
}

/// Whether a cgroup is of the session's hierarchy.
#[inline(always)]
fn is_ours(cgroup: u64) -> bool {
    let Some(root) = member(cgroup, CGROUP_ROOT_POINTER) else {
        return false;
    };
    let at = root + u64::from(CGROUP_OFFSETS[ROOT_NUMBER].load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    let number = unsafe { bpf_probe_read_kernel(at as *const u32) };
    number == Ok(CGROUP_ROOT.load())
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

/// A cgroup was made, or was removed: nothing is in it yet, or any more. The kernel makes and
/// removes one at a time.
#[inline(always)]
pub fn on_change<const REMOVED: bool>(ctx: &RawTracePointContext) -> u32 {
    let (cgroup, path): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    if !is_ours(cgroup) {
        return 0;
    }
    let Some(id) = id_of(cgroup) else {
        return 0;
    };
    let wanted = if REMOVED {
        // Most are not in it. Its verdict is left: ids are not used again.
        let _ = CGROUPS.remove(id);
        CGROUP_UNWANTED
    } else {
        renew();
        enter(cgroup, id)
    };
    let told = match record::claim() {
        None => Err(emit::Full),
        Some(scratch) => {
            // SAFETY: `scratch` was claimed by this run of the program and is released at once.
            unsafe {
                let told = tell(scratch, id, path, wanted, REMOVED);
                record::release(scratch);
                told
            }
        }
    };
    if told.is_err() {
        count(|losses| &mut losses.untold);
    }
    0
}

/// Makes verdicts void: in version 1 they are kept by addresses, and that of a new cgroup may be one
/// of a cgroup that is gone. That one's verdict was found before: while a thread was in it.
#[inline(always)]
fn renew() {
    if CGROUP_SUBSYS.load() != SUBSYS_UNIFIED
        && let Some(made) = CGROUP_STATE.get_ptr_mut(MADE)
    {
        // SAFETY: a word that nothing else writes at the same time.
        unsafe { made.write_volatile(made.read_volatile().wrapping_add(1)) };
    }
}

/// Enters a new cgroup into `CGROUPS` if it is one of those waited for, or is undecided. What is
/// below a wanted one is wanted without that.
#[inline(always)]
fn enter(cgroup: u64, id: u64) -> u32 {
    if FILTER.load() & FILTER_CGROUPS == 0 {
        return CGROUP_UNWANTED;
    }
    let wanted = if is_waited_for(cgroup) {
        CGROUP_WANTED
    } else if CGROUPS_UNDECIDED.load() != 0
        && innermost(parent_of(cgroup).unwrap_or(0)) != CGROUP_WANTED
    {
        CGROUP_UNDECIDED
    } else {
        return CGROUP_UNWANTED;
    };
    if CGROUPS.insert(id, wanted, u64::from(BPF_ANY)).is_err() {
        count(|losses| &mut losses.dropped);
        return CGROUP_UNWANTED;
    }
    wanted
}

/// Whether a cgroup's name is in `CGROUP_NAMES`.
#[inline(always)]
fn is_waited_for(cgroup: u64) -> bool {
    let Some(text) = member(cgroup, CGROUP_KN).and_then(|node| member(node, KN_NAME)) else {
        return false;
    };
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: writes at most as many bytes as `name` has.
    let len = unsafe {
        bpf_probe_read_kernel_str(
            name.as_mut_ptr().cast(),
            NAME_BYTES as u32,
            text as *const _,
        )
    };
    // A name that is cut is longer than any that is waited for.
    len > 0 && CGROUP_NAMES.get_ptr(name).is_some()
}

/// Counts a loss.
#[inline(always)]
fn count(which: impl FnOnce(&mut CgroupLosses) -> &mut u64) {
    if let Some(losses) = CGROUP_LOSSES.get_ptr_mut(0) {
        // SAFETY: the map's only value; nothing else writes to it at the same time.
        *which(unsafe { &mut *losses }) += 1;
    }
}

/// Sends the record.
///
/// # Safety
/// `scratch` is claimed by the caller.
#[inline(always)]
unsafe fn tell(
    scratch: *mut Scratch,
    id: u64,
    path: u64,
    wanted: u32,
    removed: bool,
) -> Result<(), emit::Full> {
    // SAFETY: the record has room for the head and the longest path.
    unsafe {
        let record = addr_of_mut!((*scratch).record).cast::<u8>();
        let text = record.add(HEAD_BYTES).cast();
        let read = bpf_probe_read_kernel_str(text, PATH_BYTES as u32, path as *const _);
        // Without the zero at its end; no path if it can't be read.
        let path_len = if read > 0 { read as u64 - 1 } else { 0 };
        let len = bound_len((HEAD_BYTES as u64 + path_len).next_multiple_of(8));
        record.cast::<CgroupHead>().write_unaligned(CgroupHead {
            head: RecordHead {
                len: len as u32,
                kind: KIND_CGROUP,
                version: RECORD_VERSION,
            },
            at_ns: bpf_ktime_get_ns(),
            id,
            cpu: bpf_get_smp_processor_id(),
            path_len: path_len as u32,
            wanted,
            removed: u32::from(removed),
        });
        emit::emit_at_once(record.cast(), len)
    }
}

/// `len`, in a form from which the verifier sees that it is within the record.
#[inline(always)]
fn bound_len(len: u64) -> u64 {
    let mut bounded = len;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0x7ff", inout(reg) bounded) };
    bounded
}

const _: () = {
    assert!(HEAD_BYTES + PATH_BYTES <= 0x7ff);
    assert!(RECORD_BYTES > 0x7ff);
};
