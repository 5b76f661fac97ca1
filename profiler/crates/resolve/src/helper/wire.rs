//! What is said between the profiler and the process that reads symbols.
//!
//! Frames: what they are, their length, then so many bytes; descriptors come along with the first of them.
//! Numbers have the order of this machine, texts are UTF-8 behind their length. Neither side believes the
//! other: what is read is bounded, and what does not parse ends the conversation.
//!
//! What does not belong here: what is asked when (`client`), and what is done about it (`serve`).

use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::symbolize::{Answer, CodeBytes, FunctionInfo, MAX_CODE_BYTES};
use profiler_model::UnknownReason;

/// To the process: load the files that come along.
pub(super) const LOAD: u32 = 1;
/// To the process: what do these addresses mean?
pub(super) const FIND: u32 = 2;
/// To the process: close what is loaded under a number.
pub(super) const FORGET: u32 = 3;
/// To the process: what is at this address of the memory that comes along, by this thread of it?
pub(super) const READ: u32 = 7;
/// From the process: the bytes that [`READ`] asks for, as many as there are.
pub(super) const BYTES: u32 = 8;
/// Longest piece that [`READ`] asks for.
pub(super) const MAX_PIECE: usize = 1 << 20;
/// To the process: what is the unwind table of the file that comes along?
pub(super) const TABLE: u32 = 9;
/// From the process: the answer to [`TABLE`]: whether there is one, and then the encoded table.
pub(super) const TABLED: u32 = 10;
/// Longest table or answer that is told.
pub(super) const MAX_TABLE: usize = 64 << 20;
/// To the process that opens files: a mapped file, or one that a path leads to, with the folder that is its root.
pub(super) const OPEN: u32 = 11;
/// From it: there is a handle; the rest is for the file system of this device to answer.
pub(super) const HANDLED: u32 = 12;
/// From it: what became of [`OPEN`], and the file.
pub(super) const OPENED: u32 = 13;
/// To the process: what is in the rest of the frame is for what answers it (`questions`).
pub(super) const QUESTION: u32 = 14;
/// From it: the answer to [`QUESTION`]: whether there is one, and the rest.
pub(super) const ANSWER: u32 = 15;
/// Longest path.
const MAX_PATH: usize = 4096;
/// From the process: it is ready.
pub(super) const READY: u32 = 4;
/// From the process: what became of [`LOAD`].
pub(super) const LOADED: u32 = 5;
/// From the process: the answers to [`FIND`].
pub(super) const FOUND: u32 = 6;

/// Bytes before those of a frame.
pub(super) const HEAD: usize = 8;
/// Longest frame to the process.
pub(super) const MAX_ASKED: usize = 1 << 20;
/// Longest frame from it, but for tables.
pub(super) const MAX_SAID: usize = 32 << 20;
/// Answers are left out beyond this, so that a frame stays within its limit.
const ENOUGH: usize = 16 << 20;
/// Longest name kept.
const MAX_TEXT: usize = 4096;
/// Most functions at one address: what calls what, all inlined.
const MAX_LINES: usize = 512;

/// What is known of an address: its functions, and the code of the outermost one.
pub(crate) type Found = (Answer, Option<CodeBytes>);

/// Builds a frame.
#[derive(Default)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(kind: u32) -> Frame {
        let mut frame = Frame::default();
        frame.u32(kind);
        frame.u32(0);
        frame
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    fn maybe(&mut self, value: Option<u64>) {
        self.u8(value.is_some().into());
        self.u64(value.unwrap_or(0));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
    }

    /// A path, whatever bytes it has.
    pub(super) fn path(&mut self, path: &[u8]) {
        self.bytes(&path[..path.len().min(MAX_PATH)]);
    }

    /// Bytes that are the rest of the frame.
    pub(super) fn all(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
    }

    fn maybe_text(&mut self, text: Option<&str>) {
        self.u8(text.is_some().into());
        self.text(text.unwrap_or_default());
    }

    /// The frame, with its length.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = (self.0.len() - HEAD) as u32;
        self.0[4..HEAD].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Reads a frame; an error if it holds less than is asked for.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

/// A frame that is not what it should be.
pub(super) fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(nonsense)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> io::Result<u32> {
        let bytes = self.take(4)?.first_chunk().ok_or_else(nonsense)?;
        Ok(u32::from_ne_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> io::Result<u64> {
        let bytes = self.take(8)?.first_chunk().ok_or_else(nonsense)?;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// A number of things of which each takes at least a byte.
    pub(super) fn count(&mut self, most: usize) -> io::Result<usize> {
        let count = self.u32()? as usize;
        match count <= most.min(self.0.len()) {
            true => Ok(count),
            false => Err(nonsense()),
        }
    }

    fn maybe(&mut self) -> io::Result<Option<u64>> {
        let is_some = self.u8()? != 0;
        let value = self.u64()?;
        Ok(is_some.then_some(value))
    }

    fn bytes(&mut self, most: usize) -> io::Result<&'a [u8]> {
        let len = self.count(most)?;
        self.take(len)
    }

    pub(super) fn path(&mut self) -> io::Result<&'a [u8]> {
        self.bytes(MAX_PATH)
    }

    fn text(&mut self) -> io::Result<Box<str>> {
        let text = std::str::from_utf8(self.bytes(MAX_TEXT)?);
        text.map(Box::from).map_err(|_| nonsense())
    }

    fn maybe_text(&mut self) -> io::Result<Option<Box<str>>> {
        let is_some = self.u8()? != 0;
        let text = self.text()?;
        Ok(is_some.then_some(text))
    }
}

/// Kind and length of a frame, of its head.
pub(super) fn head(bytes: &[u8; HEAD]) -> (u32, usize) {
    let mut reader = Reader(bytes);
    let kind = reader.u32().unwrap_or(0);
    (kind, reader.u32().unwrap_or(0) as usize)
}

/// Longest frame of a kind from the process.
pub(super) fn most_said(kind: u32) -> usize {
    match kind {
        TABLED | ANSWER => MAX_TABLE + 1,
        _ => MAX_SAID,
    }
}

/// The frame of [`FOUND`], made of one answer after the other.
pub(super) struct Answers {
    frame: Frame,
    functions: FxHashMap<*const FunctionInfo, u32>,
    /// So that none is told by the address of another one.
    kept: Vec<Arc<FunctionInfo>>,
}

impl Answers {
    pub(super) fn new() -> Answers {
        Answers {
            frame: Frame::new(FOUND),
            functions: FxHashMap::default(),
            kept: Vec::new(),
        }
    }

    /// Adds the answer for the next address.
    pub(super) fn push(&mut self, (answer, code): &Found) {
        let frame = &mut self.frame;
        if frame.0.len() > ENOUGH {
            frame.u8(3);
            frame.u8(0);
            return;
        }
        match answer {
            Answer::Lines(lines) => {
                let lines = &lines[..lines.len().min(MAX_LINES)];
                frame.u8(0);
                frame.u32(lines.len() as u32);
                for (function, line) in lines {
                    let next = self.functions.len() as u32;
                    let known = self.functions.get(&Arc::as_ptr(function)).copied();
                    frame.u32(known.unwrap_or(next));
                    frame.u32(*line);
                    if known.is_none() {
                        self.functions.insert(Arc::as_ptr(function), next);
                        self.kept.push(function.clone());
                        frame.text(&function.name);
                        frame.maybe_text(function.linkage_name.as_deref());
                        frame.maybe_text(function.file.as_deref());
                        frame.u32(function.line);
                        frame.maybe(function.start);
                        frame.maybe(function.size);
                    }
                }
            }
            Answer::Unknown(UnknownReason::NoSymbol) => frame.u8(1),
            Answer::Unknown(UnknownReason::BadFile) => frame.u8(2),
            Answer::Unknown(_) | Answer::NotYet => frame.u8(3),
        }
        frame.u8(code.is_some().into());
        if let Some((start, bytes)) = code {
            frame.u64(*start);
            frame.bytes(bytes);
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.frame.finish()
    }
}

/// What [`Answers`] says of so many addresses.
pub(super) fn found(bytes: &[u8], count: usize) -> io::Result<Vec<Found>> {
    let mut reader = Reader(bytes);
    let mut functions: Vec<Arc<FunctionInfo>> = Vec::new();
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let answer = match reader.u8()? {
            0 => {
                let count = reader.count(MAX_LINES)?;
                let mut lines = Vec::with_capacity(count);
                for _ in 0..count {
                    let index = reader.u32()? as usize;
                    let line = reader.u32()?;
                    if index == functions.len() {
                        functions.push(Arc::new(FunctionInfo {
                            name: reader.text()?,
                            linkage_name: reader.maybe_text()?,
                            file: reader.maybe_text()?,
                            line: reader.u32()?,
                            start: reader.maybe()?,
                            size: reader.maybe()?,
                        }));
                    }
                    let function = functions.get(index).ok_or_else(nonsense)?;
                    lines.push((function.clone(), line));
                }
                match lines.is_empty() {
                    true => return Err(nonsense()),
                    false => Answer::Lines(lines.into()),
                }
            }
            1 => Answer::Unknown(UnknownReason::NoSymbol),
            2 => Answer::Unknown(UnknownReason::BadFile),
            3 => Answer::Unknown(UnknownReason::GaveUp),
            _ => return Err(nonsense()),
        };
        let code = match reader.u8()? {
            0 => None,
            _ => Some((
                reader.u64()?,
                Arc::from(reader.bytes(MAX_CODE_BYTES as usize)?),
            )),
        };
        found.push((answer, code));
    }
    match reader.0.is_empty() {
        true => Ok(found),
        false => Err(nonsense()),
    }
}

/// Whether bytes are an answer about so many addresses; for fuzzing, which has no other way in.
#[doc(hidden)]
pub fn is_understood(bytes: &[u8], count: usize) -> bool {
    let found = found(bytes, count);
    found.is_ok_and(|found| {
        assert_eq!(found.len(), count);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(name: &str, start: Option<u64>) -> Arc<FunctionInfo> {
        Arc::new(FunctionInfo {
            name: name.into(),
            linkage_name: start.map(|_| "_Zn".into()),
            file: start.map(|_| "f.c".into()),
            line: start.map_or(0, |start| start as u32 + 1),
            start,
            size: start,
        })
    }

    fn told() -> (Vec<Found>, Vec<u8>) {
        let (outer, inner) = (function("outer", Some(7)), function("", None));
        let all: Vec<Found> = vec![
            (
                Answer::Lines([(inner.clone(), 3), (outer.clone(), 9)].into()),
                Some((7, [1_u8, 2].as_slice().into())),
            ),
            (Answer::Unknown(UnknownReason::NoSymbol), None),
            (Answer::Lines([(outer, 0)].into()), None),
            (Answer::Unknown(UnknownReason::BadFile), None),
            (Answer::Unknown(UnknownReason::GaveUp), None),
        ];
        let mut answers = Answers::new();
        all.iter().for_each(|one| answers.push(one));
        (all, answers.finish())
    }

    #[test]
    fn answers_come_as_they_were_given() {
        let (all, bytes) = told();
        let (kind, len) = head(bytes[..HEAD].first_chunk().unwrap());
        assert_eq!((kind, len), (FOUND, bytes.len() - HEAD));
        let got = found(&bytes[HEAD..], all.len()).unwrap();
        assert_eq!(got, all);
        let shared = |at: usize, line: usize| match &got[at].0 {
            Answer::Lines(lines) => Arc::as_ptr(&lines[line].0),
            other => panic!("{other:?}"),
        };
        assert_eq!(shared(0, 1), shared(2, 0), "told once");
        assert!(found(&bytes[HEAD..], all.len() - 1).is_err());
        assert!(found(&bytes[HEAD..], all.len() + 1).is_err());
    }

    #[test]
    fn too_much_is_left_out() {
        let code: CodeBytes = (0, vec![0_u8; MAX_CODE_BYTES as usize].into());
        let many = 2000;
        let mut answers = Answers::new();
        for _ in 0..many {
            let lines = [(function("f", None), 1)].into();
            answers.push(&(Answer::Lines(lines), Some(code.clone())));
        }
        let bytes = answers.finish();
        assert!(bytes.len() < MAX_SAID);
        let got = found(&bytes[HEAD..], many).unwrap();
        assert!(matches!(got[0].0, Answer::Lines(_)));
        assert_eq!(
            got[many - 1],
            (Answer::Unknown(UnknownReason::GaveUp), None)
        );
    }

    proptest! {
        #[test]
        fn damage_is_refused_or_harmless(
            at in 0_usize..200, value: u8, cut in 0_usize..200
        ) {
            let (all, mut bytes) = told();
            let at = HEAD + at % (bytes.len() - HEAD);
            bytes[at] = value;
            let _ = found(&bytes[HEAD..], all.len());
            let end = HEAD + cut % (bytes.len() - HEAD);
            prop_assert!(found(&told().1[HEAD..end], all.len()).is_err());
        }
    }
}
