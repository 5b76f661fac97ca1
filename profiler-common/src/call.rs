//! The records of traced functions: one for each entry, exit, throw and landing.
//!
//! ```text
//! CallHead (32 bytes) | item, item, ...         the items only if arguments were asked for
//! item = ItemHead (8 bytes), payload, padding to 8
//! ```
//! Call records have no length of their own: the ring buffer knows it. They travel in rings of their
//! own, apart from samples. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! A probe is named by a cookie, which the kernel hands to the program: [`Cookie`].

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most traced functions of one session; ids of probes are below this.
pub const MAX_PROBES: u32 = 1 << 17;

/// Most exit sites of one function that are told apart; those beyond have no number.
pub const MAX_SITES: u8 = 63;

/// Most values that are fetched at one entry or exit.
pub const MAX_FETCHES: usize = 8;

/// Most bytes that are kept of one string.
pub const MAX_STRING: usize = 256;

/// What is known of every hit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CallHead {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Where the return address of this call lies on the stack: the same number at the entry and at
    /// every exit of one call. For Go, relative to the goroutine's stack (which can move): bytes
    /// below its upper end, so that deeper calls have greater numbers.
    pub sp: u64,
    /// Process id (the kernel's tgid), in the initial namespace.
    pub tgid: u32,
    /// Thread id (the kernel's pid), in the initial namespace.
    pub tid: u32,
    /// Probe (an index given at attach time) and site in the lower 24 bits, as in the cookie
    /// ([`Cookie::place`]); edge (`EDGE_*`) in the next 4, flags (`CALL_*`) in the upper 4.
    pub what: u32,
    /// Which of the process's stacks: 0 for the thread's own, else a goroutine (bits 4 to 35 of its
    /// address, never 0).
    pub stack: u32,
}

/// The function was entered; an exit will follow.
pub const EDGE_ENTER: u32 = 0;
/// The function is about to return (or has returned), or leaves by a tail call.
pub const EDGE_EXIT: u32 = 1;
/// The place was passed; no exit is watched (functions traced at entry only, USDT markers).
pub const EDGE_HIT: u32 = 2;
/// An exception is thrown, a panic begins. The first item is a word, the return address, so in the
/// code that throws. The second is, with [`PROBE_CXX`], a string, the mangled name of the type; else
/// 8 bytes of memory, the exception class that `_Unwind_RaiseException` was given.
pub const EDGE_THROW: u32 = 3;
/// An exception has landed: frames below `sp` are gone.
pub const EDGE_LAND: u32 = 4;
/// longjmp or the like is called: the next event of the thread shows how far it went.
pub const EDGE_JUMP: u32 = 5;
/// A whole call that lasted long enough, sent at its exit because a least duration was asked for.
/// The first item is a word: when it was entered. With [`CALL_HAS_CALLER`], the return address is the
/// second.
pub const EDGE_WHOLE: u32 = 6;

/// The function leaves by a jump to another one: an exit without a result, because what would be in
/// its register is not there yet. In cookies only; the record says [`EDGE_EXIT`].
pub const EDGE_TAIL: u32 = 7;
/// Makes no record: the function jumps back to its own beginning if a condition holds, the number of
/// which (as in the processor's conditional jumps, 0 to 15) is added to this. The hit of its entry
/// that follows is that of the jump, and no call.
pub const EDGE_SELF_JUMP_IF: u32 = 16;
/// The same, always.
pub const EDGE_SELF_JUMP: u32 = 32;

/// Before this record, others of this processor found no room in the ring buffer.
pub const CALL_AFTER_LOSS: u32 = 1;
/// The first item is a word: the return address of the call.
pub const CALL_HAS_CALLER: u32 = 2;

/// Starts an item.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct ItemHead {
    /// An `ITEM_*` constant.
    pub status: u16,
    /// Length of the payload in bytes, before padding to 8.
    pub len: u16,
    /// Zero.
    pub reserved: u32,
}

/// Takes an item off the front: its status, its payload, and what follows. None if it is not whole.
#[inline]
pub fn split_item(items: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = ItemHead::read_from_prefix(items).ok()?;
    let len = usize::from(head.len);
    let (padded, rest) = rest.split_at_checked(len.next_multiple_of(8))?;
    Some((head.status, &padded[..len], rest))
}

/// The payload is what was asked for.
pub const ITEM_OK: u16 = 0;
/// Memory could not be read; the payload is the word (8 bytes) that was the address.
pub const ITEM_BAD_MEMORY: u16 = 1;
/// The payload is the beginning of a longer string or buffer.
pub const ITEM_CUT: u16 = 2;

/// One value to fetch when a probe is hit; the kernel side runs up to [`MAX_FETCHES`] of these, each
/// gives an item. The value of the map `FETCHES` is `[Fetch; MAX_FETCHES]`.
///
/// It starts from a register; `derefs` times, the word at (value + offset) replaces the value; then
/// `kind` says what to send.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Fetch {
    /// A `FETCH_*` constant; 0 ends the list.
    pub kind: u8,
    /// A `REGISTER_*` constant.
    pub register: u8,
    /// Times to follow, 0 to 2.
    pub derefs: u8,
    /// Not 0: fetched at exits, else at entries.
    pub at_exit: u8,
    /// Most bytes to send, for strings and memory (at most [`MAX_STRING`]).
    pub size: u16,
    /// Zero.
    pub reserved: u16,
    /// Added to the value before each step: `offsets[i]` before the i-th word is read, and
    /// `offsets[derefs]` at the end.
    pub offsets: [i32; 3],
    /// Zero.
    pub padding: u32,
}

/// Send the value itself, 8 bytes.
pub const FETCH_WORD: u8 = 1;
/// Send the zero-terminated string at the value, without its zero.
pub const FETCH_STRING: u8 = 2;
/// Send `size` bytes of memory at the value.
pub const FETCH_MEMORY: u8 = 3;
/// Send as many bytes of memory at the value as the previous item's word says, at most `size`.
pub const FETCH_COUNTED: u8 = 4;

/// Registers in the order of the x86-64 calling convention: arguments first.
pub const REGISTER_RDI: u8 = 0;
/// Second integer argument.
pub const REGISTER_RSI: u8 = 1;
/// Third integer argument; second integer result.
pub const REGISTER_RDX: u8 = 2;
/// Fourth integer argument.
pub const REGISTER_RCX: u8 = 3;
/// Fifth integer argument.
pub const REGISTER_R8: u8 = 4;
/// Sixth integer argument.
pub const REGISTER_R9: u8 = 5;
/// First integer result.
pub const REGISTER_RAX: u8 = 6;
/// Stack pointer; at an entry it points at the return address.
pub const REGISTER_RSP: u8 = 7;
/// Frame pointer.
pub const REGISTER_RBP: u8 = 8;
/// Callee-saved; Go passes arguments in it.
pub const REGISTER_RBX: u8 = 9;
/// Go passes arguments in it.
pub const REGISTER_R10: u8 = 10;
/// Go passes arguments in it.
pub const REGISTER_R11: u8 = 11;
/// For USDT arguments.
pub const REGISTER_R12: u8 = 12;
/// For USDT arguments.
pub const REGISTER_R13: u8 = 13;
/// Go: the goroutine.
pub const REGISTER_R14: u8 = 14;
/// For USDT arguments.
pub const REGISTER_R15: u8 = 15;

/// What user space tells the kernel side of one probe; the value of the map `PROBES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct ProbeControl {
    /// Hits of links of other generations are passed over: while a probe moves from one link to
    /// another, both are attached for a moment.
    pub generation: u8,
    /// `PROBE_*` bits.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

/// The probe is off: hits are neither counted nor sent.
pub const PROBE_OFF: u8 = 1;
/// A Go function: stacks are those of goroutines.
pub const PROBE_GO: u8 = 2;
/// Fetch values: the map `FETCHES` has an entry.
pub const PROBE_FETCHES: u8 = 4;
/// What it throws has a C++ type (`__cxa_throw`): the second argument points to it.
pub const PROBE_CXX: u8 = 8;

/// It jumps back to its own beginning: hits of its entry may be no calls ([`EDGE_SELF_JUMP`]).
pub const PROBE_SELF_JUMPS: u8 = 16;

/// What became of the hits of one probe, per processor; the value of the map `CALL_COUNTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CallCounters {
    /// Entries (and hits without exits), whether sent or not.
    pub entries: u64,
    /// Exits, whether sent or not.
    pub exits: u64,
    /// Records that found no room in the ring buffer, or were hit in a cgroup that is undecided.
    pub lost: u64,
    /// Calls left out because of a limit on depth, duration or rate.
    pub left_out: u64,
    /// Jumps of the function back to its own beginning: hits of the entry that are no entries.
    pub self_jumps: u64,
}

/// What became of the records of one processor; the only value of the map `CALL_CPU`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CallCpu {
    /// Records that found no room in the ring buffer.
    pub lost: u64,
    /// How many of these a later record has told of, by [`CALL_AFTER_LOSS`].
    pub told: u64,
    /// Bytes sent since the reader was woken.
    pub unwoken_bytes: u64,
}

/// In a kernel that hands no cookies over, each site has a program of its own, in which this
/// constant was replaced by its cookie. No cookie looks like this: the probe is above
/// [`MAX_PROBES`].
pub const COOKIE_PLACE: u64 = 0x5a5a_a5a5_5aff_ffa5;

/// What a cookie says: it is given with a place and comes with each of its hits.
///
/// | bits | what |
/// |---|---|
/// | 0-17 | probe |
/// | 18-23 | site |
/// | 24-30 | edge |
/// | 31 | behind a return |
/// | 32-39 | generation |
/// | 40-63 | process |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index of the probe, below [`MAX_PROBES`].
    pub probe: u32,
    /// Which of the function's exit sites it is, 1 to [`MAX_SITES`]; 0: no exit, or not known.
    pub site: u8,
    /// An `EDGE_*`.
    pub edge: u32,
    /// Hits count only while the probe is set to the same one.
    pub generation: u8,
    /// The hit comes when the function has returned: the return address lies below the stack
    /// pointer, not at it.
    pub behind_return: bool,
    /// The only process (the kernel's tgid) whose hits count; 0: those of all. Needed even where the
    /// kernel is told the process: if anybody else has a probe at the same place in another process,
    /// its hits come here as well.
    pub tgid: u32,
}

/// The kernel gives no process ids above this (`PID_MAX_LIMIT`).
pub const MAX_PID: u32 = 1 << 22;

/// Bits of a cookie, and of [`CallHead::what`], that say the probe.
const PROBE_BITS: u32 = 18;

impl Cookie {
    /// As a number.
    pub const fn to_bits(self) -> u64 {
        self.probe as u64
            | (self.site as u64) << PROBE_BITS
            | (self.edge as u64) << 24
            | (self.behind_return as u64) << 31
            | (self.generation as u64) << 32
            | (self.tgid as u64) << 40
    }

    /// From a number that [`Cookie::to_bits`] gave.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Cookie {
        Cookie {
            probe: bits as u32 & ((1 << PROBE_BITS) - 1),
            site: (bits >> PROBE_BITS) as u8 & MAX_SITES,
            edge: (bits >> 24) as u32 & 0x7f,
            generation: (bits >> 32) as u8,
            behind_return: bits >> 31 & 1 != 0,
            tgid: (bits >> 40) as u32,
        }
    }

    /// The bits that say probe and site, as a record carries them.
    #[inline(always)]
    pub const fn place(bits: u64) -> u32 {
        bits as u32 & 0xff_ffff
    }
}

const _: () = assert!(size_of::<CallHead>() == 32);
const _: () = assert!(size_of::<ItemHead>() == 8);
const _: () = assert!(size_of::<Fetch>() == 24);
const _: () = assert!(size_of::<ProbeControl>() == 8);
const _: () = assert!(size_of::<CallCounters>() == 40);
const _: () = assert!(size_of::<CallCpu>() == 24);
const _: () = assert!(MAX_PROBES <= 1 << PROBE_BITS);
const _: () = assert!(MAX_SITES as u32 == (1 << (24 - PROBE_BITS)) - 1);
const _: () = assert!(Cookie::from_bits(COOKIE_PLACE).probe >= MAX_PROBES);
const _: () = assert!(MAX_PID <= 1 << 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_keep_what_they_say() {
        for cookie in [
            Cookie {
                probe: MAX_PROBES - 1,
                site: MAX_SITES,
                edge: EDGE_SELF_JUMP,
                generation: 255,
                behind_return: true,
                tgid: MAX_PID,
            },
            Cookie {
                probe: 0,
                site: 1,
                edge: EDGE_ENTER,
                generation: 0,
                behind_return: false,
                tgid: 0,
            },
        ] {
            assert_eq!(Cookie::from_bits(cookie.to_bits()), cookie);
            // A record says the same of its place, whatever else it says.
            let place = Cookie::from_bits(Cookie::place(cookie.to_bits()).into());
            assert_eq!((place.probe, place.site), (cookie.probe, cookie.site));
        }
    }
}
