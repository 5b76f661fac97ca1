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

    /// The user who called sudo, if sudo started us.
    pub fn behind_sudo() -> Option<User> {
        let uid = std::env::var("SUDO_UID").ok()?;
        (uid != "0" && rustix::process::geteuid().is_root())
            .then(|| User::find(&uid))
            .flatten()
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

    fn parse(line: &str) -> Option<User> {
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
    fn finds_users_by_name_and_number() {
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(User::find("0"), Some(root));
        assert_eq!(User::find("no such user"), None);
        assert_eq!(User::find("-h"), None);
    }
}
