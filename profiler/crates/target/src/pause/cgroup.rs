//! A cgroup, stopped by its freezer.
//!
//! The directory of a cgroup of version 2 (or of version 1's freezer) -> [`Frozen`]. A cgroup that
//! was frozen before stays so.
//!
//! What does not belong here: the guard, single processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::guard::{Charge, Guard};
use super::{INTERVAL, PATIENCE, PauseError};

/// Most cgroups below a cgroup that are looked at.
const MAX_CGROUPS: usize = 1 << 16;

/// A cgroup that stands still because of us. Dropping it lets it go on.
#[derive(Debug)]
pub(super) struct Frozen {
    path: PathBuf,
    charge: Charge,
    /// What it is thawed by; none if it was frozen before.
    control: Option<File>,
}

impl Frozen {
    /// Returns when all of its processes stand still.
    pub(super) fn freeze(path: &Path, guard: &mut Guard) -> Result<Frozen, PauseError> {
        let failed = |what: &str, error: io::Error| {
            PauseError::system(format!("{what} {}", path.display()), error)
        };
        let (name, charge) = if path.join("cgroup.freeze").exists() {
            ("cgroup.freeze", Charge::Freeze)
        } else if path.join("freezer.state").exists() {
            ("freezer.state", Charge::Freezer)
        } else {
            return Err(PauseError::NoFreezer(path.to_owned()));
        };
        if holds(path, std::process::id()).map_err(|error| failed("read", error))? {
            return Err(PauseError::Own(path.display().to_string()));
        }
        let mut frozen = Frozen {
            path: path.to_owned(),
            charge,
            control: None,
        };
        let state = fs::read_to_string(path.join(name));
        let state = state.map_err(|error| failed("read", error))?;
        if !matches!(state.trim(), "1" | "FROZEN" | "FREEZING") {
            let control = OpenOptions::new().write(true).open(path.join(name));
            let control = control.map_err(|error| failed("freeze", error))?;
            guard
                .charge(charge, control.as_fd())
                .map_err(|error| PauseError::system("tell the guard process", error))?;
            let word: &[u8] = match charge {
                Charge::Freezer => b"FROZEN",
                _ => b"1",
            };
            let written = control.write_all_at(word, 0);
            frozen.control = Some(control);
            written.map_err(|error| failed("freeze", error))?;
        }
        let began = Instant::now();
        while !frozen.is_still().map_err(|error| failed("read", error))? {
            if began.elapsed() > PATIENCE {
                return Err(PauseError::Restless {
                    who: format!("a process in {}", path.display()),
                    waited: PATIENCE,
                });
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(frozen)
    }

    fn is_still(&self) -> io::Result<bool> {
        match self.charge {
            Charge::Freezer => {
                let state = fs::read_to_string(self.path.join("freezer.state"))?;
                Ok(state.trim() == "FROZEN")
            }
            _ => {
                let events = fs::read_to_string(self.path.join("cgroup.events"))?;
                Ok(events.lines().any(|line| line == "frozen 1"))
            }
        }
    }

    /// Lets it go on. A cgroup that is gone has nothing in it.
    pub(super) fn thaw(&mut self) -> Result<(), PauseError> {
        let Some(control) = self.control.take() else {
            return Ok(());
        };
        match control.write_all_at(self.charge.release(), 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                let action = format!("thaw {}", self.path.display());
                Err(PauseError::system(action, error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = self.thaw() {
            log::error!("{error}; thaw it by hand");
        }
    }
}

/// Whether a process is in a cgroup or in one below it.
fn holds(path: &Path, pid: u32) -> io::Result<bool> {
    let mut left = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(folder) = left.pop() {
        seen += 1;
        if seen > MAX_CGROUPS {
            return Err(io::Error::other("too many cgroups are below it"));
        }
        let mut members = String::new();
        // Threaded cgroups list threads only, which name a process by its first.
        for list in ["cgroup.procs", "cgroup.threads"] {
            if let Ok(mut file) = File::open(folder.join(list))
                && file.read_to_string(&mut members).is_ok()
            {
                break;
            }
        }
        if members.lines().any(|line| line.parse() == Ok(pid)) {
            return Ok(true);
        }
        for entry in fs::read_dir(&folder)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
        }
    }
    Ok(false)
}
