//! What the kinds and reasons of the model are called: once for programs, once for people.
//!
//! An enum -> its machine name (`snake_case`: JSON, options); and of reasons, which people are told, a phrase that can
//! stand behind a number (`3 ticks skipped by the kernel`). Every output uses these. What does not belong here:
//! numbers and units of outputs, sentences around a phrase.

use super::definition::{FrameKind, ReturnMode, TracedKind, Unit, UnknownReason};
use super::event::{ExitKind, GapReason, LostKind, LostReason, StackEnd, WaitState};

macro_rules! names {
    ($($kind:ident { $($variant:ident: $name:literal;)* })*) => {$(
        impl $kind {
            /// All there are.
            pub const ALL: &'static [$kind] = &[$($kind::$variant,)*];

            /// Its name for programs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name,)*
                }
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    )*};
}

macro_rules! words {
    ($($kind:ident { $($variant:ident: $name:literal, $phrase:literal;)* })*) => {
        names! {
            $($kind { $($variant: $name;)* })*
        }
        $(impl $kind {
            /// What it is, for people.
            pub const fn phrase(self) -> &'static str {
                match self {
                    $($kind::$variant => $phrase,)*
                }
            }
        })*
    };
}

words! {
    LostReason {
        RingFull: "ring_full", "samples without room in the kernel's buffer";
        Nested: "nested", "samples that interrupted another one";
        Skipped: "skipped", "ticks skipped by the kernel (an estimate)";
        SideBand: "side_band", "process events lost, /proc read again";
        Late: "late", "events too late to be put in order";
        SlowOutput: "slow_output", "events dropped because the output was too slow";
        BadRecord: "bad_record", "records that could not be decoded";
        CallRingFull: "call_ring_full", "records of calls without room in the kernel's buffer";
        Unmatched: "unmatched", "exits without an entry";
        Undecided: "undecided", "samples of containers that were not known in time";
        WaitTable: "wait_table", "waits that there was no room to remember";
        WaitUnseen: "wait_unseen", "waits whose end was not seen";
        WaitRingFull: "wait_ring_full", "waits without room in the kernel's buffer";
        WaitNested: "wait_nested", "waits that ended while another one was told";
        TooMany: "too_many", "calls left out because too many calls or threads were there";
        Unwritten: "unwritten", "other events that could not be written";
        UnwrittenSamples: "unwritten_samples", "samples that could not be written";
        UnwrittenWaits: "unwritten_waits", "waits that could not be written";
        UnwrittenCalls: "unwritten_calls", "records of calls that could not be written";
        UnwrittenCounts: "unwritten_counts", "counts of a thread's waits that could not be written";
    }
    GapReason {
        NotYetAttached: "not_yet_attached", "not watched until probes were attached";
        NoReturns: "no_returns", "over budget, exits are not watched any more";
        DutyCycle: "duty_cycle", "over budget, watched a part of the time";
        Detached: "detached", "over budget, not watched any more";
        Suspended: "suspended", "tracing was suspended";
        MissingData: "missing_data", "events of the agent are missing";
        CutOff: "cut_off", "the run was cut off before its end";
    }
    StackEnd {
        Complete: "complete", "complete";
        Truncated: "truncated", "too deep";
        BadMemory: "bad_memory", "memory could not be read";
        FramePointer: "frame_pointer", "frame pointers ended";
        NoStack: "no_stack", "no stack";
        NoRule: "no_rule", "no unwind rule";
        Jit: "jit", "run-time code without frame pointers";
        NoTable: "no_table", "unwind table not loaded in time";
        NoMapping: "no_mapping", "in no known mapping";
        Gone: "gone", "memory gone: process ending or in exec";
        NotSaid: "not_said", "not said by what was imported";
        LeafOnly: "leaf_only", "callers not recorded";
        LeftOut: "left_out", "too deep, the middle left out";
        Unknown: "unknown", "unknown reason";
    }
    UnknownReason {
        NoMapping: "no_mapping", "in no known mapping";
        NoFile: "no_file", "file gone";
        NoSymbol: "no_symbol", "no symbol";
        BadFile: "bad_file", "damaged file";
        GaveUp: "gave_up", "gave up";
        TooLarge: "too_large", "too large a file";
    }
}

names! {
    LostKind {
        Samples: "samples";
        Waits: "waits";
        Events: "events";
        Calls: "calls";
        ProcessEvents: "process_events";
        Begun: "begun_calls";
    }
    WaitState {
        Preempted: "preempted";
        Sleeping: "sleeping";
        Disk: "disk";
        Stopped: "stopped";
    }
    Unit {
        Nanoseconds: "nanoseconds";
        Cycles: "cycles";
        Events: "events";
    }
    FrameKind {
        Native: "native";
        Kernel: "kernel";
        Jit: "jit";
        Interpreted: "interpreted";
    }
    TracedKind {
        Function: "function";
        Marker: "marker";
    }
    ReturnMode {
        None: "none";
        Uretprobe: "uretprobe";
        Instructions: "instructions";
        Agent: "agent";
    }
}

impl ExitKind {
    /// Its name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            ExitKind::Return => "return",
            ExitKind::Exception(_) => "exception",
            ExitKind::Terminated => "terminated",
            ExitKind::Inferred => "inferred",
            ExitKind::Unwatched => "unwatched",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_for_programs_and_told_apart() {
        fn check<T: Copy + std::fmt::Debug>(all: &[T], name: fn(T) -> &'static str) {
            let mut names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
            for name in &names {
                let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
                assert!(name.bytes().all(plain), "{name}");
            }
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all.len(), "{all:?}");
        }
        check(LostReason::ALL, LostReason::name);
        check(GapReason::ALL, GapReason::name);
        check(StackEnd::ALL, StackEnd::name);
        check(WaitState::ALL, WaitState::name);
        check(Unit::ALL, Unit::name);
        check(FrameKind::ALL, FrameKind::name);
        check(UnknownReason::ALL, UnknownReason::name);
        check(TracedKind::ALL, TracedKind::name);
        check(ReturnMode::ALL, ReturnMode::name);
    }
}
