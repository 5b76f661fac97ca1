//! What the resolver asks /proc about processes.
//!
//! A pid -> names, ids, mappings, threads. Start times are converted from ticks since boot to
//! nanoseconds of CLOCK_MONOTONIC, exact to a tick (10 ms). Everything is bounded: a process chooses
//! its own names and command line. Source: proc(5).
//!
//! What does not belong here: how /proc is read (`target::proc_fs`), what is made of it (`process`).

use super::patience::ask_process;
use profiler_model::raw::{Comm, FileIdentity, RawMmap};
use profiler_model::{Pid, Tid, Timestamp};
use profiler_target::cgroup::Hierarchy;
use profiler_target::proc_fs::{self, MAX_BYTES, read, suspended_ns, tick_ns};
pub(super) use profiler_target::proc_fs::{at_live_thread, processes, threads};

/// Most bytes of a command line that are kept.
const MAX_COMMAND_BYTES: usize = 1024;
/// Most bytes of /proc/PID/maps that are read.
const MAX_MAPS_BYTES: u64 = 16 << 20;
/// Most bytes of /proc/PID/mountinfo that are read.
const MAX_MOUNTS_BYTES: u64 = 1 << 20;

/// The parent of the kernel's threads.
pub(super) const KTHREADD: Pid = Pid(2);

/// What /proc/PID/stat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Name.
    pub(super) comm: Comm,
    /// Parent.
    pub(super) parent: Pid,
    /// Start.
    pub(super) started: Timestamp,
    /// It has ended, and its parent has not asked yet how.
    pub(super) zombie: bool,
}

/// What describes a process beyond its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Command line, arguments joined by spaces.
    pub(super) command: Option<Box<str>>,
    /// User id (of file access).
    pub(super) uid: Option<u32>,
    /// Pids in nested namespaces, without the initial one.
    pub(super) namespace_pids: Box<[Pid]>,
    /// Path of the cgroup.
    pub(super) cgroup: Option<Box<str>>,
}

/// Offset and length of a tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    tick_ns: u64,
    suspended_ns: u64,
}

impl Clocks {
    /// Of this machine, now.
    pub(super) fn read() -> Clocks {
        Clocks {
            tick_ns: tick_ns(),
            suspended_ns: suspended_ns(),
        }
    }
}

/// Name, parent and start of a process.
pub(super) fn process_stat(pid: Pid, clocks: &Clocks) -> Option<Stat> {
    parse_stat(&proc_fs::process_stat(pid)?, clocks)
}

/// Name and start of a thread.
pub(super) fn thread_stat(pid: Pid, tid: Tid, clocks: &Clocks) -> Option<Stat> {
    parse_stat(&proc_fs::thread_stat(pid, tid)?, clocks)
}

/// The name of a thread.
pub(super) fn thread_comm(pid: Pid, tid: Tid) -> Option<Comm> {
    let name = read(&format!("/proc/{pid}/task/{tid}/comm"), MAX_BYTES)?;
    Some(Comm::from_bytes(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// The name of a thread of the kernel. Behind that of a worker /proc writes what it does at present: `kworker/0:1-events`.
fn worker_name(name: &[u8]) -> &[u8] {
    let is_worker = name.starts_with(b"kworker/") && !name.starts_with(b"kworker/R-");
    let work = name.iter().position(|byte| matches!(byte, b'-' | b'+'));
    match work.filter(|_| is_worker) {
        Some(work) => &name[..work],
        None => name,
    }
}

fn parse_stat(text: &[u8], clocks: &Clocks) -> Option<Stat> {
    let stat = proc_fs::Stat::parse(text)?;
    let since_boot = stat.started_ticks()?.saturating_mul(clocks.tick_ns);
    let parent = stat.parent()?;
    let name = match parent {
        KTHREADD => worker_name(stat.name),
        _ => stat.name,
    };
    Some(Stat {
        comm: Comm::from_bytes(name),
        parent,
        started: Timestamp(since_boot.saturating_sub(clocks.suspended_ns)),
        zombie: stat.is_over(),
    })
}

/// What describes a process; what can't be read is left out. Its cgroup is that in `hierarchy`, if that
/// is given.
pub(super) fn facts(pid: Pid, hierarchy: Option<&Hierarchy>) -> Option<Facts> {
    let status = proc_fs::status(pid.0)?;
    let uids = proc_fs::value(&status, "Uid").map(str::split_ascii_whitespace);
    let mut facts = Facts {
        uid: uids.and_then(|mut uids| uids.nth(3)?.parse().ok()),
        namespace_pids: namespace_pids_in(&status).unwrap_or_default(),
        ..Facts::default()
    };
    let command = |folder: &str| {
        let bytes = read(&format!("{folder}/cmdline"), MAX_COMMAND_BYTES as u64);
        bytes.filter(|bytes| !bytes.is_empty())
    };
    // It lies in the memory of the process.
    let bytes = ask_process(pid, move || at_live_thread(pid, command)).flatten();
    facts.command = bytes.map(|bytes| {
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        // What was cut, or overwritten by the process, may not end.
        if !text.ends_with('\0') {
            text.push('\0');
        }
        text.into()
    });
    facts.cgroup = cgroup(pid, hierarchy);
    Some(facts)
}

/// Path of the cgroup that the main thread of a process is in.
pub(super) fn cgroup(pid: Pid, hierarchy: Option<&Hierarchy>) -> Option<Box<str>> {
    match hierarchy {
        Some(hierarchy) => hierarchy.path_of_process(pid),
        None => {
            let bytes = read(&format!("/proc/{pid}/cgroup"), MAX_BYTES)?;
            parse_cgroup(&String::from_utf8_lossy(&bytes))
        }
    }
}

/// The pids of a process in nested namespaces.
pub(super) fn namespace_pids(pid: Pid) -> Option<Box<[Pid]>> {
    namespace_pids_in(&proc_fs::status(pid.0)?)
}

fn namespace_pids_in(status: &[u8]) -> Option<Box<[Pid]>> {
    let pids = proc_fs::value(status, "NSpid")?.split_ascii_whitespace();
    Some(pids.skip(1).flat_map(str::parse).map(Pid).collect())
}

/// The path in the unified hierarchy, or, where processes aren't sorted into that, in systemd's.
fn parse_cgroup(text: &str) -> Option<Box<str>> {
    let path_of = |prefix: &str| {
        let line = text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(prefix)
        });
        line.filter(|path| !path.is_empty())
    };
    let unified = path_of(":");
    let named = path_of("name=systemd:");
    match (unified, named) {
        (Some("/") | None, Some(named)) => Some(named.into()),
        (unified, _) => unified.map(Into::into),
    }
}

/// What is mounted where, as a process sees it.
pub(super) fn mounts(pid: Pid) -> Option<Vec<u8>> {
    at_live_thread(pid, |folder| {
        read(&format!("{folder}/mountinfo"), MAX_MOUNTS_BYTES).filter(|text| !text.is_empty())
    })
}

/// Path of the executable, as the process sees it.
pub(super) fn executable(pid: Pid) -> Option<Box<str>> {
    let path = at_live_thread(pid, |folder| {
        std::fs::read_link(format!("{folder}/exe")).ok()
    })?;
    Some(path.to_string_lossy().into())
}

/// The executable mappings of a process, as if they had just been made.
pub(super) fn mappings(pid: Pid) -> Vec<RawMmap> {
    let maps = |folder: &str| {
        let text = read(&format!("{folder}/maps"), MAX_MAPS_BYTES);
        text.filter(|text| !text.is_empty())
    };
    let text = ask_process(pid, move || at_live_thread(pid, maps)).flatten();
    let text = text.unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter_map(|line| parse_mapping(pid, line)).collect()
}

/// Whether a process has memory with code that is no file's: code that it makes while it runs.
pub fn makes_code(pid: Pid) -> bool {
    mappings(pid).iter().any(|map| is_made_code(&map.path))
}

/// The same of one mapping with code, by its path. Pages of the kernel's own don't count, among them
/// those that it makes for probes: where instructions are stepped, and where probed no-operations call
/// (`[uprobes-trampoline]`, of which events have 15 characters).
pub fn is_made_code(path: &[u8]) -> bool {
    const KERNELS: &[&[u8]] = &[b"[vdso]", b"[vsyscall]", b"[vvar]"];
    let memory = [&b"//anon"[..], b"/memfd:", b"/dev/zero", b"/SYSV"];
    match path.starts_with(b"/") {
        true => memory.iter().any(|start| path.starts_with(start)),
        false => !KERNELS.contains(&path) && !path.starts_with(b"[uprobes"),
    }
}

fn parse_mapping(pid: Pid, line: &[u8]) -> Option<RawMmap> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = field()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    if field()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let file_offset = u64::from_str_radix(field()?, 16).ok()?;
    let (major, minor) = field()?.split_once(':')?;
    let major = u32::from_str_radix(major, 16).ok()?;
    let minor = u32::from_str_radix(minor, 16).ok()?;
    let inode = field()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    let path: &[u8] = if path.is_empty() { b"//anon" } else { path };
    Some(RawMmap {
        pid,
        tid: Tid(pid.0),
        start,
        len: end.checked_sub(start)?,
        file_offset,
        path: path.into(),
        file: FileIdentity {
            major,
            minor,
            inode,
            generation: 0,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCKS: Clocks = Clocks {
        tick_ns: 10_000_000,
        suspended_ns: 1_000_000_000,
    };

    #[test]
    fn names_may_hold_anything() {
        let text = b"7 (a) (b) c) S 3 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 250 1000 10";
        let stat = parse_stat(text, &CLOCKS).unwrap();
        assert_eq!(stat.comm.text(), "a) (b) c");
        assert_eq!(stat.parent, Pid(3));
        assert_eq!(stat.started, Timestamp(1_500_000_000));
        assert!(!stat.zombie);
        let text = b"7 (a) Z 3 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 250 1000 10";
        assert!(parse_stat(text, &CLOCKS).unwrap().zombie);
        assert_eq!(parse_stat(b"7 (a", &CLOCKS), None);
    }

    #[test]
    fn workers_are_called_the_same_whatever_they_do() {
        for (name, parent, expected) in [
            ("kworker/0:1-events", 2, "kworker/0:1"),
            ("kworker/u8:3+ext4-rsv-conversion", 2, "kworker/u8:3"),
            ("kworker/1:0H", 2, "kworker/1:0H"),
            ("kworker/R-rcu_gp", 2, "kworker/R-rcu_g"),
            ("jbd2/loop0-8", 2, "jbd2/loop0-8"),
            ("kworker/0:1-mine", 77, "kworker/0:1-min"),
        ] {
            let text =
                format!("7 ({name}) S {parent} 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 250 1000 10");
            let stat = parse_stat(text.as_bytes(), &CLOCKS).unwrap();
            assert_eq!(stat.comm.text(), expected);
        }
    }

    #[test]
    fn own_process_is_read() {
        let pid = Pid(std::process::id());
        let clocks = Clocks::read();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let stat = process_stat(pid, &clocks).unwrap();
        assert!(stat.started.0 <= now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64);
        assert!(stat.started.0 > 0);
        assert!(facts(pid, None).unwrap().command.is_some());
        let own = mappings(pid);
        let code = own_process_is_read as *const () as u64;
        assert!(
            own.iter()
                .any(|map| (map.start..map.start + map.len).contains(&code))
        );
        assert!(own.iter().any(|map| &*map.path == b"[vdso]"));
        assert!(threads(pid).contains(&Tid(pid.0)));
    }

    #[test]
    fn mapping_lines() {
        let line = b"7f00-8f00 r-xp 00001000 fd:1a 42                 /a b/c (deleted)";
        let mapping = parse_mapping(Pid(1), line).unwrap();
        assert_eq!(&*mapping.path, b"/a b/c (deleted)");
        assert_eq!(
            (mapping.start, mapping.len, mapping.file_offset),
            (0x7f00, 0x1000, 0x1000)
        );
        let inode = FileIdentity {
            major: 0xfd,
            minor: 0x1a,
            inode: 42,
            generation: 0,
        };
        assert_eq!(mapping.file, inode);
        assert!(parse_mapping(Pid(1), b"7f00-8f00 rw-p 00001000 fd:1a 42 /a").is_none());
        assert!(parse_mapping(Pid(1), b"garbage").is_none());
    }

    #[test]
    fn code_that_no_file_has() {
        for made in [
            "//anon",
            "/memfd:jit (deleted)",
            "/dev/zero",
            "/SYSV0001",
            "[heap]",
        ] {
            assert!(is_made_code(made.as_bytes()), "{made}");
        }
        for kernels in ["/lib/libc.so.6", "[vdso]", "[uprobes]", "[uprobes-trampo"] {
            assert!(!is_made_code(kernels.as_bytes()), "{kernels}");
        }
    }

    #[test]
    fn cgroup_of_each_hierarchy() {
        let hybrid = "3:cpu:/x\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(
            parse_cgroup(hybrid).unwrap().as_ref(),
            "/system.slice/a.service"
        );
        assert_eq!(
            parse_cgroup("0::/user.slice\n").unwrap().as_ref(),
            "/user.slice"
        );
        assert_eq!(parse_cgroup(""), None);
    }
}
