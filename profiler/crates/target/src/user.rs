//! Users: from names, numbers and the environment that sudo leaves.
//!
//! Looked up by `getent`, so that directory services count, else in /etc/passwd.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory.
    pub home: PathBuf,
}

/// Nobody is known by the id that sudo has left.
#[derive(Debug, thiserror::Error)]
#[error("sudo was called by user {0}, who is not known here; name the command's user by --as")]
pub struct UnknownUser(String);

impl User {
    /// By login name or numeric id.
    pub fn find(name_or_id: &str) -> Option<User> {
        let line = getent("passwd", name_or_id).or_else(|| {
            let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
            passwd.lines().find_map(|line| {
                let user = User::parse(line)?;
                let found = user.name == name_or_id || user.uid.to_string() == name_or_id;
                found.then(|| line.to_owned())
            })
        })?;
        User::parse(line.lines().next()?)
    }

    /// By numeric id, among those in /etc/passwd: without asking a directory service, which takes its
    /// time.
    pub fn listed(uid: u32) -> Option<User> {
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        let mut users = passwd.lines().filter_map(User::parse);
        users.find(|user| user.uid == uid)
    }

    /// The user who called sudo, if sudo started us.
    pub fn behind_sudo() -> Result<Option<User>, UnknownUser> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        std::env::var("SUDO_UID").map_or(Ok(None), |uid| User::behind(&uid))
    }

    /// The user with the id that sudo has left, unless that is root. One that can't be found must
    /// not end up as root.
    fn behind(uid: &str) -> Result<Option<User>, UnknownUser> {
        match uid {
            "0" => Ok(None),
            uid => User::find(uid)
                .map(Some)
                .ok_or_else(|| UnknownUser(uid.to_owned())),
        }
    }

    /// Ids of all groups that the user is in.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        let output = Command::new("id")
            .args(["-G", &self.name])
            .stderr(Stdio::null())
            .output();
        let groups: Vec<u32> = match &output {
            Ok(output) => String::from_utf8_lossy(&output.stdout)
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect(),
            Err(_) => Vec::new(),
        };
        Ok(if groups.is_empty() {
            vec![self.gid]
        } else {
            groups
        })
    }

    pub(crate) fn parse(line: &str) -> Option<User> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = PathBuf::from(fields.nth(1)?);
        Some(User {
            name,
            uid,
            gid,
            home,
        })
    }
}

fn getent(database: &str, key: &str) -> Option<String> {
    let output = Command::new("getent")
        .args([database, "--", key])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_behind_sudo_is_not_root() {
        assert_eq!(User::behind("0").unwrap(), None);
        let error = User::behind("4294967200").unwrap_err().to_string();
        assert!(error.contains("4294967200") && error.contains("--as"));
    }

    #[test]
    fn finds_users_by_name_and_number() {
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(User::listed(0), Some(root.clone()));
        assert_eq!(User::listed(4_294_967_200), None);
        assert_eq!(User::find("0"), Some(root));
        assert_eq!(User::find("no such user"), None);
        assert_eq!(User::find("-h"), None);
    }
}
