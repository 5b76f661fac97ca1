//! The profiler as a user who is not root, with a set of capabilities.
//!
//! A test's setting -> a copy of the profiler that anybody may run, a folder where anybody may write, and
//! commands that run it by `setpriv`.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use profiler_probe::privileges::CapabilitySet;
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;

/// Who runs it, where nothing else is said.
pub(super) const NOBODY: u32 = 65_534;

pub(super) struct Unprivileged {
    pub(super) setting: Setting,
    pub(super) profiler: PathBuf,
    /// Where it runs.
    pub(super) folder: PathBuf,
}

impl Unprivileged {
    /// None, and said so, without root or `setpriv`.
    pub(super) fn new(test: &str) -> Result<Option<Unprivileged>, Box<dyn Error>> {
        if Command::new("setpriv").arg("--version").output().is_err() {
            skip(test, "setpriv of util-linux is not installed");
            return Ok(None);
        }
        let Some(setting) = Setting::new(test)? else {
            return Ok(None);
        };
        let profiler = setting.profiler_for_all()?;
        let folder = setting.path("out");
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(Some(Unprivileged {
            setting,
            profiler,
            folder,
        }))
    }

    /// The profiler as this user with exactly these capabilities, and no way to others. `setpriv` is the
    /// command that begins it, which may have others before.
    pub(super) fn profiler(&self, setpriv: Command, user: u32, set: CapabilitySet) -> Command {
        let list = set.iter_names().fold("-all".to_owned(), |list, (name, _)| {
            format!("{list},+{}", name.to_lowercase())
        });
        let mut command = setpriv;
        command
            .args(["--reuid", &user.to_string(), "--regid", &user.to_string()])
            .args(["--clear-groups", "--no-new-privs"])
            .args(["--bounding-set", &list, "--inh-caps", &list])
            .args(["--ambient-caps", &list])
            .arg(&self.profiler)
            .current_dir(&self.folder);
        command
    }
}
