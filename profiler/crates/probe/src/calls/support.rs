//! What this kernel can do for call tracing: found out by trying, on functions of our own.
//!
//! The trial program counts the hits of one process, and needs nothing of the object. Kernels were
//! released whose filter by process lets only the main thread through, so a second thread's hit is
//! tried as well. (No kernel's filter keeps the hits of other processes out, if somebody else has
//! probes at the same places there; the real program looks itself.)

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use aya_obj::generated::{bpf_attach_type, bpf_prog_type};

use super::{PATIENCE, keeper::Keeper, link, specimen::NOP5};
use crate::{
    ProbeError,
    bpf::{self, Places, instruction as insn},
    load,
};

/// What the kernel can do for call tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSupport {
    /// Many places by one link (Linux 6.6).
    pub multi: bool,
    /// Programs are told which place was hit (Linux 5.15); else each place has its own program.
    pub cookies: bool,
    /// Links for one process get the hits of all its threads, and others that run the same code pay
    /// nothing. Else links are for all processes, and hits of others are passed over.
    pub pid_filter: bool,
    /// What detaching a place takes, beyond what a link takes.
    pub detach_ns_per_site: u64,
}

/// No other link has such a number.
const TRIAL_LINK: u64 = u64::MAX >> 1;
/// A perf event on a place waits for the kernel's readers, several times: measured.
const EVENT_DETACH_NS: u64 = 109_000_000;
/// A place among thousands of one link.
const MULTI_DETACH_NS: u64 = 8_000;
/// A link to many places, besides.
const MULTI_LINK_NS: u64 = 25_000_000;

impl CallSupport {
    /// How long detaching so many places takes, in nanoseconds.
    pub fn detach_ns(&self, sites: usize) -> u64 {
        let link = if self.multi { MULTI_LINK_NS } else { 0 };
        (sites as u64)
            .saturating_mul(self.detach_ns_per_site)
            .saturating_add(if sites > 0 { link } else { 0 })
    }
}

/// Tries it out; the answer is remembered. Takes some milliseconds, and needs root.
pub fn call_support() -> Result<CallSupport, ProbeError> {
    static SUPPORT: Mutex<Option<CallSupport>> = Mutex::new(None);
    // One at a time: the calls of another trial would count.
    let mut support = SUPPORT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(support) = *support {
        return Ok(support);
    }
    Ok(*support.insert(find_support()?))
}

fn find_support() -> Result<CallSupport, ProbeError> {
    let failed = |error| ProbeError::from_io("try probes on functions", error);
    let counts = bpf::make_array(1, 0).map_err(failed)?;
    let pid_filter = try_multi(&counts).map_err(failed)?;
    if let Some(pid_filter) = pid_filter {
        return Ok(CallSupport {
            multi: true,
            cookies: true,
            pid_filter,
            detach_ns_per_site: MULTI_DETACH_NS,
        });
    }
    // Says what is missing, if uprobes are.
    link::uprobe_type()?;
    Ok(CallSupport {
        multi: false,
        cookies: load_trial(&counts, None).is_ok(),
        // Of perf events, by address space.
        pid_filter: true,
        detach_ns_per_site: EVENT_DETACH_NS,
    })
}

/// Whether the filter by process is right; none if there are no links to many uprobes.
fn try_multi(counts: &OwnedFd) -> io::Result<Option<bool>> {
    let multi = bpf_attach_type::BPF_TRACE_UPROBE_MULTI;
    let Ok(program) = load_trial(counts, Some(multi)) else {
        return Ok(None);
    };
    let specimen = NOP5;
    let file = File::open("/proc/self/exe")?;
    let path = link::path_of(file.as_fd()).map_err(io::Error::other)?;
    let link = bpf::link_uprobes(
        program.as_fd(),
        &Places {
            path: &path,
            offsets: &[specimen.offset()?],
            semaphores: &[],
            cookies: &[std::process::id().into()],
            at_return: false,
            pid: std::process::id(),
        },
    );
    // Older kernels load the program, because they don't look at what it is for.
    let Ok(link) = link else {
        return Ok(None);
    };
    std::thread::scope(|scope| scope.spawn(|| specimen.call(1)).join().is_ok());
    specimen.call(1);
    let mut hits: Vec<u64> = Vec::new();
    let read = bpf::read_array(counts.as_fd(), 0, 1, 1, &mut hits);
    // Others of this machine may keep the kernel from being done with it.
    let mut keeper = Keeper::start();
    if keeper.hold(TRIAL_LINK, vec![link]).is_ok() {
        keeper.release([TRIAL_LINK]);
        keeper.wait(Instant::now() + PATIENCE);
    }
    keeper.leave();
    read?;
    if hits != [2] {
        log::debug!("the kernel's filter by process is wrong: {hits:?} of 2 hits arrived");
    }
    Ok(Some(hits == [2]))
}

/// Loads the trial program, which says whether programs of that kind get cookies.
fn load_trial(counts: &OwnedFd, attach_type: Option<bpf_attach_type>) -> io::Result<OwnedFd> {
    // From <linux/bpf.h>.
    const MAP_LOOKUP_ELEM: i32 = 1;
    const GET_CURRENT_PID_TGID: i32 = 14;
    const GET_ATTACH_COOKIE: i32 = 174;
    const PSEUDO_MAP_FD: u8 = 1;
    let program = [
        insn(0x85, 0, 0, 0, GET_ATTACH_COOKIE),
        insn(0xbf, 6, 0, 0, 0), // r6 = r0
        insn(0x85, 0, 0, 0, GET_CURRENT_PID_TGID),
        insn(0x77, 0, 0, 0, 32),                             // r0 >>= 32
        insn(0x5d, 0, 6, 9, 0),                              // if r0 != r6 skip 9
        insn(0x62, 10, 0, -4, 0),                            // *(u32 *)(r10 - 4) = 0
        insn(0xbf, 2, 10, 0, 0),                             // r2 = r10
        insn(0x07, 2, 0, 0, -4),                             // r2 += -4
        insn(0x18, 1, PSEUDO_MAP_FD, 0, counts.as_raw_fd()), // r1 = the map
        insn(0, 0, 0, 0, 0),
        insn(0x85, 0, 0, 0, MAP_LOOKUP_ELEM),
        insn(0x15, 0, 0, 2, 0), // if r0 == 0 skip 2
        insn(0xb7, 1, 0, 0, 1), // r1 = 1
        insn(0xdb, 0, 1, 0, 0), // lock *(u64 *)r0 += r1
        insn(0xb7, 0, 0, 0, 0), // r0 = 0
        insn(0x95, 0, 0, 0, 0), // exit
    ];
    let load_as = bpf::LoadAs {
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE,
        attach_type,
        function: 0,
    };
    load::unless_disturbed(|| bpf::load_program(c"call_trial", &program, &load_as, &mut []))
}
