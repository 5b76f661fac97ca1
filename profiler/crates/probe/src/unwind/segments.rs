//! The memory that tables and lists of mappings lie in: segments that are made when they are needed.
//!
//! A number of words -> a [`Span`] of words that nothing reads; words -> the kernel's memory. What was
//! given back is used again only when no program can read it any more.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use aya_obj::generated::BPF_F_MMAPABLE;
use profiler_common::unwind::{SEGMENT_WORDS, Span};

use super::{super::bpf, spans::Spans, words::Words};

/// Bytes of a segment.
pub(super) const SEGMENT_BYTES: u64 = SEGMENT_WORDS as u64 * 8;

/// Most segments that are made at a time: telling the kernel of one takes as long as of many.
const MOST_AT_A_TIME: usize = 8;

/// All segments.
pub(super) struct Segments {
    /// The kernel's list of them.
    outer: OwnedFd,
    words: Vec<Words>,
    spans: Spans,
    max: usize,
}

impl Segments {
    /// Makes the first segment. At most `max` are made.
    pub(super) fn new(outer: OwnedFd, max: usize) -> io::Result<Segments> {
        let mut segments = Segments {
            outer,
            words: Vec::new(),
            spans: Spans::default(),
            max: max.max(1),
        };
        segments.make(1)?;
        Ok(segments)
    }

    /// A descriptor of the first one.
    pub(super) fn first(&self) -> io::Result<OwnedFd> {
        match self.words.first() {
            Some(words) => words.as_fd().try_clone_to_owned(),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Takes `len` words, for which a segment is made if need be.
    pub(super) fn take(&mut self, len: u32) -> Option<Span> {
        if len as usize > SEGMENT_WORDS {
            return None;
        }
        if let Some(span) = self.spans.take(len) {
            return Some(span);
        }
        let more = (self.words.len() / 2).clamp(1, MOST_AT_A_TIME);
        let more = more.min(self.max.saturating_sub(self.words.len()));
        if more == 0 {
            return None;
        }
        if let Err(error) = self.make(more) {
            log::warn!("no more memory for unwind tables: {error}");
            self.max = self.words.len();
        }
        self.spans.take(len)
    }

    /// Gives words back that no program reads any more.
    pub(super) fn give_back(&mut self, span: Span) {
        self.spans.give_back(span);
    }

    /// Writes words of a span, from `offset` on.
    pub(super) fn write(&self, span: Span, offset: u32, words: impl IntoIterator<Item = u64>) {
        if let Some(segment) = self.words.get(span.segment as usize) {
            let len = span.len.saturating_sub(offset) as usize;
            let words = words.into_iter().take(len);
            segment.write((span.first + offset) as usize, words);
        }
    }

    /// Memory of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * SEGMENT_BYTES
    }

    fn make(&mut self, count: usize) -> io::Result<()> {
        let mut made = Vec::with_capacity(count);
        for _ in 0..count {
            let fd = bpf::make_array(SEGMENT_WORDS as u32, BPF_F_MMAPABLE)?;
            made.push(Words::map(fd, SEGMENT_WORDS)?);
        }
        let numbers: Vec<u32> = (self.spans.segments() as u32..).take(count).collect();
        let fds = made.iter().map(|words| words.as_fd().as_raw_fd());
        let fds: Vec<u32> = fds.map(i32::cast_unsigned).collect();
        bpf::update_map(self.outer.as_fd(), &numbers, &fds)?;
        for words in made {
            self.words.push(words);
            self.spans.add_segment(SEGMENT_WORDS as u32);
        }
        Ok(())
    }
}
