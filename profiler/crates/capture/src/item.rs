//! The alphabet of items: variable-length integers, and the numbers of kinds and enums.
//!
//! Integers are LEB128: 7 bits a byte, least significant first, the top bit says that more
//! follow. Signed ones are folded (zigzag) so that small magnitudes stay short. The numbers here
//! are the format; they never change their meaning.

use profiler_model::{
    EpochId, FrameKind, LostReason, ModuleKind, ReturnMode, Timestamp, TracedKind, Unit,
    UnknownReason,
};

/// Kinds of items in definition blocks.
pub(super) mod definition {
    pub(crate) const SESSION: u64 = 1;
    pub(crate) const STRING: u64 = 2;
    pub(crate) const SOURCE: u64 = 3;
    pub(crate) const PROCESS: u64 = 4;
    pub(crate) const THREAD: u64 = 5;
    pub(crate) const MODULE: u64 = 6;
    pub(crate) const MAPPING: u64 = 7;
    pub(crate) const FUNCTION: u64 = 8;
    pub(crate) const FRAME: u64 = 9;
    pub(crate) const STACK: u64 = 10;
    pub(crate) const SYMBOL: u64 = 11;
    pub(crate) const CODE: u64 = 12;
    pub(crate) const TRACED: u64 = 13;
    pub(crate) const CONTAINER: u64 = 14;
    pub(crate) const NAMED: u64 = 15;
    /// One more than the highest kind: the size of a table by kind.
    pub(crate) const KINDS: usize = 16;
}

/// Kinds of items in event blocks.
pub(super) mod event {
    pub(crate) const SAMPLE: u64 = 1;
    pub(crate) const PROCESS: u64 = 2;
    pub(crate) const MARK: u64 = 3;
    pub(crate) const CLOCK: u64 = 4;
    pub(crate) const LOST: u64 = 5;
    pub(crate) const CALL: u64 = 6;
    pub(crate) const THROW: u64 = 7;
    pub(crate) const CALL_COUNT: u64 = 8;
    pub(crate) const GAP: u64 = 9;
    pub(crate) const WAITS: u64 = 10;
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 10;
}

/// Events by kind; that of kind 1 at index 0.
pub(super) type EventCounts = [u64; event::KINDS];

/// Bits of a call's first byte.
pub(super) mod call {
    /// Which edge it is.
    pub(crate) const EDGE: u8 = 3;
    pub(crate) const ENTER: u8 = 0;
    pub(crate) const EXIT: u8 = 1;
    pub(crate) const HIT: u8 = 2;
    /// Else the processor of the previous call of the block (0 at first).
    pub(crate) const CPU: u8 = 4;
    /// Else the thread of the processor's previous call.
    pub(crate) const THREAD: u8 = 8;
    /// Else the function of the thread's previous call; of an exit: that was entered last, with its
    /// time.
    pub(crate) const FUNCTION: u8 = 16;
    /// Else as the thread's previous call makes one expect.
    pub(crate) const DEPTH: u8 = 32;
    /// Else the duration less those of the calls in it.
    pub(crate) const SELF: u8 = 64;
    /// Values; of an exit: how it came to be. Else none, and a return.
    pub(crate) const MORE: u8 = 128;

    /// Kind of the section that says whose stack it is on; none: the thread's own.
    pub(crate) const STACK: u64 = 2;

    /// How an exit came to be.
    pub(crate) const HOW: u8 = 7;
    pub(crate) const RETURN: u8 = 0;
    pub(crate) const EXCEPTION: u8 = 1;
    pub(crate) const TERMINATED: u8 = 2;
    pub(crate) const INFERRED: u8 = 3;
    pub(crate) const UNWATCHED: u8 = 4;
    /// A result follows.
    pub(crate) const RESULT: u8 = 8;
    /// Arguments follow.
    pub(crate) const WHOLE: u8 = 16;
    /// A line follows, behind all else. Else it is that of the function's last return in the block (0
    /// before the first), if this is a return; 0 if it is none.
    pub(crate) const LINE: u8 = 32;
}

/// Contexts for "as the processor's previous sample": processor number modulo this.
pub(super) const CPU_CONTEXTS: usize = 256;

/// Appends an unsigned integer.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed integer.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

/// Folds the sign into the lowest bit.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// A chain of times, each as its difference to the one before; from 0 in each block.
#[derive(Debug, Default)]
pub(super) struct Times {
    previous_ns: u64,
}

impl Times {
    /// Appends a time.
    #[inline]
    pub(super) fn put(&mut self, out: &mut Vec<u8>, at: Timestamp) {
        put_signed(out, at.0.wrapping_sub(self.previous_ns) as i64);
        self.previous_ns = at.0;
    }

    /// Reads a time.
    #[inline]
    pub(super) fn read(&mut self, fields: &mut Fields<'_>) -> Result<Timestamp, Bad> {
        self.previous_ns = self.previous_ns.wrapping_add(fields.signed()? as u64);
        Ok(Timestamp(self.previous_ns))
    }
}

/// An id that must be there.
pub(super) fn id<I: EpochId>(value: u32) -> Result<I, Bad> {
    I::new(value).ok_or(Bad("an id is 0"))
}

/// Reads items' fields; every read is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

/// A field that can't be read or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad(pub(super) &'static str);

impl<'a> Fields<'a> {
    /// An unsigned integer.
    #[inline]
    pub(super) fn get(&mut self) -> Result<u64, Bad> {
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        let mut value = 0u64;
        for (i, &byte) in self.0.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if i == 9 && bits > 1 {
                return Err(Bad("an integer is too large"));
            }
            value |= bits << (7 * i);
            if byte < 0x80 {
                self.0 = self.0.get(i + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(Bad("a field is cut off"))
    }

    /// A signed integer.
    #[inline]
    pub(super) fn signed(&mut self) -> Result<i64, Bad> {
        self.get().map(unzigzag)
    }

    /// An unsigned integer of 32 bits.
    #[inline]
    pub(super) fn get32(&mut self) -> Result<u32, Bad> {
        u32::try_from(self.get()?).map_err(|_| Bad("a 32-bit field is too large"))
    }

    /// One byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Bad> {
        let (&byte, rest) = self.0.split_first().ok_or(Bad("a field is cut off"))?;
        self.0 = rest;
        Ok(byte)
    }

    /// Bytes with their length before them.
    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Bad> {
        let len = self.get()?;
        self.take(len)
    }

    /// So many bytes.
    #[inline]
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Bad> {
        let len = usize::try_from(len).map_err(|_| Bad("a length is too large"))?;
        let (bytes, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(Bad("a field is cut off"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// An id.
    pub(super) fn id<I: EpochId>(&mut self) -> Result<I, Bad> {
        id(self.get32()?)
    }

    /// An id that may be none.
    pub(super) fn optional<I: EpochId>(&mut self) -> Result<Option<I>, Bad> {
        Ok(I::new(self.get32()?))
    }

    /// Text with its length before it.
    pub(super) fn text(&mut self) -> Result<&'a str, Bad> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Bad("a text is not UTF-8"))
    }
}

pub(super) fn unit_code(unit: Unit) -> u64 {
    match unit {
        Unit::Nanoseconds => 1,
        Unit::Cycles => 2,
        Unit::Events => 3,
    }
}

pub(super) fn unit(code: u64) -> Unit {
    match code {
        1 => Unit::Nanoseconds,
        2 => Unit::Cycles,
        _ => Unit::Events,
    }
}

pub(super) fn module_kind_code(kind: ModuleKind) -> u64 {
    match kind {
        ModuleKind::Unknown => 0,
        ModuleKind::File => 1,
        ModuleKind::Kernel => 2,
        ModuleKind::KernelModule => 3,
        ModuleKind::Vdso => 4,
        ModuleKind::Jit => 5,
        ModuleKind::Interpreted => 6,
    }
}

pub(super) fn module_kind(code: u64) -> ModuleKind {
    match code {
        1 => ModuleKind::File,
        2 => ModuleKind::Kernel,
        3 => ModuleKind::KernelModule,
        4 => ModuleKind::Vdso,
        5 => ModuleKind::Jit,
        6 => ModuleKind::Interpreted,
        _ => ModuleKind::Unknown,
    }
}

pub(super) fn frame_kind_code(kind: FrameKind) -> u64 {
    match kind {
        FrameKind::Native => 1,
        FrameKind::Kernel => 2,
        FrameKind::Jit => 3,
        FrameKind::Interpreted => 4,
    }
}

pub(super) fn frame_kind(code: u64) -> FrameKind {
    match code {
        2 => FrameKind::Kernel,
        3 => FrameKind::Jit,
        4 => FrameKind::Interpreted,
        _ => FrameKind::Native,
    }
}

pub(super) fn unknown_reason_code(reason: UnknownReason) -> u64 {
    match reason {
        UnknownReason::NoMapping => 1,
        UnknownReason::NoFile => 2,
        UnknownReason::NoSymbol => 3,
        UnknownReason::BadFile => 4,
        UnknownReason::GaveUp => 5,
        UnknownReason::TooLarge => 6,
    }
}

pub(super) fn unknown_reason(code: u64) -> UnknownReason {
    match code {
        1 => UnknownReason::NoMapping,
        2 => UnknownReason::NoFile,
        3 => UnknownReason::NoSymbol,
        4 => UnknownReason::BadFile,
        6 => UnknownReason::TooLarge,
        _ => UnknownReason::GaveUp,
    }
}

pub(super) fn traced_kind_code(kind: TracedKind) -> u64 {
    match kind {
        TracedKind::Function => 1,
        TracedKind::Marker => 2,
    }
}

pub(super) fn traced_kind(code: u64) -> TracedKind {
    match code {
        2 => TracedKind::Marker,
        _ => TracedKind::Function,
    }
}

pub(super) fn return_mode_code(mode: ReturnMode) -> u64 {
    match mode {
        ReturnMode::None => 0,
        ReturnMode::Uretprobe => 1,
        ReturnMode::Instructions => 2,
        ReturnMode::Agent => 3,
    }
}

pub(super) fn return_mode(code: u64) -> ReturnMode {
    match code {
        1 => ReturnMode::Uretprobe,
        2 => ReturnMode::Instructions,
        3 => ReturnMode::Agent,
        _ => ReturnMode::None,
    }
}

/// `None` is a reason of a later version.
pub(super) fn lost_reason(code: u64) -> Option<LostReason> {
    Some(match code {
        1 => LostReason::RingFull,
        2 => LostReason::Nested,
        3 => LostReason::Skipped,
        4 => LostReason::SideBand,
        5 => LostReason::Late,
        6 => LostReason::SlowOutput,
        7 => LostReason::BadRecord,
        8 => LostReason::CallRingFull,
        9 => LostReason::Unmatched,
        10 => LostReason::Undecided,
        11 => LostReason::WaitTable,
        12 => LostReason::WaitUnseen,
        13 => LostReason::WaitRingFull,
        14 => LostReason::WaitNested,
        15 => LostReason::TooMany,
        16 => LostReason::Unwritten,
        17 => LostReason::UnwrittenSamples,
        18 => LostReason::UnwrittenWaits,
        19 => LostReason::UnwrittenCalls,
        20 => LostReason::UnwrittenCounts,
        _ => return None,
    })
}
