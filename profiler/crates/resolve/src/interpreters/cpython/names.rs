//! Names of code objects.
//!
//! A frame -> function, file and line, or why there are none. A code object can be freed, and another
//! one made in its place, between the sample and the reading. The sample tells where the texts of its
//! code object were (its fingerprint), and memory that was freed says so in its first word: what is not the
//! very object any more is left without a name. What was read is believed for that fingerprint, so that it is
//! right as long as texts are not changed in place, which CPython does not do.
//!
//! What does not belong here: how code objects are read (`code`).

use std::sync::Arc;

use profiler_common::python::{FINGERPRINT_SHIFT, PythonFrame};
use rustc_hash::FxHashMap;

use super::code::{Code, Head};
use super::processes::Loaded;
use crate::helper::Memory;
use crate::symbolize::FunctionInfo;
use profiler_model::UnknownReason;

/// Most code objects known of one program of a process; beyond, all are read anew as they are seen.
const MAX_CODES: usize = 16_384;
/// Most memory for those of one program; beyond, the same.
pub(super) const MAX_BYTES: usize = 32 << 20;
/// What one takes besides its texts.
const SEEN_BYTES: usize = 2 * size_of::<(u64, u64, Found)>();

/// What a frame is called.
#[derive(Clone, Debug)]
pub(super) enum Named {
    /// A function and a line; 0: not known.
    At(Arc<FunctionInfo>, u32),
    /// It is not to be seen.
    Hidden,
    /// It has no name.
    Unknown(UnknownReason),
}

/// What was there: none if it was not there any more.
type Found = Option<Arc<(Code, Arc<FunctionInfo>)>>;

/// Code objects of a process, by their addresses and fingerprints.
#[derive(Debug, Default)]
pub(super) struct Codes {
    seen: FxHashMap<(u64, u64), Found>,
    bytes: usize,
    /// Some were forgotten, and nobody was told.
    forgotten: bool,
}

impl Codes {
    /// Reads a code object, unless it is known.
    pub(super) fn look(&mut self, memory: &Memory, of: &Loaded, frame: &PythonFrame) {
        let key = key(frame);
        if self.seen.contains_key(&key) {
            return;
        }
        if self.seen.len() >= MAX_CODES {
            self.clear();
        }
        let offsets = &of.offsets.code;
        let read = || {
            let head = Head::read(memory, frame.code, offsets);
            head.filter(|head| head.is(of.code_type, key.1))
        };
        let code = read().and_then(|head| Code::read(memory, &head, offsets));
        // What was freed meanwhile, its texts may have been too.
        let code = code.filter(|_| read().is_some()).map(|code| {
            let function = FunctionInfo {
                name: code.name.clone(),
                linkage_name: None,
                file: Some(code.file.clone()),
                line: code.line,
                start: None,
                size: None,
            };
            Arc::new((code, Arc::new(function)))
        });
        // The function has the texts once more.
        let bytes = code
            .as_ref()
            .map_or(0, |code| code.0.bytes() + function_bytes(&code.1));
        if self.bytes() + bytes + SEEN_BYTES > MAX_BYTES {
            self.clear();
        }
        self.bytes += bytes;
        self.seen.insert(key, code);
    }

    /// What a frame is called.
    pub(super) fn name(&self, of: &Loaded, frame: &PythonFrame) -> Named {
        let Some(found) = self.seen.get(&key(frame)) else {
            return Named::Unknown(UnknownReason::NoFile);
        };
        let gone = Named::Unknown(UnknownReason::NoSymbol);
        let Some((code, function)) = found.as_deref() else {
            return gone;
        };
        match code.line_of(frame.code, frame.instruction, &of.offsets.code) {
            _ if code.hidden => Named::Hidden,
            Some(line) => Named::At(function.clone(), line),
            None => gone,
        }
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.seen.len() * SEEN_BYTES
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        let forgotten = self.forgotten || !self.seen.is_empty();
        *self = Codes {
            forgotten,
            ..Codes::default()
        };
    }

    /// Whether some were forgotten since the last call.
    pub(super) fn take_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.forgotten)
    }
}

fn function_bytes(function: &FunctionInfo) -> usize {
    let file = function.file.as_ref().map_or(0, |file| file.len());
    size_of::<FunctionInfo>() + function.name.len() + file
}

fn key(frame: &PythonFrame) -> (u64, u64) {
    (frame.code, frame.flags >> FINGERPRINT_SHIFT)
}

/// A number for a place in a source: the same in all captures, so that they can be merged.
pub(super) fn place(function: &FunctionInfo, line: u32) -> u64 {
    let file = function.file.as_deref().unwrap_or_default();
    let texts = function.name.bytes().chain([0]).chain(file.bytes());
    hash(texts.chain([0]).chain(line.to_ne_bytes()))
}

/// FNV-1a, which stays the same from version to version.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
