//! A wait that was told in parts -> the wait.
//!
//! Files of a rotation and parts of a ring stand alone: a wait that goes on when one ends is told up to then, and in the
//! next one from then on. Whoever reads several of them, or a file of several parts, gets it as if it had been told once: when it
//! ended, or as far as it was told. In: events by time; out: the same. A part whose rest is missing comes late.
//!
//! What does not belong here: who cuts waits (`pipeline::session::cuts`).

use std::borrow::Cow;

use profiler_model::{Event, Sample, ThreadId, Timestamp};
use rustc_hash::FxHashMap;

/// The waits whose end has not come, by the recording that told them.
#[derive(Debug, Default)]
pub(super) struct Rejoin {
    open: FxHashMap<(usize, ThreadId), Sample>,
    /// Files may have times in common.
    is_of_several: bool,
}

impl Rejoin {
    /// For events of several files.
    pub(super) fn of_several() -> Rejoin {
        Rejoin {
            is_of_several: true,
            ..Rejoin::default()
        }
    }

    /// Takes an event of that recording, and hands on what is to be told now.
    #[inline]
    pub(super) fn event<E>(
        &mut self,
        recording: usize,
        event: &Event,
        each: &mut impl FnMut(&Event) -> Result<(), E>,
    ) -> Result<(), E> {
        match event {
            Event::Sample(sample)
                if (sample.wait).is_some_and(|wait| wait.open || !self.open.is_empty()) =>
            {
                self.wait((recording, sample.thread), sample, each)
            }
            event => each(event),
        }
    }

    fn wait<E>(
        &mut self,
        whose: (usize, ThreadId),
        sample: &Sample,
        each: &mut impl FnMut(&Event) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sample = Cow::Borrowed(sample);
        match self.open.remove(&whose) {
            Some(before) if !self.join(&before, &mut sample) => each(&Event::Sample(before))?,
            _ => {}
        }
        if sample.wait.is_some_and(|wait| wait.open) {
            self.open.insert(whose, sample.into_owned());
            return Ok(());
        }
        each(&Event::Sample(sample.into_owned()))
    }

    /// Puts the part before to a wait, if it is one of it. Short waits may stand for others, but not with what was told before:
    /// each of those that went on was. A part may have something of the one before, where that was told whole in another file.
    fn join(&self, before: &Sample, rest: &mut Cow<'_, Sample>) -> bool {
        let (Some(first), Some(wait)) = (before.wait, rest.wait) else {
            return false;
        };
        let from = Timestamp(rest.at.0.saturating_sub(wait.ns));
        let is_later = before.at <= rest.at;
        let is_rest = from == before.at || self.is_of_several && is_later && from < before.at;
        if !is_rest || first.count != 1 || wait.count != 1 {
            return false;
        }
        // What the part before has, and the rest has not.
        let both = before.at.since(from);
        let only = |ns: u64| ns.saturating_sub(both);
        let rest = rest.to_mut();
        rest.weight = rest.weight.saturating_add(only(before.weight));
        if let Some(wait) = &mut rest.wait {
            wait.ns = wait.ns.saturating_add(only(first.ns));
            wait.runnable_ns = wait.runnable_ns.saturating_add(only(first.runnable_ns));
        }
        // Its stacks were forgotten.
        if rest.kernel.is_none() && rest.user.is_none() {
            (rest.kernel, rest.kernel_end) = (before.kernel, before.kernel_end);
            (rest.user, rest.user_end) = (before.user, before.user_end);
        }
        true
    }

    /// Hands on what no rest came of.
    pub(super) fn finish<E>(
        &mut self,
        each: &mut impl FnMut(&Event) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut open: Vec<Sample> = self.open.drain().map(|(_, sample)| sample).collect();
        open.sort_by_key(|sample| (sample.at, sample.thread));
        open.into_iter()
            .try_for_each(|sample| each(&Event::Sample(sample)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{Cpu, EpochId, SourceId, StackId, Wait, WaitState};

    /// A wait of one of the threads, from a time up to another one.
    fn part(thread: usize, from: u64, to: u64, open: bool) -> Sample {
        let wait = Wait {
            ns: to - from,
            runnable_ns: u64::from(!open),
            state: WaitState::Sleeping,
            waker: None,
            count: 1,
            open,
        };
        let (thread, source) = (ThreadId::from_index(thread), SourceId::from_index(0));
        Sample {
            wait: Some(wait),
            ..Sample::new(Timestamp(to), thread, Cpu(0), source, wait.ns)
        }
    }

    fn read(parts: &[Sample]) -> Vec<Event> {
        read_by(Rejoin::default(), parts)
    }

    fn read_by(mut rejoin: Rejoin, parts: &[Sample]) -> Vec<Event> {
        let mut read = Vec::new();
        let mut each = |event: &Event| {
            read.push(event.clone());
            Ok::<(), ()>(())
        };
        for part in parts {
            let event = Event::Sample(part.clone());
            rejoin.event(0, &event, &mut each).unwrap();
        }
        rejoin.finish(&mut each).unwrap();
        read
    }

    fn samples(samples: &[Sample]) -> Vec<Event> {
        samples.iter().cloned().map(Event::Sample).collect()
    }

    #[test]
    fn parts_of_a_wait_are_one() {
        let stack = Some(StackId::from_index(3));
        let with_stack = |part: Sample| part.with_stacks(stack, None);
        let told = [
            with_stack(part(0, 100, 1_000, true)),
            part(1, 300, 1_000, true),
            part(0, 1_000, 2_000, true),
            part(1, 1_000, 1_500, false),
            part(1, 1_510, 1_600, false),
            part(2, 1_900, 2_000, true),
            part(0, 2_000, 2_300, false),
        ];
        let whole = [
            part(1, 300, 1_500, false),
            part(1, 1_510, 1_600, false),
            with_stack(part(0, 100, 2_300, false)),
            part(2, 1_900, 2_000, true),
        ];
        assert_eq!(read(&told), samples(&whole));
    }

    #[test]
    fn what_is_not_its_rest_is_another_wait() {
        // The file between is missing; the last one stands for others.
        let told = [
            part(0, 100, 1_000, true),
            part(0, 2_000, 2_300, true),
            Sample {
                wait: Some(Wait {
                    count: 9,
                    ..part(0, 2_300, 2_301, false).wait.unwrap()
                }),
                ..part(0, 2_300, 2_301, false)
            },
        ];
        assert_eq!(read(&told), samples(&told));
    }

    #[test]
    fn what_two_parts_have_is_counted_once() {
        // The first file as it was written, the second as it was made of others.
        let whole = samples(&[part(0, 100, 2_000, false)]);
        for from in [100, 700, 1_000] {
            let told = [part(0, 100, 1_000, true), part(0, from, 2_000, false)];
            assert_eq!(read_by(Rejoin::of_several(), &told), whole);
        }
        // One file has no such parts of one wait.
        let told = [part(0, 100, 1_000, true), part(0, 700, 2_000, false)];
        assert_eq!(read(&told), samples(&told));
    }

    #[test]
    fn that_it_goes_on_is_kept() {
        let mut encoder = crate::encode::EventEncoder::default();
        let told = samples(&[part(0, 100, 1_000, true), part(0, 1_010, 1_020, false)]);
        told.iter().for_each(|event| encoder.push(event));
        let mut read = Vec::new();
        let decoded = crate::decode::events(&encoder.payload, |event| read.push(event));
        assert_eq!((decoded.bad, decoded.unknown), (0, 0));
        assert_eq!(read, told);
    }
}
