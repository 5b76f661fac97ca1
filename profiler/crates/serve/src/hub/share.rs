//! What one front gets of a session that samples for several: a demand -> which events, and which weights.
//!
//! Samples of its own processes and threads, of what they have started where that is followed, thinned to its
//! own frequency; what is left weighs so much more, and sources say the frequency that the front sees. Who wants
//! samples at regular times gets all of its own, since chance is not regular. Who wants
//! all that is sampled gets batches as they are. Frequencies are samples per second and processor.
//!
//! What does not belong here: what the kernel samples (`probe`), what a front does for its own clients.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::lives::{Born, Life, Lives};
use crate::pace::Pace;
use crate::thin::{Random, Thinner, WHOLE};
use profiler_model::*;

/// One front's part of the session's samples.
pub(super) struct Share {
    /// None: nothing is sampled for it.
    wanted: Option<Sampling>,
    /// That is all that is sampled for anybody, of what happens from this time on. Samples that were taken before
    /// may still be on their way.
    all_since: Option<Timestamp>,
    /// Since when the descendants of these are wanted.
    followed: BTreeMap<Pid, Timestamp>,
    /// Descendants, and of whom: those of this epoch and of the one before. An epoch begins with all that
    /// lives.
    descendants: FxHashMap<Life, Pid>,
    before: FxHashMap<Life, Pid>,
    epoch: Option<u32>,
    /// The frequencies that it was told of, in this epoch.
    told: FxHashMap<SourceId, Option<u64>>,
    thinner: Thinner,
}

impl Share {
    /// Of everything.
    pub(super) fn new() -> Share {
        Share {
            wanted: None,
            all_since: Some(Timestamp(0)),
            followed: BTreeMap::new(),
            descendants: FxHashMap::default(),
            before: FxHashMap::default(),
            epoch: None,
            told: FxHashMap::default(),
            thinner: Thinner::new(Random::unforeseen()),
        }
    }

    /// It is this from now on, where `all` is what is sampled for all fronts, which has become so in this time.
    pub(super) fn set(
        &mut self,
        wanted: Option<&Sampling>,
        all: Option<&Sampling>,
        (from, to): (Timestamp, Timestamp),
    ) {
        self.all_since = (wanted == all).then_some(to);
        self.wanted = wanted.cloned();
        let followed = wanted.into_iter().flat_map(|wanted| &wanted.followed);
        let before = std::mem::take(&mut self.followed);
        let since = |pid: &Pid| (*pid, before.get(pid).copied().unwrap_or(from));
        self.followed = followed.map(since).collect();
        let followed = &self.followed;
        for descendants in [&mut self.descendants, &mut self.before] {
            descendants.retain(|_, ancestor| followed.contains_key(ancestor));
        }
    }

    /// These processes were defined in this epoch.
    pub(super) fn follow(&mut self, born: &[Born], epoch: u32) {
        if self.epoch.replace(epoch) != Some(epoch) {
            self.before = std::mem::take(&mut self.descendants);
            self.told.clear();
        }
        if self.followed.is_empty() {
            return;
        }
        for &Born { life, parent } in born {
            let of_parent = parent.and_then(|parent| {
                let born_since = |since: &&Timestamp| life.1 >= **since;
                let followed = self.followed.get(&parent.0).filter(born_since);
                let followed = followed.map(|_| parent.0);
                followed.or_else(|| self.ancestor(parent))
            });
            if let Some(ancestor) = of_parent.or_else(|| self.ancestor(life)) {
                self.descendants.insert(life, ancestor);
            }
        }
    }

    /// Who is followed and has this one as a descendant.
    fn ancestor(&self, life: Life) -> Option<Pid> {
        let descendants = self.descendants.get(&life);
        descendants.or_else(|| self.before.get(&life)).copied()
    }

    /// Takes out of a batch what is others'.
    pub(super) fn cut(&mut self, batch: &mut Batch, lives: &Lives) {
        self.tell_sources(&mut batch.definitions, lives);
        // Ordered by time.
        let is_all = |since: Timestamp| batch.events.first().is_none_or(|it| it.at() >= since);
        if !self.all_since.is_some_and(is_all) {
            batch.events.retain_mut(|event| self.keeps(event, lives));
        }
    }

    /// Each source has the frequency at which the front gets samples of it.
    fn tell_sources(&mut self, definitions: &mut Vec<Definition>, lives: &Lives) {
        for definition in &mut *definitions {
            if let Definition::Source(id, source) = definition {
                self.correct(source);
                self.told.insert(*id, source.frequency_hz);
            }
        }
        for (id, source) in lives.sources() {
            let mut source = source.clone();
            self.correct(&mut source);
            if self.told.get(&id) != Some(&source.frequency_hz) {
                self.told.insert(id, source.frequency_hz);
                definitions.push(Definition::Source(id, source));
            }
        }
    }

    fn correct(&self, source: &mut Source) {
        let is_thinned =
            |wanted: &&Sampling| self.all_since.is_none() && wanted.regular_hz.is_none();
        let Some(wanted) = self.wanted.as_ref().filter(is_thinned) else {
            return;
        };
        if source
            .frequency_hz
            .is_some_and(|hz| wanted.frequency_hz < hz)
        {
            source.frequency_hz = Some(wanted.frequency_hz);
            if source.unit == Unit::Nanoseconds && source.period.is_some() {
                source.period = Some(1_000_000_000 / wanted.frequency_hz.max(1));
            }
        }
    }

    /// Whether an event is the front's; a sample that is weighs what it stands for there.
    fn keeps(&mut self, event: &mut Event, lives: &Lives) -> bool {
        match event {
            Event::Sample(sample) => self.keeps_sample(sample, lives),
            Event::Call(Call { thread, .. })
            | Event::Throw(Throw { thread, .. })
            | Event::Waits(Waits { thread, .. }) => self.has(*thread, lives),
            // Of the whole machine, or what processes become.
            Event::CallCount(_)
            | Event::Gap(_)
            | Event::Process(_)
            | Event::Mark(_)
            | Event::Clock(_)
            | Event::Lost(_) => true,
        }
    }

    fn keeps_sample(&mut self, sample: &mut Sample, lives: &Lives) -> bool {
        let Some(wanted) = self
            .wanted
            .as_ref()
            .filter(|_| self.has(sample.thread, lives))
        else {
            return false;
        };
        if !wanted.kernel_stacks {
            sample.kernel = None;
            sample.kernel_end = StackEnd::NoStack;
        }
        if sample.wait.is_some() {
            return true;
        }
        if wanted.regular_hz.is_some() {
            return true;
        }
        let pace = Pace::of(sample, lives.source(sample.source));
        let mass = pace.mass(wanted.frequency_hz);
        if mass < WHOLE {
            let weight = u128::from(sample.weight) * u128::from(WHOLE) / u128::from(mass.max(1));
            sample.weight = u64::try_from(weight).unwrap_or(u64::MAX);
        }
        self.thinner.keeps(mass)
    }

    fn has(&self, thread: ThreadId, lives: &Lives) -> bool {
        let Some((wanted, (life, tid))) = self.wanted.as_ref().zip(lives.of(thread)) else {
            return false;
        };
        wanted.processes.contains(&life.0)
            || wanted.threads.contains(&tid)
            || self.ancestor(life).is_some()
    }
}
