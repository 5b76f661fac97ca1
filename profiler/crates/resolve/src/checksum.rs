//! Checksums of debug files that are found by a link, within bounds.
//!
//! An open file -> the CRC-32 of its bytes, or none. Who is profiled has made the file: what is read of it is bounded in
//! bytes and time, holes are counted without being read, and each file is read once, whatever names it. Source: GDB's
//! documentation of separate debug files.
//!
//! What does not belong here: which file it is asked of (`debug_files`), whom its time is charged to (`symbolize`).

use std::fs::File;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crc32fast::Hasher;
use rustc_hash::FxHashMap;
use rustix::fs::SeekFrom;

use super::locks::lock;
use profiler_object::elf::read_up_to;

/// Most bytes that are read of a file.
const MAX_READ_BYTES: u64 = 1 << 30;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Shorter holes are read like everything else.
const SHORT_HOLE_BYTES: u64 = 1 << 20;
/// Most files that are remembered.
const MAX_KNOWN: usize = 1024;

/// What tells a file's contents from others: device, inode, length, when it was changed last.
type Identity = (u64, u64, i64, (i64, u64), (i64, u64));

static KNOWN: Mutex<Option<FxHashMap<Identity, Option<u32>>>> = Mutex::new(None);

/// The checksum of a file; none if that takes too long.
pub(super) fn checksum_of(file: &File) -> Option<u32> {
    let before = identity_of(file)?;
    let known = || lock(&KNOWN);
    if let Some(sum) = known().get_or_insert_default().get(&before) {
        return *sum;
    }
    let sum = read(file, before.2.cast_unsigned(), MAX_READ_BYTES, PATIENCE);
    // What changes meanwhile is nothing to remember.
    if identity_of(file) == Some(before) {
        let mut known = known();
        let known = known.get_or_insert_default();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(before, sum);
    }
    sum
}

fn identity_of(file: &File) -> Option<Identity> {
    let stat = rustix::fs::fstat(file).ok()?;
    let changed = (stat.st_ctime, stat.st_ctime_nsec);
    let written = (stat.st_mtime, stat.st_mtime_nsec);
    Some((stat.st_dev, stat.st_ino, stat.st_size, written, changed))
}

fn read(file: &File, len: u64, most: u64, patience: Duration) -> Option<u32> {
    let until = Instant::now() + patience;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let (mut offset, mut read) = (0, 0);
    while offset < len {
        if let Some(hole) = hole_at(file, offset, len).filter(|&hole| hole >= SHORT_HOLE_BYTES) {
            hasher.combine(&zeros(hole));
            offset += hole;
            continue;
        }
        // Up to the next hole that may be long.
        let end = (offset + SHORT_HOLE_BYTES).min(len);
        while offset < end {
            let wanted = buffer.len().min((end - offset) as usize);
            let got = read_up_to(file, &mut buffer[..wanted], offset).ok()?;
            read += got as u64;
            if got == 0 || read > most || Instant::now() >= until {
                return None;
            }
            hasher.update(&buffer[..got]);
            offset += got as u64;
        }
    }
    Some(hasher.finalize())
}

/// How many bytes there are from here on that nothing was written to.
fn hole_at(file: &File, offset: u64, len: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data.min(len).checked_sub(offset),
        // There is nothing up to the end.
        Err(rustix::io::Errno::NXIO) => Some(len - offset),
        Err(_) => None,
    }
}

/// The state after so many zeros.
fn zeros(mut count: u64) -> Hasher {
    let (mut all, mut power) = (Hasher::new(), Hasher::new());
    power.update(&[0]);
    while count > 0 {
        if count & 1 == 1 {
            all.combine(&power);
        }
        let same = power.clone();
        power.combine(&same);
        count >>= 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::tests::TempDir;

    #[test]
    fn holes_are_counted_and_not_read() {
        let dir = TempDir::new("checksum");
        let file = || {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            options
        };
        let sparse = file().open(dir.path("sparse")).unwrap();
        sparse.set_len(3 << 30).unwrap();
        sparse.write_all_at(b"head", 0).unwrap();
        sparse.write_all_at(b"middle", (1 << 30) + 77).unwrap();
        let began = Instant::now();
        let sum = checksum_of(&sparse).unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        let mut whole = Hasher::new();
        whole.update(b"head");
        let block = vec![0; 1 << 20];
        let put = |whole: &mut Hasher, mut count: usize| {
            while count > 0 {
                let now = count.min(block.len());
                whole.update(&block[..now]);
                count -= now;
            }
        };
        put(&mut whole, (1 << 30) + 77 - 4);
        whole.update(b"middle");
        put(&mut whole, (2 << 30) - 77 - 6);
        assert_eq!(sum, whole.finalize());

        // Of what is there no more is read than may be, and not for longer.
        let full = file().open(dir.path("full")).unwrap();
        full.write_all_at(&block, 0).unwrap();
        let whole = crc32fast::hash(&block);
        assert_eq!(read(&full, 1 << 20, 1 << 20, PATIENCE), Some(whole));
        assert_eq!(read(&full, 1 << 20, 1 << 19, PATIENCE), None);
        assert_eq!(read(&full, 1 << 20, 1 << 20, Duration::ZERO), None);
    }

    #[test]
    fn a_file_is_read_once_until_it_is_written_to() {
        let dir = TempDir::new("checksum-once");
        let path = dir.path("file");
        std::fs::write(&path, "one").unwrap();
        let other = dir.path("other");
        std::fs::hard_link(&path, &other).unwrap();
        let file = File::open(&path).unwrap();
        let one = checksum_of(&file);
        assert_eq!(one, Some(crc32fast::hash(b"one")));
        let identity = identity_of(&File::open(&other).unwrap()).unwrap();
        let mut known = KNOWN.lock().unwrap();
        let remembered = known.get_or_insert_default().get_mut(&identity).unwrap();
        assert_eq!(remembered.replace(7), one);
        drop(known);
        assert_eq!(checksum_of(&file), Some(7), "it was read again");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(checksum_of(&file), Some(crc32fast::hash(b"four")));
    }
}
