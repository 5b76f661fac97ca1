//! Asks what may never answer, on threads that can be left behind.
//!
//! A question to a process or a file system -> its answer, or nothing when that takes too long. What a process
//! has mapped, its command line and its files may lie with a server that is silent (FUSE, a dead NFS server), and
//! who asks waits in the kernel, deaf to signals. So a thread asks, which is left alone if need be: nothing more
//! is asked of what did not answer until it comes back, and of the processes of a user few may be silent before
//! nothing is asked of any of theirs.
//!
//! What does not belong here: memory of processes, which a process reads (`helper::memory`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use profiler_model::Pid;

use super::accounts::account_of;
use super::helper::is_dying;
use super::locks::lock;
use super::served::mount_of;
use super::warnings::warn_once;

/// How long an answer may take: it is there at once, unless nobody gets a processor.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same of what takes work as well.
const LONG_PATIENCE: Duration = Duration::from_secs(3);
/// Where somebody was waited for in vain, other servers that do not answer at once are waited for less during this time:
/// however many are silent, what is held up is held up about once.
const IN_VAIN: Duration = Duration::from_secs(10);
/// How many questions to one user's processes may be without an answer.
const MAX_SILENT: usize = 3;
/// The same of root's, whose own may do worse.
const MAX_SILENT_OF_ROOT: usize = 32;
/// The same for all users. Each takes a thread.
const MAX_STUCK: usize = 256;
/// How long nothing is asked of what did not answer, when nobody waits in the kernel any more for what was asked.
const SILENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether another file system has the number of a silent one: tables of mounts may be long.
const LOOK: Duration = Duration::from_millis(500);
/// How many threads may have been left behind by the files of one user.
const MAX_LEFT: usize = 8;

/// Who could go on and gets no processor is waited for so long besides.
pub(super) const STARVED: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whom {
    /// A process.
    Process(Pid),
    /// The file system of this device (major, minor).
    Device(u32, u32),
    /// What is found by paths below a root (number of its mount), in some folders there.
    Below(u64, u64),
}

type Job = Box<dyn FnOnce() + Send>;

/// Who asks, and what has not answered.
struct Asking {
    worker: Option<(Sender<Job>, Asker)>,
    silent: Option<FxHashMap<Whom, Silence>>,
}

/// Of what has not answered.
struct Silence {
    since: Instant,
    /// The user whose process it is, or has mapped its files.
    owner: u32,
    /// Of a file system: what it is. Its number is given to another one when it is gone.
    mount: Option<Box<[u8]>>,
    /// When it was last looked whether it is.
    looked: Option<Instant>,
    /// The process that has asked. As long as it waits in the kernel, what it has asked is there.
    asked_by: Option<u32>,
}

impl Silence {
    fn is_asked(&self) -> bool {
        self.asked_by.is_some_and(is_dying)
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }
}

static ASKING: Mutex<Asking> = Mutex::new(Asking {
    worker: None,
    silent: None,
});

/// When somebody was last waited for in vain.
static LAST_IN_VAIN: Mutex<Option<Instant>> = Mutex::new(None);

/// Whether somebody was waited for in vain lately.
pub(super) fn was_in_vain() -> bool {
    let last = *lock(&LAST_IN_VAIN);
    last.is_some_and(|last| last.elapsed() < IN_VAIN)
}

/// From now on another thread asks, with the priority of this one.
pub(super) fn begin_anew() {
    lock(&ASKING).worker = None;
}

/// Asks a process something; none if the answer does not come in time, or did not the last time.
pub(super) fn ask_process<T: Send + 'static>(
    pid: Pid,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    ask_for(PATIENCE, pid, question)
}

/// The same, where the answer takes some work.
pub(super) fn ask_at_length<T: Send + 'static>(
    pid: Pid,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    ask_for(LONG_PATIENCE, pid, question)
}

fn ask_for<T: Send + 'static>(
    patience: Duration,
    pid: Pid,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let whom = Whom::Process(pid);
    let waited = Arc::new(Mutex::new(true));
    let (answer, answers) = sync_channel(1);
    // Taken by whoever asks it.
    let question = Arc::new(Mutex::new(Some(question)));
    loop {
        let (is_waited, theirs, answer) = (waited.clone(), question.clone(), answer.clone());
        let job: Job = Box::new(move || {
            let Some(question) = lock(&theirs).take() else {
                return;
            };
            // Others' questions wait behind this one.
            let said = catch_unwind(AssertUnwindSafe(question)).ok();
            // There is room for it.
            let _ = answer.send(said);
            if !*lock(&is_waited)
                && let Some(silent) = &mut lock(&ASKING).silent
            {
                silent.remove(&whom);
            }
        });
        let mut now = lock(&ASKING);
        if now.refuses(pid, None) {
            return None;
        }
        let asker = now.hand(job)?;
        drop(now);
        match asker.wait(&answers, patience) {
            // It may have panicked.
            Ok(said) => return said,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut now = lock(&ASKING);
        if now.worker.as_ref().is_some_and(|(_, it)| it.is(&asker)) {
            // The thread ends with what it asks.
            now.worker = None;
        }
        drop(now);
        // It has waited behind another question, and was not asked yet.
        if lock(&question).is_some() {
            continue;
        }
        let mut waited = lock(&waited);
        // It may have come meanwhile. If not, it finds that nobody waits for it.
        if let Ok(said) = answers.try_recv() {
            return said;
        }
        give_up(whom, pid, None);
        *waited = false;
        return None;
    }
}

/// Whether nothing is to be asked of a process, or of the file system that it has mapped something of.
pub(super) fn is_silent(pid: Pid, device: (u32, u32)) -> bool {
    let whom = Whom::Device(device.0, device.1);
    let is_due = lock(&ASKING).is_due(whom);
    // Others may ask meanwhile.
    let mount = is_due.then(|| mount_of(pid, device)).flatten();
    let mut now = lock(&ASKING);
    now.forgive(whom, mount.as_deref());
    now.refuses(pid, Some(whom))
}

/// Whether nothing is to be asked of what has to do with this user.
pub(super) fn is_silent_to(owner: u32, whom: Whom) -> bool {
    let mut now = lock(&ASKING);
    now.forget_old();
    let silent = now.silent.as_ref();
    silent.is_some_and(|silent| refuses(silent, [whom], || owner))
}

/// Nothing more is asked of it, for this user, as this process has.
pub(super) fn give_up_for(owner: u32, whom: Whom, asked_by: Option<u32>) {
    fell_silent(whom, owner, None, asked_by);
}

fn fell_silent(whom: Whom, owner: u32, mount: Option<Box<[u8]>>, asked_by: Option<u32>) {
    let since = Instant::now();
    *lock(&LAST_IN_VAIN) = Some(since);
    let silence = Silence {
        since,
        owner,
        mount,
        looked: None,
        asked_by,
    };
    let mut now = lock(&ASKING);
    now.silent.get_or_insert_default().insert(whom, silence);
}

/// Nothing more is asked of it, which had to do with a process, as another one has.
pub(super) fn give_up(whom: Whom, pid: Pid, asked_by: Option<u32>) {
    let mount = match whom {
        Whom::Device(major, minor) => mount_of(pid, (major, minor)),
        Whom::Process(_) | Whom::Below(..) => None,
    };
    fell_silent(whom, owner_of(pid), mount, asked_by);
    match whom {
        Whom::Process(pid) => warn_once(
            "what does not answer",
            format_args!("process {pid} does not answer: what it has mapped stays unknown"),
        ),
        Whom::Device(major, minor) => warn_once(
            "what does not answer",
            format_args!(
                "the file system {major}:{minor} does not answer, of which process {pid} has mapped a file: \
                 files there have no names"
            ),
        ),
        Whom::Below(..) => {}
    }
}

/// Threads that were left behind by [`within`], by user; root's, and what is nobody's, are under 0.
static LEFT: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Does something on a thread of its own, which is left behind if it takes longer: none then, and if too many were
/// left behind that have not come back.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    user: Option<u32>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let user = user.unwrap_or(0);
    if refuses_more(&lock(&LEFT), user) {
        return None;
    }
    let (answer, answers) = sync_channel(1);
    let waited = Arc::new(Mutex::new(true));
    let is_waited = waited.clone();
    let asker = Asker::default();
    let itself = asker.clone();
    let thread = std::thread::Builder::new().name("asking".to_owned());
    let started = thread.spawn(move || {
        itself.begin();
        let _ = answer.send(work());
        if !*lock(&is_waited) {
            let mut left = lock(&LEFT);
            if let Some(index) = left.iter().position(|&whose| whose == user) {
                left.swap_remove(index);
            }
        }
    });
    if let Err(error) = started {
        log::debug!("no thread to ask with: {error}");
        return None;
    }
    match asker.wait(&answers, patience) {
        Ok(answer) => return Some(answer),
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    let mut waited = lock(&waited);
    if let Ok(answer) = answers.try_recv() {
        return Some(answer);
    }
    *waited = false;
    lock(&LEFT).push(user);
    None
}

/// Whether so many threads were left behind that this user gets no more.
fn refuses_more(left: &[u32], user: u32) -> bool {
    let most = match user {
        0 => MAX_SILENT_OF_ROOT,
        _ => MAX_LEFT,
    };
    left.len() >= MAX_STUCK || left.iter().filter(|&&whose| whose == user).count() >= most
}

/// Whether there is no use in asking any of these, which have to do with a user.
fn refuses(
    silent: &FxHashMap<Whom, Silence>,
    asked: impl IntoIterator<Item = Whom>,
    owner: impl FnOnce() -> u32,
) -> bool {
    if silent.is_empty() {
        return false;
    }
    let mut asked = asked.into_iter();
    if silent.len() >= MAX_STUCK || asked.any(|whom| silent.contains_key(&whom)) {
        return true;
    }
    let owner = owner();
    let most = match owner {
        0 => MAX_SILENT_OF_ROOT,
        _ => MAX_SILENT,
    };
    silent.values().filter(|it| it.owner == owner).count() >= most
}

impl Asking {
    /// Whether it is to be looked what has the number of what did not answer.
    fn is_due(&mut self, whom: Whom) -> bool {
        let silent = self.silent.as_mut();
        let of = silent.and_then(|silent| silent.get_mut(&whom));
        of.is_some_and(Silence::is_due)
    }

    /// What is mounted there now may not be what did not answer.
    fn forgive(&mut self, whom: Whom, mount: Option<&[u8]>) {
        if let (Some(silent), Some(mount)) = (&mut self.silent, mount)
            && silent
                .get(&whom)
                .is_some_and(|it| it.mount.as_deref() != Some(mount) && !it.is_asked())
        {
            silent.remove(&whom);
        }
    }

    /// Forgets what did not answer long ago, unless somebody waits for it even now.
    fn forget_old(&mut self) {
        let Some(silent) = &mut self.silent else {
            return;
        };
        silent.retain(|whom, it| {
            it.since.elapsed() < SILENCE
                || match whom {
                    // What its threads ask they ask until it ends.
                    Whom::Process(pid) => Path::new(&format!("/proc/{pid}")).exists(),
                    Whom::Device(..) | Whom::Below(..) => it.is_asked(),
                }
        });
    }

    /// Whether there is no use in asking.
    fn refuses(&mut self, pid: Pid, device: Option<Whom>) -> bool {
        self.forget_old();
        let asked = [Some(Whom::Process(pid)), device];
        let silent = self.silent.as_ref();
        silent.is_some_and(|silent| refuses(silent, asked.into_iter().flatten(), || owner_of(pid)))
    }

    /// Hands a question to the thread, which is started if there is none.
    fn hand(&mut self, job: Job) -> Option<Asker> {
        let job = match &self.worker {
            Some((worker, asker)) => match worker.send(job) {
                Ok(()) => return Some(asker.clone()),
                Err(unsent) => unsent.0,
            },
            None => job,
        };
        let (sender, jobs) = channel::<Job>();
        let thread = std::thread::Builder::new().name("asking".to_owned());
        let asker = Asker::default();
        let itself = asker.clone();
        let started = thread.spawn(move || {
            itself.begin();
            jobs.into_iter().for_each(|job| job());
        });
        if let Err(error) = started {
            log::debug!("no thread to ask with: {error}");
            return None;
        }
        sender.send(job).ok()?;
        self.worker = Some((sender, asker.clone()));
        Some(asker)
    }
}

/// The number of a thread that asks, when it has begun.
#[derive(Clone, Default)]
struct Asker(Arc<AtomicU32>);

impl Asker {
    fn begin(&self) {
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        self.0.store(number.cast_unsigned(), Ordering::Relaxed);
    }

    /// Waits for an answer so long, and longer while the thread gets no processor: that is nobody's silence.
    fn wait<T>(&self, answers: &Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
        let last = Instant::now() + STARVED;
        loop {
            match answers.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) if self.starves() && Instant::now() < last => {}
                done => return done,
            }
        }
    }

    fn is(&self, other: &Asker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn starves(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => true,
            number => would_run(&format!("/proc/self/task/{number}/stat")),
        }
    }
}

/// Whether a thread waits for nothing but a processor, by its line of /proc.
pub(super) fn would_run(stat: &str) -> bool {
    let line = fs::read_to_string(stat).unwrap_or_default();
    let state = line.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| rest.starts_with('R'))
}

/// Who a process is counted under; nobody's if it has ended. The folder says it without asking the process.
pub(super) fn owner_of(pid: Pid) -> u32 {
    let folder = fs::metadata(format!("/proc/{pid}"));
    folder.map_or(u32::MAX, |folder| account_of(folder.uid()))
}

#[cfg(test)]
mod tests {
    use super::super::helper::leave_dying;
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const HANGS: Duration = Duration::from_secs(60);

    fn knows(asking: &Asking, whom: Whom) -> bool {
        let silent = asking.silent.as_ref();
        silent.is_some_and(|silent| silent.contains_key(&whom))
    }

    #[test]
    fn who_does_not_answer_is_left_alone_until_it_does() {
        // No such process can be.
        let (silent, other) = (Pid(u32::MAX), Pid(u32::MAX - 1));
        assert_eq!(ask_process(silent, || 1), Some(1));
        let (let_go, held) = channel::<()>();
        assert_eq!(ask_for(SHORT, silent, move || held.recv().is_err()), None);
        assert_eq!(ask_process(silent, || 2), None, "it is not asked again");
        assert_eq!(ask_process(other, || 3), Some(3), "others are");
        assert!(is_silent(silent, (8, 1)) && !is_silent(other, (8, 1)));
        drop(let_go);
        while ask_process(silent, || 4).is_none() {
            std::thread::yield_now();
        }
        give_up(Whom::Device(4000, 1), other, None);
        assert!(is_silent(other, (4000, 1)) && !is_silent(other, (4000, 2)));
    }

    #[test]
    fn numbers_that_are_given_again_are_not_silent() {
        let own = Pid(std::process::id());
        let number = fs::metadata("/proc/self").unwrap().dev();
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let whom = Whom::Device(device.0, device.1);
        fell_silent(
            whom,
            123_457,
            Some(b"fuse silent rw".as_slice().into()),
            None,
        );
        assert!(!is_silent(own, device) && !knows(&lock(&ASKING), whom));
        fell_silent(whom, 123_457, mount_of(own, device), None);
        assert!(is_silent(own, device));
        // A table of mounts is not read for each file.
        assert!(!lock(&ASKING).is_due(whom));
        lock(&ASKING).forgive(whom, Some(b"proc another rw".as_slice()));
    }

    #[test]
    fn who_waits_in_the_kernel_is_not_joined_by_another() {
        let own = Pid(std::process::id());
        let waits = std::process::Command::new("sleep").arg("60").spawn();
        let waits = leave_dying(waits.unwrap());
        let mut asking = Asking {
            worker: None,
            silent: None,
        };
        let whom = Whom::Device(4000, 5);
        let silence = Silence {
            since: Instant::now().checked_sub(2 * SILENCE).unwrap(),
            owner: 123_459,
            mount: None,
            looked: None,
            asked_by: Some(waits),
        };
        asking.silent.get_or_insert_default().insert(whom, silence);
        asking.forgive(whom, Some(b"fuse with other options"));
        assert!(asking.refuses(own, Some(whom)));
        let pid = rustix::process::Pid::from_raw(waits.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while asking.refuses(own, Some(whom)) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn silence_is_not_for_ever() {
        let own = Pid(std::process::id());
        let mut asking = Asking {
            worker: None,
            silent: None,
        };
        let silent = asking.silent.get_or_insert_default();
        let long_ago = Instant::now().checked_sub(2 * SILENCE).unwrap();
        let all = [
            (Whom::Device(4000, 3), long_ago, false),
            (Whom::Device(4000, 4), Instant::now(), true),
            (Whom::Below(1, 2), long_ago, false),
            (Whom::Process(Pid(u32::MAX - 1)), long_ago, false),
            (Whom::Process(own), long_ago, true),
        ];
        for (whom, since, _) in all {
            let silence = Silence {
                since,
                owner: 123_458,
                mount: None,
                looked: None,
                asked_by: None,
            };
            silent.insert(whom, silence);
        }
        asking.forget_old();
        for (whom, _, is_kept) in all {
            assert_eq!(knows(&asking, whom), is_kept, "{whom:?}");
        }
    }

    #[test]
    fn work_that_takes_too_long_is_left_behind() {
        let user = Some(123_456);
        assert_eq!(within(LONG_PATIENCE, user, || 1), Some(1));
        let (let_go, held) = channel::<()>();
        assert_eq!(within(SHORT, user, move || held.recv().is_err()), None);
        let is_left = || lock(&LEFT).contains(&123_456);
        assert!(is_left());
        drop(let_go);
        while is_left() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn nobodys_silence_is_everybodys() {
        let mut left = vec![7; MAX_LEFT];
        assert!(refuses_more(&left, 7) && !refuses_more(&left, 8) && !refuses_more(&left, 0));
        left.extend([0; MAX_SILENT_OF_ROOT]);
        assert!(refuses_more(&left, 0) && !refuses_more(&left, 8));
        left.extend((1000..).take(MAX_STUCK));
        assert!(refuses_more(&left, 8));
        // The same of questions: eleven users with three silent processes each are no reason to ask nothing of a twelfth.
        let mut asking = Asking {
            worker: None,
            silent: None,
        };
        let silent = asking.silent.get_or_insert_default();
        for number in 0..33 {
            silent.insert(
                Whom::Process(Pid(u32::MAX - 100 - number)),
                Silence {
                    since: Instant::now(),
                    owner: 5000 + number / 3,
                    mount: None,
                    looked: None,
                    asked_by: None,
                },
            );
        }
        assert!(!asking.refuses(Pid(std::process::id()), None));
    }

    #[test]
    fn who_would_run_is_waited_for() {
        // Answers when it has worked three times as long as it is waited for.
        let works = || {
            let begun = Instant::now();
            while begun.elapsed() < 3 * SHORT {}
            1
        };
        assert_eq!(ask_for(SHORT, Pid(u32::MAX - 2), works), Some(1));
        let waits = || std::thread::sleep(HANGS);
        assert_eq!(ask_for(SHORT, Pid(u32::MAX - 3), waits), None);
        assert!(would_run("/proc/thread-self/stat"));
    }

    #[test]
    fn who_waits_behind_another_is_asked() {
        let (let_go, held) = channel::<()>();
        let (begun, has_begun) = channel::<()>();
        let silent = std::thread::spawn(move || {
            let waits = move || {
                let _ = begun.send(());
                held.recv().is_err()
            };
            ask_for(10 * SHORT, Pid(u32::MAX - 4), waits)
        });
        has_begun.recv().unwrap();
        assert_eq!(ask_for(SHORT, Pid(u32::MAX - 5), || 1), Some(1));
        assert_eq!(silent.join().unwrap(), None);
        drop(let_go);
    }

    #[test]
    fn a_panic_is_no_answer_and_the_next_one_is_asked() {
        let own = Pid(std::process::id());
        let panics = || -> u32 { panic!("as a test wants") };
        assert_eq!(ask_process(own, panics), None);
        assert_eq!(ask_process(own, || 1), Some(1));
    }
}
