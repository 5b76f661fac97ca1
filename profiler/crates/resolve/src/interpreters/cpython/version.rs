//! Versions of CPython: where each has the members that frames and names need.
//!
//! A version, or what `_PyRuntime` says of itself (3.13) -> [`Offsets`], in bytes, all of them checked.
//! Source: the headers of CPython 3.8 to 3.13 (`Include/internal`, `Include/cpython`, `Include/frameobject.h`);
//! within a minor version they stay the same.
//!
//! What does not belong here: how a file is searched (`runtime`).

use profiler_common::interpreter::Layout;
use profiler_common::python::{
    BLOCK_BYTES, CODE_TEXTS, ENTRY_SHIFT, ENTRY_SHIM, FRAME_BYTES, FRAME_CODE, FRAME_ENTRY,
    FRAME_INSTRUCTION, FRAME_PREVIOUS, HOLDER_FRAME, INTERPRETER_NEXT, INTERPRETER_THREADS,
    INTERPRETERS, THREAD_BYTES, THREAD_FRAME, THREAD_ID, THREAD_NEXT,
};

/// Bytes of `_Py_DebugOffsets` that are looked at.
pub(super) const DEBUG_OFFSETS_BYTES: usize = 568;
/// What these begin with.
const COOKIE: &[u8] = b"xdebugpy";
/// Which owner of a frame says that it stands for machine code.
const OWNED_BY_C: u32 = 3;
/// Largest offset that is believed of the runtime and of interpreters.
const MAX_OFFSET: u64 = 1 << 20;

/// `PY_VERSION_HEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32);

impl Version {
    /// Major and minor.
    pub(super) fn series(self) -> (u8, u8) {
        ((self.0 >> 24) as u8, (self.0 >> 16) as u8)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.series();
        match self.0 as u8 {
            // Every release has a level there: nothing but the series is known.
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{}", (self.0 >> 8) as u8),
        }
    }
}

/// How a code object says which line an instruction is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineTable {
    /// Locations (3.11 and newer). Frames have the address of their instruction, which is within the code object.
    Locations,
    /// `co_linetable` of 3.10. Frames have the number of their instruction.
    Ranges,
    /// `co_lnotab` (before 3.10). Frames have the number of the first byte of their instruction.
    Steps,
}

/// Where code objects and texts have their members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeOffsets {
    /// Of a code object: the path of its source.
    pub(super) filename: usize,
    /// Of a code object: its name, since 3.11 with those of what it is in.
    pub(super) qualname: usize,
    /// Of a code object: its table of lines.
    pub(super) linetable: usize,
    /// Of a code object: its first line.
    pub(super) firstlineno: usize,
    /// Of a code object: its instructions, or what refers to them.
    pub(super) instructions: usize,
    /// Of a code object: what tells it from others, as the kernel side reads it.
    pub(super) fingerprint: usize,
    /// What its table of lines is.
    pub(super) lines: LineTable,
    /// Bytes of the head of a text of ASCII characters.
    pub(super) ascii: usize,
    /// Of other texts.
    pub(super) compact: usize,
}

/// All that is needed of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// For the kernel side.
    pub(super) layout: Layout,
    /// For names.
    pub(super) code: CodeOffsets,
}

impl Offsets {
    /// Whether each frame is run by a call of the interpreter's loop of its own.
    pub(super) fn each_is_called(&self) -> bool {
        self.code.lines != LineTable::Locations
    }
}

/// Why a version's frames can't be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsupported {
    /// Another version.
    #[error("only 3.8 to 3.13 are supported")]
    Version,
    /// Built without the lock: other rules.
    #[error("free-threaded builds are not supported")]
    FreeThreaded,
    /// What it says of itself makes no sense.
    #[error("its description of itself makes no sense")]
    Damaged,
}

/// The offsets of a version. `described` is the beginning of `_PyRuntime`.
pub(super) fn offsets(version: Version, described: &[u8]) -> Result<Offsets, Unsupported> {
    match version.series() {
        (3, 8 | 9) => Ok(of_3_8(104, LineTable::Steps)),
        (3, 10) => Ok(of_3_8(96, LineTable::Ranges)),
        (3, 11) => Ok(of_3_11()),
        (3, 12) => Ok(of_3_12()),
        (3, 13) => described_by_itself(described),
        _ => Err(Unsupported::Version),
    }
}

fn layout(words: &[(usize, u32)]) -> Layout {
    let mut layout = Layout::default();
    for &(index, word) in words {
        layout.words[index] = word;
    }
    layout
}

/// 3.8 to 3.10, whose frames have the instruction that was last at `last`, in 4 bytes. Each of them is run by a call
/// of the interpreter's loop of its own.
fn of_3_8(last: u32, lines: LineTable) -> Offsets {
    Offsets {
        layout: layout(&[
            (INTERPRETERS, 32),
            (INTERPRETER_NEXT, 0),
            (INTERPRETER_THREADS, 8),
            (THREAD_BYTES, 184),
            (THREAD_NEXT, 8),
            (THREAD_ID, 176),
            (THREAD_FRAME, 24),
            (HOLDER_FRAME, 0),
            (FRAME_BYTES, last + 8),
            (FRAME_CODE, 32),
            (FRAME_PREVIOUS, 24),
            (FRAME_INSTRUCTION, last),
            (FRAME_ENTRY, 8),
            (ENTRY_SHIFT, 0),
            (ENTRY_SHIM, 0),
            // Behind the four that begin with `co_filename` is one that changes while the object lives: these begin
            // one word before.
            (CODE_TEXTS, 96),
        ]),
        code: CodeOffsets {
            filename: 104,
            qualname: 112,
            linetable: 120,
            firstlineno: 40,
            instructions: 48,
            fingerprint: 96,
            lines,
            ascii: 48,
            compact: 72,
        },
    }
}

fn of_3_11() -> Offsets {
    Offsets {
        layout: layout(&[
            (INTERPRETERS, 40),
            (INTERPRETER_NEXT, 0),
            (INTERPRETER_THREADS, 16),
            (THREAD_BYTES, 160),
            (THREAD_NEXT, 8),
            (THREAD_ID, 152),
            (THREAD_FRAME, 56),
            (HOLDER_FRAME, 8 + 1),
            (FRAME_BYTES, 72),
            (FRAME_CODE, 32),
            (FRAME_PREVIOUS, 48),
            (FRAME_INSTRUCTION, 56),
            // `is_entry`, at 68.
            (FRAME_ENTRY, 64),
            (ENTRY_SHIFT, 32),
            (ENTRY_SHIM, 0),
            (CODE_TEXTS, 112),
        ]),
        code: CodeOffsets {
            filename: 112,
            qualname: 128,
            linetable: 136,
            firstlineno: 72,
            instructions: 184,
            fingerprint: 112,
            lines: LineTable::Locations,
            ascii: 48,
            compact: 72,
        },
    }
}

fn of_3_12() -> Offsets {
    Offsets {
        layout: layout(&[
            (INTERPRETERS, 40),
            (INTERPRETER_NEXT, 0),
            (INTERPRETER_THREADS, 72),
            (THREAD_BYTES, 144),
            (THREAD_NEXT, 8),
            (THREAD_ID, 136),
            (THREAD_FRAME, 56),
            (HOLDER_FRAME, 1),
            (FRAME_BYTES, 72),
            (FRAME_CODE, 0),
            (FRAME_PREVIOUS, 8),
            (FRAME_INSTRUCTION, 56),
            // `owner`, at 70.
            (FRAME_ENTRY, 64),
            (ENTRY_SHIFT, 48),
            (ENTRY_SHIM, OWNED_BY_C),
            (CODE_TEXTS, 112),
        ]),
        code: CodeOffsets {
            filename: 112,
            qualname: 128,
            linetable: 136,
            firstlineno: 68,
            instructions: 192,
            fingerprint: 112,
            lines: LineTable::Locations,
            ascii: 40,
            compact: 56,
        },
    }
}

/// From `_Py_DebugOffsets`, which 3.13 begins `_PyRuntime` with.
fn described_by_itself(bytes: &[u8]) -> Result<Offsets, Unsupported> {
    let word = |at: usize| {
        let word = bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*word))
    };
    let below = |at: usize, limit: u64| {
        let offset = word(at).filter(|offset| *offset < limit);
        offset
            .map(|offset| offset as u32)
            .ok_or(Unsupported::Damaged)
    };
    // What the kernel side reads as a whole.
    let within = |at: usize| {
        let offset = below(at, BLOCK_BYTES as u64)?;
        match offset.is_multiple_of(8) {
            true => Ok(offset),
            false => Err(Unsupported::Damaged),
        }
    };
    let far = |at: usize| below(at, MAX_OFFSET);
    let near = |at: usize| below(at, 4096).map(|offset| offset as usize);
    if !bytes.starts_with(COOKIE) {
        return Err(Unsupported::Damaged);
    }
    if word(16) != Some(0) {
        return Err(Unsupported::FreeThreaded);
    }
    let (next, frame, id) = (within(168)?, within(184)?, within(192)?);
    let (previous, code, instruction) = (within(232)?, within(240)?, within(248)?);
    let owner = below(264, BLOCK_BYTES as u64)?;
    let end = |offsets: [u32; 3]| offsets.iter().max().map_or(0, |last| last + 8);
    let (ascii, filename) = (near(560)?, near(280)?);
    let (qualname, linetable) = (near(296)?, near(304)?);
    if qualname != filename + 16 || linetable != filename + 24 {
        return Err(Unsupported::Damaged);
    }
    Ok(Offsets {
        layout: layout(&[
            (INTERPRETERS, far(40)?),
            (INTERPRETER_NEXT, far(64)?),
            (INTERPRETER_THREADS, far(72)?),
            (THREAD_BYTES, end([next, frame, id])),
            (THREAD_NEXT, next),
            (THREAD_ID, id),
            (THREAD_FRAME, frame),
            (HOLDER_FRAME, 0),
            (
                FRAME_BYTES,
                end([previous, code, instruction]).max((owner & !7) + 8),
            ),
            (FRAME_CODE, code),
            (FRAME_PREVIOUS, previous),
            (FRAME_INSTRUCTION, instruction),
            (FRAME_ENTRY, owner & !7),
            (ENTRY_SHIFT, owner % 8 * 8),
            (ENTRY_SHIM, OWNED_BY_C),
            (CODE_TEXTS, filename as u32),
        ]),
        code: CodeOffsets {
            filename,
            qualname,
            linetable,
            firstlineno: near(312)?,
            instructions: near(344)?,
            fingerprint: filename,
            lines: LineTable::Locations,
            ascii,
            // UTF-8 length and pointer follow.
            compact: ascii + 16,
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_versions_that_are_known_are_believed() {
        for (version, known) in [
            (0x0307_0000, false),
            (0x0308_0000, true),
            (0x0309_0000, true),
            (0x030a_0000, true),
            (0x030b_02f0, true),
            (0x030c_01f0, true),
            (0x030e_00f0, false),
            (0x0203_0000, false),
        ] {
            assert_eq!(offsets(Version(version), &[]).is_ok(), known, "{version:x}");
        }
        assert_eq!(
            offsets(Version(0x030d_00f0), &[]),
            Err(Unsupported::Damaged)
        );
        assert_eq!(Version(0x030b_02f0).to_string(), "3.11.2");
        assert_eq!(Version(0x030a_0000).to_string(), "3.10");
    }

    proptest! {
        #[test]
        fn any_description_is_checked(mut bytes in prop::collection::vec(any::<u8>(), DEBUG_OFFSETS_BYTES), small in any::<bool>()) {
            bytes[..8].copy_from_slice(COOKIE);
            bytes[16..24].fill(0);
            if small {
                for word in bytes[24..].chunks_exact_mut(8) {
                    word[0] &= 0xf8;
                    word[1..].fill(0);
                }
                for (at, offset) in [(280, 8), (296, 24), (304, 32)] {
                    bytes[at] = offset;
                }
            }
            match described_by_itself(&bytes) {
                Ok(offsets) => {
                    let words = offsets.layout.words;
                    prop_assert!(words[THREAD_BYTES] <= BLOCK_BYTES as u32);
                    prop_assert!(words[FRAME_BYTES] <= BLOCK_BYTES as u32);
                    for index in [THREAD_NEXT, THREAD_ID, THREAD_FRAME, FRAME_CODE, FRAME_PREVIOUS, FRAME_INSTRUCTION, FRAME_ENTRY] {
                        prop_assert!(words[index] <= 248 && words[index] % 8 == 0);
                    }
                }
                Err(error) => {
                    prop_assert_eq!(error, Unsupported::Damaged);
                    prop_assert!(!small);
                }
            }
        }
    }
}
