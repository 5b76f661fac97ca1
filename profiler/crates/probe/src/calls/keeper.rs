//! A process that holds the links of probes, so that nobody waits when they are closed.
//!
//! Descriptors of links, by number -> held until they are to be closed, or this process is gone. Closing
//! a link can take as long as some traced call lasts (`closer`), and whoever drops its last descriptor
//! waits in the kernel: a signal does not end that, and a process that is killed meanwhile stays in the
//! process table. So the profiler keeps none. It hands each link over as soon as it is made, and closes
//! its own descriptor when the process has said that it has it.
//!
//! The process is this program, run once more under the name [`NAME`] (`process`): it has no privileges,
//! no files but the links, its own process group, and ends when all that it held is closed. What it is
//! told comes by a socket; the end of that, however it comes about, means that all is to be closed. Of
//! a link that was just made, and not been handed over yet, the profiler is the one that drops it.
//!
//! Where that process can't be started, and in programs that use this crate as a library, links are
//! closed by threads of this process: [`offer`].
//!
//! Protocol, packets of numbers of eight bytes in the order of this machine. To the process: [`HOLD`] and
//! a link's number, with descriptors, answered by the number, and whether it has them; [`RELEASE`] and
//! numbers; [`ASK`] and a number of the question, answered by that, and numbers of links that are still
//! being closed.
//!
//! What does not belong here: which links there are (`super`).

mod process;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};

use super::LinkFds;
use super::closer::Closer;
use crate::ProbeError;
use profiler_target::background;

pub use process::keep;

/// What the process is called.
pub const NAME: &str = profiler_model::helpers::LINKS;

const HOLD: u64 = 1;
const RELEASE: u64 = 2;
const ASK: u64 = 3;

/// Numbers in one packet at the most.
const MAX_NUMBERS: usize = 500;
/// Descriptors in one packet at the most; the kernel takes 253.
const MAX_FDS: usize = 200;
/// How long an answer may take: the process never waits for anything, but it may get no processor.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked what is still being closed, by those who wait for it.
const INTERVAL: Duration = Duration::from_millis(5);

static OFFERED: AtomicBool = AtomicBool::new(false);
/// One that has done what it was started for.
static SPARE: Mutex<Option<Keeper>> = Mutex::new(None);

/// From now on links are held by a process: this program calls [`keep`] when it is run as [`NAME`].
pub fn offer() {
    OFFERED.store(true, Ordering::Relaxed);
}

/// Who holds links.
pub(super) struct Keeper {
    process: Option<Process>,
    /// Links that are held here.
    held: HashMap<u64, LinkFds>,
    closer: Closer,
    questions: u64,
}

/// The process.
struct Process {
    socket: OwnedFd,
    child: Option<Child>,
    /// An answer has not come: it was killed, most often, and is on its way out.
    is_late: bool,
}

impl Keeper {
    /// Starts the process, if there can be one, or takes one that somebody has left.
    pub(super) fn start() -> Keeper {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(spare) = spare {
            return spare;
        }
        let process = match OFFERED.load(Ordering::Relaxed) {
            true => Process::start()
                .inspect_err(|error| {
                    log::warn!(
                        "no process can be started to take probes out ({error}): the end may wait \
                         for calls that are traced"
                    );
                })
                .ok(),
            false => None,
        };
        Keeper {
            process,
            ..Keeper::without_process()
        }
    }

    /// Leaves it to the next one who wants to start one.
    pub(super) fn leave(self) {
        *SPARE.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Holds links in this process.
    pub(super) fn without_process() -> Keeper {
        Keeper {
            process: None,
            held: HashMap::new(),
            closer: Closer::default(),
            questions: 0,
        }
    }

    /// Process id of the process, if it is one that holds links.
    pub(super) fn pid(&self) -> Option<u32> {
        let child = self.process.as_ref()?.child.as_ref()?;
        Some(child.id())
    }

    /// Takes a link, its return probes first. Where that fails the link is closed.
    pub(super) fn hold(&mut self, link: u64, fds: LinkFds) -> Result<(), ProbeError> {
        let process = self.process.as_mut().filter(|process| !process.is_late);
        let Some(process) = process else {
            self.held.insert(link, fds);
            return Ok(());
        };
        match process.hold(link, &fds) {
            Ok(true) => Ok(()),
            Ok(false) => {
                // What it could take of them, and what is still open here.
                self.release([link]);
                self.closer.close([(link, fds)]);
                let full = io::Error::from_raw_os_error(libc::EMFILE);
                Err(ProbeError::from_io("hold probes", full))
            }
            Err(error) => {
                // Should it have them as well, there is no harm in that.
                self.held.insert(link, fds);
                self.note(&error);
                Ok(())
            }
        }
    }

    /// Has links be closed, without waiting for it.
    pub(super) fn release(&mut self, links: impl IntoIterator<Item = u64>) {
        let links: Vec<u64> = links.into_iter().collect();
        let here = links.iter();
        let here: Vec<_> = here
            .filter_map(|link| self.held.remove_entry(link))
            .collect();
        self.closer.close(here);
        let Some(process) = &self.process else { return };
        let mut packets = links.chunks(MAX_NUMBERS);
        if let Err(error) = packets.try_for_each(|some| process.send(RELEASE, some)) {
            self.note(&error);
        }
    }

    /// Which links that were released are not closed yet: many of them, if not all. None if that is not
    /// known at that time.
    pub(super) fn closing(&mut self, until: Instant) -> Option<Vec<u64>> {
        let mut closing = self.closer.closing();
        if let Some(process) = &self.process {
            if process.is_late {
                return None;
            }
            self.questions += 1;
            match process.ask(self.questions, until) {
                Ok(others) => closing.extend(others),
                // The answer will be passed over.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return None,
                Err(error) => self.note(&error),
            }
        }
        Some(closing)
    }

    /// Waits until what was released is closed, at the latest until then; what is not. What is closed
    /// in this process is waited for longer: its end would wait all the same.
    pub(super) fn wait(&mut self, until: Instant) -> Option<Vec<u64>> {
        let here = self.process.is_none();
        let mut closing = Some(self.closer.wait((!here).then_some(until)));
        while self.process.is_some() {
            closing = self.closing(until.max(Instant::now() + INTERVAL));
            let left = until.saturating_duration_since(Instant::now());
            if closing.as_ref().is_none_or(Vec::is_empty) || left.is_zero() {
                break;
            }
            std::thread::sleep(INTERVAL.min(left));
        }
        closing
    }

    /// The process is gone, or does not answer: from now on this one does what it was for.
    fn note(&mut self, error: &io::Error) {
        if let (io::ErrorKind::TimedOut, Some(process)) = (error.kind(), &mut self.process) {
            process.is_late = true;
            log::warn!(
                "the process that holds probes ({NAME}) does not answer: new ones are held here"
            );
            return;
        }
        log::error!(
            "the process that holds probes ({NAME}) is gone ({error}): functions that were traced until \
             now are traced no longer"
        );
        self.process = None;
    }
}

impl Process {
    fn start() -> io::Result<Process> {
        let (ours, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let child = background::start(Command::new("/proc/self/exe").arg0(NAME), its)?;
        Ok(Process {
            socket: ours,
            child: Some(child),
            is_late: false,
        })
    }

    /// Whether it has them all now.
    fn hold(&self, link: u64, fds: &LinkFds) -> io::Result<bool> {
        let mut has_all = true;
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        for some in fds.chunks(MAX_FDS) {
            send(self.socket.as_fd(), &[HOLD, link], some)?;
            let answer = self.answer(link, Instant::now() + PATIENCE)?;
            has_all &= answer.first() == Some(&1);
        }
        Ok(has_all)
    }

    fn send(&self, what: u64, numbers: &[u64]) -> io::Result<()> {
        let numbers: Vec<u64> = std::iter::once(what)
            .chain(numbers.iter().copied())
            .collect();
        send(self.socket.as_fd(), &numbers, &[])
    }

    fn ask(&self, question: u64, until: Instant) -> io::Result<Vec<u64>> {
        // Apart from numbers of links.
        let question = question | 1 << 63;
        self.send(ASK, &[question])?;
        self.answer(question, until)
    }

    /// The answer that begins with this number, without it.
    fn answer(&self, about: u64, until: Instant) -> io::Result<Vec<u64>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            let left = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match rustix::event::poll(&mut polled, Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut bytes = [0; 8 * (MAX_NUMBERS + 1)];
            let (len, _) = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
            let numbers = numbers(&bytes[..len]);
            match numbers.split_first() {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some((first, rest)) if *first == about => return Ok(rest.to_vec()),
                // What came too late, earlier.
                Some(_) => {}
            }
        }
    }
}

impl Drop for Process {
    /// All is closed when the socket is; the process ends when it has done that, and nobody waits for it.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let thread = std::thread::Builder::new().name("links-end".to_owned());
            // Without it, it is init's, or stays in the process table as long as this process does.
            let _ = thread.spawn(move || child.wait());
        }
    }
}

fn send(socket: BorrowedFd<'_>, numbers: &[u64], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = bytes_of(numbers);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

fn bytes_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (numbers, _) = bytes.as_chunks::<8>();
    numbers.iter().map(|n| u64::from_ne_bytes(*n)).collect()
}
