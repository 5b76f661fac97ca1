//! Cgroups of the tests: made below what is mounted, and removed with the value.
// Each test uses a part.
#![allow(dead_code, unreachable_pub)]

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use profiler_target::cgroup::{Cgroup, Hierarchy, Version};

/// The hierarchy of version 2, if it is mounted.
pub fn version_two() -> Option<Hierarchy> {
    mounted(|kind, _| kind == "cgroup2", Version::Two, "")
}

/// A hierarchy of version 1, if one is mounted that takes any process.
pub fn version_one() -> Option<Hierarchy> {
    ["pids", "freezer", "memory"]
        .into_iter()
        .find_map(|controller| {
            let version = Version::One {
                controllers: vec![controller.to_owned()],
            };
            let is_it = |kind: &str, options: &str| {
                kind == "cgroup" && options.split(',').any(|option| option == controller)
            };
            mounted(is_it, version, controller)
        })
}

/// Those that there are. Says which of them are not.
pub fn hierarchies(test: &str) -> Vec<Hierarchy> {
    let (two, one) = (version_two(), version_one());
    for (found, version) in [(two.is_some(), 2), (one.is_some(), 1)] {
        if !found {
            // Where emulated machines are made, both are mounted.
            assert!(!profiler_tests::skip::emulated(), "no version {version}");
            let reason = format!("no cgroups of version {version} are mounted");
            profiler_tests::skip::skip(test, &reason);
        }
    }
    [two, one].into_iter().flatten().collect()
}

fn mounted(
    is_it: impl Fn(&str, &str) -> bool,
    version: Version,
    controller: &str,
) -> Option<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        is_it(fields[2], fields[3]).then(|| PathBuf::from(fields[1]))
    })?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let number = own.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, _) = rest.split_once(':')?;
        let mut names = controllers.split(',');
        names.any(|name| name == controller).then(|| number.parse())
    });
    Some(Hierarchy {
        version,
        number: number?.unwrap(),
        mount,
        root: "/".to_owned(),
    })
}

/// A cgroup with all that is below it.
pub struct Made {
    pub directory: PathBuf,
    mount: PathBuf,
}

impl Made {
    /// A new one at the top of a hierarchy.
    pub fn new(hierarchy: &Hierarchy) -> Made {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("profiler-test-{pid}-{next}");
        Made::at(&hierarchy.mount, hierarchy.mount.join(name))
    }

    /// A new one below.
    pub fn below(&self, name: &str) -> Made {
        Made::at(&self.mount, self.directory.join(name))
    }

    fn at(mount: &Path, directory: PathBuf) -> Made {
        fs::create_dir(&directory).unwrap();
        Made {
            directory,
            mount: mount.to_owned(),
        }
    }

    pub fn id(&self) -> u64 {
        fs::metadata(&self.directory).unwrap().ino()
    }

    /// Its path in its hierarchy.
    pub fn path(&self) -> String {
        let path = self.directory.strip_prefix(&self.mount).unwrap();
        format!("/{}", path.display())
    }

    pub fn cgroup(&self) -> Cgroup {
        Cgroup {
            path: self.path(),
            id: self.id(),
        }
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // It is empty only once its processes are gone.
        let procs = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = fs::write(self.mount.join("cgroup.procs"), pid);
        }
        // A process that has just ended may still be in it.
        for _ in 0..100 {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}
