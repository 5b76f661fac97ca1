//! Containers by a runtime alone: runc or crun, and a bundle (`config.json`, `rootfs`).
//!
//! All cgroups of one runtime are below one of its own, `/profiler-test-PID`. A container may go
//! without /proc and without a shell; runc itself needs the former.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::leftovers::{self, Marks};
use super::{COMMAND_LIMIT, Root, missing, run};
use crate::process::send_signal;
use crate::setting::Setting;
use crate::skip::skip;
use crate::undisturbed::leave_undisturbed;

/// A runtime without an engine.
pub struct Runtime {
    program: &'static str,
    folder: PathBuf,
    /// Path of the cgroup that all of its containers are in.
    parent: String,
    ids: RefCell<Vec<String>>,
}

/// A container to be run.
#[derive(Clone, Copy)]
pub struct Bundle<'b> {
    /// Its id, unique on the machine.
    pub id: &'b str,
    /// Its files. Several containers may have the same: nothing writes there.
    pub root: &'b Root,
    /// What it runs.
    pub command: &'b [&'b str],
    /// Whether it has a /proc.
    pub proc: bool,
}

/// A container that runs.
#[derive(Debug)]
pub struct Contained {
    /// Its id.
    pub id: String,
    /// Its first process, as the host sees it.
    pub pid: u32,
    /// Path of its cgroup.
    pub cgroup: String,
    output: PathBuf,
}

impl Runtime {
    /// `runc` or `crun` for `test`; none if it is not installed, and then says so.
    pub fn new(
        setting: &Setting,
        test: &str,
        program: &'static str,
    ) -> io::Result<Option<Runtime>> {
        if let Some(why) = missing(&[program, "unshare"]) {
            skip(test, &why);
            return Ok(None);
        }
        let folder = setting.path(program);
        fs::create_dir_all(&folder)?;
        Ok(Some(Runtime {
            program,
            folder,
            parent: format!("/profiler-test-{}", std::process::id()),
            ids: RefCell::default(),
        }))
    }

    /// Path of the cgroup that all of its containers are in.
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// Starts a container.
    pub fn run(&self, bundle: &Bundle<'_>) -> io::Result<Contained> {
        let folder = self.folder.join(bundle.id);
        fs::create_dir_all(&folder)?;
        let cgroup = format!("{}/{}", self.parent, bundle.id);
        fs::write(
            folder.join("config.json"),
            configuration(bundle, &cgroup).to_string(),
        )?;
        let (pid_file, output) = (folder.join("pid"), folder.join("output"));
        let said = File::create(&output)?;
        let errors = folder.join("errors");
        self.ids.borrow_mut().push(bundle.id.to_owned());
        // A detached container keeps these files as its own output.
        let status = self
            .command()
            .args(["run", "--detach", "--pid-file"])
            .arg(&pid_file)
            .arg("--bundle")
            .arg(&folder)
            .arg(bundle.id)
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(File::create(&errors)?)
            .status()?;
        if !status.success() {
            return Err(io::Error::other(format!(
                "{} run {}: {status}: {}",
                self.program,
                bundle.id,
                fs::read_to_string(errors)?
            )));
        }
        let pid = fs::read_to_string(pid_file)?;
        Ok(Contained {
            id: bundle.id.to_owned(),
            pid: pid.trim().parse().map_err(io::Error::other)?,
            cgroup,
            output,
        })
    }

    /// Ends a container if it still runs, and removes it.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        let mut command = self.command();
        command.args(["delete", "--force", id]).stdin(Stdio::null());
        run(&mut command, &self.folder, "delete")?;
        // crun leaves a cgroup whose last process has ended and is still to be reaped, and says nothing.
        let below = format!("{}/{id}", self.parent.trim_start_matches('/'));
        for hierarchy in leftovers::hierarchies() {
            leftovers::remove_cgroup(&hierarchy.join(&below));
        }
        self.ids.borrow_mut().retain(|known| known != id);
        Ok(())
    }

    /// The runtime as a command. crun refuses a mixed set of cgroups whose version 2 has controllers;
    /// it gets to see version 1 alone.
    fn command(&self) -> Command {
        let unified = Path::new("/sys/fs/cgroup/unified");
        if self.program != "crun" || !unified.is_dir() {
            return Command::new(self.program);
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.args(["umount \"$0\" && exec crun \"$@\""]);
        command.arg(unified);
        command
    }

    fn finish(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for id in self.ids.take() {
            if let Err(error) = self.remove(&id) {
                left.push(error.to_string());
            }
        }
        // Runtimes leave the parent, which they made.
        let name = self.parent.trim_start_matches('/');
        for hierarchy in leftovers::hierarchies() {
            let _ = fs::remove_dir(hierarchy.join(name));
        }
        let cgroups = [name.to_owned()];
        let marks = Marks {
            folder: &self.folder,
            cgroups: &cgroups,
        };
        left.extend(leftovers::clear(&marks, Duration::from_secs(5)));
        left
    }
}

impl Contained {
    /// What it has said so far.
    pub fn said(&self) -> io::Result<String> {
        fs::read_to_string(&self.output)
    }

    /// Waits until its first process has ended; gives what it said.
    pub fn end(&self) -> io::Result<String> {
        let deadline = Instant::now() + COMMAND_LIMIT;
        let place = format!("/proc/{}/exe", self.pid);
        // A zombie has no executable any more.
        while fs::read_link(&place).is_ok() {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} did not end", self.id)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.said()
    }

    /// Asks its first process to end.
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Starts a workload that waits, for as much CPU time as there is.
    pub fn begin(&self) -> io::Result<()> {
        leave_undisturbed(self.pid)?;
        self.signal(Signal::USR1)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        send_signal(self.pid, signal)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let left = self.finish();
        if !left.is_empty() && !std::thread::panicking() {
            panic!("left by {}: {}", self.program, left.join("; "));
        }
    }
}

fn configuration(bundle: &Bundle<'_>, cgroup: &str) -> serde_json::Value {
    let namespaces: Vec<_> = ["pid", "mount", "network", "ipc", "uts"]
        .iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    let mounts = if bundle.proc {
        json!([{ "destination": "/proc", "type": "proc", "source": "proc" }])
    } else {
        json!([])
    };
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": bundle.command,
            "env": ["PATH=/bin"],
            "cwd": "/",
        },
        "root": { "path": bundle.root.folder() },
        "mounts": mounts,
        "linux": { "cgroupsPath": cgroup, "namespaces": namespaces },
    })
}
