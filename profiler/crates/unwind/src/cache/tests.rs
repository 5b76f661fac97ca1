//! Tables that are kept, found again, damaged, too many, and where nothing can be kept.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::format::HEAD_BYTES;
use super::*;
use crate::build_file;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("profiler-cache-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn cache(&self, limit_bytes: u64) -> Cache {
        Cache::open(&self.0.join("a/b"), limit_bytes)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join("a/b")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn bytes(&self) -> u64 {
        let files = self.files().into_iter();
        files.map(|path| path.metadata().unwrap().len()).sum()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// This program, which has enough unwind information to be kept.
fn program() -> File {
    File::open("/proc/self/exe").unwrap()
}

#[test]
fn a_table_is_built_once() {
    let folder = Folder::new("once");
    let built = build_file(&program(), None).unwrap();
    let mut cache = folder.cache(LIMIT_BYTES);
    assert_eq!(cache.table_of_file(&program(), None).unwrap(), built);
    assert_eq!(cache.table_of_file(&program(), None).unwrap(), built);
    let mut another = folder.cache(LIMIT_BYTES);
    assert_eq!(another.table_of_file(&program(), None).unwrap(), built);
    assert_eq!((cache.counts().built, cache.counts().found), (1, 1));
    assert_eq!((another.counts().built, another.counts().found), (0, 1));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let [file] = &folder.files()[..] else {
        panic!("{:?}", folder.files());
    };
    assert_eq!((mode(file), mode(file.parent().unwrap())), (0o600, 0o700));
}

#[test]
fn damage_anywhere_is_found_and_removed() {
    let folder = Folder::new("damage");
    let built = build_file(&program(), None).unwrap();
    let mut cache = folder.cache(LIMIT_BYTES);
    cache.table_of_file(&program(), None).unwrap();
    let path = folder.files().remove(0);
    let good = std::fs::read(&path).unwrap();
    let places = [
        0,
        7,
        8,
        16,
        24,
        30,
        48,
        HEAD_BYTES,
        good.len() / 2,
        good.len() - 1,
    ];
    let damaged = places.map(|place| {
        let mut bytes = good.clone();
        bytes[place] ^= 0x40;
        bytes
    });
    let cut = [0, 11, HEAD_BYTES, good.len() - 1].map(|len| good[..len].to_vec());
    let long = [good.iter().copied().chain([0; 16]).collect()];
    let mut count = 0;
    for bytes in damaged.into_iter().chain(cut).chain(long) {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(cache.table_of_file(&program(), None).unwrap(), built);
        count += 1;
        assert_eq!(cache.counts().damaged, count);
        assert_eq!(std::fs::read(&path).unwrap(), good, "it is kept anew");
    }
}

#[test]
fn numbers_out_of_range_are_found_behind_a_right_checksum() {
    let (table, report) = build_file(&program(), None).unwrap();
    let accepts = |change: &dyn Fn(&mut Table)| {
        let mut changed = table.clone();
        change(&mut changed);
        decode(&encode(&changed, &report)).is_some()
    };
    assert!(accepts(&|_| {}));
    assert!(!accepts(&|table| table.rows[5] = u32::MAX));
    assert!(!accepts(&|table| table.rows[0] |= 1));
    assert!(!accepts(&|table| table.rows.swap(0, 1)));
    assert!(!accepts(&|table| table.pages[0].len += 1));
    assert!(!accepts(&|table| table.pages[0].len = u32::MAX));
    assert!(!accepts(&|table| table
        .rules
        .truncate(table.rules.len() - 1)));
    assert!(!accepts(&|table| table.rules[0].cfa = 9));
    assert!(!accepts(&|table| table.rules[0].register = 16));
    assert!(!accepts(&|table| table.rules[0].fp = 4));
}

#[test]
fn what_was_not_used_for_longest_goes() {
    let folder = Folder::new("room");
    let mut cache = folder.cache(LIMIT_BYTES);
    cache.table_of_file(&program(), None).unwrap();
    let len = folder.files()[0].metadata().unwrap().len();
    let old = folder.0.join("a/b").join(format!("0{SUFFIX}"));
    std::fs::write(&old, vec![0; len as usize]).unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    File::options()
        .append(true)
        .open(&old)
        .and_then(|file| file.set_modified(hour_ago))
        .unwrap();
    let mut small = folder.cache(len * 2 - 1);
    assert!(!old.exists() && small.counts().removed == 1);
    assert!(small.table_of_file(&program(), None).is_ok());
    assert_eq!(small.counts().found, 1);
    // What is larger than a quarter of the limit is not kept at all.
    std::fs::remove_file(folder.files().remove(0)).unwrap();
    assert!(small.table_of_file(&program(), None).is_ok());
    assert_eq!((small.counts().built, small.counts().kept), (1, 0));
}

#[test]
fn one_limit_holds_for_all_that_share_it() {
    let folder = Folder::new("shared");
    let limit = 1 << 20;
    let first = folder.cache(limit);
    let keepers: Vec<_> = (0..4)
        .map(|thread| {
            let mut cache = first.share();
            std::thread::spawn(move || {
                for index in 0..20 {
                    let name = format!("{thread}-{index}{SUFFIX}");
                    cache.keep(&Name(name), &[0; 100 << 10]);
                }
                cache.counts().kept
            })
        })
        .collect();
    let mut most = 0;
    while !keepers.iter().all(std::thread::JoinHandle::is_finished) {
        let held = lock(&first.bytes);
        most = most.max(folder.bytes());
        drop(held);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kept: u64 = keepers.into_iter().map(|kept| kept.join().unwrap()).sum();
    assert_eq!(kept, 80);
    assert_eq!(*lock(&first.bytes), folder.bytes());
    assert!(most.max(folder.bytes()) <= limit, "{most}");
}

#[test]
fn links_and_what_others_can_read_are_not_used() {
    let folder = Folder::new("foreign");
    let mut cache = folder.cache(LIMIT_BYTES);
    cache.table_of_file(&program(), None).unwrap();
    let path = folder.files().remove(0);
    let aside = folder.0.join("aside");
    std::fs::rename(&path, &aside).unwrap();
    symlink(&aside, &path).unwrap();
    let mut again = folder.cache(LIMIT_BYTES);
    assert!(again.table_of_file(&program(), None).is_ok());
    assert_eq!(again.counts().found, 0, "a link was followed");
    assert!(path.symlink_metadata().unwrap().is_file(), "it is replaced");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(again.table_of_file(&program(), None).is_ok());
    assert_eq!((again.counts().found, again.counts().damaged), (0, 1));
    let directory = folder.0.join("a/b");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let mut open = folder.cache(LIMIT_BYTES);
    assert!(open.table_of_file(&program(), None).is_ok());
    assert_eq!((open.counts().found, open.counts().kept), (0, 0));
    std::fs::rename(&directory, folder.0.join("c")).unwrap();
    symlink(folder.0.join("c"), &directory).unwrap();
    let mut linked = folder.cache(LIMIT_BYTES);
    assert!(linked.table_of_file(&program(), None).is_ok());
    assert_eq!((linked.counts().found, linked.counts().kept), (0, 0));
}

#[test]
fn without_a_place_tables_are_built() {
    for path in ["/proc/self/a/b", "/dev/null/a", "relative/nowhere/at/all"] {
        let mut cache = Cache::open(Path::new(path), LIMIT_BYTES);
        assert!(cache.table_of_file(&program(), None).is_ok());
        assert!(cache.table_of_file(&program(), None).is_ok());
        assert_eq!(
            (cache.counts().built, cache.counts().kept),
            (2, 0),
            "{path}"
        );
    }
}
