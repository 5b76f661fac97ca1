//! Whom a number of a user belongs to.
//!
//! A user id -> the one that all which is theirs is counted under. A user of the machine may have ten thousands of
//! further numbers (`newuidmap`): what is done with these is theirs. Source: subuid(5); passwd(5) for names. Both are
//! believed if only root can change them, and nobody else is asked: no name server holds this up.
//!
//! What does not belong here: what is counted (`owners`, `turns`, `by_user`, `patience`).

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::files::open_trusted;

const SUBUID: &str = "/etc/subuid";
const PASSWD: &str = "/etc/passwd";
/// Most bytes that are read of either.
const MAX_BYTES: u64 = 1 << 20;
/// Most ranges that are known.
const MAX_RANGES: usize = 4096;
/// They are read again after so long.
const FRESH: Duration = Duration::from_secs(60);
/// Numbers of root's are for containers: so many are taken for one.
const CONTAINER: u32 = 1 << 16;

/// Numbers from one on, how many, and whose they are; none is root, or somebody without a number.
type Range = (u32, u32, Option<u32>);

static RANGES: Mutex<Option<(Instant, Vec<Range>)>> = Mutex::new(None);

/// Who all is counted under that a user does.
pub(crate) fn account_of(uid: u32) -> u32 {
    // Users themselves are none of anybody's.
    if uid < CONTAINER {
        return uid;
    }
    let mut known = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_fresh = |(read, _): &&mut (Instant, Vec<Range>)| read.elapsed() < FRESH;
    match known.as_mut().filter(is_fresh) {
        Some((_, ranges)) => account_in(ranges, uid),
        None => {
            let text = |path| text_of(Path::new(path)).unwrap_or_default();
            let ranges = ranges_of(&text(SUBUID), &text(PASSWD));
            let account = account_in(&ranges, uid);
            *known = Some((Instant::now(), ranges));
            account
        }
    }
}

fn account_in(ranges: &[Range], uid: u32) -> u32 {
    let holds = |&&(first, count, _): &&Range| uid.checked_sub(first).is_some_and(|at| at < count);
    match ranges.iter().find(holds) {
        Some(&(_, _, Some(owner))) => owner,
        Some(&(first, _, None)) => first + (uid - first) / CONTAINER * CONTAINER,
        None => uid,
    }
}

/// The ranges that a table has: `name:first:count`, the name perhaps a number.
fn ranges_of(subuid: &str, passwd: &str) -> Vec<Range> {
    let fields = |line: &str| -> Option<(String, u32, u32)> {
        let mut fields = line.trim().split(':');
        let (name, first) = (fields.next()?, fields.next()?.parse().ok()?);
        Some((name.to_owned(), first, fields.next()?.parse().ok()?))
    };
    let number = |name: &str| -> Option<u32> {
        let named = passwd.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix(':')?;
            rest.split(':').nth(1)?.parse().ok()
        });
        named.or_else(|| name.parse().ok())
    };
    let ranges = subuid.lines().filter_map(fields).take(MAX_RANGES);
    // Nobody gets the numbers of others by a range over them.
    let ranges = ranges.filter(|&(_, first, _)| first >= CONTAINER);
    let ranges = ranges.map(|(name, first, count)| {
        let owner = number(&name).filter(|&owner| owner != 0);
        (first, count, owner)
    });
    ranges.collect()
}

/// What is in a file that only root can change.
fn text_of(path: &Path) -> Option<String> {
    let (file, stat) = open_trusted(path).ok()?;
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        return None;
    }
    let mut bytes = Vec::new();
    File::take(file, MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_numbers_are_their_users() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:\nbob:x:1001:1001::/:\n";
        let subuid = "ann:100000:65536\nbob:165536:65536\n1002:300000:10\nroot:1000000:1000000000\n\
                      gone:400000:65536\nann:0:70000\nnonsense\nann:x:1\n";
        let ranges = ranges_of(subuid, passwd);
        for (uid, account) in [
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (300_009, 1002),
            (300_010, 300_010),
            // Containers of root's are told apart, and those who have no number count as one each.
            (1_000_007, 1_000_000),
            (1_065_537, 1_065_536),
            (400_001, 400_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(account_in(&ranges, uid), account, "{uid}");
        }
        assert_eq!(account_of(1000), 1000);
    }

    #[test]
    fn what_others_can_change_is_not_believed() {
        let dir = crate::tests::TempDir::new("accounts");
        let path = dir.path("subuid");
        std::fs::write(&path, "ann:100000:65536\n").unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(text_of(&path), None);
        assert_eq!(text_of(&dir.0), None);
    }
}
