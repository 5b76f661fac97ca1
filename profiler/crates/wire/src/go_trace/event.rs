//! Events: their numbers, names and arguments, and both written forms.
//!
//! Text: `Name arg=1 arg=2`, with frames and data on lines of their own. Wire: one byte of type,
//! then every number as unsigned LEB128 in as few bytes as it needs.

use std::io::Write;

use super::quote::quote;
use super::{Encoding, MAX_FRAMES, MAX_STRING_BYTES, Version, fit};

macro_rules! kinds {
    ($($name:ident = $code:literal, $since:ident, [$($arg:literal)*];)*) => {
        /// What an event is. Arguments are listed in Go's `internal/trace/tracev2`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // The names are Go's.
        #[repr(u8)]
        pub enum Kind { $($name = $code),* }

        impl Kind {
            /// All kinds, in order of their numbers.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name)),* }
            }

            /// The names of its arguments.
            pub fn args(self) -> &'static [&'static str] {
                match self { $(Kind::$name => &[$($arg),*]),* }
            }

            /// The version that introduced it.
            pub fn since(self) -> Version {
                match self { $(Kind::$name => Version::$since),* }
            }
        }
    };
}

kinds! {
    EventBatch = 1, Go122, ["gen" "m" "time" "size"];
    Stacks = 2, Go122, [];
    Stack = 3, Go122, ["id" "nframes"];
    Strings = 4, Go122, [];
    String = 5, Go122, ["id"];
    CPUSamples = 6, Go122, [];
    CPUSample = 7, Go122, ["time" "m" "p" "g" "stack"];
    Frequency = 8, Go122, ["freq"];
    ProcsChange = 9, Go122, ["dt" "procs_value" "stack"];
    ProcStart = 10, Go122, ["dt" "p" "p_seq"];
    ProcStop = 11, Go122, ["dt"];
    ProcSteal = 12, Go122, ["dt" "p" "p_seq" "m"];
    ProcStatus = 13, Go122, ["dt" "p" "pstatus"];
    GoCreate = 14, Go122, ["dt" "new_g" "new_stack" "stack"];
    GoCreateSyscall = 15, Go122, ["dt" "new_g"];
    GoStart = 16, Go122, ["dt" "g" "g_seq"];
    GoDestroy = 17, Go122, ["dt"];
    GoDestroySyscall = 18, Go122, ["dt"];
    GoStop = 19, Go122, ["dt" "reason_string" "stack"];
    GoBlock = 20, Go122, ["dt" "reason_string" "stack"];
    GoUnblock = 21, Go122, ["dt" "g" "g_seq" "stack"];
    GoSyscallBegin = 22, Go122, ["dt" "p_seq" "stack"];
    GoSyscallEnd = 23, Go122, ["dt"];
    GoSyscallEndBlocked = 24, Go122, ["dt"];
    GoStatus = 25, Go122, ["dt" "g" "m" "gstatus"];
    STWBegin = 26, Go122, ["dt" "kind_string" "stack"];
    STWEnd = 27, Go122, ["dt"];
    GCActive = 28, Go122, ["dt" "gc_seq"];
    GCBegin = 29, Go122, ["dt" "gc_seq" "stack"];
    GCEnd = 30, Go122, ["dt" "gc_seq"];
    GCSweepActive = 31, Go122, ["dt" "p"];
    GCSweepBegin = 32, Go122, ["dt" "stack"];
    GCSweepEnd = 33, Go122, ["dt" "swept_value" "reclaimed_value"];
    GCMarkAssistActive = 34, Go122, ["dt" "g"];
    GCMarkAssistBegin = 35, Go122, ["dt" "stack"];
    GCMarkAssistEnd = 36, Go122, ["dt"];
    HeapAlloc = 37, Go122, ["dt" "heapalloc_value"];
    HeapGoal = 38, Go122, ["dt" "heapgoal_value"];
    GoLabel = 39, Go122, ["dt" "label_string"];
    UserTaskBegin = 40, Go122, ["dt" "task" "parent_task" "name_string" "stack"];
    UserTaskEnd = 41, Go122, ["dt" "task" "stack"];
    UserRegionBegin = 42, Go122, ["dt" "task" "name_string" "stack"];
    UserRegionEnd = 43, Go122, ["dt" "task" "name_string" "stack"];
    UserLog = 44, Go122, ["dt" "task" "key_string" "value_string" "stack"];
    GoSwitch = 45, Go123, ["dt" "g" "g_seq"];
    GoSwitchDestroy = 46, Go123, ["dt" "g" "g_seq"];
    GoCreateBlocked = 47, Go123, ["dt" "new_g" "new_stack" "stack"];
    GoStatusStack = 48, Go123, ["dt" "g" "m" "gstatus" "stack"];
    ExperimentalBatch = 49, Go123, ["exp" "gen" "m" "time"];
    Sync = 50, Go125, [];
    ClockSnapshot = 51, Go125, ["dt" "mono" "sec" "nsec"];
    EndOfGeneration = 52, Go126, [];
}

impl Kind {
    /// Whether bytes follow its arguments.
    pub fn has_data(self) -> bool {
        super::read::most_data(self).is_some()
    }
}

/// One frame of a stack. `function` and `file` are ids of strings; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// Address. Readers since 1.23 take function, file and line from the first frame that has it.
    pub pc: u64,
    /// Name of the function.
    pub function: u64,
    /// Name of the source file.
    pub file: u64,
    /// Line in it.
    pub line: u64,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    kind: Kind,
    args: &'a [u64],
    frames: &'a [Frame],
    data: &'a [u8],
}

impl<'a> Event<'a> {
    /// An event of numbers only; `args` in the order of [`Kind::args`].
    pub fn new(kind: Kind, args: &'a [u64]) -> Event<'a> {
        debug_assert_eq!(args.len(), kind.args().len(), "{kind:?}");
        debug_assert!(!matches!(kind, Kind::Stack | Kind::String));
        Event {
            kind,
            args,
            frames: &[],
            data: &[],
        }
    }

    /// Any event, as it was read: nothing is cut.
    pub(super) fn of(
        kind: Kind,
        args: &'a [u64],
        frames: &'a [Frame],
        data: &'a [u8],
    ) -> Event<'a> {
        Event {
            kind,
            args,
            frames,
            data,
        }
    }

    /// A stack, leaf first; what is over [`MAX_FRAMES`] at the root is left out.
    pub fn stack(id: &'a u64, frames: &'a [Frame]) -> Event<'a> {
        Event {
            kind: Kind::Stack,
            args: std::slice::from_ref(id),
            frames: &frames[..frames.len().min(MAX_FRAMES)],
            data: &[],
        }
    }

    /// A string; what is over [`MAX_STRING_BYTES`] is left out.
    pub fn string(id: &'a u64, text: &'a str) -> Event<'a> {
        Event {
            kind: Kind::String,
            args: std::slice::from_ref(id),
            frames: &[],
            data: fit(text).as_bytes(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many bytes its wire form has.
    pub fn wire_len(&self) -> usize {
        let args: usize = self.args.iter().map(|&arg| uvarint_len(arg)).sum();
        let rest = match self.kind {
            Kind::Stack => {
                let frames: usize = self.frames.iter().flat_map(numbers).map(uvarint_len).sum();
                uvarint_len(self.frames.len() as u64) + frames
            }
            kind if kind.has_data() => uvarint_len(self.data.len() as u64) + self.data.len(),
            _ => 0,
        };
        1 + args + rest
    }

    /// Appends it to `out`.
    pub fn encode(&self, encoding: Encoding, out: &mut Vec<u8>) {
        match encoding {
            Encoding::Text => self.encode_text(out),
            Encoding::Wire => self.encode_wire(out),
        }
    }

    fn encode_wire(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        for &arg in self.args {
            uvarint(arg, out);
        }
        if self.kind == Kind::Stack {
            uvarint(self.frames.len() as u64, out);
            for number in self.frames.iter().flat_map(numbers) {
                uvarint(number, out);
            }
        }
        if self.kind.has_data() {
            uvarint(self.data.len() as u64, out);
            out.extend_from_slice(self.data);
        }
    }

    fn encode_text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.kind.name().as_bytes());
        let frames = self.frames.len() as u64;
        let nframes = (self.kind == Kind::Stack).then_some(&frames);
        for (name, value) in self.kind.args().iter().zip(self.args.iter().chain(nframes)) {
            field(name, *value, b' ', out);
        }
        for frame in self.frames {
            let names = ["pc", "func", "file", "line"];
            for (name, value) in names.into_iter().zip(numbers(frame)) {
                let before = if name == "pc" { b'\t' } else { b' ' };
                if before == b'\t' {
                    out.push(b'\n');
                }
                field(name, value, before, out);
            }
        }
        if self.kind.has_data() {
            out.extend_from_slice(b"\n\tdata=");
            out.extend_from_slice(quote(self.data).as_bytes());
        }
        out.push(b'\n');
    }
}

const _: () = assert!(
    // The longest line, a string all of whose bytes need the longest escape, is one that readers
    // take (they stop at 65,536 bytes).
    MAX_STRING_BYTES * 6 + 64 < 65_535
);

fn numbers(frame: &Frame) -> [u64; 4] {
    [frame.pc, frame.function, frame.file, frame.line]
}

fn field(name: &str, value: u64, before: u8, out: &mut Vec<u8>) {
    out.push(before);
    // Writing to memory does not fail.
    let _ = write!(out, "{name}={value}");
}

fn uvarint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn uvarint_len(value: u64) -> usize {
    let bits = (u64::BITS - value.leading_zeros()).max(1);
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: &Event) -> String {
        let mut out = Vec::new();
        event.encode(Encoding::Text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_exact() {
        let frames = [Frame {
            pc: 5,
            function: 1,
            file: 2,
            line: 9,
        }; 2];
        assert_eq!(
            text(&Event::stack(&5, &frames)),
            "Stack id=5 nframes=2\n\tpc=5 func=1 file=2 line=9\n\tpc=5 func=1 file=2 line=9\n"
        );
        assert_eq!(
            text(&Event::string(&5, "a\0")),
            "String id=5\n\tdata=\"a\\x00\"\n"
        );
        let status = Event::new(Kind::GoStatus, &[1, 2, u64::MAX, 4]);
        assert_eq!(
            text(&status),
            "GoStatus dt=1 g=2 m=18446744073709551615 gstatus=4\n"
        );
        assert_eq!(text(&Event::new(Kind::Strings, &[])), "Strings\n");
    }

    #[test]
    fn wire_is_as_long_as_said() {
        let long = "x".repeat(3000);
        let frame = Frame {
            pc: u64::MAX,
            function: 127,
            file: 128,
            line: 1 << 35,
        };
        let many = [frame; 200];
        for event in [
            Event::new(Kind::EventBatch, &[1, u64::MAX, 1 << 42, 65_536]),
            Event::stack(&300, &many),
            Event::stack(&1, &[]),
            Event::string(&1, &long),
            Event::string(&128, ""),
            Event::new(Kind::EndOfGeneration, &[]),
        ] {
            let mut out = Vec::new();
            event.encode(Encoding::Wire, &mut out);
            assert_eq!(out.len(), event.wire_len(), "{:?}", event.kind());
        }
    }

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        for (value, len) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (16_383, 2),
            (16_384, 3),
            (u64::MAX, 10),
        ] {
            let mut out = Vec::new();
            uvarint(value, &mut out);
            assert_eq!((out.len(), uvarint_len(value)), (len, len), "{value}");
        }
    }

    #[test]
    fn numbers_of_kinds_are_dense() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index + 1);
        }
    }
}
