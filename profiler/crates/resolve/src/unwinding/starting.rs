//! Programs that are being started: the user stack of samples in which is gone.
//!
//! Between the moment in which exec has thrown away the memory of the program before and the one in which
//! the new program begins, the user registers of a thread are still those of the old one: what lies at
//! these addresses by now is none of its callers, and not even where it was. The last thing that the
//! kernel maps of a new program is the vDSO.
//!
//! What does not belong here: lists of mappings that are outdated (`announced_code`).

use rustc_hash::FxHashMap;

use profiler_model::raw::{RawBody, RawEvent, RawInterpreted, RawStack};
use profiler_model::{LostReason, Pid, StackEnd, Timestamp};

/// Longer than this no exec takes: the end was not told.
const MOST_NS: u64 = 1_000_000_000;
/// With so many, those are forgotten that began longer ago.
const MANY: usize = 1024;

/// When exec has thrown away what the processes had that are in it.
#[derive(Debug, Default)]
pub(super) struct Starting(FxHashMap<Pid, Timestamp>);

impl Starting {
    /// Follows events, each in its turn.
    pub(super) fn follow(&mut self, event: &RawEvent) {
        let at = event.at;
        match &event.body {
            RawBody::Comm {
                pid, exec: true, ..
            } => {
                if self.0.len() >= MANY {
                    self.0.retain(|_, since| at.since(*since) < MOST_NS);
                }
                self.0.insert(*pid, at);
            }
            RawBody::Mmap(mmap) if &*mmap.path == b"[vdso]" => {
                self.0.remove(&mmap.pid);
            }
            RawBody::Exit { pid, tid } if pid.0 == tid.0 => {
                self.0.remove(pid);
            }
            RawBody::Lost(lost) if lost.reason == LostReason::SideBand => self.0.clear(),
            _ => {}
        }
    }

    /// Takes the user stack out of a sample that was taken in between, which is one with a kernel stack.
    /// `has_vdso`: programs have one here.
    pub(super) fn correct(&self, event: &mut RawEvent, has_vdso: bool) {
        if self.0.is_empty() || !has_vdso {
            return;
        }
        let is_starting = |pid| {
            let since = self.0.get(&pid);
            since.is_some_and(|since| event.at.since(*since) < MOST_NS)
        };
        let (user, copy, interpreted) = match &mut event.body {
            RawBody::Sample(of) if is_starting(of.pid) && !of.kernel.bytes.is_empty() => {
                (&mut of.user, &mut of.copy, &mut of.interpreted)
            }
            RawBody::WaitStack(of) if is_starting(of.pid) && !of.kernel.bytes.is_empty() => {
                (&mut of.user, &mut of.copy, &mut of.interpreted)
            }
            _ => return,
        };
        *user = RawStack {
            end: StackEnd::Gone,
            ..RawStack::NONE
        };
        *copy = None;
        *interpreted = RawInterpreted::default();
    }
}
