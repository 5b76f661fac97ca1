//! A command that is created but does not run until it is let go.
//!
//! The child stands between fork and exec, so that its pid can be given to the kernel's filter
//! before its first instruction. It runs as the user behind sudo unless another is named.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use profiler_model::Pid;

use super::schedule::{Class, set_class, this_thread};
use super::user::User;

/// The thread that starts it, which has its priority.
pub const SPAWNER: &str = "spawn";

/// A command waiting to be run.
#[derive(Debug)]
pub struct StoppedCommand {
    pid: Pid,
    go: File,
    spawner: JoinHandle<io::Result<Child>>,
}

/// A command that runs.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
}

impl StoppedCommand {
    /// Creates the process, as `user` if one is given, and with this nice value, where the calling thread has another
    /// one for its own sake.
    pub fn create(
        command: &[OsString],
        user: Option<&User>,
        nice: Option<i32>,
    ) -> io::Result<StoppedCommand> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command given"))?;
        let (pid_reader, pid_writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (go_reader, go_writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(user) = user {
            become_user(&mut command, user)?;
        }
        stand_before_exec(&mut command, &pid_writer, &go_reader, &go_writer);
        // `spawn` returns only after exec, so it waits in a thread of its own. The thread owns the
        // child's ends of the pipes: if fork fails, they close and the read below ends.
        let spawner = std::thread::Builder::new()
            .name(SPAWNER.into())
            .spawn(move || {
                if let Some(nice) = nice {
                    // What it starts inherits it.
                    set_class(this_thread(), Class::Ordinary(nice), true)?;
                }
                let child = command.spawn();
                drop((pid_writer, go_reader));
                child
            })?;
        let mut pid = [0; 4];
        match File::from(pid_reader).read_exact(&mut pid) {
            Ok(()) => {
                let pid = Pid(u32::from_ne_bytes(pid));
                Ok(StoppedCommand {
                    pid,
                    go: File::from(go_writer),
                    spawner,
                })
            }
            Err(error) => Err(join(spawner).err().unwrap_or(error)),
        }
    }

    /// Its process id, which it keeps.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets it run. An error is that of the exec: no such file, not executable.
    pub fn run(mut self) -> io::Result<RunningCommand> {
        // A child that is gone already shows in the spawner's result.
        let _ = self.go.write_all(&[1]);
        drop(self.go);
        Ok(RunningCommand {
            child: join(self.spawner)?,
        })
    }
}

impl RunningCommand {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Its status, if it has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends it a signal, unless it has been waited for.
    pub fn signal(&mut self, signal: rustix::process::Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        match pid {
            Some(pid) => Ok(rustix::process::kill_process(pid, signal)?),
            None => Ok(()),
        }
    }
}

/// The exit status that a shell would show: 128 + the signal for a command that was killed.
pub fn shell_status(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn join(spawner: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawner
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("could not start a thread to spawn")))
}

#[allow(unsafe_code)]
fn become_user(command: &mut Command, user: &User) -> io::Result<()> {
    command
        .env("USER", &user.name)
        .env("LOGNAME", &user.name)
        .env("HOME", &user.home);
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(());
    }
    let (uid, gid, groups) = (user.uid, user.gid, user.groups()?);
    // std's own `uid` drops the privilege before closures run, too early for setgroups.
    // SAFETY: runs between fork and exec in the child: four system calls, one of which reads the
    // list that the closure owns; nothing allocates or locks.
    unsafe {
        command.pre_exec(move || {
            let done = libc::setgroups(groups.len(), groups.as_ptr()) == 0
                && libc::setgid(gid) == 0
                && libc::setuid(uid) == 0;
            if !done {
                return Err(io::Error::last_os_error());
            }
            // Where this does not run as root, changing the user takes no capabilities away, and exec
            // would pass ambient ones on. Those of root come back with the exec.
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            Ok(set_capabilities(None, none)?)
        });
    }
    Ok(())
}

#[allow(unsafe_code)]
fn stand_before_exec(
    command: &mut Command,
    pid_writer: &OwnedFd,
    go_reader: &OwnedFd,
    go_writer: &OwnedFd,
) {
    let fds = [pid_writer, go_reader, go_writer].map(|fd| fd.as_raw_fd());
    let [pid_writer, go_reader, go_writer]: [RawFd; 3] = fds;
    // SAFETY: runs between fork and exec in the child: only getpid, write, close and read on
    // descriptors that the child inherited, with memory on its own stack; nothing allocates or
    // locks. The child's copy of `go_writer` is not used again, there or here.
    unsafe {
        command.pre_exec(move || {
            let pid = (libc::getpid() as u32).to_ne_bytes();
            if libc::write(pid_writer, pid.as_ptr().cast(), pid.len()) != pid.len() as isize {
                return Err(io::Error::last_os_error());
            }
            // Its own copy would keep the pipe open after the profiler is gone.
            libc::close(go_writer);
            let mut byte = 0u8;
            loop {
                match libc::read(go_reader, (&raw mut byte).cast(), 1) {
                    1 => return Ok(()),
                    // The profiler gave up or died before it let the command go.
                    0 => libc::_exit(125),
                    _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                    _ => return Err(io::Error::last_os_error()),
                }
            }
        });
    }
}

/// A command as it is shown to people: arguments joined by spaces, quoted where needed.
pub fn shown(command: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let word = OsStr::to_string_lossy(word).into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<OsString> {
        command.iter().map(OsString::from).collect()
    }

    #[test]
    fn does_not_run_before_it_is_let_go() {
        let folder = std::env::temp_dir().join(format!("profiler-go-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ran");
        let script = format!("echo $$ > {}", file.display());
        let stopped = StoppedCommand::create(&words(&["sh", "-c", &script]), None, None).unwrap();
        let pid = stopped.pid();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!file.exists());
        let status = stopped.run().unwrap().child.wait().unwrap();
        assert_eq!(shell_status(status), 0);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap().trim(),
            pid.to_string()
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn exec_errors_and_statuses_are_those_of_the_command() {
        let stopped = StoppedCommand::create(&words(&["/no/such/program"]), None, None).unwrap();
        assert_eq!(stopped.run().unwrap_err().kind(), io::ErrorKind::NotFound);
        for (script, expected) in [("exit 7", 7), ("kill -9 $$", 137)] {
            let stopped =
                StoppedCommand::create(&words(&["sh", "-c", script]), None, None).unwrap();
            assert_eq!(
                shell_status(stopped.run().unwrap().child.wait().unwrap()),
                expected
            );
        }
    }

    #[test]
    fn a_command_that_is_not_let_go_never_runs() {
        let stopped = StoppedCommand::create(&words(&["true"]), None, None).unwrap();
        let StoppedCommand { go, spawner, .. } = stopped;
        drop(go);
        // The child leaves before exec, which std reports as a child that could be spawned.
        if let Ok(mut child) = join(spawner) {
            assert_eq!(child.wait().unwrap().code(), Some(125));
        }
    }

    #[test]
    fn runs_as_another_user_with_its_groups() {
        if !rustix::process::geteuid().is_root() {
            crate::skip::skip("runs_as_another_user_with_its_groups", "needs root");
            return;
        }
        let nobody = User::find("nobody").unwrap();
        let script = format!(
            "test $(id -u) = {} && test $USER = nobody && ! id -G | grep -qw 0",
            nobody.uid
        );
        let stopped =
            StoppedCommand::create(&words(&["sh", "-c", &script]), Some(&nobody), None).unwrap();
        assert_eq!(
            shell_status(stopped.run().unwrap().child.wait().unwrap()),
            0
        );
    }

    #[test]
    fn commands_are_shown_quoted() {
        assert_eq!(
            shown(&words(&["sh", "-c", "a b", "it's", ""])),
            r"sh -c 'a b' 'it'\''s' ''"
        );
    }
}
