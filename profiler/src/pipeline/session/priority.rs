//! The priority of the threads that a recording depends on, and the budget of it.
//!
//! What is left too long in the kernel's buffers is lost, and what is told too late is not to be had any more: who
//! empties the buffers, builds unwind tables, finds names and writes goes before what is recorded. Nice values count
//! within a session or a cgroup only, so these threads are in a real-time class, as long as they have used less of it
//! than their [`Account`] allows; behind that they are ordinary ones, at nice -20 once it records. A thread of its own sees to that:
//! nobody has to come to an end of its work for its time to be over. Processor time in nanoseconds.
//!
//! What does not belong here: how a thread is scheduled (`profiler_target::schedule`).

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_resolve::for_each_helper;
use profiler_target::command::SPAWNER;
use profiler_target::schedule::{
    Class, ThreadId, class_of, process_time_ns, set_class, this_thread, thread_time_ns,
};

/// Of a kind of threads together: so much real time at once.
const BURST_NS: i64 = 300_000_000;
/// And one in so many nanoseconds, in the long run.
const SHARE: u128 = 4;
/// A thread that helps, and has used so much, has more to do than is anybody's business.
const MOST_HELP_NS: u64 = 2_000_000_000;
/// The nice value of threads whose real time is used up.
const NICE: i32 = -20;
/// Real-time priorities: of who sees to it, of who empties buffers and writes, of who helps.
const WATCHING: u32 = 3;
const COLLECTING: u32 = 2;
const HELPING: u32 = 1;
/// How often it is looked who has used how much: soon at first, and while much is used or somebody has not begun.
const FIRST: Duration = Duration::from_millis(500);
const BUSY_INTERVAL: Duration = Duration::from_millis(20);
const INTERVAL: Duration = Duration::from_millis(100);
/// So much in an interval is much.
const BUSY_NS: u64 = 5_000_000;
/// As long as there are as many threads as before, at most so many looks take them for the same.
const SAME: u32 = 9;
/// The thread that writes.
const WRITER: &str = "capture";

/// While it lives, this thread goes before others; and those that are started meanwhile, and what they start to find
/// names.
pub(in crate::pipeline) struct Priority {
    watched: Option<(JoinHandle<()>, Arc<Stop>)>,
    before: Option<Class>,
    is_raised: bool,
}

#[derive(Default)]
struct Stop {
    over: Mutex<bool>,
    bell: Condvar,
    records: AtomicBool,
}

impl Priority {
    pub(in crate::pipeline) fn begin() -> Priority {
        let this = this_thread();
        let none = |is_raised| Priority {
            watched: None,
            before: None,
            is_raised,
        };
        // Who is in another class already was put there by somebody.
        let Ok(Some(before @ Class::Ordinary(_))) = class_of(this) else {
            return none(true);
        };
        let mut watch = match Watch::begin(this) {
            Ok(watch) => watch,
            Err(error) => {
                log::info!(
                    "no priority over what is recorded, which takes CAP_SYS_NICE ({error}): on a busy machine more is \
                     lost, and the end comes later"
                );
                return none(false);
            }
        };
        let stop = Arc::new(Stop::default());
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name("priority".to_owned());
        let watched = thread.spawn(move || watch.run(&theirs));
        let watched = watched.inspect_err(|error| log::debug!("no priority: {error}"));
        if watched.is_err() {
            // Nobody would take it back.
            let _ = set_class(this, before, true);
        }
        Priority {
            is_raised: watched.is_ok(),
            watched: watched.ok().map(|thread| (thread, stop)),
            before: Some(before),
        }
    }

    /// What is recorded is recorded from now on: until then, whoever has used up its real time holds up nothing but a start.
    pub(in crate::pipeline) fn records(&self) {
        if let Some((_, stop)) = &self.watched {
            stop.records.store(true, Ordering::Relaxed);
        }
    }

    /// The nice value that this thread had, if it has another priority now: what it starts for others' sake is to have it.
    pub(in crate::pipeline) fn nice_before(&self) -> Option<i32> {
        match self.before {
            Some(Class::Ordinary(nice)) => Some(nice),
            _ => None,
        }
    }

    /// Until this process ends, which has nothing left to do but to say so.
    pub(in crate::pipeline) fn keep(self) {
        std::mem::forget(self);
    }

    /// Whether it goes before others at all.
    pub(in crate::pipeline) fn is_raised(&self) -> bool {
        self.is_raised
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        let Some((thread, stop)) = self.watched.take() else {
            return;
        };
        *stop.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        stop.bell.notify_all();
        let _ = thread.join();
        if let Some(before) = self.before
            && let Err(error) = set_class(this_thread(), before, true)
        {
            log::debug!("the priority is not set back: {error}");
        }
    }
}

/// Real time that threads of a kind may use.
#[derive(Debug)]
struct Account {
    left_ns: i64,
    is_open: bool,
}

impl Account {
    fn new() -> Account {
        Account {
            left_ns: BURST_NS,
            is_open: true,
        }
    }

    /// So much time has passed, in which they have used so much.
    fn settle(&mut self, passed: Duration, used_ns: u64) {
        let earned = i64::try_from(passed.as_nanos() / SHARE).unwrap_or(BURST_NS);
        let used = match self.is_open {
            true => i64::try_from(used_ns).unwrap_or(i64::MAX),
            false => 0,
        };
        let left = self.left_ns.saturating_add(earned).saturating_sub(used);
        self.left_ns = left.min(BURST_NS);
        // Not on and off at each look.
        self.is_open = match self.is_open {
            true => self.left_ns > 0,
            false => self.left_ns >= BURST_NS / 2,
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Collects,
    Helps,
}

/// A thread, or a process with one thread.
#[derive(Debug)]
struct Member {
    kind: Kind,
    has_begun: bool,
    /// What it starts begins in its class: it waits for that, and it is put where it belongs later.
    hands_on: bool,
    class: Option<Class>,
    first_ns: u64,
    last_ns: u64,
}

impl Member {
    fn new(kind: Kind, now_ns: u64) -> Member {
        Member {
            kind,
            has_begun: true,
            hands_on: false,
            class: None,
            first_ns: now_ns,
            last_ns: now_ns,
        }
    }

    /// What it has used since it was last asked.
    fn used(&mut self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns))
    }

    fn wanted(&self, collecting: &Account, helping: &Account, records: bool) -> Class {
        let spent = self.last_ns.saturating_sub(self.first_ns) >= MOST_HELP_NS;
        match self.kind {
            Kind::Helps if spent => Class::Ordinary(0),
            Kind::Helps if helping.is_open => Class::RealTime(HELPING),
            Kind::Collects if collecting.is_open => Class::RealTime(COLLECTING),
            _ if records => Class::Ordinary(NICE),
            _ => Class::Ordinary(0),
        }
    }

    /// Puts it where it belongs.
    fn place(&mut self, id: ThreadId, wanted: Class) {
        if self.class == Some(wanted) {
            return;
        }
        self.class = Some(wanted);
        if let Err(error) = raise(id, wanted, self.hands_on) {
            log::debug!("thread {id}: {error}");
        }
    }
}

/// Who is watched, and what is left for them.
struct Watch {
    main: ThreadId,
    /// Threads that were there before: none of a recording's.
    others: HashSet<ThreadId>,
    members: HashMap<ThreadId, Member>,
    /// How many threads there were when they were listed, and how often that has been enough since.
    listed: (u64, u32),
    collecting: Account,
    helping: Account,
    began: Instant,
    looked: Instant,
}

impl Watch {
    fn begin(main: ThreadId) -> io::Result<Watch> {
        raise(main, Class::RealTime(COLLECTING), true)?;
        let mut others: HashSet<ThreadId> = threads().collect();
        others.remove(&main);
        let now = Instant::now();
        let used_ns = thread_time_ns(main).unwrap_or(0);
        let member = Member {
            hands_on: true,
            ..Member::new(Kind::Collects, used_ns)
        };
        Ok(Watch {
            main,
            others,
            members: HashMap::from([(main, member)]),
            listed: (0, 0),
            collecting: Account::new(),
            helping: Account::new(),
            began: now,
            looked: now,
        })
    }

    fn run(&mut self, stop: &Stop) {
        let this = this_thread();
        self.others.insert(this);
        if let Err(error) = raise(this, Class::RealTime(WATCHING), false) {
            log::debug!("who sees to priorities has none: {error}");
        }
        let mut over = stop.over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*over {
            let interval = self.look(stop.records.load(Ordering::Relaxed));
            let waited = stop.bell.wait_timeout(over, interval);
            over = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.leave();
    }

    /// Sees who is there, charges what was used, and puts all where they belong. When to look again.
    fn look(&mut self, records: bool) -> Duration {
        self.see();
        let now = Instant::now();
        let passed = now - std::mem::replace(&mut self.looked, now);
        let mut used = [0, 0];
        self.members.retain(|id, member| {
            // A process's only thread has its id, and is none of ours.
            let Some(now_ns) = thread_time_ns(*id).or_else(|| process_time_ns(*id)) else {
                return false;
            };
            used[member.kind as usize] += member.used(now_ns);
            true
        });
        self.collecting
            .settle(passed, used[Kind::Collects as usize]);
        self.helping.settle(passed, used[Kind::Helps as usize]);
        let (collecting, helping) = (&self.collecting, &self.helping);
        place_all(&mut self.members, |member| {
            member.wanted(collecting, helping, records)
        });
        let mut members = self.members.values();
        let is_first = now - self.began < FIRST;
        let is_busy = used.iter().sum::<u64>() >= BUSY_NS;
        match is_first || is_busy || members.any(|member| !member.has_begun) {
            true => BUSY_INTERVAL,
            false => INTERVAL,
        }
    }

    /// What goes on without it goes as all others do.
    fn leave(&mut self) {
        self.members.remove(&self.main);
        place_all(&mut self.members, |_| Class::Ordinary(0));
    }

    /// Listing threads takes longer than all else here.
    fn see_threads(&mut self) {
        let (count, times) = self.listed;
        let all_have_begun = self.members.values().all(|member| member.has_begun);
        if all_have_begun && times < SAME && count == thread_count() {
            self.listed.1 += 1;
            return;
        }
        // Who comes while they are listed makes it another number.
        self.listed = (thread_count(), 0);
        let main_name = LazyCell::new(|| name_of(self.main));
        for id in threads() {
            let member = self.members.get(&id);
            if self.others.contains(&id) || member.is_some_and(|member| member.has_begun) {
                continue;
            }
            let name = name_of(id);
            if name.as_deref() == Some(SPAWNER) {
                self.members.remove(&id);
                continue;
            }
            let new = || Member::new(Kind::Helps, thread_time_ns(id).unwrap_or(0));
            let member = self.members.entry(id).or_insert_with(new);
            // Until then it has its parent's name. It helps, since who does not begin helps nobody.
            member.has_begun = name != *main_name;
            if name.as_deref() == Some(WRITER) {
                member.kind = Kind::Collects;
            }
        }
    }

    fn see(&mut self) {
        self.see_threads();
        for_each_helper(&mut |id| {
            let used_ns = || process_time_ns(id).unwrap_or(0);
            let new = || Member::new(Kind::Helps, used_ns());
            self.members.entry(id).or_insert_with(new);
        });
    }
}

/// Puts all that are there where they belong.
fn place_all(members: &mut HashMap<ThreadId, Member>, wanted: impl Fn(&Member) -> Class) {
    // Who is there takes longer to find out than all else here, and most of the time nobody is to be put anywhere.
    let is_in_place = |member: &Member| member.class == Some(wanted(member));
    if members.values().all(is_in_place) {
        return;
    }
    let mut place = |id| {
        if let Some(member) = members.get_mut(&id) {
            member.place(id, wanted(member));
        }
    };
    threads().for_each(&mut place);
    // None of them is waited for meanwhile: its number can't become another's.
    for_each_helper(&mut place);
}

/// Where real time is not to be had (cgroups of version 1 share it out), the nice value alone.
fn raise(id: ThreadId, class: Class, inherited: bool) -> io::Result<()> {
    match set_class(id, class, inherited) {
        Err(_) if matches!(class, Class::RealTime(_)) => {
            set_class(id, Class::Ordinary(NICE), inherited)
        }
        done => done,
    }
}

/// The threads of this process.
fn threads() -> impl Iterator<Item = ThreadId> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// How many they are.
fn thread_count() -> u64 {
    rustix::fs::stat("/proc/self/task").map_or(0, |folder| folder.st_nlink)
}

fn name_of(thread: ThreadId) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: u64 = 1_000_000;

    #[test]
    fn who_works_all_the_time_has_a_quarter_of_it_in_the_long_run() {
        let mut account = Account::new();
        let (mut real_ns, mut turns) = (0, 0);
        for _ in 0..1000 {
            // All of a processor.
            if account.is_open {
                real_ns += 100 * MS;
            }
            let before = account.is_open;
            account.settle(Duration::from_millis(100), 100 * MS);
            turns += u64::from(before != account.is_open);
        }
        let total_ns = 100 * SECOND.as_nanos() as u64;
        assert!(real_ns <= total_ns / 4 + 400 * MS, "{real_ns}");
        assert!(real_ns >= total_ns / 5, "{real_ns}");
        assert!(turns < 500, "{turns}");
    }

    #[test]
    fn who_works_little_is_never_out_of_it() {
        let mut account = Account::new();
        for _ in 0..1000 {
            account.settle(Duration::from_millis(100), 20 * MS);
            assert!(account.is_open);
        }
        // What is not used is not saved for later.
        account.settle(SECOND * 60, 0);
        account.settle(Duration::ZERO, 300 * MS);
        assert!(!account.is_open);
    }

    #[test]
    fn who_helps_for_long_goes_like_all_others() {
        let accounts = (Account::new(), Account::new());
        let mut member = Member::new(Kind::Helps, 5 * MS);
        let wanted = |member: &Member| member.wanted(&accounts.0, &accounts.1, true);
        assert_eq!(wanted(&member), Class::RealTime(HELPING));
        assert_eq!(member.used(1005 * MS), 1000 * MS);
        assert_eq!(wanted(&member), Class::RealTime(HELPING));
        assert_eq!(member.used(2005 * MS), 1000 * MS);
        assert_eq!(wanted(&member), Class::Ordinary(0));
        member.kind = Kind::Collects;
        assert_eq!(wanted(&member), Class::RealTime(COLLECTING));
        let mut spent = Account::new();
        spent.is_open = false;
        let wanted = |records| member.wanted(&spent, &spent, records);
        assert_eq!(wanted(true), Class::Ordinary(NICE));
        assert_eq!(wanted(false), Class::Ordinary(0));
    }

    /// A thread that is there until it is told to end.
    fn waits(name: &str) -> (ThreadId, impl FnOnce()) {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            tell.send(this_thread()).unwrap();
            let _ = ended.recv();
        });
        let id = told.recv().unwrap();
        (id, move || {
            drop(end);
            thread.unwrap().join().unwrap();
        })
    }

    // One test: each sees all threads that are started meanwhile.
    #[test]
    fn threads_that_are_started_meanwhile_go_before_others() {
        let on_a_thread = || {
            let (before, end_before) = waits("before");
            let Ok(mut watch) = Watch::begin(this_thread()) else {
                eprintln!("SKIPPED: no right to raise the priority");
                return;
            };
            let (helper, end_helper) = waits("unwind-tables");
            let (writer, end_writer) = waits(WRITER);
            watch.look(true);
            let class = |id| class_of(id).unwrap();
            let is_real = matches!(class(this_thread()), Some(Class::RealTime(_)));
            let raised = |priority| match is_real {
                true => Some(Class::RealTime(priority)),
                false => Some(Class::Ordinary(NICE)),
            };
            assert_eq!(class(this_thread()), raised(COLLECTING));
            assert_eq!(class(writer), raised(COLLECTING));
            assert_eq!(class(helper), raised(HELPING));
            assert_eq!(class(before), Some(Class::Ordinary(0)));
            // Its account is empty.
            watch.helping.left_ns = -1_000_000_000;
            watch.look(true);
            assert_eq!(class(helper), Some(Class::Ordinary(NICE)));
            assert_eq!(class(writer), raised(COLLECTING));
            for end in [
                Box::new(end_before) as Box<dyn FnOnce()>,
                Box::new(end_helper),
            ] {
                end();
            }
            end_writer();
        };
        std::thread::spawn(on_a_thread).join().unwrap();
        let on_a_thread = || {
            let priority = Priority::begin();
            let class = class_of(this_thread()).unwrap();
            assert_eq!(priority.is_raised(), class != Some(Class::Ordinary(0)));
            drop(priority);
            assert_eq!(class_of(this_thread()).unwrap(), Some(Class::Ordinary(0)));
        };
        std::thread::spawn(on_a_thread).join().unwrap();
    }
}
