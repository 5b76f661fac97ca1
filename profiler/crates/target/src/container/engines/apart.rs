//! What is in a user's folders and behind a user's sockets is read by a process apart, which is that user.
//!
//! A question about the containers of a user -> its answer, in time or not at all. Folders of users may lie with a server
//! that is silent (FUSE, a dead network), hold what takes long to read, and lead elsewhere by links: who looks there waits in
//! the kernel, deaf to signals, works for whoever has put it there, or is their deputy. So this program runs once more, under
//! the name [`NAME`]: it forks a process for each user that is asked about, which becomes that user, is given
//! questions over a socket, and is left alone when its time is over. Programs that use this crate as a library and never
//! called [`offer_reading`] read in their own process.
//!
//! What does not belong here: who is asked, and when not (`users`); what is read (`book`).

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
#[cfg(not(test))]
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CapabilitySet, Gid, Uid};
use serde::{Deserialize, Serialize};

use super::Facts;
use super::book::Book;
use super::files::{Budget, Root};
use super::places::Whose;
use crate::background;
use crate::container::Identity;

/// What the process is called.
const NAME: &str = profiler_model::helpers::USERS;
/// What is read of a user's files to answer one question.
const TIME: Duration = Duration::from_millis(300);
const BYTES: u64 = 64 << 20;
const ENTRIES: usize = if cfg!(test) { 1000 } else { 10_000 };
/// When a process that answers no more ends by itself, in seconds.
const END_AFTER: u32 = 5;
/// Bytes that it may allocate.
const MAX_MEMORY: u64 = 256 << 20;
const MAX_FILES: u64 = 64;
/// Most bytes of a question or an answer.
const MAX_MESSAGE: usize = 4 << 20;
/// Most containers of runtimes that are told, and most bytes of a text.
const MAX_RUNTIMES: usize = 8192;
const MAX_TEXT: usize = 1024;
/// A group that no file has.
const NOBODY: u32 = 65534;

static OFFERED: AtomicBool = AtomicBool::new(false);
/// Those that start others; one, unless a program has several roots.
static STARTERS: Mutex<Vec<Starter>> = Mutex::new(Vec::new());

/// What is asked.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Question {
    /// Which cgroups runtimes have made.
    Runtimes,
    /// What these containers are.
    Look(Vec<Identity>),
}

/// What is said.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Answer {
    /// Ids by cgroup.
    pub(super) runtimes: HashMap<String, String>,
    /// In the places of what was asked for.
    pub(super) facts: Vec<Facts>,
    /// There is more than is read.
    pub(super) over: bool,
}

/// Whether this program was started to read what users have: it calls [`serve_users`] then, and nothing else.
pub fn is_for_users(called: &std::ffi::OsStr) -> bool {
    called == NAME
}

/// From now on a process reads what users have: this program looks whether it [`is_for_users`].
pub fn offer_reading() {
    OFFERED.store(true, Ordering::Relaxed);
}

/// Starts that process, while we may do what it has to do. Without that it is started when it is needed.
pub fn start_reading() {
    if is_offered() {
        let mut starters = STARTERS.lock().unwrap_or_else(PoisonError::into_inner);
        if starters.is_empty() {
            // Who needs it says that it could not be started.
            starters.extend(Starter::new(super::files::root_of_this_machine()));
        }
    }
}

/// Whether a process reads what users have.
pub(super) fn is_offered() -> bool {
    OFFERED.load(Ordering::Relaxed)
}

/// Answers a question out of a user's book, within bounds.
pub(super) fn answer(book: &mut Book, question: &Question) -> Answer {
    book.root.limit(Budget {
        until: Instant::now() + TIME,
        bytes: BYTES,
        entries: ENTRIES,
    });
    let mut answer = Answer::default();
    let is_short = |text: &str| text.len() <= MAX_TEXT;
    match question {
        Question::Runtimes => {
            let found = book.runtimes().iter();
            let found = found.filter(|(cgroup, id)| is_short(cgroup) && is_short(id));
            let found = found.map(|(cgroup, id)| (cgroup.clone(), id.clone()));
            answer.runtimes = found.take(MAX_RUNTIMES).collect();
        }
        Question::Look(identities) => {
            answer.facts = book.look(identities);
            answer
                .facts
                .iter_mut()
                .for_each(|facts| facts.cut(MAX_TEXT));
        }
    }
    answer.over = book.is_over();
    answer
}

/// A process that answers for one user.
#[derive(Debug)]
pub(super) struct Reader {
    socket: UnixStream,
}

impl Reader {
    /// Starts one.
    pub(super) fn start(root: &Path, user: u32) -> io::Result<Reader> {
        let mut starters = STARTERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = starters.iter().filter(|running| running.root == root);
        if let Some(Ok(reader)) = running.next().map(|running| running.reader(user)) {
            return Ok(reader);
        }
        starters.retain(|ended| ended.root != root);
        let starter = Starter::new(root)?;
        let reader = starter.reader(user);
        starters.push(starter);
        reader
    }

    /// Asks, and waits for the answer so long.
    pub(super) fn ask(&mut self, question: &Question, patience: Duration) -> io::Result<Answer> {
        let until = Instant::now() + patience;
        let mut timed = Timed {
            socket: &self.socket,
            until,
        };
        write_message(&mut timed, question)?;
        read_message(&mut timed)?.ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// It is asked no more, and ends as soon as it can.
    pub(super) fn give_up(&self) {
        // It may have ended.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let polled = rustix::event::poll(&mut fds, Some(&at_once));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

/// A socket that is waited for until then.
struct Timed<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// What a socket's timeout is called.
fn timed(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(bytes).map_err(timed)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes).map_err(timed)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A length and JSON.
fn write_message(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    to.write_all(&(bytes.len() as u32).to_ne_bytes())?;
    to.write_all(&bytes)
}

/// The same; none at the end.
fn read_message<T: for<'d> Deserialize<'d>>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match from.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let len = u32::from_ne_bytes(len) as usize;
    if len > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// The process that starts those that read. It keeps the right to become others, which a session gives up, and looks
/// at no user's files itself.
#[derive(Debug)]
struct Starter {
    root: PathBuf,
    socket: OwnedFd,
    child: Child,
}

impl Starter {
    fn new(root: &Path) -> io::Result<Starter> {
        let (socket, its) = pair()?;
        Ok(Starter {
            root: root.to_owned(),
            socket,
            child: background::start(&mut command(root), its)?,
        })
    }

    fn reader(&self, user: u32) -> io::Result<Reader> {
        let (socket, its) = pair()?;
        let fds = [its.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let user = user.to_ne_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent =
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&user)], &mut ancillary, flags);
        match sent? {
            4 => Ok(Reader {
                socket: socket.into(),
            }),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // It waits for nobody else, so it ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(rustix::net::socketpair(
        family,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

#[cfg(not(test))]
fn command(root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // Nothing of what its parent was told is its business.
    command.arg0(NAME).arg(root).env_clear();
    command
}

/// The program is that of the tests, one of which does it.
#[cfg(test)]
fn command(root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let test = "container::engines::apart::tests::the_process";
    command
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(tests::VARIABLE, root);
    command
}

/// Does all of it, in a process that was started for this; returns the exit status. `root`: where the machine's files
/// are, as its argument says it.
pub fn serve_users(root: Option<&std::ffi::OsStr>) -> u8 {
    let root = root.map_or(Path::new("/"), Path::new);
    let is_bounded = raise_walls(root);
    #[allow(unsafe_code)]
    // SAFETY: standard input is open, and nothing else in this process uses it.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    u8::from(is_bounded.and_then(|()| start_readers(socket)).is_err())
}

/// What the process that starts others gives up, and they with it.
fn raise_walls(root: &Path) -> io::Result<()> {
    background::go_as_others();
    // Where that is refused they stay open.
    let _ = background::close_inherited();
    background::go_by(NAME);
    if root.as_os_str().as_bytes() != b"/" {
        rustix::process::chroot(root)?;
        rustix::process::chdir("/")?;
    }
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Data, MAX_MEMORY),
        (Resource::Nofile, MAX_FILES),
    ] {
        let most = Some(most);
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        let _ = setrlimit(resource, limit);
    }
    let rights = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::DAC_READ_SEARCH;
    let _ = background::keep_rights(rights);
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Starts a process for each user that is named, until nobody is there to name any.
fn start_readers(socket: OwnedFd) -> io::Result<()> {
    ignore_children();
    while let Some((user, its)) = next_user(socket.as_fd())? {
        if !fork()? {
            continue;
        }
        // Its copy of this is all that the other process has to do with it.
        drop(socket);
        let read = || become_user(user).and_then(|()| serve(user, its.into()));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
        std::process::exit(i32::from(!matches!(done, Ok(Ok(())))));
    }
    Ok(())
}

/// A user, and the socket that its process is to answer at.
fn next_user(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, OwnedFd)>> {
    let mut user = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut user)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags)
    })?;
    let messages = ancillary.drain();
    let fds = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    match (received.bytes, fds.flatten().next()) {
        (0, _) => Ok(None),
        (4, Some(its)) => Ok(Some((u32::from_ne_bytes(user), its))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// From now on this process may what the user may. Where it may not become that, it may find and read files, and nothing
/// else.
fn become_user(user: u32) -> io::Result<()> {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _ = rustix::thread::set_thread_groups(&[]);
    let (group, number) = (Gid::from_raw(NOBODY), Uid::from_raw(user));
    let is_user = rustix::thread::set_thread_res_gid(group, group, group).is_ok()
        && rustix::thread::set_thread_res_uid(number, number, number).is_ok();
    let _ = background::keep_rights(match is_user {
        true => CapabilitySet::empty(),
        false => CapabilitySet::DAC_READ_SEARCH,
    });
    // Its user is who it is to be safe from.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(rustix::process::set_parent_process_death_signal(Some(
        Signal::KILL,
    ))?)
}

/// Answers until nobody asks.
fn serve(user: u32, mut socket: UnixStream) -> io::Result<()> {
    let mut book = Book::new(Root::new(Path::new("/")), Whose::User(user));
    while let Some(question) = read_message(&mut socket)? {
        end_after(END_AFTER);
        write_message(&mut socket, &answer(&mut book, &question))?;
        end_after(0);
    }
    Ok(())
}

/// Nobody waits for children: the kernel takes them away.
#[allow(unsafe_code)]
fn ignore_children() {
    // SAFETY: no handler is installed, and nothing in this process waits for children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Whether this is the new process.
#[allow(unsafe_code)]
fn fork() -> io::Result<bool> {
    // SAFETY: this process has one thread, so that the new one has all of it, and no lock is held by another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// The kernel ends this process in so many seconds; 0: it does not.
#[allow(unsafe_code)]
fn end_after(seconds: u32) {
    // SAFETY: takes and gives numbers; what the signal does is what it does to begin with, the end.
    unsafe { libc::alarm(seconds) };
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const VARIABLE: &str = "PROFILER_TEST_USERS";

    /// The process itself, if it is one.
    #[test]
    fn the_process() {
        if let Some(root) = std::env::var_os(VARIABLE) {
            std::process::exit(serve_users(Some(&root)).into());
        }
    }
}
