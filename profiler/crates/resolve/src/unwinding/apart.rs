//! Unwind tables of files that others than root can change, built in a process apart.
//!
//! An open file -> its [`Table`], found among those that were kept, or built by a process without privileges
//! (`helper`), which is killed when its time is over; its end costs the file its table, and nobody else's. What a
//! process has read is one user's: another one's files are read by another process. What is kept for later is built
//! by one that has read nothing before, of bytes that are in its name, so that a file can spoil its own table at
//! the most.
//!
//! What does not belong here: which files that are (`builder`), and how they are read (`unwind`).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::super::files::TargetFile;
use super::super::helper::{Client, Death, Limits, Loss, OneUser};
use crate::warnings::warn_once;
use profiler_unwind::Table;
use profiler_unwind::cache::{Cache, Looked, Name, decode};

/// How long a file may be read. Hundreds of megabytes take a few seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// A file was not read to its end.
#[derive(Debug)]
pub(super) struct GivenUp;

/// Has tables built by a process, which is started when there is something to build.
pub(super) struct Apart {
    process: OneUser,
    patience: Duration,
}

/// What is handed to the process.
struct Handed {
    file: File,
    /// It is what was read of the file, to be kept under this name.
    name: Option<Name>,
}

impl Apart {
    pub(super) fn new() -> Apart {
        Apart::with(Client::new(Limits::large()), PATIENCE)
    }

    fn with(client: Client, patience: Duration) -> Apart {
        Apart {
            process: OneUser::new(client),
            patience,
        }
    }

    /// Whether there is a process.
    pub(super) fn is_busy(&self) -> bool {
        self.process.is_busy()
    }

    /// Ends the process.
    pub(super) fn rest(&mut self) {
        self.process.rest();
    }

    /// The table of a file of this user; none if it says nothing about its frames.
    pub(super) fn table(
        &mut self,
        file: &TargetFile,
        owner: u32,
        cache: &mut Cache,
    ) -> Result<Option<Table>, GivenUp> {
        let Some(elf) = &file.elf else {
            return Ok(None);
        };
        // Who waits for a server must be one that can be killed.
        let looked = match file.is_local {
            true => cache.look(&file.file, elf, owner),
            false => Ok(Looked::File),
        };
        let handed = || -> io::Result<Result<Handed, Option<Table>>> {
            Ok(match looked {
                Err(_) => Err(None),
                Ok(Looked::Found(table, _)) => Err(Some(*table)),
                Ok(Looked::Raw(raw, name)) => Ok(Handed {
                    file: raw.to_file()?,
                    name: Some(name),
                }),
                Ok(Looked::File) => Ok(Handed {
                    file: file.file.try_clone()?,
                    name: None,
                }),
            })
        };
        let handed = match handed() {
            Ok(Ok(handed)) => handed,
            Ok(Err(table)) => return Ok(table),
            Err(error) => {
                log::debug!("{}: no table: {error}", file.path);
                return Err(GivenUp);
            }
        };
        self.build(file, owner, &handed, cache)
    }

    fn build(
        &mut self,
        file: &TargetFile,
        owner: u32,
        handed: &Handed,
        cache: &mut Cache,
    ) -> Result<Option<Table>, GivenUp> {
        let is_raw = handed.name.is_some();
        let build = |client: &mut Client, until| {
            let Some(bytes) = client.table(handed.file.as_fd(), is_raw, until)? else {
                return Ok(None);
            };
            match decode(&bytes) {
                Some((table, _)) => Ok(Some((bytes, table))),
                None => Err(Death::Crashed),
            }
        };
        let why = match self.process.ask(owner, is_raw, self.patience, build) {
            Ok(None) => return Ok(None),
            Ok(Some((bytes, table))) => {
                if let Some(name) = &handed.name {
                    cache.keep(name, &bytes);
                }
                return Ok(Some(table));
            }
            Err(Loss::LeftAlone | Loss::NotStarted) => return Err(GivenUp),
            Err(Loss::Died(Death::Crashed)) => "crashed",
            Err(Loss::Died(Death::TooLarge)) => "needed too much memory",
            Err(Loss::Died(Death::Killed)) => "was killed",
            Err(Loss::Died(_)) => "took too long",
        };
        warn_once(
            "unwind information",
            format_args!(
                "reading unwind information {why}: {} is left without a table",
                file.path
            ),
        );
        Err(GivenUp)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::tests::{TempDir, build};
    use profiler_unwind::cache::LIMIT_BYTES;

    const USER: u32 = 4321;

    fn apart(memory: u64, patience: Duration) -> Apart {
        let limits = Limits {
            memory,
            ..Limits::default()
        };
        Apart::with(Client::with_process(limits), patience)
    }

    fn target(file: File) -> TargetFile {
        let stat = rustix::fs::fstat(&file).unwrap();
        TargetFile::new(file, &stat, "/f", None, true)
    }

    pub(crate) fn honest(dir: &TempDir) -> TargetFile {
        target(File::open(build(dir, "honest", &[])).unwrap())
    }

    /// An honest program gets its table, whatever was there before.
    fn works(apart: &mut Apart, dir: &TempDir) {
        let file = honest(dir);
        let built = profiler_unwind::build_file(&file.file, None).unwrap().0;
        let got = apart.table(&file, USER, &mut Cache::none()).unwrap();
        assert_eq!(got, Some(built));
    }

    /// A program whose `.eh_frame` is a section of this length: one function, whose program takes up all of it.
    pub(crate) fn long_program(len: u32) -> TargetFile {
        let cie = [
            [16, 0, 0, 0, 0, 0, 0, 0].as_slice(),
            &[1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0],
        ]
        .concat();
        let mut bytes = cie;
        bytes.extend((len - 24).to_le_bytes());
        bytes.extend(24_u32.to_le_bytes());
        bytes.extend(0x1000_u64.to_le_bytes());
        bytes.extend((1_u64 << 40).to_le_bytes());
        // Another place after each byte, and at each another frame.
        let advance = [0x41, 0x0e, 8, 0x41, 0x0e, 16];
        let rest = len as usize - bytes.len();
        bytes.extend(advance.iter().cycle().take(rest));
        let names = b"\0.eh_frame\0.names\0";
        let mut head = vec![0_u8; 64];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        head[16..20].copy_from_slice(&[3, 0, 62, 0]);
        let (segment, sections) = (64_u64, 64_u64 + 56);
        let content = sections + 3 * 64;
        head[32..40].copy_from_slice(&segment.to_le_bytes());
        head[40..48].copy_from_slice(&sections.to_le_bytes());
        head[54..64].copy_from_slice(&[56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code: Vec<u8> = words(&[1 | 1 << 32, 0, 0, 0, 1 << 40, 1 << 40, 4096]);
        let section = |name: u32, at: u64, len: u64| -> Vec<u8> {
            let kind = u64::from(name) | 1 << 32;
            words(&[kind, 0, 0, at, len, 0, 1, 0])
        };
        let len = bytes.len() as u64;
        let mut file =
            File::from(rustix::fs::memfd_create("long", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        for part in [
            head,
            code,
            section(0, 0, 0),
            section(1, content + 64, len),
            section(11, content, names.len() as u64),
            [names.as_slice(), &[0; 64]].concat()[..64].to_vec(),
            bytes,
        ] {
            file.write_all(&part).unwrap();
        }
        target(file)
    }

    #[test]
    fn a_table_is_that_of_the_file_and_found_again_without_a_process() {
        let dir = TempDir::new("apart-kept");
        let mut cache = Cache::open(&dir.path("a/b"), LIMIT_BYTES);
        let mut apart = apart(256 << 20, PATIENCE);
        works(&mut apart, &dir);
        let program = target(File::open("/proc/self/exe").unwrap());
        let built = profiler_unwind::build_file(&program.file, None).unwrap().0;
        let first = apart.process.client.pid();
        let mut table =
            |apart: &mut Apart, owner| apart.table(&program, owner, &mut cache).unwrap().unwrap();
        assert_eq!(table(&mut apart, USER), built);
        assert_ne!(
            apart.process.client.pid(),
            first,
            "it had read something else"
        );
        apart.rest();
        assert_eq!(table(&mut apart, USER), built);
        assert_eq!(apart.process.client.pid(), None, "it was kept");
        assert_eq!(table(&mut apart, USER + 1), built);
        assert!(apart.process.client.pid().is_some(), "for its user only");
    }

    #[test]
    fn users_share_no_process() {
        let dir = TempDir::new("apart-users");
        let mut apart = apart(256 << 20, PATIENCE);
        let file = honest(&dir);
        let mut of = |owner| {
            apart.table(&file, owner, &mut Cache::none()).unwrap();
            apart.process.client.pid().unwrap()
        };
        let (first, again, other) = (of(USER), of(USER), of(USER + 1));
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn files_made_to_hurt_cost_their_own_table() {
        let dir = TempDir::new("apart-hurt");
        let none = &mut Cache::none();
        let long = long_program(64 << 20);
        let mut small = apart(96 << 20, PATIENCE);
        assert!(small.table(&long, USER, none).is_err(), "too much memory");
        works(&mut small, &dir);
        let mut apart = apart(1 << 30, PATIENCE);
        works(&mut apart, &dir);
        apart.patience = Duration::from_millis(1);
        assert!(apart.table(&long, USER, none).is_err(), "too slow");
        apart.patience = PATIENCE;
        works(&mut apart, &dir);
        // What is said to be there, and is not.
        let short = long_program(1 << 20);
        short.file.set_len(4096).unwrap();
        let cut = apart.table(&short, USER, none);
        assert!(cut.is_ok(), "{cut:?}");
        // Shortened by its owner while it is read.
        short.file.write_all_at(&[0], 1 << 20).unwrap();
        let shortened = short.file.try_clone().unwrap();
        let shorten = std::thread::spawn(move || {
            for len in (4096..1 << 20).rev().step_by(4096) {
                shortened.set_len(len).unwrap();
            }
        });
        while !shorten.is_finished() {
            assert!(apart.table(&short, USER, none).is_ok());
        }
        works(&mut apart, &dir);
    }

    #[test]
    fn who_wastes_time_has_no_tables_for_a_while() {
        let dir = TempDir::new("apart-waste");
        let mut apart = apart(256 << 20, PATIENCE);
        apart
            .process
            .owners
            .charge(Some(USER), Duration::from_secs(60));
        let file = honest(&dir);
        assert!(apart.table(&file, USER, &mut Cache::none()).is_err());
        assert!(apart.table(&file, USER + 1, &mut Cache::none()).is_ok());
    }

    #[test]
    fn tables_that_are_built_are_charged_and_have_an_end() {
        let dir = TempDir::new("apart-work");
        let mut apart = apart(256 << 20, PATIENCE);
        let file = honest(&dir);
        while apart.process.worked.so_far(USER).is_zero() {
            assert!(apart.table(&file, USER, &mut Cache::none()).is_ok());
        }
        apart.process.charge(USER, Duration::from_secs(600));
        assert!(apart.table(&file, USER, &mut Cache::none()).is_err());
        assert!(apart.table(&file, USER + 1, &mut Cache::none()).is_ok());
    }
}
