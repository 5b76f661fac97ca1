//! Samples <-> the fields of their items: all that the format knows of a sample is here.
//!
//! A sample takes a few bytes: both sides keep, for each processor, what its previous sample of this block said
//! ([`Contexts`]), and a byte of flags says what is different. All of it starts anew with each block. The flags are
//! used up: what is new goes into a section ([`sections`]).
//!
//! What does not belong here: how samples are counted, and by what (derive).

use profiler_model::*;

use super::item::{Bad, CPU_CONTEXTS, Fields, Times, id, put};
use super::sections;

/// Bits of a sample's first byte: which fields follow, in this order.
mod flag {
    /// Else the processor of the previous sample of the block (0 at first).
    pub(super) const CPU: u8 = 1;
    /// Else the thread of the processor's previous sample.
    pub(super) const THREAD: u8 = 2;
    /// Else there is no kernel stack.
    pub(super) const KERNEL: u8 = 4;
    /// Else there is no user stack.
    pub(super) const USER: u8 = 8;
    /// Else each stack is complete if there is one.
    pub(super) const ENDS: u8 = 16;
    /// Else the weight of the processor's previous sample.
    pub(super) const WEIGHT: u8 = 32;
    /// Else the source of the processor's previous sample.
    pub(super) const SOURCE: u8 = 64;
    /// It stands for a wait, which follows.
    pub(super) const WAIT: u8 = 128;
}

/// Kinds of sections.
mod section {
    /// The wait went on when it was told.
    pub(super) const OPEN: u64 = 2;
}

/// What "as before" means for a processor.
#[derive(Clone, Copy, Debug, Default)]
struct Context {
    thread: u32,
    source: u32,
    weight: u64,
}

/// What samples of the block so far say about the next one.
#[derive(Debug)]
pub(super) struct Contexts {
    cpu: u32,
    contexts: Box<[Context; CPU_CONTEXTS]>,
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts {
            cpu: 0,
            contexts: Box::new([Context::default(); CPU_CONTEXTS]),
        }
    }
}

impl Contexts {
    /// Starts the next block.
    pub(super) fn clear(&mut self) {
        self.cpu = 0;
        self.contexts.fill(Context::default());
    }

    /// Appends the fields of a sample.
    #[inline]
    pub(super) fn put(&mut self, out: &mut Vec<u8>, times: &mut Times, item: &Sample) {
        let flags_at = out.len();
        out.push(0);
        times.put(out, item.at);
        let mut flags = 0;
        if item.cpu.0 != self.cpu {
            flags |= flag::CPU;
            self.cpu = item.cpu.0;
            put(out, item.cpu.0.into());
        }
        let context = &mut self.contexts[item.cpu.0 as usize % CPU_CONTEXTS];
        let before = *context;
        *context = Context {
            thread: item.thread.get(),
            source: item.source.get(),
            weight: item.weight,
        };
        if item.thread.get() != before.thread {
            flags |= flag::THREAD;
            put(out, item.thread.get().into());
        }
        if let Some(stack) = item.kernel {
            flags |= flag::KERNEL;
            put(out, stack.get().into());
        }
        if let Some(stack) = item.user {
            flags |= flag::USER;
            put(out, stack.get().into());
        }
        let usual = (StackEnd::usual(item.kernel), StackEnd::usual(item.user));
        if (item.kernel_end, item.user_end) != usual {
            flags |= flag::ENDS;
            out.push(end_code(item.kernel_end) << 4 | end_code(item.user_end));
        }
        if item.weight != before.weight {
            flags |= flag::WEIGHT;
            put(out, item.weight);
        }
        if item.source.get() != before.source {
            flags |= flag::SOURCE;
            put(out, item.source.get().into());
        }
        if let Some(wait) = &item.wait {
            flags |= flag::WAIT;
            put_wait(out, wait);
        }
        if item.wait.is_some_and(|wait| wait.open) {
            sections::put_mark(out, section::OPEN);
        }
        sections::put(out, item.later.as_deref());
        out[flags_at] = flags;
    }

    /// Reads the fields of a sample, and whether there is more in it than this version knows.
    #[inline]
    pub(super) fn read(
        &mut self,
        fields: &mut Fields<'_>,
        times: &mut Times,
    ) -> Result<(Sample, bool), Bad> {
        let flags = fields.byte()?;
        let at = times.read(fields)?;
        if flags & flag::CPU != 0 {
            self.cpu = fields.get32()?;
        }
        let context = &mut self.contexts[self.cpu as usize % CPU_CONTEXTS];
        if flags & flag::THREAD != 0 {
            context.thread = fields.get32()?;
        }
        let mut kernel = None;
        if flags & flag::KERNEL != 0 {
            kernel = Some(fields.id()?);
        }
        let mut user = None;
        if flags & flag::USER != 0 {
            user = Some(fields.id()?);
        }
        let mut ends = (StackEnd::usual(kernel), StackEnd::usual(user));
        if flags & flag::ENDS != 0 {
            let byte = fields.byte()?;
            ends = (end(byte >> 4), end(byte & 15));
        }
        if flags & flag::WEIGHT != 0 {
            context.weight = fields.get()?;
        }
        if flags & flag::SOURCE != 0 {
            context.source = fields.get32()?;
        }
        let mut wait = None;
        if flags & flag::WAIT != 0 {
            wait = read_wait(fields)?;
        }
        let more = sections::read(fields, |kind, _| {
            let wait = wait.as_mut().filter(|_| kind == section::OPEN);
            Ok(wait.map(|wait| wait.open = true).is_some())
        })?;
        let sample = Sample {
            at,
            thread: id(context.thread)?,
            cpu: Cpu(self.cpu),
            kernel,
            user,
            kernel_end: ends.0,
            user_end: ends.1,
            weight: context.weight,
            source: id(context.source)?,
            wait,
            later: more.kept,
        };
        Ok((sample, more.unknown))
    }
}

fn put_wait(out: &mut Vec<u8>, wait: &Wait) {
    put(out, wait.ns);
    put(out, wait.runnable_ns);
    put(out, wait.state as u64);
    put(out, wait.waker.map_or(0, ThreadId::get).into());
    put(out, wait.count.into());
}

/// Reads what a sample says of a wait; none if its state is of a later version.
fn read_wait(fields: &mut Fields<'_>) -> Result<Option<Wait>, Bad> {
    let (ns, runnable_ns) = (fields.get()?, fields.get()?);
    let state = u32::try_from(fields.get()?).unwrap_or(u32::MAX);
    let waker = fields.optional()?;
    let count = fields.get32()?;
    Ok(WaitState::from_code(state).map(|state| Wait {
        ns,
        runnable_ns,
        state,
        waker,
        count,
        open: false,
    }))
}

/// Ends of stacks take 4 bits; 15 is a reason that the writer did not know.
fn end_code(end: StackEnd) -> u8 {
    match end {
        StackEnd::Unknown => 15,
        known => known as u8,
    }
}

fn end(code: u8) -> StackEnd {
    StackEnd::from_code(u16::from(code))
}
