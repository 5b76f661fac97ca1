//! The machine's answers, asked about processes that are started here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;
use profiler_model::{Pid, Timestamp};

/// Ends what it holds.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn life(&self) -> Life {
        life_of(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process and its start, as the resolver takes it from /proc.
fn life_of(pid: u32) -> Life {
    let proc = Proc::new();
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    let stat = Stat::parse(&stat).unwrap();
    Life {
        pid: Pid(pid),
        started: Timestamp(stat.started_ticks * proc.tick_ns - proc.slept_ns),
    }
}

/// A name that is no UTF-8, and looks like the end of the name in `stat`.
const NAME: &[u8] = b"a) R 1 \xff(b";

#[test]
fn own_process() {
    let proc = Proc::new();
    let own = life_of(std::process::id());
    let status = proc.status(own).unwrap();
    assert!(matches!(status.state, 'R' | 'S'), "{status:?}");
    assert_eq!(status.parent.0, std::os::unix::process::parent_id());
    assert_eq!(status.uids.0, rustix::process::getuid().as_raw());
    assert_eq!(status.gids.1, rustix::process::getegid().as_raw());
    assert!(status.threads >= 2, "{status:?}");
    assert!(status.virtual_bytes > status.resident_bytes && status.resident_bytes > 1 << 20);
    let directory = std::env::current_dir().unwrap();
    assert_eq!(status.directory.as_deref(), directory.to_str());
    let executable = std::env::current_exe().unwrap();
    assert_eq!(status.executable.as_deref(), executable.to_str());
    assert_eq!(status.root.as_deref(), Some("/"));
    if status.uids.0 == 0 {
        assert_eq!(status.user.as_deref(), Some("root"));
    }
    let arguments: Vec<String> = std::env::args().collect();
    assert_eq!(proc.command_line(own).unwrap(), arguments);
    assert_eq!(proc.owner(own), Ok(status.uids.0));
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    assert_eq!(proc.thread_status(own, tid).unwrap().state, 'R');
    assert_eq!(
        proc.thread_status(own, Tid(u32::MAX)),
        Err(MachineError::Ended)
    );
    let map = proc.memory_map(own).unwrap();
    assert!(map.is_sorted_by_key(|region| region.start));
    let code = own_process as *const () as u64;
    let here = map
        .iter()
        .find(|region| (region.start..region.end).contains(&code));
    let here = here.unwrap();
    assert!(here.executable && here.readable && !here.writable);
    assert_eq!(Path::new(&here.path), executable);
    assert!(map.iter().any(|region| region.path == "[stack]"));
}

#[test]
fn names_arguments_and_environments_may_hold_anything() {
    let dir = std::env::temp_dir().join(format!("machine-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let program = dir.join(OsStr::from_bytes(NAME));
    std::fs::copy("/bin/cat", &program).unwrap();
    let mut child = Running::start(
        Command::new(&program)
            .arg0("zero\n\t")
            .args(["-", "", "größe"])
            .arg(OsStr::from_bytes(b"\xfe-"))
            .env_clear()
            .env("EMPTY", "")
            .env("LINES", "a\nb=c")
            .stderr(Stdio::null()),
    );
    let (proc, life) = (Proc::new(), child.life());
    let status = proc.status(life).unwrap();
    assert_eq!(status.parent.0, std::process::id());
    assert_eq!(status.threads, 1);
    let executable = program.to_string_lossy().into_owned();
    assert_eq!(status.executable.as_ref(), Some(&executable));
    assert!(executable.contains('\u{fffd}'));
    // The program has been replaced a moment before its arguments are there.
    while proc.command_line(life).unwrap().is_empty() {
        std::thread::yield_now();
    }
    let arguments = ["zero\n\t", "-", "", "größe", "\u{fffd}-"];
    assert_eq!(proc.command_line(life).unwrap(), arguments);
    assert_eq!(proc.environment(life).unwrap(), ["EMPTY=", "LINES=a\nb=c"]);
    let map = proc.memory_map(life).unwrap();
    assert!(map.iter().any(|region| region.path == executable));
    child.0.kill().unwrap();
    // Ended, though its parent has not asked how.
    while proc.status(life).is_ok_and(|status| status.state != 'Z') {
        std::thread::yield_now();
    }
    assert_eq!(
        proc.control(life, Control::Terminate),
        Err(MachineError::Ended)
    );
    child.0.wait().unwrap();
    assert_eq!(proc.status(life), Err(MachineError::Ended));
    assert_eq!(proc.command_line(life), Err(MachineError::Ended));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_life_of_an_id_is_neither_shown_nor_touched() {
    let mut child = Running::start(&mut Command::new("cat"));
    let (proc, life) = (Proc::new(), child.life());
    for other in [
        life.started.0 - 30_000_000,
        life.started.0 + 30_000_000,
        0,
        u64::MAX / 2,
    ] {
        let other = Life {
            started: Timestamp(other),
            ..life
        };
        assert_eq!(proc.status(other), Err(MachineError::Ended));
        assert_eq!(proc.environment(other), Err(MachineError::Ended));
        assert_eq!(proc.owner(other), Err(MachineError::Ended));
        let kill = Control::Signal(libc::SIGKILL);
        assert_eq!(proc.control(other, kill), Err(MachineError::Ended));
    }
    // As the kernel's events tell it: up to a tick later than /proc.
    let exact = Life {
        started: Timestamp(life.started.0 + 9_999_999),
        ..life
    };
    assert!(proc.status(exact).is_ok());
    assert!(child.0.try_wait().unwrap().is_none());
    for nobody in [0, u32::MAX] {
        let nobody = Life {
            pid: Pid(nobody),
            ..life
        };
        assert_eq!(proc.status(nobody), Err(MachineError::Ended));
        assert_eq!(
            proc.control(nobody, Control::Stop),
            Err(MachineError::Ended)
        );
    }
}

#[test]
fn control_by_signals() {
    let mut child = Running::start(&mut Command::new("cat"));
    let (proc, life) = (Proc::new(), child.life());
    let state = |wanted: fn(char) -> bool| {
        while !wanted(proc.status(life).unwrap().state) {
            std::thread::yield_now();
        }
    };
    proc.control(life, Control::Stop).unwrap();
    state(|state| state == 'T');
    proc.control(life, Control::Continue).unwrap();
    state(|state| state != 'T');
    for wrong in [0, -1, 65, i32::MAX] {
        let refused = proc.control(life, Control::Signal(wrong));
        let Err(MachineError::System(text)) = refused else {
            panic!("{refused:?}");
        };
        assert!(text.contains("1 to 64"), "{text}");
    }
    // One that the C library keeps for itself is a signal of the kernel all the same.
    proc.control(life, Control::Signal(64)).unwrap();
    assert_eq!(child.0.wait().unwrap().signal(), Some(64));
    let mut child = Running::start(&mut Command::new("cat"));
    proc.control(child.life(), Control::Terminate).unwrap();
    assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn lines_of_maps() {
    let line = b"7f00-8f00 r-xp 00001000 fd:1a 42                 /a b/\xff (deleted)";
    let expected = Region {
        start: 0x7f00,
        end: 0x8f00,
        readable: true,
        writable: false,
        executable: true,
        offset: 0x1000,
        path: "/a b/\u{fffd} (deleted)".to_owned(),
    };
    assert_eq!(region(line), Some(expected));
    assert_eq!(region(b"1-2 rw-s 0 0:0 0").unwrap().path, "");
    for damaged in [&b""[..], b"1-2", b"1 rw-p 0 0:0 0", b"1-2 rw-p x 0:0 0"] {
        assert_eq!(region(damaged), None);
    }
}

#[test]
fn arguments_that_were_written_over() {
    assert_eq!(texts(b""), [""; 0]);
    assert_eq!(texts(b"\0"), [""; 0]);
    assert_eq!(texts(b"nginx: worker"), ["nginx: worker"]);
    assert_eq!(texts(b"a\0\0b\0"), ["a", "", "b"]);
}

#[test]
fn who_owns_what_says_nothing_is_nobody() {
    let owners = Owners::parse(b"Name:\tUid:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n");
    assert_eq!((owners.uids, owners.gids), ((1, 2), (5, 6)));
    assert_eq!(Owners::parse(b"Uid:\tx").uids, (u32::MAX, u32::MAX));
}

#[test]
fn the_kernel_and_init_are_left_alone() {
    let signal = Control::Signal(libc::SIGHUP);
    for control in [Control::Stop, Control::Continue, Control::Terminate, signal] {
        assert!(
            refusal(70, KERNEL_THREAD | 0x40, control).is_some(),
            "{control:?}"
        );
        assert_eq!(refusal(70, !KERNEL_THREAD, control), None, "{control:?}");
    }
    assert!(refusal(INIT, 0, Control::Stop).is_some());
    assert!(refusal(INIT, 0, Control::Terminate).is_some());
    assert_eq!(refusal(INIT, 0, signal), None);
    // As proc(5) shows them, and for real: the kernel ignores this one itself.
    let text =
        b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 6 0 0 20 0 1 0 4 0 0 0 0 0 0 0 0 0 0 0 \
        2147483647 0 0 0 0 0 1 0 0 0 0 0";
    assert_ne!(Stat::parse(text).unwrap().flags & KERNEL_THREAD, 0);
    let stopped = Proc::new().control(life_of(INIT), Control::Stop);
    assert!(
        matches!(&stopped, Err(MachineError::System(text)) if text.contains("init")),
        "{stopped:?}"
    );
}
