//! Names of the kernel's addresses: the table that is believed, and what waits for a newer one.
//!
//! Kernel addresses -> frames of the epoch with their symbols. The table is read on a thread of its own,
//! and again, not too often, when an address comes that it does not know: of a module or BPF program that
//! was loaded since. Times are of this machine's clock, not of events.
//!
//! What does not belong here: the table itself (`kernel`), stacks (`stacks`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::epoch::Epoch;
use super::kernel::{Kernel, KernelFiles};
use super::symbolize::{Answer, FunctionInfo};
use profiler_model::raw::RawStack;
use profiler_model::{FrameId, FrameKind, UnknownReason};

/// The kernel's symbols are not read again sooner, and ever more seldom while that is of no use.
const INTERVAL: Duration = Duration::from_secs(10);
const MAX_INTERVAL: Duration = Duration::from_secs(640);
/// How long the last table is waited for.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// Most addresses that wait for a newer table.
const MAX_WAITING: usize = 10_000;

/// How the names of functions begin that are above the scheduler only because its tracepoint is watched.
const WALKERS: [&str; 4] = ["bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_"];
/// Most of these in a stack.
const MAX_WALKERS: usize = 6;

/// The kernel's symbols, and the addresses that wait for newer ones.
#[derive(Debug)]
pub(super) struct KernelNames {
    table: Kernel,
    loading: Option<Receiver<Kernel>>,
    /// A table was read.
    known: bool,
    /// When the last one was begun to be read.
    loaded: Instant,
    interval: Duration,
    /// Since when addresses wait for a newer table.
    waiting: FxHashMap<u64, Instant>,
}

impl KernelNames {
    /// Begins to read the kernel's symbols, or what an earlier run has kept of them.
    pub(super) fn start() -> KernelNames {
        let mut names = KernelNames {
            table: Kernel::default(),
            loading: None,
            known: false,
            loaded: Instant::now(),
            interval: INTERVAL,
            waiting: FxHashMap::default(),
        };
        names.load(Kernel::load_kept);
        names
    }

    /// How many addresses wait for a newer table.
    pub(super) fn left(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the kernel hides its addresses.
    pub(super) fn is_restricted(&self) -> bool {
        self.table.is_restricted()
    }

    /// The frame of an address, announced with its name if need be.
    pub(super) fn frame(&mut self, address: u64, epoch: &mut Epoch) -> FrameId {
        self.know(address);
        let place = self.table.place(address);
        let module = place.module.as_deref();
        let (frame, new) = epoch.tables.frame(FrameKind::Kernel, module, place.address);
        if !new {
            return frame;
        }
        if module.is_none() && !self.table.is_restricted() && self.waiting.len() < MAX_WAITING {
            // A module or BPF program that was loaded meanwhile: answered after a reload.
            self.waiting.insert(address, Instant::now());
            return frame;
        }
        let answer = answer_of(&self.table, address);
        epoch.define(frame, module, &answer);
        frame
    }

    /// Announces the frame of a place in the kernel's image, by its distance from `_stext`.
    pub(super) fn announce_image_frame(&mut self, offset: u64, epoch: &mut Epoch) {
        if !self.known {
            self.wait_for_first();
        }
        if let Some(address) = self.table.address_of(offset) {
            self.frame(address, epoch);
            return;
        }
        let image = self.table.image();
        let (frame, new) = epoch.tables.frame(FrameKind::Kernel, Some(&image), offset);
        if new {
            let answer = Answer::Unknown(UnknownReason::NoSymbol);
            epoch.define(frame, Some(&image), &answer);
        }
    }

    /// How many frames of a kernel stack, from its leaf on, are those that walked it: the kernel side's
    /// program and what runs it.
    pub(super) fn walkers(&mut self, stack: &RawStack) -> usize {
        let is_walker = |address: &u64| {
            let address = address.saturating_sub(1);
            self.know(address);
            let symbol = self.table.symbol(address);
            symbol.is_some_and(|symbol| {
                let mut beginnings = WALKERS.iter();
                beginnings.any(|beginning| symbol.name.starts_with(beginning))
            })
        };
        let walkers = stack.addresses().take(MAX_WALKERS).take_while(is_walker);
        walkers.count()
    }

    /// Looks whether a new table has come, for addresses that the old one did not know; whether one has:
    /// stacks with such addresses are to be resolved anew, and get their module.
    pub(super) fn poll(&mut self, epoch: &mut Epoch) -> bool {
        let loaded = self.loading.as_ref().and_then(|of| of.try_recv().ok());
        let is_new = loaded.is_some();
        if let Some(kernel) = loaded {
            self.renew(kernel, self.loaded, epoch);
        } else if self.loading.is_some() {
            return false;
        }
        if !self.waiting.is_empty() {
            self.reload();
        }
        is_new
    }

    /// The same for the last time, waiting until then: what waits has no name then. Whether a table has come.
    pub(super) fn finish(&mut self, until: Instant, epoch: &mut Epoch) -> bool {
        let loading = self.loading.as_ref();
        let patience = until.saturating_duration_since(Instant::now());
        let patience = patience.min(LAST_PATIENCE);
        let loaded = loading.and_then(|of| of.recv_timeout(patience).ok());
        let is_new = loaded.is_some();
        if let Some(kernel) = loaded {
            self.renew(kernel, Instant::now(), epoch);
        }
        self.answer(Instant::now(), epoch);
        is_new
    }

    /// Begins to read the table again if addresses wait for that, however long ago it was read.
    pub(super) fn hurry(&mut self) {
        if !self.waiting.is_empty() && self.loading.is_none() {
            self.load(Kernel::load);
        }
    }

    /// Takes a newer table, and answers what waited for one that was begun to be read at `since`.
    fn renew(&mut self, mut kernel: Kernel, since: Instant, epoch: &mut Epoch) {
        kernel.keep_modules_of(&self.table);
        self.take(kernel);
        let useful = self.answer(since, epoch);
        self.interval = if useful {
            INTERVAL
        } else {
            (self.interval * 2).min(MAX_INTERVAL)
        };
    }

    /// Answers what waited for a table that was begun to be read at `since`; whether any has a name.
    fn answer(&mut self, since: Instant, epoch: &mut Epoch) -> bool {
        let mut named = false;
        let waiting = std::mem::take(&mut self.waiting);
        for (address, asked) in waiting {
            if asked > since {
                self.waiting.insert(address, asked);
                continue;
            }
            let answer = answer_of(&self.table, address);
            let (frame, _) = epoch.tables.frame(FrameKind::Kernel, None, address);
            named |= matches!(answer, Answer::Lines(_));
            epoch.define(frame, None, &answer);
        }
        named
    }

    /// Sees to it that what the kernel told of an address when it was asked last is known.
    fn know(&mut self, address: u64) {
        if !self.known {
            self.wait_for_first();
        }
        if !self.table.knows(address) {
            let mut kernel = Kernel::load(&KernelFiles::default());
            kernel.keep_modules_of(&self.table);
            self.loaded = Instant::now();
            self.take(kernel);
        }
    }

    /// Waits for the first table: it takes some 50 ms to read if none was kept.
    fn wait_for_first(&mut self) {
        let loading = self.loading.as_ref();
        let kernel = match loading.and_then(|loading| loading.recv().ok()) {
            Some(kernel) => kernel,
            None => Kernel::load(&KernelFiles::default()),
        };
        self.take(kernel);
    }

    fn take(&mut self, kernel: Kernel) {
        self.table = kernel;
        self.loading = None;
        if !std::mem::replace(&mut self.known, true) && self.table.is_restricted() {
            log::warn!(
                "the kernel hides its addresses: kernel functions will have no names; \
                 run as root or grant CAP_SYSLOG, with kernel.kptr_restrict at 1 or 0"
            );
        }
    }

    /// Reads the table again, on a thread of its own and not too often.
    fn reload(&mut self) {
        if self.loading.is_none() && self.loaded.elapsed() >= self.interval {
            self.load(Kernel::load);
        }
    }

    fn load(&mut self, load: fn(&KernelFiles) -> Kernel) {
        let (done, loading) = channel();
        let thread = std::thread::Builder::new().name("symbols-kernel".to_owned());
        let started = thread.spawn(move || {
            // Nobody waits any more if this fails.
            let _ = done.send(load(&KernelFiles::default()));
        });
        if started.is_ok() {
            self.loaded = Instant::now();
            self.loading = Some(loading);
        }
    }
}

/// What a kernel address means.
fn answer_of(kernel: &Kernel, address: u64) -> Answer {
    match kernel.symbol(address) {
        Some(symbol) => {
            let function = FunctionInfo {
                name: symbol.name.into(),
                linkage_name: None,
                file: None,
                line: 0,
                start: Some(symbol.start),
                size: symbol.size,
            };
            Answer::Lines([(Arc::new(function), 0)].into())
        }
        None => Answer::Unknown(UnknownReason::NoSymbol),
    }
}
