//! Opens files of targets where nobody is lost who waits.
//!
//! A mapping, or a path below a target's root -> its open file. Opening, and even asking what a file is, can take as long
//! as the server likes that has it (FUSE, a network), and nothing ends that wait, not even the end of the process: so
//! another process does it, which has the rights for it and nothing else, is left alone after a moment, and what it waited
//! for is not asked again (`patience`). Of a file that a server has it makes a copy, so that whoever reads it later need
//! not ask either.
//!
//! What does not belong here: how a mapped file is found (`files`), which paths are asked for (`debug_files`, `objects`).

use std::fmt;
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
use rustix::fs::{AtFlags, Stat, StatxFlags};

use super::client::{Asked, Client, Death, Opened, send};
use super::wire::{self, Frame, Reader};
use crate::copies::{Room, left};
use crate::files::{
    MappedFile, OpenError, Root, TargetFile, handle_of_mapped, open_checked, open_mapped, place_of,
};
use crate::locks::lock;
use crate::material::private_copy;
use crate::overlay_layers::OverlayLayers;
use crate::patience::{
    STARVED, Whom, give_up, give_up_for, is_silent, is_silent_to, owner_of, was_in_vain, within,
    would_run,
};
use crate::served::{is_local, is_on_server, may_be_on_server};
use crate::warnings::warn_once;
use profiler_model::Pid;
use profiler_model::raw::FileIdentity;

/// How long an answer may take: it is there at once, unless nobody gets a processor or a file has to be copied.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of a server, where another one was waited for in vain lately.
const SHORT_PATIENCE: Duration = Duration::from_millis(50);
/// The same where only a disk is to be waited for.
const SLOW_DISK: Duration = Duration::from_secs(10);
/// Largest file of a server's that is copied.
const MAX_COPIED_BYTES: u64 = 256 << 20;
/// Most layers of an overlay that are told.
const MAX_LAYERS: usize = 512;

const MAPPED: u8 = 0;
const BELOW: u8 = 1;

const OPENED: u8 = 0;
const COPIED: u8 = 1;
const NOT_REGULAR: u8 = 2;
const TOO_LARGE: u8 = 3;
const REPLACED: u8 = 4;
const OUT_OF_REACH: u8 = 5;
const FAILED: u8 = 6;
const SERVED: u8 = 7;

static OPENER: Mutex<Option<Client>> = Mutex::new(None);
/// Others that are free again.
static SPARE: Mutex<Vec<Client>> = Mutex::new(Vec::new());
/// Most of these.
const MAX_SPARE: usize = 2;
/// Another one for what is looked for by paths: who has mapped files opened takes events, and does not wait for that.
static FINDER: Mutex<Option<Client>> = Mutex::new(None);

/// Starts the processes, without waiting until they have begun: whoever has a file opened later finds them there.
pub fn start_opening() {
    for opener in [&OPENER, &FINDER] {
        let mut opener = lock(opener);
        let client = opener.get_or_insert_with(Client::that_opens);
        if client.is_apart() {
            // Who needs it says that it could not be started.
            let _ = client.start_within(Duration::ZERO);
        }
    }
}

/// Waits a moment for who opens mapped files to begin.
pub(crate) fn await_opening() {
    if let Some(client) = lock(&OPENER).as_mut()
        && client.is_apart()
    {
        let _ = client.start_meanwhile();
    }
}

/// Opens a mapped file: see [`open_mapped`]. That takes as long as whoever has it likes, up to a bound.
pub(crate) fn open_elsewhere(mapped: &MappedFile<'_>) -> Result<TargetFile, OpenError> {
    open_or_copy(mapped, true)
}

/// The same, but of a file that a server has nothing is read, nor is it opened here.
pub(crate) fn open_local(mapped: &MappedFile<'_>) -> Result<TargetFile, OpenError> {
    let file = open_or_copy(mapped, false)?;
    match file.is_local && file.room.is_none() {
        true => Ok(file),
        false => Err(OpenError::Served),
    }
}

fn open_or_copy(mapped: &MappedFile<'_>, copies: bool) -> Result<TargetFile, OpenError> {
    let device = (mapped.identity.major, mapped.identity.minor);
    let is_served = device.0 == 0;
    let mut opener = lock(&OPENER);
    // What it takes to start it is nobody's fault, and nobody's time.
    let start = match is_served {
        true => Client::start,
        false => Client::start_meanwhile,
    };
    match ask(&mut opener, mapped, copies, start) {
        Ok((client, mut asked)) => {
            // Where a server was silent lately, others are waited for less.
            let mut waiting = match is_served && was_in_vain() && is_on_server(mapped.pid, device) {
                true => Waiting::new(true, SHORT_PATIENCE),
                false => Waiting::for_mapped(mapped),
            };
            let answer = client.opened(&mut asked, &mut |opener| waiting.more(opener));
            let of = (mapped.pid, mapped.path, mapped.root);
            taken(answer, client, (&asked, &waiting), of)
        }
        Err(unasked) => {
            drop(opener);
            match unasked {
                Unasked::Never => Err(OpenError::Silent),
                Unasked::Here => open_mapped(mapped),
                // Nothing ends a wait for a server, not even the end of this process.
                Unasked::NotBegun { .. } if is_served => Err(OpenError::Silent),
                Unasked::NotBegun { .. } => open_beside(mapped),
            }
        }
    }
}

/// The same for whoever has more to do: a server that does not answer in this moment is not waited for.
pub(crate) fn open_soon(mapped: &MappedFile<'_>, moment: Duration) -> Opening {
    if mapped.identity.major != 0 {
        return Opening::done(open_elsewhere(mapped));
    }
    let mut opener = lock(&OPENER);
    let start = |client: &mut Client| client.start_within(moment);
    let (client, mut asked) = match ask(&mut opener, mapped, true, start) {
        Ok(asked) => asked,
        Err(Unasked::Here) => return Opening::done(open_mapped(mapped)),
        Err(Unasked::NotBegun { may_begin: true }) => {
            return Opening::done(Err(OpenError::Later));
        }
        Err(Unasked::Never | Unasked::NotBegun { .. }) => {
            return Opening::done(Err(OpenError::Silent));
        }
    };
    let waiting = Waiting::for_mapped(mapped);
    let until = waiting.begun + moment;
    let answer = client.opened(&mut asked, &mut |_| {
        (Instant::now() < until).then_some(until)
    });
    if !matches!(answer, Ok(None)) {
        let of = (mapped.pid, mapped.path, mapped.root);
        return Opening::done(taken(answer, client, (&asked, &waiting), of));
    }
    // Another one is there by the time that it is needed.
    let spare = lock(&SPARE).pop();
    let next = spare.unwrap_or_else(|| {
        let mut next = Client::that_opens();
        let _ = next.start_within(Duration::ZERO);
        next
    });
    Opening::Slow(Box::new(Slow {
        client: std::mem::replace(client, next),
        asked,
        waiting,
        pid: mapped.pid,
        path: mapped.path.to_owned(),
        root: mapped.root.cloned(),
    }))
}

/// Why nobody was asked.
enum Unasked {
    /// There is no use in it.
    Never,
    /// There is no process for it: whoever wants it opens it.
    Here,
    /// The process has not begun, and perhaps will.
    NotBegun { may_begin: bool },
}

/// Asks who opens files for a mapped one, once that was started.
fn ask<'c>(
    opener: &'c mut Option<Client>,
    mapped: &MappedFile<'_>,
    copies: bool,
    start: impl Fn(&mut Client) -> Result<(), Death>,
) -> Result<(&'c mut Client, Asked), Unasked> {
    let identity = mapped.identity;
    if is_silent(mapped.pid, (identity.major, identity.minor)) {
        return Err(Unasked::Never);
    }
    let client = opener.get_or_insert_with(Client::that_opens);
    if !client.is_apart() {
        return Err(Unasked::Here);
    }
    let root = mapped.root.and_then(|root| root.folder());
    let fds: Vec<BorrowedFd<'_>> = root.into_iter().collect();
    // It ends with the thread that started it, and is started anew.
    for _ in 0..2 {
        if start(client).is_err() {
            let may_begin = client.is_starting();
            return Err(Unasked::NotBegun { may_begin });
        }
        if let Ok(asked) = client.ask_to_open(question(mapped, copies), &fds) {
            return Ok((client, asked));
        }
    }
    Err(Unasked::Never)
}

/// What becomes of a file that is to be opened.
#[derive(Debug)]
pub(crate) enum Opening {
    /// It is open, or can't be opened.
    Done(Result<Box<TargetFile>, OpenError>),
    /// A server takes its time, or is silent.
    Slow(Box<Slow>),
}

impl Opening {
    fn done(opened: Result<TargetFile, OpenError>) -> Opening {
        Opening::Done(opened.map(Box::new))
    }
}

/// A file that a process was asked to open, which has that to do and nothing else.
pub(crate) struct Slow {
    client: Client,
    asked: Asked,
    waiting: Waiting,
    pid: Pid,
    path: String,
    root: Option<Arc<Root>>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Slow({})", self.path)
    }
}

impl Slow {
    /// Looks what became of it, without waiting.
    pub(crate) fn look(mut self: Box<Slow>) -> Opening {
        let answer = self.client.opened(&mut self.asked, &mut |_| None);
        let opener = self.client.pid().unwrap_or(0);
        if matches!(answer, Ok(None)) && !self.waiting.is_over(opener) {
            return Opening::Slow(self);
        }
        let is_free = matches!(answer, Ok(Some(_)));
        let of = (self.pid, &*self.path, self.root.as_ref());
        let opened = taken(answer, &mut self.client, (&self.asked, &self.waiting), of);
        let mut spare = lock(&SPARE);
        if is_free && spare.len() < MAX_SPARE {
            spare.push(self.client);
        }
        Opening::done(opened)
    }
}

/// The file that was opened, or its copy; who does not answer is not asked any more.
fn taken(
    answer: Result<Option<Opened>, Death>,
    client: &mut Client,
    (asked, waiting): (&Asked, &Waiting),
    (pid, path, root): (Pid, &str, Option<&Arc<Root>>),
) -> Result<TargetFile, OpenError> {
    match answer {
        Ok(Some((said, file))) => {
            // A copy is local as well.
            let is_local = true;
            Ok(opened(&said, file)?.into_target(path, root, is_local))
        }
        Ok(None) => {
            let asked_by = client.pid();
            client.give_up();
            if !waiting.starved {
                // A disk is slow, and not silent.
                let device = asked.device.filter(|(major, _)| *major == 0);
                let whom = device.map(|(major, minor)| Whom::Device(major, minor));
                give_up(whom.unwrap_or(Whom::Process(pid)), pid, asked_by);
            }
            Err(OpenError::Silent)
        }
        Err(_) => Err(OpenError::Silent),
    }
}

/// Opens what lies on a disk where there is no process for that, or none yet: on a thread that can be left alone.
fn open_beside(mapped: &MappedFile<'_>) -> Result<TargetFile, OpenError> {
    let (pid, range, identity) = (mapped.pid, mapped.range, mapped.identity);
    let (path, root) = (mapped.path.to_owned(), mapped.root.cloned());
    let opened = within(SLOW_DISK, Some(owner_of(pid)), move || {
        let file = open_mapped(&MappedFile {
            pid,
            range,
            path: &path,
            identity,
            root: root.as_ref(),
        })?;
        match file.is_local {
            true => Ok(file),
            false => Err(OpenError::Silent),
        }
    });
    opened.unwrap_or(Err(OpenError::Silent))
}

/// A file that a path leads to.
#[derive(Debug)]
pub(crate) struct Below {
    /// The file, or its copy.
    pub(crate) file: File,
    /// What it is.
    pub(crate) stat: Stat,
    /// Of a copy: who owns what it is a copy of, and what it takes.
    pub(crate) copy: Option<(u32, Room)>,
}

impl Below {
    /// As what a target has; a copy is no more trusted than what it is a copy of.
    pub(crate) fn into_target(
        self,
        path: &str,
        root: Option<&Arc<Root>>,
        is_local: bool,
    ) -> TargetFile {
        let mut file = TargetFile::new(self.file, &self.stat, path, root, is_local);
        if let Some((owner, room)) = self.copy {
            (file.trusted, file.owner, file.room) = (false, Some(owner), Some(room));
        }
        file
    }
}

/// Opens what a path below a root leads to, for the sake of this user. Of what a server has there is a copy, or nothing
/// without `copies`. Once the files there were silent, no more is asked for.
pub(crate) fn open_below(
    root: &Arc<Root>,
    path: &str,
    user: u32,
    copies: bool,
) -> Result<Below, OpenError> {
    // Most of what is looked for does not exist, as the kernel knows.
    match root.handle_without_asking(path) {
        Ok(handle) if place_of(&handle).is_some_and(|((major, _), _)| major != 0) => {
            let (file, stat) = open_checked(Ok(handle))?;
            let copy = None;
            return Ok(Below { file, stat, copy });
        }
        Ok(_) => {}
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINVAL) => {}
            _ => return Err(error.into()),
        },
    }
    let whom = whom_below(root, path)?;
    if is_silent_to(user, whom) {
        return Err(OpenError::Silent);
    }
    // Root's own are on disks, or with servers of root's.
    let is_served = !root.is_own() || user != 0;
    let mut opener = lock(&FINDER);
    let client = opener.get_or_insert_with(Client::that_opens);
    let is_apart = client.is_apart();
    let mut asked_by = None;
    let answer = match is_apart && client.start().is_ok() {
        true => {
            let fds: Vec<BorrowedFd<'_>> = root.folder().into_iter().collect();
            let mut waiting = Waiting::new(is_served, PATIENCE);
            let mut ask = || {
                let mut asked = client.ask_to_open(question_below(root, path, copies), &fds)?;
                client.opened(&mut asked, &mut |opener| waiting.more(opener))
            };
            // It ends with the thread that started it, and is started anew.
            let answer = match ask() {
                Err(Death::Crashed | Death::Killed) => ask(),
                answer => answer,
            };
            match answer {
                Ok(Some((said, file))) => Some(opened(&said, file)),
                Ok(None) => {
                    asked_by = client.pid();
                    client.give_up();
                    if waiting.starved {
                        return Err(OpenError::Silent);
                    }
                    None
                }
                Err(_) => return Err(OpenError::Silent),
            }
        }
        // Nothing ends a wait for a server, not even the end of this process.
        false if is_apart && is_served => return Err(OpenError::Silent),
        false => {
            drop(opener);
            let (below, path) = (root.clone(), path.to_owned());
            let patience = match is_served {
                true => PATIENCE,
                false => SLOW_DISK,
            };
            within(patience, Some(user), move || {
                let (file, stat) = below.open(&path)?;
                let copy = None;
                match is_local(&file, below.of(), Some(&below)) {
                    true => Ok(Below { file, stat, copy }),
                    false => Err(OpenError::Served),
                }
            })
        }
    };
    answer.unwrap_or_else(|| {
        give_up_for(user, whom, asked_by);
        warn_once(
            "what does not answer",
            format_args!(
                "{path} can't be looked for: its file system does not answer; nothing more is looked for there"
            ),
        );
        Err(OpenError::Silent)
    })
}

/// What is not asked any more when a path leads to what is silent: all of the root, or, where that is everybody's, the
/// folder, of all that are named by build ids the one that has them.
fn whom_below(root: &Root, path: &str) -> Result<Whom, OpenError> {
    let folder = root.folder().ok_or(io::ErrorKind::NotFound);
    let folder = folder.map_err(io::Error::from)?;
    // STATX_MNT_ID_UNIQUE, since Linux 6.8: numbers that are not given again.
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(folder, "", flags, StatxFlags::MNT_ID | UNIQUE);
    let mount = stat.map_err(io::Error::from)?.stx_mnt_id;
    if !root.is_own() {
        return Ok(Whom::Below(mount, 0));
    }
    let (above, _) = path
        .split_once("/.build-id/")
        .or_else(|| path.rsplit_once('/'))
        .unwrap_or_default();
    Ok(Whom::Below(mount, FxBuildHasher.hash_one(above)))
}

/// How long an answer is waited for.
#[derive(Debug)]
struct Waiting {
    begun: Instant,
    patience: Duration,
    /// Who answers may have a server to ask, and not only a disk.
    is_served: bool,
    /// That is not known yet: it is of the file system of this device, by the mounts of a process.
    unsure: Option<(Pid, (u32, u32))>,
    asked: bool,
    /// At last it got no processor.
    starved: bool,
}

impl Waiting {
    fn new(is_served: bool, patience: Duration) -> Waiting {
        Waiting {
            begun: Instant::now(),
            patience,
            is_served,
            unsure: None,
            asked: false,
            starved: false,
        }
    }

    /// For the file of a mapping: file systems without a device are not all servers', containers' lie on disks.
    fn for_mapped(mapped: &MappedFile<'_>) -> Waiting {
        let device = (mapped.identity.major, mapped.identity.minor);
        let is_served = device.0 == 0;
        Waiting {
            unsure: is_served.then_some((mapped.pid, device)),
            ..Waiting::new(is_served, PATIENCE)
        }
    }

    /// Until when to wait now, if any longer: for a moment, and for longer while the process gets no processor or a disk is slow.
    fn more(&mut self, opener: u32) -> Option<Instant> {
        if std::mem::replace(&mut self.asked, true) && self.is_over(opener) {
            return None;
        }
        Some(Instant::now() + self.patience)
    }

    /// Whether it was waited for long enough.
    fn is_over(&mut self, opener: u32) -> bool {
        let waited = self.begun.elapsed();
        if waited < self.patience {
            return false;
        }
        if let Some((pid, device)) = self.unsure.take() {
            self.is_served = may_be_on_server(pid, device);
        }
        self.starved = would_run(&format!("/proc/{opener}/stat"));
        let most = match (self.starved, self.is_served) {
            (true, _) => STARVED,
            (false, true) => self.patience,
            (false, false) => SLOW_DISK,
        };
        waited >= most
    }
}

fn question_below(root: &Root, path: &str, copies: bool) -> Frame {
    let mut frame = Frame::new(wire::OPEN);
    frame.u8(BELOW);
    frame.u32(root.of().map_or(0, |pid| pid.0));
    frame.u32(copies.into());
    frame.u64(left());
    frame.path(path.as_bytes());
    frame
}

fn question(mapped: &MappedFile<'_>, copies: bool) -> Frame {
    let mut frame = Frame::new(wire::OPEN);
    frame.u8(MAPPED);
    frame.u32(mapped.pid.0);
    frame.u32(copies.into());
    frame.u64(left());
    frame.u64(mapped.range.0);
    frame.u64(mapped.range.1);
    let identity = mapped.identity;
    frame.u32(identity.major);
    frame.u32(identity.minor);
    frame.u64(identity.inode);
    frame.u64(identity.generation);
    frame.path(mapped.path.as_bytes());
    let layers = mapped.root.and_then(|root| root.layers());
    let folders = layers.map_or(&[][..], |layers| &layers.folders);
    let (major, minor) = layers.map_or((0, 0), |layers| layers.device);
    frame.u32(major);
    frame.u32(minor);
    frame.u32(folders.len() as u32);
    for folder in folders {
        frame.path(folder.as_os_str().as_bytes());
    }
    frame
}

/// The file that was opened, or its copy.
fn opened(said: &[u8], file: Option<OwnedFd>) -> Result<Below, OpenError> {
    let mut reader = Reader(said);
    let (kind, number) = (reader.u8()?, reader.u32()?);
    match kind {
        OPENED | COPIED => {
            let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let stat = rustix::fs::fstat(&file).map_err(io::Error::from)?;
            let copy = match kind {
                OPENED => None,
                _ => {
                    let room = Room::take(stat.st_size.cast_unsigned());
                    Some((number, room.ok_or(OpenError::TooLarge)?))
                }
            };
            let file = file.into();
            Ok(Below { file, stat, copy })
        }
        NOT_REGULAR => Err(OpenError::NotRegular),
        TOO_LARGE => Err(OpenError::TooLarge),
        REPLACED => Err(OpenError::Replaced),
        OUT_OF_REACH => Err(OpenError::OutOfReach),
        SERVED => Err(OpenError::Served),
        _ => Err(io::Error::from_raw_os_error(number.cast_signed()).into()),
    }
}

/// What a question is about: how to find the file, below which root.
type Wanted = (Result<OwnedFd, OpenError>, Option<Root>);

fn mapped_file(reader: &mut Reader<'_>, pid: Pid, folder: Option<OwnedFd>) -> io::Result<Wanted> {
    let range = (reader.u64()?, reader.u64()?);
    let identity = FileIdentity {
        major: reader.u32()?,
        minor: reader.u32()?,
        inode: reader.u64()?,
        generation: reader.u64()?,
    };
    let path = String::from_utf8_lossy(reader.path()?).into_owned();
    let device = (reader.u32()?, reader.u32()?);
    let mut folders = Vec::new();
    for _ in 0..reader.count(MAX_LAYERS)? {
        folders.push(std::ffi::OsString::from_vec(reader.path()?.to_vec()).into());
    }
    let layers = (!folders.is_empty()).then_some(OverlayLayers { folders, device });
    let root = folder.map(|folder| Arc::new(Root::of_folder(Some(folder), layers)));
    let handle = handle_of_mapped(&MappedFile {
        pid,
        range,
        path: &path,
        identity,
        root: root.as_ref(),
    });
    Ok((handle, root.and_then(Arc::into_inner)))
}

fn file_below(reader: &mut Reader<'_>, folder: Option<OwnedFd>) -> io::Result<Wanted> {
    let path = String::from_utf8_lossy(reader.path()?);
    let root = Root::of_folder(folder, None);
    Ok((root.handle(&path).map_err(OpenError::from), Some(root)))
}

/// Answers a question, in the process that opens files.
pub(super) fn answer(
    socket: BorrowedFd<'_>,
    mut reader: Reader<'_>,
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let kind = reader.u8()?;
    let pid = Pid(reader.u32()?);
    let copies = reader.u32()? != 0;
    let room = reader.u64()?;
    let folder = fds.into_iter().next();
    let (handle, root) = match kind {
        MAPPED => mapped_file(&mut reader, pid, folder)?,
        BELOW => file_below(&mut reader, folder)?,
        _ => return Err(wire::nonsense()),
    };
    let pid = (pid.0 != 0).then_some(pid);
    let mut handled = Frame::new(wire::HANDLED);
    let place = handle.as_ref().ok().and_then(place_of);
    handled.u8(place.is_some().into());
    let (major, minor) = place.map_or((0, 0), |(device, _)| device);
    handled.u32(major);
    handled.u32(minor);
    super::serve::say(socket, &handled.finish())?;
    let opened = handle.and_then(|handle| {
        let is_local = |file: &File| is_local(file, pid, root.as_ref());
        open(handle, is_local, copies.then_some(room))
    });
    let mut frame = Frame::new(wire::OPENED);
    let (kind, number) = match &opened {
        Ok((_, Some(owner))) => (COPIED, *owner),
        Ok((_, None)) => (OPENED, 0),
        Err(OpenError::NotRegular) => (NOT_REGULAR, 0),
        Err(OpenError::TooLarge) => (TOO_LARGE, 0),
        Err(OpenError::Replaced) => (REPLACED, 0),
        Err(OpenError::OutOfReach) => (OUT_OF_REACH, 0),
        Err(OpenError::Served) => (SERVED, 0),
        Err(OpenError::Open(error)) => {
            let number = error.raw_os_error().unwrap_or(libc::ENOENT);
            (FAILED, number.cast_unsigned())
        }
        Err(OpenError::Again | OpenError::Later | OpenError::Silent) => {
            (FAILED, libc::EAGAIN.cast_unsigned())
        }
    };
    frame.u8(kind);
    frame.u32(number);
    let file = opened.as_ref().ok().map(|(file, _)| file.as_fd());
    let fds: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    // Who asked is there, or this process ends.
    send(socket, &frame.finish(), &fds, Instant::now() + PATIENCE)
}

/// From a handle to a file that can be read without asking a server; whose it is, if that is a copy, for which there is
/// so much room; none: none is wanted.
fn open(
    handle: OwnedFd,
    is_local: impl Fn(&File) -> bool,
    room: Option<u64>,
) -> Result<(OwnedFd, Option<u32>), OpenError> {
    let (file, stat): (File, Stat) = open_checked(Ok(handle))?;
    if is_local(&file) {
        return Ok((file.into(), None));
    }
    let room = room.ok_or(OpenError::Served)?;
    let len = stat.st_size.cast_unsigned();
    if len > MAX_COPIED_BYTES.min(room) {
        return Err(OpenError::TooLarge);
    }
    Ok((private_copy(&file, len)?, Some(stat.st_uid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_fs;

    /// Who has had a file opened and was busy for longer than a server may take finds it open.
    #[test]
    fn what_was_answered_long_ago_is_taken() {
        let own = Pid(std::process::id());
        let mappings = proc_fs::mappings(own);
        let mapping = mappings.iter().find(|it| it.path.starts_with(b"/"));
        let mapping = mapping.unwrap();
        let path = String::from_utf8_lossy(&mapping.path).into_owned();
        let mapped = MappedFile {
            pid: own,
            range: (mapping.start, mapping.start + mapping.len),
            path: &path,
            identity: mapping.file,
            root: None,
        };
        let mut client = Client::with_process_that_opens();
        client.start().unwrap();
        let asked = client.ask_to_open(question(&mapped, true), &[]).unwrap();
        client.await_answer(STARVED).unwrap();
        // Where the file is, and then the file.
        std::thread::sleep(Duration::from_millis(300));
        let waiting = Waiting {
            begun: Instant::now() - 2 * PATIENCE,
            ..Waiting::new(true, PATIENCE)
        };
        let mut opening = Opening::Slow(Box::new(Slow {
            client,
            asked,
            waiting,
            pid: own,
            path: path.clone(),
            root: None,
        }));
        // As long as that gets no processor.
        while let Opening::Slow(slow) = opening {
            opening = slow.look();
        }
        match opening {
            Opening::Done(Ok(file)) => assert_eq!(file.path, path),
            // Whose mappings are nobody's to open but root's.
            Opening::Done(Err(OpenError::OutOfReach)) => {}
            other => panic!("{other:?}"),
        }
    }
}
