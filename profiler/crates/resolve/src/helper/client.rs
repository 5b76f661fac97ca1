//! The profiler's end: starts the process that reads symbols, asks it, and ends it when its time is over.
//!
//! Files that belong together -> a number; a number and addresses -> what they mean, or why nobody is there
//! any more. What the process says is believed as little as the files. All that waits has an end, which
//! comes with [`Death`]; the next question starts another process.
//!
//! What does not belong here: whose fault that was and what becomes of it (`symbolize`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(not(test))]
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

#[cfg(not(test))]
use super::NAME;
use super::questions::Answering;
use super::walls::Walls;
use super::wire::{self, Frame, Reader};
use super::{Found, OFFERED, OPENS, READS};
use crate::loaded::LoadError;
use crate::locks::lock;
use crate::material::Material;
use profiler_model::Tid;
use profiler_target::background;

/// How long the process may take to begin. It only waits for a processor.
const START: Duration = Duration::from_secs(10);
/// How long it is waited for, once, where nothing may be held up.
const MOMENT: Duration = Duration::from_millis(250);
/// How long one that ends by itself may take.
const END: Duration = Duration::from_millis(500);
/// Descriptors that come with a frame: two files of three parts, what each is copied to, and a folder.
pub(super) const MAX_FDS: usize = 13;
/// How often it is looked whether somebody has given up.
const GLANCE: Duration = Duration::from_millis(50);
/// Longest time that anything can be given.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What a process may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes that it may allocate.
    pub(crate) memory: u64,
    /// Bytes that it may have allocated when it is asked something; if it has more, another one is started.
    pub(crate) resting: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory: 512 << 20,
            resting: 128 << 20,
        }
    }
}

impl Limits {
    /// For files with much debug information: a quarter of the machine's memory at the most.
    pub(crate) fn large() -> Limits {
        let info = rustix::system::sysinfo();
        let memory = (info.totalram as u64).saturating_mul(info.mem_unit.into()) / 4;
        Limits {
            memory: memory.clamp(256 << 20, 2 << 30),
            ..Limits::default()
        }
    }
}

/// What became of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// It could not be started, or has not begun yet.
    NotStarted,
    /// Its time was over.
    TooSlow,
    /// It needed more memory than it may have.
    TooLarge,
    /// It fell over its own feet.
    Crashed,
    /// Somebody has killed it.
    Killed,
}

/// Files that the process has loaded. Of one that has ended it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    process: u32,
    file: u32,
}

/// What is said of a file that was to be opened, and the file.
pub(super) type Opened = (Vec<u8>, Option<OwnedFd>);

/// A file that a process was asked to open.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// It has said where the file lies.
    is_found: bool,
    /// The device that is to answer, if it is for that to answer.
    pub(super) device: Option<(u32, u32)>,
}

/// What a process does, and nothing else.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Reads files: their symbols, their tables, what is asked of them.
    Names,
    /// Opens files.
    Opens,
    /// Reads the memory of processes.
    Reads,
}

/// Asks the process.
pub(crate) struct Client {
    limits: Limits,
    job: Job,
    /// What answers [`Client::question`], where a thread is in its place.
    pub(super) answering: fn() -> Answering,
    /// Whether there is a process, or a thread in its place.
    apart: bool,
    process: Option<Process>,
    /// How many were started.
    started: u32,
    files: u32,
    /// It was said that none can be started.
    complained: bool,
    /// When one was given up that did not begin.
    given_up: Option<Instant>,
    /// What a shell does before the process begins.
    #[cfg(test)]
    before: Option<&'static str>,
}

struct Process {
    socket: OwnedFd,
    child: Option<Child>,
    started: Instant,
    /// How many processes the kernel had ended until then, to have memory.
    ended_for_memory: u64,
    /// What it has said when it began.
    walls: Option<Walls>,
    loaded: usize,
}

impl Client {
    pub(crate) fn new(limits: Limits) -> Client {
        Client {
            limits,
            job: Job::Names,
            answering: no_answers,
            apart: OFFERED.load(Ordering::Relaxed),
            process: None,
            started: 0,
            files: 0,
            complained: false,
            given_up: None,
            #[cfg(test)]
            before: None,
        }
    }

    /// One that opens files.
    pub(super) fn that_opens() -> Client {
        let mut client = Client::new(Limits::default());
        client.job = Job::Opens;
        client
    }

    /// One that reads the memory of processes.
    pub(crate) fn that_reads() -> Client {
        let mut client = Client::new(Limits::default());
        client.job = Job::Reads;
        client
    }

    /// Whether it has, or will have, a process.
    pub(super) fn is_apart(&self) -> bool {
        self.apart
    }

    /// Whether what was loaded is loaded still.
    pub(crate) fn has(&self, number: Number) -> bool {
        self.process.is_some() && number.process == self.started
    }

    /// One that has a process, whatever was offered.
    #[cfg(test)]
    pub(crate) fn with_process(limits: Limits) -> Client {
        let mut client = Client::new(limits);
        client.apart = true;
        client
    }

    /// One that reads, and has a process.
    #[cfg(test)]
    pub(crate) fn with_process_that_reads() -> Client {
        let mut client = Client::that_reads();
        client.apart = true;
        client
    }

    /// The same, where a shell does something before it begins.
    #[cfg(test)]
    pub(crate) fn that_reads_after(before: &'static str) -> Client {
        let mut client = Client::with_process_that_reads();
        client.before = Some(before);
        client
    }

    /// One that opens files, and has a process.
    #[cfg(test)]
    pub(super) fn with_process_that_opens() -> Client {
        let mut client = Client::that_opens();
        client.apart = true;
        client
    }

    /// Waits until something was answered, and takes nothing.
    #[cfg(test)]
    pub(super) fn await_answer(&mut self, patience: Duration) -> io::Result<()> {
        let process = self.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
        ready(
            process.socket.as_fd(),
            PollFlags::IN,
            Instant::now() + patience,
        )
    }

    /// The id of the process.
    pub(crate) fn pid(&self) -> Option<u32> {
        Some(self.process.as_ref()?.child.as_ref()?.id())
    }

    /// How many processes were started.
    #[cfg(test)]
    pub(crate) fn starts(&self) -> u32 {
        self.started
    }

    /// How many files the process has loaded.
    pub(crate) fn loaded(&self) -> usize {
        self.process.as_ref().map_or(0, |process| process.loaded)
    }

    /// Loads files; also what memory they may take, by an estimate.
    pub(crate) fn load(
        &mut self,
        material: Material,
        until: Instant,
    ) -> Result<Result<(Number, u64), LoadError>, Death> {
        self.running()?;
        self.files += 1;
        let number = Number {
            process: self.started,
            file: self.files,
        };
        let mut frame = Frame::new(wire::LOAD);
        frame.u32(number.file);
        let fds = material.describe(&mut |byte| frame.u8(byte));
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let bytes = self.ask(frame, &fds, wire::LOADED, until)?;
        let mut reader = Reader(&bytes);
        let said = (reader.u8(), reader.u64());
        match said {
            (Ok(0), Ok(cost)) => {
                if let Some(process) = &mut self.process {
                    process.loaded += 1;
                }
                Ok(Ok((number, cost)))
            }
            (Ok(1), Ok(_)) => Ok(Err(LoadError::Bad)),
            (Ok(2), Ok(_)) => Ok(Err(LoadError::TooMuch)),
            _ => Err(self.end(Death::Crashed)),
        }
    }

    /// What virtual addresses mean, and, of those that are marked, the code of the function there. `bias` is what these and
    /// frame addresses differ by, of which the answers speak.
    pub(crate) fn find(
        &mut self,
        number: Number,
        addresses: &[(u64, bool)],
        bias: u64,
        until: Instant,
    ) -> Result<Vec<Found>, Death> {
        let mut frame = Frame::new(wire::FIND);
        frame.u32(number.file);
        frame.u64(bias);
        frame.u32(addresses.len() as u32);
        for &(address, code) in addresses {
            frame.u64(address);
            frame.u8(code.into());
        }
        let bytes = self.ask(frame, &[], wire::FOUND, until)?;
        let found = wire::found(&bytes, addresses.len());
        found.map_err(|_| self.end(Death::Crashed))
    }

    /// Starts the process, if there is none.
    pub(crate) fn start(&mut self) -> Result<(), Death> {
        self.running().map(|_| ())
    }

    /// The same for threads that others wait for: it is waited for a moment, and then begins in its own time. One that does
    /// not is given up, and there is a pause before the next one.
    pub(crate) fn start_meanwhile(&mut self) -> Result<(), Death> {
        self.start_within(MOMENT)
    }

    /// The same with so long a moment, counted from when it was started.
    pub(super) fn start_within(&mut self, moment: Duration) -> Result<(), Death> {
        let pauses = |at: Instant| at.elapsed() < START;
        if self.process.is_none() && self.given_up.is_some_and(pauses) {
            return Err(Death::NotStarted);
        }
        self.running_within(moment).map(|_| ())
    }

    /// Whether there is one that has not begun yet.
    pub(super) fn is_starting(&self) -> bool {
        self.process.is_some()
    }

    /// What is at an address of a process's memory, by its open `pagemap` and a thread of it; as much of it as is there,
    /// perhaps nothing; none if it may not be read.
    pub(crate) fn read(
        &mut self,
        (memory, tid): (BorrowedFd<'_>, Tid),
        address: u64,
        len: usize,
        until: Instant,
    ) -> Result<Option<Vec<u8>>, Death> {
        let len = len.min(wire::MAX_PIECE);
        let mut frame = Frame::new(wire::READ);
        frame.u32(len as u32);
        frame.u32(tid.0);
        frame.u64(address);
        let said = self.ask(frame, &[memory], wire::BYTES, until)?;
        let may_be_read = said.first() == Some(&1);
        let bytes = said.get(1..).unwrap_or_default();
        Ok(may_be_read.then(|| bytes[..bytes.len().min(len)].to_vec()))
    }

    /// The unwind table of a file, encoded; none if it has none. `is_raw`: the file holds what was read of another
    /// one.
    pub(crate) fn table(
        &mut self,
        file: BorrowedFd<'_>,
        is_raw: bool,
        until: Instant,
    ) -> Result<Option<Vec<u8>>, Death> {
        let mut frame = Frame::new(wire::TABLE);
        frame.u32(is_raw.into());
        let mut bytes = self.ask(frame, &[file], wire::TABLED, until)?;
        match bytes.first() {
            Some(0) => Ok(None),
            Some(1) => Ok(Some(bytes.split_off(1))),
            _ => Err(self.end(Death::Crashed)),
        }
    }

    /// What is answered to a question with files, unless it is `given_up` meanwhile.
    pub(super) fn question(
        &mut self,
        question: &[u8],
        files: &[BorrowedFd<'_>],
        until: Instant,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Death> {
        let mut frame = Frame::new(wire::QUESTION);
        frame.u32(0);
        frame.all(question);
        let frame = frame.finish();
        let socket = self.running()?.socket.as_fd();
        let answer = send(socket, &frame, files, until).and_then(|()| {
            loop {
                let next = (Instant::now() + GLANCE).min(until);
                match ready(socket, PollFlags::IN, next) {
                    Err(error)
                        if error.kind() == io::ErrorKind::TimedOut
                            && next < until
                            && !given_up() => {}
                    done => break done,
                }
            }?;
            receive(socket, until)
        });
        let (kind, mut bytes) = answer.map_err(|error| self.end_after(&error))?;
        match (kind, bytes.first()) {
            (wire::ANSWER, Some(1)) => Ok(bytes.split_off(1)),
            _ => Err(self.end(Death::Crashed)),
        }
    }

    /// Asks to have a file opened; see [`Client::opened`].
    pub(super) fn ask_to_open(
        &mut self,
        frame: Frame,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Asked, Death> {
        let socket = self.running()?.socket.as_fd();
        let sent = send(socket, &frame.finish(), fds, Instant::now() + END);
        sent.map_err(|error| self.end_after(&error))?;
        Ok(Asked::default())
    }

    /// What is said of a file that was to be opened, and the file. None if patience comes to its end before that: it can be
    /// asked for once more, and the next question waits behind it.
    pub(super) fn opened(
        &mut self,
        asked: &mut Asked,
        patience: &mut dyn FnMut(u32) -> Option<Instant>,
    ) -> Result<Option<Opened>, Death> {
        let number = self.pid().unwrap_or(0);
        let Some(process) = &self.process else {
            return Err(Death::Crashed);
        };
        let socket = process.socket.as_fd();
        // What has come is there as a whole at once.
        let mut receive = |kind| -> io::Result<Option<Opened>> {
            // It may be there already, however long nobody has looked.
            let mut until = Instant::now();
            loop {
                match ready(socket, PollFlags::IN, until) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        let Some(longer) = patience(number) else {
                            return Ok(None);
                        };
                        until = longer;
                    }
                    done => {
                        done?;
                        return receive_files(socket, kind, Instant::now() + END).map(Some);
                    }
                }
            }
        };
        let mut both = || -> io::Result<Option<Opened>> {
            if !asked.is_found {
                let Some((bytes, _)) = receive(wire::HANDLED)? else {
                    return Ok(None);
                };
                let mut reader = Reader(&bytes);
                // None is found: the reason follows.
                if reader.u8()? != 0 {
                    asked.device = Some((reader.u32()?, reader.u32()?));
                }
                asked.is_found = true;
            }
            receive(wire::OPENED)
        };
        both().map_err(|error| self.end_after(&error))
    }

    /// Its time is over.
    pub(super) fn give_up(&mut self) -> Death {
        self.end(Death::TooSlow)
    }

    /// Closes what was loaded.
    pub(crate) fn forget(&mut self, number: Number) {
        if !self.has(number) {
            return;
        }
        let mut frame = Frame::new(wire::FORGET);
        frame.u32(number.file);
        let until = Instant::now() + END;
        let told = self.process.as_mut().map(|process| {
            process.loaded = process.loaded.saturating_sub(1);
            send(process.socket.as_fd(), &frame.finish(), &[], until)
        });
        if matches!(told, Some(Err(_))) {
            self.end(Death::Crashed);
        }
    }

    /// Ends the process, and with it all that is loaded.
    pub(crate) fn rest(&mut self) {
        if self.process.is_some() {
            self.end(Death::TooSlow);
        }
    }

    /// Ends a process that holds more than it should when nothing is asked, unless that is all for one file.
    pub(crate) fn tidy(&mut self) {
        let child = self
            .process
            .as_ref()
            .and_then(|process| process.child.as_ref());
        if self.loaded() > 1
            && let Some(pid) = child.map(Child::id)
            && resident(pid).is_some_and(|bytes| bytes > self.limits.resting)
        {
            log::debug!("the process that reads symbols has grown: another one is started");
            self.rest();
        }
    }

    /// The process, and the processor time that it has had; none if there is none.
    pub(crate) fn worked(&self) -> Option<(u32, Duration)> {
        let pid = self.process.as_ref()?.child.as_ref()?.id();
        Some((pid, worked(pid)?))
    }

    /// Its processor time since [`Client::worked`] said `before`, in a time of so much.
    pub(crate) fn worked_since(&self, before: Option<(u32, Duration)>, all: Duration) -> Duration {
        let worked = match (before, self.worked()) {
            (Some((then, before)), Some((now, after))) if then == now => {
                after.saturating_sub(before)
            }
            (_, Some((_, all))) => all,
            // It has ended, or a thread is in its place.
            (_, None) => all,
        };
        worked.min(all)
    }

    /// The walls around the process.
    pub(crate) fn walls(&mut self) -> io::Result<Walls> {
        let walls = self.running().map(|process| process.walls);
        walls
            .ok()
            .flatten()
            .ok_or(io::ErrorKind::Unsupported.into())
    }

    /// The process, started if there is none.
    fn running(&mut self) -> Result<&mut Process, Death> {
        self.running_within(START)
    }

    /// The same, if it has begun so long after it was started.
    fn running_within(&mut self, patience: Duration) -> Result<&mut Process, Death> {
        dying().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.process.is_none() {
            self.started += 1;
            match self.spawn() {
                Ok(process) => self.process = Some(process),
                Err(error) => return Err(self.not_started(&error)),
            }
        }
        let begun = match &mut self.process {
            Some(process) => process.begin(patience),
            None => Err(wire::nonsense()),
        };
        if let Err(error) = begun {
            let is_late = error.kind() == io::ErrorKind::TimedOut;
            let started = self.process.as_ref().map(|process| process.started);
            if is_late && started.is_some_and(|at| at.elapsed() < START) {
                return Err(Death::NotStarted);
            }
            self.rest();
            return Err(self.not_started(&error));
        }
        self.process.as_mut().ok_or(Death::NotStarted)
    }

    fn not_started(&mut self, error: &io::Error) -> Death {
        self.given_up = Some(Instant::now());
        if !std::mem::replace(&mut self.complained, true) {
            log::warn!("no process can be started to read symbols: {error}");
        }
        Death::NotStarted
    }

    fn spawn(&self) -> io::Result<Process> {
        let (socket, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        if !self.apart {
            let (answering, reads) = (self.answering, matches!(self.job, Job::Reads));
            let thread = std::thread::Builder::new().name("names".to_owned());
            thread.stack_size(16 << 20).spawn(move || match reads {
                true => super::pieces::on_thread(its),
                false => super::serve::on_thread(its, answering()),
            })?;
            return Ok(Process {
                socket,
                child: None,
                started: Instant::now(),
                ended_for_memory: 0,
                walls: Some(Walls::default()),
                loaded: 0,
            });
        }
        let what = match self.job {
            Job::Names => self.limits.memory.to_string(),
            Job::Opens => OPENS.to_owned(),
            Job::Reads => READS.to_owned(),
        };
        let mut command = command(&what);
        #[cfg(test)]
        if let Some(before) = self.before {
            command = after(before, &command);
        }
        let child = background::start(&mut command, its)?;
        helpers().push(child.id());
        Ok(Process {
            socket,
            child: Some(child),
            started: Instant::now(),
            ended_for_memory: ended_for_memory(),
            walls: None,
            loaded: 0,
        })
    }

    /// Asks, and waits for an answer of this kind.
    fn ask(
        &mut self,
        frame: Frame,
        fds: &[BorrowedFd<'_>],
        kind: u32,
        until: Instant,
    ) -> Result<Vec<u8>, Death> {
        if Instant::now() >= until {
            return Err(self.end(Death::TooSlow));
        }
        let socket = self.running()?.socket.as_fd();
        let answer = send(socket, &frame.finish(), fds, until)
            .and_then(|()| receive(socket, until))
            .and_then(|(got, bytes)| match got == kind {
                true => Ok(bytes),
                false => Err(wire::nonsense()),
            });
        answer.map_err(|error| self.end_after(&error))
    }

    /// Ends the process after it did not answer.
    fn end_after(&mut self, error: &io::Error) -> Death {
        match error.kind() {
            io::ErrorKind::TimedOut => self.end(Death::TooSlow),
            _ => self.end(Death::Crashed),
        }
    }

    /// Ends the process, for this reason, unless it has ended and says more itself.
    fn end(&mut self, reason: Death) -> Death {
        let Some(process) = self.process.take() else {
            return reason;
        };
        let Some(mut child) = process.child else {
            // A thread goes on until it is done; nobody takes its answer.
            return reason;
        };
        helpers().retain(|id| *id != child.id());
        let status = match reason {
            Death::Crashed => wait(&mut child, END),
            _ => None,
        };
        if let Some(status) = status {
            return match status.signal() {
                // What allocates and gets nothing.
                Some(libc::SIGABRT) => Death::TooLarge,
                // What the kernel ends to have memory.
                Some(libc::SIGKILL) if ended_for_memory() > process.ended_for_memory => {
                    Death::TooLarge
                }
                Some(libc::SIGKILL) => Death::Killed,
                _ => Death::Crashed,
            };
        }
        let _ = child.kill();
        // One that did not answer may be in a call of the kernel: nobody waits once more.
        let patience = match reason {
            Death::TooSlow => Duration::ZERO,
            _ => END / 50,
        };
        if wait(&mut child, patience).is_none() {
            let mut dying = dying();
            dying.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            dying.push(child);
        }
        reason
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Answers nothing.
fn no_answers() -> Answering {
    Box::new(|_, _| None)
}

/// The processes that read symbols, of all clients; none of them has been waited for, so their ids are their own.
static HELPERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn helpers() -> MutexGuard<'static, Vec<u32>> {
    lock(&HELPERS)
}

/// Calls `with` for each process that reads symbols now. Its id stays its own meanwhile, even if it has ended.
pub fn for_each_helper(with: &mut dyn FnMut(u32)) {
    helpers().iter().for_each(|id| with(*id));
}

/// Killed, and not seen to end: they are in a call of the kernel, and take what time it takes. Of all clients, whose
/// own time may be over before that.
static DYING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

fn dying() -> MutexGuard<'static, Vec<Child>> {
    lock(&DYING)
}

/// Puts another one there; gives its number.
#[cfg(test)]
pub(crate) fn leave_dying(child: Child) -> u32 {
    let id = child.id();
    dying().push(child);
    id
}

/// Whether one of this number is among them even now.
pub(crate) fn is_dying(id: u32) -> bool {
    let mut dying = dying();
    dying.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    dying.iter().any(|child| child.id() == id)
}

/// Waits for the end of a child.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

/// How many processes the kernel has ended to have memory.
fn ended_for_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut lines = text.lines();
    let count = lines.find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Processor time of a process.
fn worked(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    // `utime` and `stime` are the 14th and 15th field, the state is the third.
    let mut fields = rest.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = fields.next()?.ok()?.saturating_add(fields.next()?.ok()?);
    let hz = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs_f64(ticks as f64 / hz as f64))
}

/// Bytes that a process has allocated and touched.
fn resident(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut words = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

impl Process {
    /// Waits until it has begun, so long after it was started.
    fn begin(&mut self, patience: Duration) -> io::Result<()> {
        if self.walls.is_some() {
            return Ok(());
        }
        let socket = self.socket.as_fd();
        // What has come is there as a whole at once.
        ready(socket, PollFlags::IN, self.started + patience)?;
        match receive(socket, Instant::now() + END)? {
            (wire::READY, bytes) if bytes.len() == 1 => {
                self.walls = Some(Walls::of_bits(bytes[0]));
                Ok(())
            }
            _ => Err(wire::nonsense()),
        }
    }
}

#[cfg(not(test))]
fn command(what: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(NAME)
        .arg(what)
        // Nothing of what its parent was told is its business.
        .env_clear();
    command
}

/// The program is that of the tests, one of which does it.
#[cfg(test)]
fn command(what: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--exact", "tests::apart::the_process", "--test-threads=1"])
        .env(crate::tests::apart::VARIABLE, what);
    command
}

/// The same command after what a shell is to do.
#[cfg(test)]
fn after(before: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    // It has another program than the tests.
    shell
        .args(["-c", &format!(r#"{before}; exec "$@""#), "sh"])
        .arg(std::env::current_exe().unwrap_or_default())
        .args(command.get_args());
    let envs = command.get_envs();
    shell.envs(envs.filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// Waits until something can be read or written.
fn ready(socket: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now()).min(LONGEST);
        let mut polled = [PollFd::from_borrowed_fd(socket, flags)];
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(wire::nonsense());
        }
        let parts = [IoSlice::new(&bytes[sent..])];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &parts, &mut ancillary, flags) {
            Ok(more) => sent += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready(socket, PollFlags::OUT, until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A frame of the process.
fn receive(socket: BorrowedFd<'_>, until: Instant) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; wire::HEAD];
    fill(socket, &mut head, until)?;
    let (kind, len) = wire::head(&head);
    if len > wire::most_said(kind) {
        return Err(wire::nonsense());
    }
    let mut bytes = vec![0; len];
    fill(socket, &mut bytes, until)?;
    Ok((kind, bytes))
}

/// The same of this kind, with a file that may come along.
fn receive_files(
    socket: BorrowedFd<'_>,
    kind: u32,
    until: Instant,
) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut head = [0; wire::HEAD];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut parts = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready(socket, PollFlags::IN, until)?,
            Err(error) => return Err(error.into()),
        }
    };
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let file = files.flatten().next();
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    fill(socket, &mut head[got..], until)?;
    let (is, len) = wire::head(&head);
    if is != kind || len > wire::most_said(kind) {
        return Err(wire::nonsense());
    }
    let mut bytes = vec![0; len];
    fill(socket, &mut bytes, until)?;
    Ok((bytes, file))
}

fn fill(socket: BorrowedFd<'_>, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((got, _)) => bytes = &mut bytes[got..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready(socket, PollFlags::IN, until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
