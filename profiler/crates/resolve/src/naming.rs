//! Names of frames of processes: asked for, waited for, given up.
//!
//! New frames of an epoch -> their symbols, at once if they are known, else when the symbolizer has found
//! them. Nothing here waits, but for [`Naming::wait`]. Times are of this machine's clock.
//!
//! What does not belong here: which questions are open (`names`), how names are found (`symbolize`), names
//! of the kernel (`kernel_names`) and of interpreters, which are read elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::epoch::Epoch;
use super::files::TargetFile;
use super::mapping::CodeModule;
use super::names::{Answered, Names};
use super::symbolize::{Answer, Renewed, Request, Settings, Symbolizer, Told};
use super::warnings::warn_once;
use profiler_model::{FrameId, FrameKind, ModuleKind, UnknownReason};

/// How often it is looked whether code was announced where other code had been.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Names of frames: those known, those asked for, and the symbolizer that finds them.
#[derive(Debug)]
pub(super) struct Naming {
    names: Names,
    symbolizer: Symbolizer,
    /// Whether the instructions of functions in which samples lie are kept.
    keep_code: bool,
    /// Nobody wants to wait for names any more.
    hurried: Arc<AtomicBool>,
    /// Code made at run time that was sampled since it was last looked whether it was announced anew, and when that was.
    watched: (FxHashMap<u64, Arc<CodeModule>>, Instant),
}

impl Naming {
    /// Starts the symbolizer.
    pub(super) fn start(settings: Settings, keep_code: bool) -> std::io::Result<Naming> {
        Ok(Naming {
            names: Names::default(),
            symbolizer: Symbolizer::start(settings)?,
            keep_code,
            hurried: Arc::default(),
            watched: (FxHashMap::default(), Instant::now()),
        })
    }

    /// Says what a new frame of this epoch means, or asks. `file` opens what the module is of.
    pub(super) fn name(
        &mut self,
        module: &Arc<CodeModule>,
        (frame, at): (FrameId, u64),
        leaf: bool,
        epoch: &mut Epoch,
        file: impl FnOnce() -> Option<Arc<TargetFile>>,
    ) {
        if let Some(known) = self.names.get(module.uid, at) {
            epoch.define(frame, Some(module), &known.answer);
            if let Some((start, bytes)) = &known.code {
                epoch.tables.code(module, *start, bytes);
            }
            return;
        }
        if self.names.is_waiting(module.uid, at) {
            return;
        }
        let file = match module.kind {
            ModuleKind::Jit => None,
            _ => file(),
        };
        let reason = match module.kind {
            ModuleKind::Jit => None,
            ModuleKind::Unknown => Some(UnknownReason::NoSymbol),
            _ => match &file {
                None => Some(UnknownReason::NoFile),
                Some(file) if file.elf.is_none() => Some(UnknownReason::BadFile),
                Some(_) => None,
            },
        };
        let wants_code = leaf && self.keep_code;
        let reason = match reason {
            None if self.names.want(module, at, wants_code, file) => return,
            None => UnknownReason::GaveUp,
            Some(reason) => reason,
        };
        epoch.define(frame, Some(module), &Answer::Unknown(reason));
    }

    /// A process runs code that it has made: what it says of it may change.
    pub(super) fn watch(&mut self, module: &Arc<CodeModule>) {
        let watched = self.watched.0.entry(module.uid);
        watched.or_insert_with(|| module.clone());
    }

    /// Sends what can be sent, without waiting.
    pub(super) fn send(&mut self) {
        self.names.send(&mut self.symbolizer);
        let (watched, since) = &mut self.watched;
        if since.elapsed() < WATCH_INTERVAL {
            return;
        }
        *since = Instant::now();
        for module in std::mem::take(watched).into_values() {
            let request = Request {
                module,
                file: None,
                addresses: Vec::new(),
            };
            // Else it is asked when it runs the next time.
            let _ = self.symbolizer.ask(request);
        }
    }

    /// Takes names that have been found, and gives code that is other code now; never waits.
    #[must_use]
    pub(super) fn poll(&mut self, epoch: &mut Epoch) -> Vec<Renewed> {
        let told: Vec<_> = self.symbolizer.told().collect();
        let mut renewed = Vec::new();
        for told in told {
            renewed.extend(self.take(told, epoch));
        }
        if let Some(module) = self.symbolizer.stuck() {
            for answered in self.names.abandon(module) {
                warn_once(
                    "names",
                    format_args!(
                        "{}: finding names takes too long; left without",
                        answered.module.path
                    ),
                );
                tell(answered, epoch);
            }
        }
        renewed
    }

    /// Waits so long for names if there are none yet; no more samples come.
    pub(super) fn wait(&mut self, pause: Duration, epoch: &mut Epoch) {
        if let Some(told) = self.symbolizer.wait(pause) {
            self.take(told, epoch);
        }
    }

    fn take(&mut self, told: Told, epoch: &mut Epoch) -> Option<Renewed> {
        let replies = match told {
            Told::Names(replies) => replies,
            Told::Renewed(renewed) => return Some(renewed),
        };
        for reply in replies {
            if let Some(answered) = self.names.take(reply) {
                tell(answered, epoch);
            }
        }
        None
    }

    /// Asks again for what has no answer yet, at once.
    pub(super) fn ask_again(&mut self) {
        self.names.hurry();
    }

    /// Asks for mere names of all that waits.
    pub(super) fn ask_names(&mut self) {
        self.names.ask_names(&mut self.symbolizer);
    }

    /// Gives up all that waits.
    pub(super) fn give_up(&mut self, epoch: &mut Epoch) {
        for answered in self.names.give_up() {
            tell(answered, epoch);
        }
    }

    /// Whether nothing is waited for that could still come.
    pub(super) fn is_hopeless(&self) -> bool {
        self.names.is_hopeless()
    }

    /// How many addresses wait for a name.
    pub(super) fn left(&self) -> usize {
        self.names.left()
    }

    /// How often the symbolizer's queue was full.
    pub(super) fn refused(&self) -> u64 {
        self.names.refused
    }

    /// Forgets what was not used in the epoch that ends.
    pub(super) fn end_epoch(&mut self) {
        self.names.end_epoch();
    }

    /// What is set when nobody wants to wait any more.
    pub(super) fn hurried(&self) -> Arc<AtomicBool> {
        self.hurried.clone()
    }

    /// Whether nobody does.
    pub(super) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed)
    }
}

/// What kind of frames a module has.
pub(super) fn kind_of(module: &CodeModule) -> FrameKind {
    match module.kind {
        ModuleKind::Jit => FrameKind::Jit,
        ModuleKind::Kernel | ModuleKind::KernelModule => FrameKind::Kernel,
        _ => FrameKind::Native,
    }
}

/// An answer becomes a definition of the current epoch, with its frame if that is not used there yet.
fn tell(answered: Answered, epoch: &mut Epoch) {
    let Answered {
        module,
        address,
        known,
    } = answered;
    let (frame, _) = epoch.tables.frame(kind_of(&module), Some(&module), address);
    epoch.define(frame, Some(&module), &known.answer);
    if let Some((start, bytes)) = &known.code {
        epoch.tables.code(&module, *start, bytes);
    }
}
