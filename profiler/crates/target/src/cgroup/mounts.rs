//! Which hierarchies of cgroups are mounted where.
//!
//! The texts of /proc/self/mountinfo, /proc/self/cgroup and /proc/cgroups -> [`Hierarchy`]s, the most
//! useful mount of each first. See proc_pid_mountinfo(5) and cgroups(7). Any text is survived: lines
//! that can't be read are passed over.
//!
//! What does not belong here: what is in the mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Hierarchy, Version};
use profiler_model::sorting::InOrder;

/// Most mounts of cgroups that are kept.
const MAX_MOUNTS: usize = 256;

/// A hierarchy as the kernel numbers it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Numbered {
    number: u32,
    /// Controllers, or `name=NAME`.
    controllers: Vec<String>,
}

/// The mounts of cgroups in a mountinfo. `is_there` is asked whether a mount, of a device that is told as
/// `major:minor`, can be seen at its place, or another one lies over it.
pub(super) fn parse(
    mountinfo: &[u8],
    own: &str,
    controllers: &str,
    is_there: impl Fn(&Path, &str) -> bool,
) -> Vec<Hierarchy> {
    let numbered = numbered(own, controllers);
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.split(|&byte| byte == b'\n') {
        let Some(mount) = Mount::parse(line) else {
            continue;
        };
        let Some((version, number)) = mount.kind(&numbered) else {
            continue;
        };
        if !is_there(&mount.at, &mount.device) || found.len() == MAX_MOUNTS {
            continue;
        }
        // What is mounted later at the same place hides what was there.
        found.retain(|known| known.mount != mount.at);
        found.push(Hierarchy {
            version,
            number,
            mount: mount.at,
            root: mount.root,
        });
    }
    // Mounts of more of a hierarchy come before mounts of less of it, then the usual place.
    found.order_by_key(|hierarchy| {
        let elsewhere = !hierarchy.mount.starts_with("/sys/fs/cgroup");
        (hierarchy.levels_below_top(), elsewhere)
    });
    found
}

/// A line of a mountinfo that is about cgroups.
struct Mount {
    device: String,
    root: String,
    at: PathBuf,
    unified: bool,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|&byte| byte == b' ');
        // The ids of the mount and of its parent say nothing here.
        let device = fields.by_ref().nth(2)?;
        let root = unescaped(fields.next()?);
        let at = unescaped(fields.next()?);
        // Optional fields end with a lone dash.
        fields.by_ref().find(|field| *field == b"-")?;
        let unified = match fields.next()? {
            b"cgroup2" => true,
            b"cgroup" => false,
            _ => return None,
        };
        let options = String::from_utf8_lossy(fields.nth(1)?);
        let at = PathBuf::from(OsString::from_vec(at));
        if !at.is_absolute() || !root.starts_with(b"/") {
            return None;
        }
        Some(Mount {
            device: String::from_utf8_lossy(device).into_owned(),
            root: String::from_utf8(root).ok()?,
            at,
            unified,
            options: options.split(',').map(str::to_owned).collect(),
        })
    }

    fn kind(&self, numbered: &[Numbered]) -> Option<(Version, u32)> {
        if self.unified {
            return Some((Version::Two, 0));
        }
        let is_this = |hierarchy: &&Numbered| {
            let mut controllers = hierarchy.controllers.iter();
            hierarchy.number != 0
                && !hierarchy.controllers.is_empty()
                && controllers.all(|controller| self.options.contains(controller))
        };
        let hierarchy = numbered.iter().find(is_this)?;
        let controllers = hierarchy.controllers.iter();
        let controllers = controllers.filter(|name| !name.starts_with("name="));
        let version = Version::One {
            controllers: controllers.cloned().collect(),
        };
        Some((version, hierarchy.number))
    }
}

/// The hierarchies of version 1: as our own cgroups tell them, else by the list of controllers.
fn numbered(own: &str, controllers: &str) -> Vec<Numbered> {
    let mut found: Vec<Numbered> = own
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, _) = rest.split_once(':')?;
            Some(Numbered {
                number: number.parse().ok()?,
                controllers: names(controllers),
            })
        })
        .collect();
    for line in controllers.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split_ascii_whitespace();
        let (Some(name), Some(Ok(number))) = (fields.next(), fields.next().map(str::parse)) else {
            continue;
        };
        let known = |hierarchy: &Numbered| hierarchy.controllers.iter().any(|known| known == name);
        if !found.iter().any(known) {
            match found.iter_mut().find(|known| known.number == number) {
                Some(hierarchy) => hierarchy.controllers.push(name.to_owned()),
                None => found.push(Numbered {
                    number,
                    controllers: vec![name.to_owned()],
                }),
            }
        }
    }
    found
}

fn names(text: &str) -> Vec<String> {
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// A field of a mountinfo, which has blanks and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        if let (b'\\', Some((digits, after))) = (first, behind.split_at_checked(3))
            && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
            && digits[0] <= b'3'
        {
            let value = digits
                .iter()
                .fold(0_u32, |value, &digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(value as u8);
            rest = after;
        } else {
            bytes.push(first);
            rest = behind;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID: &[u8] = b"\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:1 master:2 - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";
    const OWN: &str = "9:name=systemd:/\n8:pids:/x\n2:cpu,cpuacct:/\n0::/init.scope\n";

    fn all(mountinfo: &[u8], own: &str) -> Vec<Hierarchy> {
        parse(mountinfo, own, "", |_, _| true)
    }

    fn shown(hierarchies: &[Hierarchy]) -> Vec<(u32, String, String)> {
        let shown = hierarchies.iter().map(|hierarchy| {
            let mount = hierarchy.mount.display().to_string();
            (hierarchy.number, mount, hierarchy.root.clone())
        });
        shown.collect()
    }

    #[test]
    fn both_versions_at_once() {
        let found = all(HYBRID, OWN);
        let expected = [
            (2, "/sys/fs/cgroup/cpu,cpuacct"),
            (8, "/sys/fs/cgroup/pids"),
            (9, "/sys/fs/cgroup/systemd"),
            (0, "/sys/fs/cgroup/unified"),
        ];
        let expected = expected.map(|(number, mount)| (number, mount.to_owned(), "/".to_owned()));
        assert_eq!(shown(&found), expected);
        let one = |names: &[&str]| Version::One {
            controllers: names.iter().map(|&name| name.to_owned()).collect(),
        };
        assert_eq!(found[0].version, one(&["cpu", "cpuacct"]));
        assert_eq!(found[2].version, one(&[]));
        assert_eq!(found[3].version, Version::Two);
    }

    #[test]
    fn controllers_are_numbered_by_either_list() {
        let list = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
                    cpu\t2\t1\t1\ncpuacct\t2\t1\t1\npids\t8\t1\t1\nhugetlb\t0\t1\t1\n";
        let found = parse(HYBRID, "0::/\n", list, |_, _| true);
        let numbers: Vec<u32> = found.iter().map(|hierarchy| hierarchy.number).collect();
        // Nothing tells the number of a named one then.
        assert_eq!(numbers, [2, 8, 0]);
    }

    #[test]
    fn several_mounts_of_one_hierarchy() {
        let mountinfo = b"\
50 1 0:38 /docker/abc /mnt/part rw - cgroup2 cgroup2 rw
51 1 0:38 / /mnt/with\\040blank\\134\\04x rw - cgroup2 cgroup2 rw
52 1 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
53 1 0:38 /../.. /mnt/host rw - cgroup2 cgroup2 rw
";
        let found = shown(&all(mountinfo, "0::/\n"));
        let mounts: Vec<&str> = found.iter().map(|(_, mount, _)| mount.as_str()).collect();
        let expected = [
            "/mnt/host",
            "/sys/fs/cgroup",
            "/mnt/with blank\\\\04x",
            "/mnt/part",
        ];
        assert_eq!(mounts, expected);
    }

    #[test]
    fn what_is_hidden_is_not_there() {
        let mountinfo = b"\
50 1 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
51 1 0:39 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw
";
        assert_eq!(all(mountinfo, "0::/\n").len(), 1);
        assert_eq!(all(mountinfo, "0::/\n")[0].root, "/a");
        let seen = parse(mountinfo, "0::/\n", "", |_, device| device == "0:38");
        assert_eq!(seen[0].root, "/");
    }

    proptest! {
        #[test]
        fn any_text_is_survived(
            mountinfo in proptest::collection::vec(any::<u8>(), 0..400),
            own in ".{0,200}",
            list in ".{0,200}",
        ) {
            all(&mountinfo, &own);
            parse(&mountinfo, &own, &list, |_, _| true);
        }

        #[test]
        fn damaged_lines_are_survived(at in 0..HYBRID.len(), byte in any::<u8>()) {
            let mut mountinfo = HYBRID.to_vec();
            mountinfo[at] = byte;
            for hierarchy in all(&mountinfo, OWN) {
                prop_assert!(hierarchy.mount.is_absolute());
            }
        }

        #[test]
        fn plain_fields_are_themselves(field in "[a-z0-9/]{0,40}") {
            prop_assert_eq!(unescaped(field.as_bytes()), field.as_bytes());
        }
    }
}
