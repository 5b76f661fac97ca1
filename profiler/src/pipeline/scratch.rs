//! The capture of a recording that is only wanted in other formats: made in the folder for temporary files, gone when
//! these are written.
//!
//! Nothing -> a path for a capture. A recording that was killed has nothing but this, so that it stays for an hour, in
//! which it can be read; the next recording after that takes it away. What is in use is locked (flock): by its writer, then by
//! whoever exports it.
//!
//! What does not belong here: how a capture is written (`profiler-capture`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, unlinkat};

use super::outputs::owner;
use crate::error::Failure;
use profiler_probe::now;
use profiler_resolve::left_behind::{self, Ours};

const PREFIX: &str = "profiler-";
const ENDING: &str = ".cap";
/// One that was written to since is not taken away.
const AGE: Duration = Duration::from_secs(3600);

/// A capture that is only made for exports, and removed when they are done.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
    pub(super) used: bool,
    /// Holds the lock.
    locked: Option<File>,
}

impl Scratch {
    pub(super) fn new(used: bool) -> Scratch {
        let name = format!("{PREFIX}{}-{}{ENDING}", std::process::id(), now().0);
        Scratch {
            path: std::env::temp_dir().join(name),
            used,
            locked: None,
        }
    }

    /// It is written, and is to be read.
    pub(super) fn keep_locked(&mut self) {
        if self.used {
            let file = File::open(&self.path).ok();
            // Where files can't be locked none is taken away, either.
            self.locked = file.filter(|file| file.try_lock_shared().is_ok());
        }
    }

    /// The export failed: what was recorded is not thrown away.
    pub(super) fn keep(&self, failure: Failure) -> Failure {
        if !self.used {
            return failure;
        }
        let kept = self.path.with_extension("kept.cap");
        match std::fs::rename(&self.path, &kept) {
            Ok(()) => Failure {
                message: format!("{failure}; the recording is kept in {}", kept.display()),
                ..failure
            },
            Err(_) => failure,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.used {
            // It may not have been made yet.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes away what recordings of this user have left that were killed.
pub(super) fn sweep() {
    let mut ours = vec![rustix::process::geteuid().as_raw()];
    ours.extend(owner().map(|owner| owner.uid));
    let folder = std::env::temp_dir();
    for name in sweep_in(&folder, &ours) {
        let path = folder.join(name);
        log::warn!(
            "removed {}, which a killed recording had left",
            path.display()
        );
    }
}

fn sweep_in(folder: &Path, owners: &[u32]) -> Vec<String> {
    let ours = Ours {
        kind: FileType::RegularFile,
        mode: Mode::RUSR | Mode::WUSR,
        owners,
    };
    let mut removed = Vec::new();
    left_behind::each(folder, ours, AGE, is_name, |parent, name, _locked| {
        if unlinkat(parent, name, AtFlags::empty()).is_ok() {
            removed.push(name.to_owned());
        }
    });
    removed
}

/// Whether it is called as such a capture is, or as one that has not got its name yet (`NewFile`).
fn is_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let are_numbers = |text: &str| {
        let numbers = text.split_once('-');
        numbers.is_some_and(|(first, second)| is_number(first) && is_number(second))
    };
    let rest = name.strip_prefix(PREFIX);
    let parts = rest.and_then(|rest| rest.split_once(ENDING));
    parts.is_some_and(|(numbers, rest)| {
        let made = rest
            .strip_prefix('.')
            .and_then(|rest| rest.strip_suffix(".new"));
        are_numbers(numbers) && (rest.is_empty() || made.is_some_and(are_numbers))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, Permissions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_killed_recording_has_left_goes_after_an_hour_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("scratch-left-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let make = |name: &str| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create_new(true).mode(0o600);
            let file = options.open(folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - 2 * AGE).unwrap();
            file
        };
        let left = ["profiler-1-2.cap", "profiler-1-3.cap.1-0.new"];
        left.iter().for_each(|name| drop(make(name)));
        let mut stay = vec![
            "profiler-1-4.kept.cap",
            "profiler-1.cap",
            "profiler-1-x.cap",
            "profiler-1-5.cap.old",
            "profiler-my-run-2.cap",
            "other.cap",
        ];
        stay.iter().for_each(|name| drop(make(name)));
        let is_written = make("profiler-2-1.cap");
        is_written.try_lock().unwrap();
        let is_read = make("profiler-2-2.cap");
        is_read.try_lock_shared().unwrap();
        make("profiler-2-3.cap")
            .set_modified(SystemTime::now())
            .unwrap();
        let open_to_all = make("profiler-2-4.cap");
        open_to_all
            .set_permissions(Permissions::from_mode(0o644))
            .unwrap();
        symlink(folder.join("other.cap"), folder.join("profiler-2-5.cap")).unwrap();
        std::fs::create_dir(folder.join("profiler-2-6.cap")).unwrap();
        stay.extend(["profiler-2-1.cap", "profiler-2-2.cap", "profiler-2-3.cap"]);
        stay.extend(["profiler-2-4.cap", "profiler-2-5.cap", "profiler-2-6.cap"]);
        let us = rustix::process::geteuid();
        if us.is_root() {
            make("profiler-3-1.cap");
            let foreign = folder.join("profiler-3-1.cap");
            std::os::unix::fs::chown(foreign, Some(65_534), None).unwrap();
            stay.push("profiler-3-1.cap");
        }

        let mut removed = sweep_in(&folder, &[us.as_raw()]);
        removed.sort();
        assert_eq!(removed, left);
        let there = std::fs::read_dir(&folder).unwrap().flatten();
        let mut there: Vec<_> = there
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        there.sort();
        stay.sort_unstable();
        assert_eq!(there, stay);
        if us.is_root() {
            // Of the user behind sudo.
            assert_eq!(sweep_in(&folder, &[0, 65_534]), ["profiler-3-1.cap"]);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_exported_is_locked() {
        let mut scratch = Scratch::new(true);
        std::fs::write(&scratch.path, "").unwrap();
        scratch.keep_locked();
        let other = File::open(&scratch.path).unwrap();
        assert!(other.try_lock().is_err());
        let path = scratch.path.clone();
        drop(scratch);
        assert!(!path.exists() && other.try_lock().is_ok());
    }
}
