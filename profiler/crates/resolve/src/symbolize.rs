//! Names for code, found on threads of their own.
//!
//! Requests (a module, addresses in it) -> [`Reply`], one answer per address. The queue is bounded
//! and never waited for. Each thread asks a process of its own, which it ends when that takes too long
//! (`helper`): a file that ends its process loses its names. Files with much debug information are passed
//! on to a second thread, so that a slow one does not keep the names of all others back. What users can change has threads
//! of its own, by user, so that nobody's files keep the names of others' back. What is loaded is bounded, and dropped when
//! idle.
//!
//! What does not belong here: which addresses need names, and what is done with answers (`names`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::accounts::account_of;
use super::by_user::ByUser;
use super::debug_files::Search;
use super::files::TargetFile;
use super::helper::{Client, Death, Found, Limits, Number};
use super::jit::JitCode;
use super::link_folder;
use super::loaded::LoadError;
use super::locks::lock;
use super::mapping::CodeModule;
use super::material::{Kept, Material};
use super::owners::{Effort, Owners, Work};
use super::patience::within;
use super::turns::{READERS, Turn, Turns};
use super::unpacked::Unpacked;
use super::warnings::warn_once;
use profiler_model::UnknownReason;

/// Requests that may wait.
const QUEUE: usize = 256;
/// Files of one thread that stay loaded.
const MAX_LOADED: usize = 64;
/// Estimated memory of one thread's loaded files; one alone may exceed it.
const MAX_LOADED_BYTES: u64 = 24 << 20;
/// Memory of what runtimes say of their code.
const MAX_MAP_BYTES: usize = 32 << 20;
/// When nothing has been asked for this long, everything loaded is dropped.
const IDLE: Duration = Duration::from_secs(10);
/// How long reading it may take.
const MAP_PATIENCE: Duration = Duration::from_secs(5);
/// It is not read again sooner.
const MAP_INTERVAL: Duration = Duration::from_millis(200);
/// Debug information larger than this is read on the second thread, unless told otherwise.
pub(super) const LARGE_BYTES: u64 = 48 << 20;
/// See [`Settings::patience`].
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The same on the second thread: so many times.
const SLOWER: u32 = 8;
/// No patience is longer.
const MAX_PATIENCE: Duration = Duration::from_secs(3600);
/// A thread that has not come back after so many times its patience hangs in a file system: it may have read a
/// file twice, with debug information and without.
const STUCK: u32 = 3;
/// Threads that are given up, with a file that can't even be opened.
const MAX_REPLACED: u32 = 8;
/// Longest function whose code is kept.
pub(super) const MAX_CODE_BYTES: u64 = 16 << 10;
/// The second thread.
const LARGE: &str = "symbols-large";
/// The one for names alone.
const NAMES: &str = "symbols-names";

/// A function, as found in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FunctionInfo {
    /// Demangled name; empty if nothing but bounds is known of it.
    pub(super) name: Box<str>,
    /// Name as in the symbol table, where that differs.
    pub(super) linkage_name: Option<Box<str>>,
    /// Source file.
    pub(super) file: Option<Box<str>>,
    /// The line that it is defined at there; 0: not known.
    pub(super) line: u32,
    /// Frame address of its start.
    pub(super) start: Option<u64>,
    /// Length in bytes.
    pub(super) size: Option<u64>,
}

/// What an address means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Functions and lines, innermost first; never empty.
    Lines(Arc<[(Arc<FunctionInfo>, u32)]>),
    /// No name can be had.
    Unknown(UnknownReason),
    /// None can be had now; ask again.
    NotYet,
}

/// The frame address of a function, and its first bytes.
pub(super) type CodeBytes = (u64, Arc<[u8]>);

/// One address and its answer.
#[derive(Debug)]
pub(super) struct Reply {
    /// The module asked about.
    pub(super) module: u64,
    /// The frame address.
    pub(super) address: u64,
    /// What it means.
    pub(super) answer: Answer,
    /// The code of the function there.
    pub(super) code: Option<CodeBytes>,
}

/// A process has announced other code where code of it had been.
#[derive(Debug)]
pub(super) struct Renewed {
    /// The code of the process.
    pub(super) module: Arc<CodeModule>,
    /// First addresses of what is no more, and those behind.
    pub(super) ranges: Vec<(u64, u64)>,
}

/// What the threads tell.
#[derive(Debug)]
pub(super) enum Told {
    /// Answers.
    Names(Vec<Reply>),
    /// Names from now on are others.
    Renewed(Renewed),
}

/// Asks for names.
#[derive(Debug)]
pub(super) struct Request {
    /// The module.
    pub(super) module: Arc<CodeModule>,
    /// Its file; none for run-time code.
    pub(super) file: Option<Arc<TargetFile>>,
    /// Frame addresses, and whether the function's code is wanted; none: whether run-time code was announced anew.
    pub(super) addresses: Vec<(u64, bool)>,
}

impl Request {
    fn owner(&self) -> Option<u32> {
        owner_of(&self.module, self.file.as_deref())
    }

    /// What is asked about first: what can't be named later (code made at run time, files of containers, deleted
    /// ones), then files that will still be there. Of each the small ones first, which else get no names where there
    /// is no time for all: what it takes to answer grows with the bytes of the file.
    pub(super) fn order(&self) -> (bool, u64) {
        let file = self.file.as_ref();
        let stays = file.is_some_and(|file| file.stays());
        (stays, file.map_or(0, |file| file.opened_len))
    }
}

/// Whose a module's file, or its code is; none is root's alone.
pub(super) fn owner_of(module: &CodeModule, file: Option<&TargetFile>) -> Option<u32> {
    match (file, &module.jit) {
        (Some(file), _) => file.owner,
        (None, Some(process)) => process.uid.filter(|&uid| uid != 0).map(account_of),
        (None, None) => None,
    }
}

/// What the threads need to know.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Where debug files are.
    pub(super) search: Search,
    /// Whether inlined functions are wanted.
    pub(super) inlines: bool,
    /// More debug information than this is read on the second thread.
    pub(super) large_bytes: u64,
    /// How long one request may take before its file is given up; on the second thread 8 times that.
    pub(super) patience: Duration,
    /// Where unpacked files are kept.
    pub(super) unpacked: Option<Unpacked>,
}

/// One symbolizing thread.
#[derive(Debug)]
struct Lane {
    name: &'static str,
    requests: SyncSender<Request>,
    busy: Arc<Mutex<Busy>>,
}

/// Since when a thread has been at which module, in whose turn; none if it waits.
type Busy = Option<(Instant, u64, Option<Turn>)>;

/// The lane for large files, as the first one knows it.
type LargeLane = Arc<Mutex<Option<SyncSender<Request>>>>;

/// The threads for files of one owner.
#[derive(Debug)]
struct Lanes {
    lanes: [Lane; 2],
    large: LargeLane,
    names: Option<Lane>,
}

/// The symbolizing threads: those for what only root can change, and some for files of users. Dropping it lets them
/// end.
#[derive(Debug)]
pub(super) struct Symbolizer {
    system: Lanes,
    users: ByUser<Lanes>,
    told: Receiver<Told>,
    settings: Settings,
    shared: Shared,
    replaced: u32,
}

/// What all threads share.
#[derive(Clone, Debug)]
struct Shared {
    teller: Sender<Told>,
    work: Work,
    /// Whose turn it is, of the threads of each kind: for large files, and for names alone, there are others.
    first: Arc<Turns>,
    large: Arc<Turns>,
    names: Arc<Turns>,
}

impl Symbolizer {
    /// Starts the threads.
    pub(super) fn start(settings: Settings) -> std::io::Result<Symbolizer> {
        let (teller, told) = channel();
        let shared = Shared {
            teller,
            work: Work::default(),
            first: Turns::new(READERS),
            large: Turns::new(READERS),
            names: Turns::new(READERS),
        };
        Ok(Symbolizer {
            system: Lanes::start(&settings, &shared)?,
            users: ByUser::default(),
            told,
            settings,
            shared,
            replaced: 0,
        })
    }

    /// Asks, unless the queue is full: then the request comes back.
    pub(super) fn ask(&mut self, request: Request) -> Result<(), Request> {
        let lanes = self.lanes_of(request.owner());
        try_send(&lanes.lanes[0].requests, request)
    }

    /// The threads for files of this owner; none is root alone.
    fn lanes_of(&mut self, owner: Option<u32>) -> &mut Lanes {
        let start = || Lanes::start(&self.settings, &self.shared);
        let theirs = owner.and_then(|owner| self.users.of(owner, start));
        theirs.unwrap_or(&mut self.system)
    }

    /// The module that a thread has been at for longer than its patience; another thread has taken
    /// over by then. What was queued behind it must be asked again.
    pub(super) fn stuck(&mut self) -> Option<u64> {
        for lanes in std::iter::once(&mut self.system).chain(self.users.all()) {
            if self.replaced >= MAX_REPLACED {
                return None;
            }
            if let Some(module) = lanes.stuck(&self.settings, &self.shared) {
                self.replaced += 1;
                return Some(module);
            }
        }
        None
    }

    /// Asks for names without source lines, on a thread that slow files don't hold up.
    pub(super) fn ask_names(&mut self, request: Request) -> Result<(), Request> {
        let (settings, shared) = (self.settings.clone(), self.shared.clone());
        let lanes = self.lanes_of(request.owner());
        if lanes.names.is_none() {
            lanes.names = spawn(NAMES, None, &settings, &shared, false).ok();
        }
        match &lanes.names {
            Some(names) => try_send(&names.requests, request),
            None => Err(request),
        }
    }

    /// What went into files, by user.
    #[cfg(test)]
    pub(super) fn work(&self) -> &Work {
        &self.shared.work
    }

    /// What has come.
    pub(super) fn told(&self) -> impl Iterator<Item = Told> + '_ {
        self.told.try_iter()
    }

    /// Waits for something to come.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Told> {
        self.told.recv_timeout(timeout).ok()
    }
}

impl Lanes {
    fn start(settings: &Settings, shared: &Shared) -> std::io::Result<Lanes> {
        let second = spawn(LARGE, None, settings, shared, true)?;
        let large: LargeLane = Arc::new(Mutex::new(Some(second.requests.clone())));
        let first = spawn("symbols", Some(large.clone()), settings, shared, true)?;
        Ok(Lanes {
            lanes: [first, second],
            large,
            names: None,
        })
    }

    /// See [`Symbolizer::stuck`].
    fn stuck(&mut self, settings: &Settings, shared: &Shared) -> Option<u64> {
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            let busy = lock(&lane.busy);
            let Some((since, module)) = busy.as_ref().map(|&(since, module, _)| (since, module))
            else {
                continue;
            };
            drop(busy);
            let patience = settings
                .patience
                .saturating_mul(if index == 0 { 1 } else { SLOWER })
                .saturating_mul(STUCK);
            if since.elapsed() < patience {
                continue;
            }
            let large = (index == 0).then(|| self.large.clone());
            let Ok(lane) = spawn(lane.name, large, settings, shared, true) else {
                continue;
            };
            // Its turn is over.
            lock(&self.lanes[index].busy).take();
            if index == 1 {
                *lock(&self.large) = Some(lane.requests.clone());
            }
            // Without its sender the old thread ends when it gets that far.
            self.lanes[index] = lane;
            return Some(module);
        }
        None
    }
}

fn try_send(requests: &SyncSender<Request>, request: Request) -> Result<(), Request> {
    requests.try_send(request).map_err(|error| match error {
        TrySendError::Full(request) | TrySendError::Disconnected(request) => request,
    })
}

fn spawn(
    name: &'static str,
    large: Option<LargeLane>,
    settings: &Settings,
    shared: &Shared,
    lines: bool,
) -> std::io::Result<Lane> {
    let (sender, requests) = sync_channel::<Request>(QUEUE);
    let (settings, shared) = (settings.clone(), shared.clone());
    let turns = match name {
        LARGE => shared.large.clone(),
        NAMES => shared.names.clone(),
        _ => shared.first.clone(),
    };
    let busy = Arc::new(Mutex::new(None));
    let state = busy.clone();
    let limits = match name {
        LARGE => Limits::large(),
        _ => Limits::default(),
    };
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        link_folder::sweep();
        let mut worker = Worker {
            settings,
            large,
            lines,
            loaded: Vec::new(),
            client: Client::new(limits),
            owners: Owners::default(),
            work: shared.work,
            gathered: Duration::ZERO,
            maps: FxHashMap::default(),
            debug: Vec::new(),
            silent: FxHashSet::default(),
            renewed: None,
            clock: 0,
        };
        let mut waiting = Waiting::default();
        let mut asked = Instant::now();
        loop {
            match waiting.next(&requests) {
                Ok(request) => {
                    // Who only watches keeps nothing loaded.
                    match request.addresses.is_empty() {
                        false => asked = Instant::now(),
                        true if asked.elapsed() > IDLE => worker.rest(),
                        true => {}
                    }
                    let turn = turns.take(request.owner(), || worker.rest());
                    *lock(&state) = Some((Instant::now(), request.module.uid, turn));
                    let answers = worker.serve(request);
                    *lock(&state) = None;
                    let renewed = worker.renewed.take().map(Told::Renewed);
                    let answers = (!answers.is_empty()).then_some(Told::Names(answers));
                    let mut told = renewed.into_iter().chain(answers);
                    if told.any(|told| shared.teller.send(told).is_err()) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => worker.rest(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    })?;
    Ok(Lane {
        name,
        requests: sender,
        busy,
    })
}

/// Requests that a thread has taken out of its queue, with their order.
#[derive(Default)]
struct Waiting(Vec<((bool, u64), Request)>);

impl Waiting {
    /// The first by its order of all that were asked, of equal ones the first; waits for one.
    fn next(&mut self, requests: &Receiver<Request>) -> Result<Request, RecvTimeoutError> {
        let Waiting(waiting) = self;
        let first = match waiting.is_empty() {
            true => Some(requests.recv_timeout(IDLE)?),
            false => None,
        };
        let room = QUEUE.saturating_sub(waiting.len());
        let come = first.into_iter().chain(requests.try_iter()).take(room);
        waiting.extend(come.map(|request| (request.order(), request)));
        let first = (0..waiting.len()).min_by_key(|&index| waiting[index].0);
        let first = first.ok_or(RecvTimeoutError::Timeout)?;
        Ok(waiting.remove(first).1)
    }
}

/// Whether a file is this one.
fn is(known: &Weak<TargetFile>, file: &Arc<TargetFile>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(file))
}

struct Cached {
    /// By its address, which stays its own as long as this is kept.
    file: Weak<TargetFile>,
    used: u64,
    state: Result<Loaded, UnknownReason>,
}

/// A file that the process has loaded.
struct Loaded {
    number: Number,
    cost: u64,
    _kept: Kept,
}

/// Why there are no answers.
enum Refused {
    /// It is for the second thread.
    Large,
    /// No name can be had.
    Because(UnknownReason),
}

struct Worker {
    settings: Settings,
    large: Option<LargeLane>,
    lines: bool,
    /// Files with debug information, and whether it is read: not if that has ended who did.
    debug: Vec<(Weak<TargetFile>, bool)>,
    loaded: Vec<Cached>,
    client: Client,
    owners: Owners,
    work: Work,
    /// Processor time that it took to find debug files.
    gathered: Duration,
    maps: FxHashMap<u64, (JitCode, Instant)>,
    /// Code made at run time by processes whose files do not answer.
    silent: FxHashSet<u64>,
    /// What was met on the way, and is to be told.
    renewed: Option<Renewed>,
    clock: u64,
}

impl Worker {
    fn serve(&mut self, request: Request) -> Vec<Reply> {
        if request.module.jit.is_some() {
            return self.serve_jit(&request);
        }
        let Some(file) = request.file.clone() else {
            return refuse(&request, Answer::Unknown(UnknownReason::NoFile));
        };
        let found = match self.find(&request, &file) {
            Ok(found) => found,
            Err(Refused::Large) => return self.pass_on(request),
            Err(Refused::Because(reason)) => {
                return refuse(&request, Answer::Unknown(reason));
            }
        };
        let found = request.addresses.iter().zip(found);
        let replies = found.map(|(&(address, _), (answer, code))| Reply {
            module: request.module.uid,
            address,
            answer,
            code,
        });
        let replies = replies.collect();
        self.evict();
        replies
    }

    /// What the process says. A file that ends it is left without names; one that had others beside it in
    /// there is given a process of its own first, since it may have been theirs.
    fn find(&mut self, request: &Request, file: &Arc<TargetFile>) -> Result<Vec<Found>, Refused> {
        let owner = file.owner;
        let allowed = match self.is_loaded(file) {
            true => Effort::Loaded,
            false => Effort::Symbols,
        };
        if !self.owners.may_ask(owner) || self.work.allows(owner) < allowed {
            return Err(Refused::Because(UnknownReason::GaveUp));
        }
        let (began, before) = (Instant::now(), self.client.worked());
        let found = self.find_for(request, file, began);
        let all = began.elapsed();
        let worked = self.client.worked_since(before, all) + std::mem::take(&mut self.gathered);
        self.work.charge(owner, worked.min(all));
        found
    }

    fn is_loaded(&self, file: &Arc<TargetFile>) -> bool {
        let mut loaded = self.loaded.iter().filter(|cached| is(&cached.file, file));
        loaded.any(|cached| match &cached.state {
            Ok(loaded) => self.client.has(loaded.number),
            Err(_) => true,
        })
    }

    fn find_for(
        &mut self,
        request: &Request,
        file: &Arc<TargetFile>,
        began: Instant,
    ) -> Result<Vec<Found>, Refused> {
        let owner = file.owner;
        let until = began + self.patience();
        let mut is_alone = false;
        let death = loop {
            match self.try_find(request, file, until) {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(refused)) => return Err(refused),
                Err(Death::NotStarted) => return Err(Refused::Because(UnknownReason::GaveUp)),
                Err(death @ (Death::TooLarge | Death::Crashed | Death::Killed)) if is_alone => {
                    break death;
                }
                Err(Death::TooSlow) => break Death::TooSlow,
                // All that was loaded is gone.
                Err(_) => is_alone = true,
            }
        };
        self.owners.charge(owner, began.elapsed());
        let (why, reason) = match death {
            Death::Crashed => ("crashed", UnknownReason::BadFile),
            Death::TooLarge => ("needed too much memory", UnknownReason::TooLarge),
            Death::Killed => ("was killed", UnknownReason::GaveUp),
            _ => ("took too long", UnknownReason::GaveUp),
        };
        let known = self.debug.iter_mut();
        if let Some((_, reads @ true)) = known.into_iter().find(|(known, _)| is(known, file)) {
            *reads = false;
            warn_once(
                "debug information",
                format_args!(
                    "reading debug information {why}: {} has names by its symbols alone",
                    file.path
                ),
            );
            return self.find_for(request, file, Instant::now());
        }
        warn_once(
            "names",
            format_args!("reading symbols {why}: {} is left without names", file.path),
        );
        self.remember(file, Err(reason));
        Err(Refused::Because(reason))
    }

    /// Whether lines are looked for in a file, and not names alone.
    fn reads_lines(&self, file: &Arc<TargetFile>) -> bool {
        self.lines
            && self.work.allows(file.owner) == Effort::All
            && !(self.debug.iter()).any(|(known, reads)| is(known, file) && !reads)
    }

    fn patience(&self) -> Duration {
        let patience = self.settings.patience.min(MAX_PATIENCE);
        match self.large {
            Some(_) => patience,
            None if self.lines => patience.saturating_mul(SLOWER),
            None => patience,
        }
    }

    fn try_find(
        &mut self,
        request: &Request,
        file: &Arc<TargetFile>,
        until: Instant,
    ) -> Result<Result<Vec<Found>, Refused>, Death> {
        let same = |cached: &&Cached| std::ptr::eq(cached.file.as_ptr(), Arc::as_ptr(file));
        let known = self.loaded.iter().find(same).map(|cached| &cached.state);
        let number = match known {
            Some(Err(reason)) => return Ok(Err(Refused::Because(*reason))),
            Some(Ok(loaded)) if self.client.has(loaded.number) => loaded.number,
            _ => match self.load(file, until)? {
                Ok(number) => number,
                Err(refused) => return Ok(Err(refused)),
            },
        };
        self.clock += 1;
        let mut cached = self.loaded.iter_mut();
        if let Some(cached) = cached.find(|cached| same(&&**cached)) {
            cached.used = self.clock;
        }
        let bias = request.module.bias;
        let addresses = request.addresses.iter();
        let addresses: Vec<(u64, bool)> = addresses
            .map(|&(address, wants_code)| (address.wrapping_add(bias), wants_code))
            .collect();
        let found = self.client.find(number, &addresses, bias, until)?;
        Ok(Ok(found))
    }

    fn load(
        &mut self,
        file: &Arc<TargetFile>,
        until: Instant,
    ) -> Result<Result<Number, Refused>, Death> {
        let large = match self.large {
            Some(_) => self.settings.large_bytes,
            None => u64::MAX,
        };
        let (of, settings, lines) = (file.clone(), self.settings.clone(), self.reads_lines(file));
        let gather = move || {
            let gather = || Material::gather(&of, &settings, lines, large);
            let gathered = catch_unwind(AssertUnwindSafe(gather)).unwrap_or(Err(LoadError::Bad));
            (gathered, worked_here())
        };
        // What is opened may lie with a server that never answers.
        let left = until.saturating_duration_since(Instant::now());
        let Some((gathered, worked)) = within(left, file.owner, gather) else {
            return Err(Death::TooSlow);
        };
        self.gathered += worked;
        let loaded = match gathered {
            Ok(mut material) => {
                let mut kept = material.take_kept();
                if material.has_debug_info && !self.debug.iter().any(|(known, _)| is(known, file)) {
                    self.debug.push((Arc::downgrade(file), true));
                }
                let loaded = self.client.load(material, until)?;
                if loaded.is_ok() {
                    kept.keep_unpacked();
                }
                loaded.map(|(number, cost)| Loaded {
                    number,
                    cost,
                    _kept: kept,
                })
            }
            Err(error) => Err(error),
        };
        let state = match loaded {
            Ok(loaded) => Ok(loaded),
            Err(LoadError::Large) => return Ok(Err(Refused::Large)),
            Err(LoadError::Bad) => Err(UnknownReason::BadFile),
            Err(LoadError::TooMuch) => Err(UnknownReason::TooLarge),
        };
        let number = state.as_ref().map(|loaded| loaded.number);
        let number = number.map_err(|reason| Refused::Because(*reason));
        self.remember(file, state);
        Ok(number)
    }

    /// Keeps what is known of a file.
    fn remember(&mut self, file: &Arc<TargetFile>, state: Result<Loaded, UnknownReason>) {
        let same = |cached: &Cached| std::ptr::eq(cached.file.as_ptr(), Arc::as_ptr(file));
        self.loaded.retain(|cached| !same(cached));
        self.loaded.push(Cached {
            file: Arc::downgrade(file),
            used: self.clock,
            state,
        });
    }

    /// To the thread for large files; if that has no room, the answer is to ask again.
    fn pass_on(&self, request: Request) -> Vec<Reply> {
        let large = self.large.as_ref().and_then(|large| lock(large).clone());
        let refused = match large {
            Some(large) => try_send(&large, request),
            None => Err(request),
        };
        match refused {
            Ok(()) => Vec::new(),
            Err(request) => refuse(&request, Answer::NotYet),
        }
    }

    fn evict(&mut self) {
        // What was closed will not be asked for again: opened anew, it is another.
        self.debug.retain(|(file, _)| file.strong_count() > 0);
        let client = &mut self.client;
        let mut forget = |cached: &Cached| {
            if let Ok(loaded) = &cached.state {
                client.forget(loaded.number);
            }
        };
        let closed = |cached: &mut Cached| cached.file.strong_count() == 0;
        self.loaded
            .extract_if(.., closed)
            .for_each(|cached| forget(&cached));
        let cost = |cached: &Cached| cached.state.as_ref().map_or(0, |loaded| loaded.cost);
        loop {
            let total: u64 = self.loaded.iter().map(cost).sum();
            if self.loaded.len() <= 1
                || (self.loaded.len() <= MAX_LOADED && total <= MAX_LOADED_BYTES)
            {
                break;
            }
            let oldest = (0..self.loaded.len()).min_by_key(|&index| self.loaded[index].used);
            let Some(index) = oldest else { break };
            forget(&self.loaded.swap_remove(index));
        }
        self.client.tidy();
    }

    /// Nothing was asked for a while.
    fn rest(&mut self) {
        self.loaded.clear();
        self.client.rest();
    }

    fn serve_jit(&mut self, request: &Request) -> Vec<Reply> {
        let Some(process) = &request.module.jit else {
            return Vec::new();
        };
        let uid = request.module.first().uid;
        if self.silent.contains(&uid) {
            return refuse(request, Answer::Unknown(UnknownReason::GaveUp));
        }
        let owner = request.owner();
        if !self.owners.may_ask(owner) || self.work.allows(owner) < Effort::Symbols {
            return refuse(request, Answer::Unknown(UnknownReason::GaveUp));
        }
        let kept: usize = self.maps.values().map(|(code, _)| code.bytes()).sum();
        if kept > MAX_MAP_BYTES {
            self.maps.retain(|&known, _| known == uid);
        }
        let is_first = !self.maps.contains_key(&uid);
        let known = self.maps.entry(uid);
        let (jit, read) =
            known.or_insert_with(|| (JitCode::default(), Instant::now() - MAP_INTERVAL));
        let missing = |&(address, _): &(u64, bool)| !jit.knows(address);
        let watches = request.addresses.is_empty();
        if (watches || request.addresses.iter().any(missing)) && read.elapsed() >= MAP_INTERVAL {
            *read = Instant::now();
            let (mut code, process) = (std::mem::take(jit), process.clone());
            let refresh = move || {
                code.refresh(&process);
                (code, worked_here())
            };
            match within(MAP_PATIENCE, owner, refresh) {
                Some((code, worked)) => {
                    self.work.charge(owner, worked);
                    *jit = code;
                    let ranges = jit.renewed();
                    // Nothing was named before the first reading.
                    if !is_first && !ranges.is_empty() {
                        let first = request.module.first.as_ref();
                        let module = first.map_or(&request.module, |(first, _)| first).clone();
                        self.renewed = Some(Renewed { module, ranges });
                    }
                }
                None => {
                    warn_once(
                        "names",
                        format_args!(
                            "the files of {} do not answer: its code has no names",
                            request.module.path
                        ),
                    );
                    self.owners.charge(owner, MAP_PATIENCE);
                    self.silent.insert(uid);
                }
            }
        }
        let answers = request.addresses.iter().map(|&(address, wants_code)| {
            let found = jit.find(address, wants_code);
            let (answer, code) = match found {
                Some(place) => {
                    let lines = [(Arc::new(place.function), place.line)];
                    (Answer::Lines(lines.into()), place.code)
                }
                None => (Answer::NotYet, None),
            };
            Reply {
                module: request.module.uid,
                address,
                answer,
                code,
            }
        });
        answers.collect()
    }
}

/// Processor time of this thread.
fn worked_here() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn refuse(request: &Request, answer: Answer) -> Vec<Reply> {
    let replies = request.addresses.iter().map(|&(address, _)| Reply {
        module: request.module.uid,
        address,
        answer: answer.clone(),
        code: None,
    });
    replies.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Root;
    use crate::mapping::tests::module;

    fn file(len: u64) -> Arc<TargetFile> {
        let made = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC);
        let file = std::fs::File::from(made.unwrap());
        file.set_len(len).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        Arc::new(TargetFile::new(file, &stat, "/f", None, true))
    }

    #[test]
    fn what_can_not_be_named_later_is_first() {
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        let stat = rustix::fs::fstat(&own).unwrap();
        let host = Arc::new(Root::own().unwrap());
        let kept = Arc::new(TargetFile::new(own, &stat, "/f", Some(&host), true));
        let order = |file: Option<Arc<TargetFile>>| {
            let module = module("/f");
            let addresses = Vec::new();
            Request {
                module,
                file,
                addresses,
            }
            .order()
        };
        let deleted = file(1 << 40);
        assert!(order(None) < order(Some(deleted.clone())));
        assert!(order(Some(deleted)) < order(Some(kept)));
    }

    #[test]
    fn small_files_are_not_held_back_by_large_ones() {
        let (ask, requests) = sync_channel(QUEUE);
        let small = file(1);
        let asked = [
            (1, file(1 << 30)),
            (2, small.clone()),
            (3, file(4096)),
            (4, small),
        ];
        for (address, file) in asked {
            let request = Request {
                module: module("/f"),
                file: Some(file),
                addresses: vec![(address, false)],
            };
            ask.try_send(request).unwrap();
        }
        let mut waiting = Waiting::default();
        let order = [(); 4].map(|()| waiting.next(&requests).unwrap().addresses[0].0);
        assert_eq!(order, [2, 4, 3, 1]);
        drop(ask);
        let over = waiting.next(&requests).unwrap_err();
        assert_eq!(over, RecvTimeoutError::Disconnected);
    }
}
