//! Engines of users, whose files and sockets are the users' own.
//!
//! Oracle: what is asked for ends in time, whatever a user's folder does.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use profiler_target::cgroup::Hierarchies;
use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

/// A user that the machine does not have.
const USER: u32 = 54_321;

/// A cgroup and a session of the user's, with a folder of a runtime that never answers. All of it goes with the value.
struct Silent {
    cgroup: PathBuf,
    session: PathBuf,
    _server: fs::File,
}

impl Silent {
    fn new() -> Result<Silent, Box<dyn std::error::Error>> {
        let hierarchies = Hierarchies::read()?;
        let hierarchy = hierarchies.primary().ok_or("no cgroups")?;
        let name = format!("/profiler-users-{}", std::process::id());
        let mut options = fs::OpenOptions::new();
        let server = options.read(true).write(true).open("/dev/fuse")?;
        let silent = Silent {
            cgroup: hierarchy.directory(&name),
            session: Path::new("/run/user").join(USER.to_string()),
            _server: server,
        };
        let runc = silent.session.join("runc");
        fs::create_dir_all(&runc)?;
        fs::create_dir(&silent.cgroup)?;
        for path in [&silent.session, &runc, &silent.cgroup] {
            chown(path, Some(USER), Some(USER))?;
        }
        let fd = silent._server.as_raw_fd();
        let data = format!("fd={fd},rootmode=40000,user_id={USER},group_id={USER},allow_other");
        let data = std::ffi::CString::new(data)?;
        mount(
            "silent",
            &runc,
            "fuse",
            MountFlags::empty(),
            data.as_c_str(),
        )?;
        Ok(silent)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = unmount(self.session.join("runc"), UnmountFlags::DETACH);
        let _ = fs::remove_dir_all(&self.session);
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[test]
fn users_engines_that_never_answer_hold_nothing_up() -> Outcome {
    let test = "e2e_users_engines::users_engines_that_never_answer_hold_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let _silent = match Silent::new() {
        Ok(silent) => silent,
        Err(error) => {
            skip(test, &format!("needs FUSE and a cgroup: {error}"));
            return Ok(());
        }
    };
    let limit = Duration::from_secs(20);
    let from = Instant::now();
    let listed = setting.run(&["list", "containers", "--units"])?;
    assert!(from.elapsed() < limit, "list: {:?}", from.elapsed());
    let said = format!("user {USER} keeps files about containers where reading does not end");
    assert!(listed.stderr.contains(&said), "{}", listed.stderr);

    let from = Instant::now();
    let recorder = setting.start_recording(&["-F", "99", "-a", "-d", "1"])?;
    recorder.end(LIMIT)?.success()?;
    assert!(from.elapsed() < limit, "record: {:?}", from.elapsed());

    // While it is looked for what a name means, an interrupt is heard.
    let mut command = setting.profiler();
    command.args([
        "record",
        "--container",
        "profiler-has-none",
        "-o",
        "none.cap",
    ]);
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    let threads = format!("/proc/{}/task", recorder.pid());
    recorder.wait_until("looking for the container", LIMIT, |_| {
        let threads = fs::read_dir(&threads).into_iter().flatten().flatten();
        let mut names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.trim_end() == "containers"))
    })?;
    recorder.signal(Signal::INT)?;
    let from = Instant::now();
    recorder.end(LIMIT)?.expect_status(130)?;
    assert!(from.elapsed() < limit, "interrupt: {:?}", from.elapsed());
    Ok(())
}
