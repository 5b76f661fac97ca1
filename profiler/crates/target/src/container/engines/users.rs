//! Engines of users: who may speak about which cgroup.
//!
//! A cgroup's path -> whose it is; questions about the containers of a user -> what that user's engines say. A user's
//! word counts for the user's own cgroups: those below the slice that systemd gives the user, and those whose
//! directory belongs to the user, who may put nobody else's processes there.
//!
//! What does not belong here: what they say (`book`), who reads it (`apart`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Facts;
use super::book::Book;
use super::files::{Budget, Root};
use super::places::Whose;
use crate::container::Identity;

/// Hierarchies below the mount that all are in: of version 2, or one of those that all containers are in.
const HIERARCHIES: [&str; 5] = ["", "unified", "systemd", "pids", "memory"];
/// What is read of a user's files to answer one question.
const TIME: Duration = Duration::from_millis(300);
const BYTES: u64 = 16 << 20;
const ENTRIES: usize = 10_000;
/// Nobody.
const NOBODY: u32 = u32::MAX;

/// The engines of users.
#[derive(Debug)]
pub(super) struct Users {
    root: PathBuf,
    books: HashMap<u32, Book>,
    /// Users of whom it was said that they keep too much.
    said: HashSet<u32>,
}

impl Users {
    pub(super) fn at(root: &Path) -> Users {
        Users {
            root: root.to_owned(),
            books: HashMap::new(),
            said: HashSet::new(),
        }
    }

    /// The user that a cgroup belongs to; none if it is root's.
    pub(super) fn whose(&self, cgroup: &str) -> Option<u32> {
        let mounts = self.root.join("sys/fs/cgroup");
        let of_slice = of_slice(cgroup);
        let user = of_slice.or_else(|| {
            let below = cgroup.strip_prefix('/').filter(|below| !below.is_empty())?;
            let mut hierarchies = HIERARCHIES.iter().map(|one| mounts.join(one).join(below));
            hierarchies.find_map(|directory| Some(fs::symlink_metadata(directory).ok()?.uid()))
        });
        user.filter(|user| ![0, NOBODY].contains(user))
    }

    /// Ids by cgroup, of containers of a user's runtimes.
    pub(super) fn runtimes(&mut self, user: u32) -> &HashMap<String, String> {
        self.book(user).runtimes()
    }

    /// What a user's engines say of containers in the user's cgroups, each in its place.
    pub(super) fn look(&mut self, user: u32, identities: &[Identity]) -> Vec<Facts> {
        self.book(user).look(identities)
    }

    fn book(&mut self, user: u32) -> &mut Book {
        let root = &self.root;
        let book = || Book::new(Root::new(root), Whose::User(user));
        let book = self.books.entry(user).or_insert_with(book);
        if book.root.is_over() && self.said.insert(user) {
            log::warn!(
                "user {user} keeps more files about containers than are read: names may be missing of what is theirs"
            );
        }
        book.root.limit(Budget {
            until: Instant::now() + TIME,
            bytes: BYTES,
            entries: ENTRIES,
        });
        book
    }
}

/// The user whose slice a cgroup is in.
fn of_slice(cgroup: &str) -> Option<u32> {
    let below = cgroup.strip_prefix("/user.slice/user-")?;
    let (user, _) = below.split_once(".slice")?;
    let rest = &below[user.len() + ".slice".len()..];
    (rest.is_empty() || rest.starts_with('/')).then_some(())?;
    user.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_users() {
        assert_eq!(of_slice("/user.slice/user-1000.slice"), Some(1000));
        let service = "/user.slice/user-7.slice/user@7.service/app.slice/a.scope";
        assert_eq!(of_slice(service), Some(7));
        for other in [
            "/user.slice",
            "/user.slice/user-.slice",
            "/user.slice/user-1000.slices/a",
            "/user.slice/user-1000/a.slice",
            "/docker/a/user.slice/user-1000.slice/b",
        ] {
            assert_eq!(of_slice(other), None, "{other}");
        }
    }
}
