//! Unwind tables, as user space lays them out and the kernel side reads them.
//!
//! ```text
//! PROCESSES  process id   -> list of its mappings            (Process)
//! TABLES     table number -> directory of an object file     (Table)
//! RULES      rule number  -> how to find the caller          (Rule)
//! SEGMENTS   arrays of words: lists of mappings, directories, rows; each within one segment (Span)
//! ```
//! A directory is a word per page of code: the [`Span`] of its rows (0: the page has none), counted in
//! rows. Rows are two to a word, ordered by address, lower half first: where in the page they begin to
//! hold, and the rule ([`row`]). The first row of a page is at its beginning. A list of mappings has
//! [`MAPPING_WORDS`] words for each ([`Mapping`]), ordered by address.
//!
//! User space writes what nobody refers to yet, then the reference. What is not referred to any more
//! is used again only after all programs that may have begun before have ended; besides, a program
//! looks whether [`Table::generation`] is still the same when it has found a rule. Addresses in tables
//! are the file's own (ELF virtual addresses). Times are nanoseconds of CLOCK_MONOTONIC.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Words of a segment, a power of two.
pub const SEGMENT_WORDS: usize = 1 << 18;
/// Most segments.
pub const MAX_SEGMENTS: u32 = 512;
/// Most object files with a table.
pub const MAX_TABLES: u32 = 16_384;
/// Most different rules, all files together; a row has room for 2^20.
pub const MAX_RULES: u32 = 1 << 16;
/// Most processes whose mappings are known to the kernel side.
pub const MAX_PROCESSES: u32 = 32_768;
/// Most mappings of a process: what a search of 14 turns finds its way in.
pub const MAX_MAPPINGS: u32 = 1 << 14;
/// Bytes of code that share a word of the directory, as a power of two.
pub const PAGE_BITS: u32 = 12;
/// Words of a mapping.
pub const MAPPING_WORDS: u32 = 4;
/// Bytes of the pages in which user memory is there or is not.
pub const PAGE_BYTES: u64 = 4096;
/// Most bytes of a stack in one sample, for user space to unwind.
pub const COPY_BYTES: usize = 16 << 10;

/// Words or rows within one segment. As a word: bits 0..24 the first word, 24..40 the segment, 40..64
/// the length; the word 0 is no span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which segment.
    pub segment: u32,
    /// Index of the first word.
    pub first: u32,
    /// Length, in what the span is of. At least 1.
    pub len: u32,
}

impl Span {
    /// As a word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.first as u64 | (self.segment as u64) << 24 | (self.len as u64) << 40
    }

    /// From a word other than 0.
    #[inline(always)]
    pub const fn of(word: u64) -> Span {
        Span {
            segment: (word >> 24) as u32 & 0xffff,
            first: word as u32 & 0xff_ffff,
            len: (word >> 40) as u32,
        }
    }
}

/// A row: its place in the page and its rule.
#[inline(always)]
pub const fn row(place: u32, rule: u32) -> u32 {
    place | rule << PAGE_BITS
}

/// Where in its page a row begins to hold.
#[inline(always)]
pub const fn row_place(row: u32) -> u32 {
    row & ((1 << PAGE_BITS) - 1)
}

/// The rule of a row.
#[inline(always)]
pub const fn row_rule(row: u32) -> u32 {
    row >> PAGE_BITS
}

/// Value of `PROCESSES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Process {
    /// The key again. The kernel gives the room of a value that is replaced to another one while a
    /// program may still read it, and writes its words in order: who reads this last, and finds it to
    /// be as expected, has read words of the right process.
    pub pid: u64,
    /// The [`Span`] of its mappings, counted in mappings; 0: none.
    pub mappings: u64,
}

/// Executable memory of a process, four words of a segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The file's own address of what is at `start`.
    pub address: u64,
    /// Number of the table; a `MAPPING_*` constant where there is no file.
    pub table: u64,
}

/// A value of [`Mapping::table`]: memory that is not from a file (code made at run time).
pub const MAPPING_JIT: u64 = 1 << 32;

/// Value of `TABLES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Table {
    /// The [`Span`] of the directory, counted in pages; or a `TABLE_*` constant.
    pub directory: u64,
    /// The file's own address of the first page.
    pub base: u64,
    /// Another one each time that the table changes.
    pub generation: u64,
    /// When a program used it last, roughly. Written by the kernel side.
    pub used_ns: u64,
}

/// A value of [`Table::directory`]: not loaded (yet, or any more). The stack is copied.
pub const TABLE_ABSENT: u64 = 0;
/// A value of [`Table::directory`]: the file says nothing about its frames. Frame pointers are
/// followed.
pub const TABLE_NONE: u64 = 1;

/// The rule of what no rule is known for: frame pointers are followed.
pub const RULE_NONE: u32 = 0;
/// The rule of the outermost function.
pub const RULE_END: u32 = 1;
/// Rules from here on are in `RULES`.
pub const FIRST_RULE: u32 = 2;

/// How to find the caller of a frame: where its stack pointer was before the call (the canonical
/// frame address, CFA), and where the return address and the caller's frame pointer are.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    Immutable,
    IntoBytes,
)]
pub struct Rule {
    /// How the CFA is found: a `CFA_*` constant.
    pub cfa: u8,
    /// Of `CFA_REGISTER` and `CFA_MEMORY`: which register, by DWARF's number. Of others but
    /// `CFA_GO_SWITCH` and `CFA_RETURN_REGISTER`: the stack pointer.
    pub register: u8,
    /// Where the caller's frame pointer is: an `FP_*` constant.
    pub fp: u8,
    /// Where the caller's rbx is: a `BX_*` constant, or so many units of 8 bytes below the CFA.
    pub bx: u8,
    /// What is added to the register.
    pub cfa_offset: i32,
    /// Of `CFA_MEMORY`: what is added to what was read. Of `CFA_PLT`: see there.
    pub cfa_addend: i32,
    /// Where the frame pointer was saved, in units of 8 bytes.
    pub fp_offset: i16,
    /// Where the return address is, from the CFA, in units of 8 bytes; nearly always -1.
    pub ra_offset: i16,
}

/// CFA = register + `cfa_offset`. Registers other than [`REGISTER_SP`] and [`REGISTER_FP`] are known in
/// the innermost frame, and in one that a signal has interrupted; [`REGISTER_BX`] also behind frames
/// whose rules say where it is.
pub const CFA_REGISTER: u8 = 0;
/// CFA = the word at register + `cfa_offset`, + `cfa_addend`.
pub const CFA_MEMORY: u8 = 1;
/// CFA = sp + `cfa_offset`, + 8 if the low 4 bits of the pc are at least `cfa_addend` (a procedure
/// linkage table).
pub const CFA_PLT: u8 = 2;
/// The frame that returns from a signal: all registers are in a `ucontext_t` at sp + `cfa_offset`.
pub const CFA_SIGNAL: u8 = 3;
/// Go's runtime on a thread's own stack: the walk goes on where the goroutine left for it.
/// `cfa_offset`: of `m` in `g`; `cfa_addend`: of `curg` in `m`; `fp_offset`: of `sched` in `g`, in units
/// of 8 bytes; `ra_offset`: of `bp` in `sched`, in units of 8 bytes. `sp` and `pc` come first there.
pub const CFA_GO_SWITCH: u8 = 4;

/// As `CFA_REGISTER`, but the frame may be on another stack than its caller, so that nothing is known of
/// which is the higher address.
pub const CFA_OTHER_STACK: u8 = 5;
/// CFA = sp + `cfa_offset`, which may be sp itself; the return address is in `register`, and the frame
/// pointer as it was. Only where all registers are known: what keeps it there calls nothing.
pub const CFA_RETURN_REGISTER: u8 = 6;
/// CFA = sp + `cfa_offset` behind a system call that returns in a new thread or process as well, on a stack of
/// that one's own: there `register` is 0, and nobody has called it. Only where all registers are known.
pub const CFA_UNLESS_NEW: u8 = 7;

/// The caller's frame pointer is in the register still.
pub const FP_SAME: u8 = 0;
/// It was saved at CFA + 8 * `fp_offset`.
pub const FP_AT_CFA: u8 = 1;
/// It was saved at fp + 8 * `fp_offset`.
pub const FP_AT_FP: u8 = 2;
/// It is not known any more.
pub const FP_UNKNOWN: u8 = 3;

/// The caller's rbx is not known any more. So it is with all rules of files in which no frame is found by
/// it: nearly all files.
pub const BX_UNKNOWN: u8 = 0;
/// The caller's rbx is in the register still.
pub const BX_SAME: u8 = 255;

/// DWARF's number of rbx, by which the dynamic loader finds its frame.
pub const REGISTER_BX: u8 = 3;
/// DWARF's number of the frame pointer (x86-64: rbp).
pub const REGISTER_FP: u8 = 6;
/// DWARF's number of the stack pointer (x86-64: rsp).
pub const REGISTER_SP: u8 = 7;
/// General registers, by DWARF's number (x86-64: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15).
pub const REGISTERS: usize = 16;

/// Most bytes of a stack in a sample that a test checks the walk with: all of the stack of nearly every
/// thread.
pub const PROOF_BYTES: usize = 64 << 10;
/// How far below the stack pointer such a piece begins: what a leaf has popped already lies there.
pub const PROOF_BELOW: u64 = 512;

/// What a walk has come to: the beginning of a section of kind
/// [`crate::sample::SECTION_STACK_COPY`], which the copied bytes follow. They begin at `sp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CopyHead {
    /// The address that the walk has come to, which is not among those of the user stack.
    pub pc: u64,
    /// Not 0: `pc` is a return address.
    pub is_return: u64,
    /// Not 0: all `registers` are known, else only the stack and the frame pointer.
    pub all_known: u64,
    /// By DWARF's number.
    pub registers: [u64; REGISTERS],
    /// Pages ([`PAGE_BYTES`]) that could not be read, of which the copied bytes are 0: a bit each, the lowest for what is copied
    /// of the first.
    pub absent: u64,
}

/// Counts of one processor: value of the per-CPU map `UNWIND_COUNTERS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct UnwindCounters {
    /// Stacks walked.
    pub walks: u64,
    /// Frames found.
    pub frames: u64,
    /// Stacks copied for user space.
    pub copies: u64,
    /// Stacks that were to be copied but for the limit on copies per second.
    pub copies_refused: u64,
    /// Tables that changed while they were read.
    pub changed: u64,
    /// Words of stacks that could not be read.
    pub unreadable: u64,
    /// Walks that ended at [`crate::MAX_FRAMES`] because the steps of the second had been taken.
    pub refused: u64,
}

/// How many members of the kernel's structures a walk reads: length of `UNWIND_OFFSETS`, which says
/// where they are, in bytes; 0: not known.
pub const OFFSETS: usize = 11;
/// `stack` of `task_struct`.
pub const TASK_STACK: usize = 0;
/// `thread.fsbase` of `task_struct`.
pub const TASK_FSBASE: usize = 1;
/// `utask` of `task_struct`.
pub const TASK_UTASK: usize = 2;
/// `mm` of `task_struct`.
pub const TASK_MM: usize = 3;
/// `uprobes_state.xol_area` of `mm_struct`.
pub const MM_XOL_AREA: usize = 4;
/// `vaddr` of `xol_area`.
pub const XOL_VADDR: usize = 5;
/// `return_instances` of `uprobe_task`.
pub const UTASK_RETURNS: usize = 6;
/// `vaddr` of `uprobe_task`.
pub const UTASK_VADDR: usize = 7;
/// `stack` of `return_instance`.
pub const RETURN_STACK: usize = 8;
/// `orig_ret_vaddr` of `return_instance`.
pub const RETURN_ADDRESS: usize = 9;
/// `next` of `return_instance`.
pub const RETURN_NEXT: usize = 10;

/// A value of `USER_REGISTERS`: in the kernel, registers of user space are not known.
pub const REGISTERS_NONE: u8 = 0;
/// A value of `USER_REGISTERS`: a helper says where they are (Linux 5.15).
pub const REGISTERS_HELPER: u8 = 1;
/// A value of `USER_REGISTERS`: they are at the end of the kernel's stack.
pub const REGISTERS_STACK: u8 = 2;

const _: () = assert!(size_of::<Process>() == 16);
const _: () = assert!(size_of::<Mapping>() == MAPPING_WORDS as usize * 8);
const _: () = assert!(size_of::<Table>() == 32);
const _: () = assert!(size_of::<Rule>() == 16);
const _: () = assert!(size_of::<CopyHead>() == 160);
const _: () = assert!(SEGMENT_WORDS.is_power_of_two() && SEGMENT_WORDS <= 1 << 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_rows_survive_packing() {
        let span = Span {
            segment: MAX_SEGMENTS - 1,
            first: SEGMENT_WORDS as u32 - 1,
            len: 1 << 20,
        };
        assert_eq!(Span::of(span.word()), span);
        let packed = row(0xfff, MAX_RULES - 1);
        assert_eq!(
            (row_place(packed), row_rule(packed)),
            (0xfff, MAX_RULES - 1)
        );
    }
}
