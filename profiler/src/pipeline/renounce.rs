//! What works on files only gives up all privileges when these are open: whatever is wrong with a capture or a debug
//! file meets a process that may do nothing.
//!
//! Where outputs will get their names -> less of a process: the user behind sudo instead of root, if that user may give
//! these names; no capabilities in any case. What does not belong here: what sessions keep (`privileges`).

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use profiler_probe::privileges::{CapabilitySet, become_user, reduce};
use profiler_target::user::User;

/// Gives up what is not needed any more once inputs are open and outputs are made: all but giving the outputs their
/// names. For good, in every thread. Failing is no reason not to work, and is said.
pub fn renounce(outputs: &[&Path]) {
    let mut kept = CapabilitySet::empty();
    if rustix::process::geteuid().is_root() {
        let user = User::behind_sudo().ok().flatten();
        let may = |uid| outputs.iter().all(|output| may_replace(uid, output));
        match user.filter(|user| may(user.uid)) {
            Some(user) => {
                let groups = user.groups().unwrap_or_else(|_| vec![user.gid]);
                if let Err(error) = become_user(user.uid, user.gid, &groups) {
                    log::warn!("the privileges of root stay: {error}");
                }
            }
            // Root has no power over folders of others without these.
            None if !may(0) => kept = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
            None => {}
        }
    }
    if let Err(error) = reduce(kept) {
        log::warn!("privileges that are not needed stay: {error}");
    }
}

/// Whether a user may give a file of theirs this name, without capabilities: groups are not asked.
pub(super) fn may_replace(uid: u32, output: &Path) -> bool {
    let folder = profiler_capture::folder_of(output);
    let Ok(folder_is) = fs::metadata(folder) else {
        return false;
    };
    let old = profiler_capture::old(output);
    let are_theirs = || {
        let found = [output, &old].map(|path| path.symlink_metadata().ok());
        found.into_iter().flatten().all(|found| found.uid() == uid)
    };
    may_write(uid, &folder_is)
        && (folder_is.mode() & libc::S_ISVTX == 0 || folder_is.uid() == uid || are_theirs())
        && fs::canonicalize(folder).is_ok_and(|folder| {
            let mut above = folder.ancestors();
            above.all(|folder| fs::metadata(folder).is_ok_and(|found| may(uid, &found, 0o1)))
        })
}

fn may_write(uid: u32, folder: &Metadata) -> bool {
    may(uid, folder, 0o3)
}

/// Whether the owner's bits, or else those of everybody, have these.
fn may(uid: u32, found: &Metadata, bits: u32) -> bool {
    let bits = match found.uid() == uid {
        true => bits << 6,
        false => bits,
    };
    found.mode() & bits == bits
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folders_tell_who_may_name_files_there() {
        const SOMEBODY: u32 = 54_321;
        let folder = std::env::temp_dir().join(format!("profiler-renounce-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let output = folder.join("a.svg");
        let me = rustix::process::geteuid().as_raw();
        let mode = |mode| fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert!(may_replace(me, &output) && !may_replace(SOMEBODY, &output));
        mode(0o777);
        assert!(may_replace(SOMEBODY, &output));
        mode(0o1777);
        assert!(may_replace(SOMEBODY, &output));
        // Of a folder as /tmp only the owner of a file may take it away.
        fs::write(folder.join("a.svg.old"), "").unwrap();
        assert!(may_replace(me, &output) && !may_replace(SOMEBODY, &output));
        assert!(!may_replace(me, &folder.join("none/a.svg")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
