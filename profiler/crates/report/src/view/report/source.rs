//! The text of source lines, from files on this machine.
//!
//! Input: a path out of a recording (untrusted) and lines with samples; output: these lines and
//! those around them with their text. Debug information names whatever it likes, so that a file is read only if those
//! who ran the code may read it ([`Readers`]), or if it lies below a folder that was named for that. Only regular
//! files of bounded size are read, without waiting for a reader of a FIFO; what cannot be read is noted, and the
//! lines are shown without text.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use profiler_model::{ProcessId, Tables};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::annotate::SourceLine;
use super::data::Share;

/// A larger file is no source.
const MAX_BYTES: u64 = 16 << 20;
/// Lines shown before and after one with samples.
const AROUND: usize = 3;
/// Parts of a path that are tried below a folder.
const MAX_PARTS: usize = 64;

/// Whose files may be shown.
pub(super) enum Readers<'a> {
    /// Any below this folder.
    Below(&'a File),
    /// What all these users may read.
    Users(Vec<u32>),
    /// None, for this reason.
    Nobody(String),
}

impl<'a> Readers<'a> {
    /// Those who ran the code, on the machine that this one is.
    pub(super) fn of(
        tables: &Tables,
        ran: impl Iterator<Item = Option<ProcessId>>,
        folder: Option<&'a File>,
    ) -> Readers<'a> {
        if let Some(folder) = folder {
            return Readers::Below(folder);
        }
        let remedy = "name the folder with its source by --source-dir DIR";
        let host = &tables.session.host;
        if rustix::system::uname().nodename().to_bytes() != host.as_bytes() {
            return Readers::Nobody(match host.is_empty() {
                true => format!("the recording does not say of which machine it is; {remedy}"),
                false => format!("it was recorded on {host}; {remedy}"),
            });
        }
        let mut users = Vec::new();
        for process in ran {
            if process.is_some_and(|process| is_contained(tables, process)) {
                return Readers::Nobody(format!(
                    "it ran in a container, with files of its own; {remedy}"
                ));
            }
            let process = process.and_then(|process| tables.process(process));
            let Some(user) = process.and_then(|process| process.uid) else {
                return Readers::Nobody(format!("its user is not known; {remedy}"));
            };
            if !users.contains(&user) {
                users.push(user);
            }
        }
        Readers::Users(users)
    }

    fn open(&self, path: &str) -> io::Result<File> {
        match self {
            Readers::Nobody(why) => Err(io::Error::other(why.as_str())),
            Readers::Below(folder) => below(folder, Path::new(path)),
            Readers::Users(users) => {
                let file = File::from(rustix::fs::open(path, FLAGS, Mode::empty())?);
                for &user in users {
                    if !may_read(user, &file)? {
                        return Err(io::Error::other(format!(
                            "user {user}, whose program names it, may not read it"
                        )));
                    }
                }
                Ok(file)
            }
        }
    }
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Whether a process saw other files than the machine's. A unit of systemd, which is a container by its cgroup, does
/// not.
fn is_contained(tables: &Tables, process: ProcessId) -> bool {
    let engine = |container: &profiler_model::Container| container.engine;
    let is_nested = |process: &profiler_model::Process| !process.namespace_pids.is_empty();
    tables.process(process).is_some_and(is_nested)
        || tables.container_of(process).is_some_and(|container| {
            engine(container).is_none_or(|engine| tables.string(engine) != "systemd")
        })
}

/// Whether a user may read an open file under the name that it has. Groups do not count: which ones the user was in
/// is not known.
fn may_read(user: u32, file: &File) -> io::Result<bool> {
    const ROOT: u32 = 0;
    if user == ROOT {
        return Ok(true);
    }
    let allows = |found: &std::fs::Metadata, others: u32| match found.uid() == user {
        true => found.mode() & (others << 6) != 0,
        false => found.mode() & others != 0,
    };
    if !allows(&file.metadata()?, 0o4) {
        return Ok(false);
    }
    // As the kernel has it: whatever links led here.
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    for folder in path.ancestors().skip(1) {
        if !allows(&std::fs::metadata(folder)?, 0o1) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The file that has the most parts of its path below a folder.
fn below(folder: &File, path: &Path) -> io::Result<File> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part),
        _ => None,
    });
    let parts: Vec<_> = parts.collect();
    let from = parts.len().saturating_sub(MAX_PARTS);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for from in from..parts.len() {
        let path: PathBuf = parts[from..].iter().collect();
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(folder, &path, FLAGS, Mode::empty(), beneath) {
            Ok(file) => return Ok(file.into()),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Adds text and context to `lines`, which are ordered by number.
pub(super) fn with_text(
    path: &str,
    lines: Vec<SourceLine>,
    readers: &Readers<'_>,
    started_realtime_ns: Option<u64>,
    notes: &mut Vec<String>,
) -> Vec<SourceLine> {
    let (text, modified_ns) = match readers.open(path).and_then(read) {
        Ok(read) => read,
        Err(error) => {
            notes.push(format!(
                "{path} cannot be read ({error}); its lines are shown without text"
            ));
            return lines;
        }
    };
    if started_realtime_ns.is_some_and(|started| modified_ns > started) {
        notes.push(format!(
            "{path} was changed after the recording: the text may be of other lines"
        ));
    }
    in_context(&text, lines)
}

fn read(file: File) -> io::Result<(String, u64)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other("not a regular file of at most 16 MiB"));
    }
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH);
    let modified_ns = modified.map_or(0, |since| since.as_nanos() as u64);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), modified_ns))
}

fn in_context(text: &str, lines: Vec<SourceLine>) -> Vec<SourceLine> {
    let source: Vec<&str> = text.lines().collect();
    let mut shown: Vec<SourceLine> = Vec::new();
    let plain = |number: usize| SourceLine {
        line: number as u32,
        text: source.get(number - 1).map(|text| (*text).to_owned()),
        share: Share::default(),
    };
    for (index, line) in lines.iter().enumerate() {
        let number = line.line as usize;
        let done = shown.last().map_or(0, |last| last.line as usize);
        let from = number.saturating_sub(AROUND).max(done + 1);
        shown.extend((from..number).filter(|n| *n <= source.len()).map(plain));
        shown.push(SourceLine {
            text: plain(number).text,
            ..line.clone()
        });
        let next = lines
            .get(index + 1)
            .map_or(usize::MAX, |next| next.line as usize);
        let to = (number + AROUND).min(next - 1).min(source.len());
        shown.extend((number + 1..=to).map(plain));
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn line(line: u32) -> SourceLine {
        SourceLine {
            line,
            text: None,
            share: Share {
                self_samples: 1,
                ..Share::default()
            },
        }
    }

    #[test]
    fn lines_come_with_their_context_once() {
        let text: String = (1..=12).map(|n| format!("line {n}\n")).collect();
        let shown = in_context(&text, vec![line(2), line(4), line(11), line(40)]);
        let numbers: Vec<u32> = shown.iter().map(|line| line.line).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40]);
        assert_eq!(shown[1].text.as_deref(), Some("line 2"));
        assert_eq!(shown.iter().filter(|l| l.share.self_samples > 0).count(), 4);
        assert_eq!(shown[12].text, None);
    }

    #[test]
    fn only_regular_files_are_read() {
        let mut notes = Vec::new();
        let readers = Readers::Users(vec![0]);
        for path in ["/dev/zero", "/proc", "/nowhere/at/all", "with\0nul"] {
            let lines = with_text(path, vec![line(1)], &readers, None, &mut notes);
            assert_eq!(lines.len(), 1);
        }
        assert_eq!(notes.len(), 4);
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("profiler-source-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(path.join("src")).unwrap();
            Folder(path)
        }

        fn write(&self, name: &str, mode: u32) -> String {
            let path = self.0.join(name);
            std::fs::write(&path, "text\n").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_that_the_recorded_user_may_not_read_are_not_shown() {
        const SOMEBODY: u32 = 54_321;
        let folder = Folder::new("users");
        let (open, closed) = (
            folder.write("open.c", 0o644),
            folder.write("closed.c", 0o640),
        );
        let link = folder.0.join("link.c");
        symlink(&closed, &link).unwrap();
        let me = rustix::process::geteuid().as_raw();
        let may = |path: &str, users: &[u32]| Readers::Users(users.to_vec()).open(path).is_ok();
        assert!(may(&open, &[SOMEBODY]) && may(&open, &[SOMEBODY, me]));
        assert!(may(&closed, &[me]));
        assert!(!may(&closed, &[SOMEBODY]) && !may(&closed, &[me, SOMEBODY]));
        assert!(!may(link.to_str().unwrap(), &[SOMEBODY]));
        // A folder that only its owner may enter hides all that is in it, also from links.
        let inner = folder.write("src/open.c", 0o644);
        let through = folder.0.join("through.c");
        symlink(&inner, &through).unwrap();
        let through = through.to_str().unwrap();
        assert!(may(&inner, &[SOMEBODY]) && may(through, &[SOMEBODY]));
        let private = Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.0.join("src"), private).unwrap();
        assert!(!may(&inner, &[SOMEBODY]) && !may(through, &[SOMEBODY]));
        assert!(may(&inner, &[me]));
    }

    #[test]
    fn a_folder_that_is_named_is_not_left() {
        let folder = Folder::new("below");
        let outside = folder.write("outside.c", 0o644);
        folder.write("src/a.c", 0o644);
        symlink(&outside, folder.0.join("src/link.c")).unwrap();
        let src = File::open(folder.0.join("src")).unwrap();
        let readers = Readers::Below(&src);
        assert!(readers.open("/build/of/somebody/src/a.c").is_ok());
        assert!(readers.open("a.c").is_ok());
        for path in ["/x/link.c", "../outside.c", outside.as_str(), "/x/b.c", ""] {
            assert!(readers.open(path).is_err(), "{path}");
        }
    }

    #[test]
    fn what_ran_elsewhere_has_no_text() {
        let mut tables = Tables::default();
        let here = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let why = |tables: &Tables, process| match Readers::of(tables, [process].into_iter(), None)
        {
            Readers::Nobody(why) => why,
            Readers::Users(users) => format!("{users:?}"),
            Readers::Below(_) => String::new(),
        };
        assert!(why(&tables, None).contains("does not say"));
        tables.session.host = format!("not-{here}");
        assert!(why(&tables, None).contains("--source-dir"));
        tables.session.host = here;
        assert!(why(&tables, None).contains("not known"));
    }
}
