//! The kernel side's walk of a user stack, in user space.
//!
//! Registers ([`Start`]), what code there is ([`Code`]) and what memory ([`Memory`]) -> the addresses of
//! the frames and why there are no more ([`Walked`]). Rules and their order are those of
//! `profiler_common::unwind`, as the kernel side carries them out: what is true of one of them is true
//! of the other. It goes on where the kernel side had no table yet, replays recorded stacks
//! ([`super::snapshot`]), and is what the kernel side is compared with. Addresses are a process's. What
//! frames are called, and which process maps what, does not belong here.
//!
//! For each frame, by the address that is looked up (one before a return address):
//!
//! 1. no mapping, or a table that is not loaded: the walk ends;
//! 2. the outermost function: it ends, complete;
//! 3. a rule: the CFA, which must be above the stack pointer; the return address; the frame pointer;
//! 4. no rule: frame pointers, if the one there is can be one. A caller that is found so and is no code
//!    is taken back: the register was something else.
//!
//! A return address of 0 ends the walk, complete; so does a frame pointer of 0 that is to be followed
//! behind a call. Of a deep stack the kernel side keeps both ends: so it is here. Returns that a probe of the kernel has put its own address in place of can't be told
//! here: there the walk ends, without a mapping.

use profiler_common::sample::{
    END_BAD_MEMORY, END_COMPLETE, END_JIT, END_LEFT_OUT, END_NO_MAPPING, END_NO_RULE, END_NO_TABLE,
    END_TRUNCATED, EXACT_ADDRESS, LEFT_OUT,
};
use profiler_common::unwind::{
    BX_SAME, BX_UNKNOWN, CFA_GO_SWITCH, CFA_MEMORY, CFA_OTHER_STACK, CFA_PLT, CFA_REGISTER,
    CFA_RETURN_REGISTER, CFA_SIGNAL, CFA_UNLESS_NEW, CopyHead, FP_AT_CFA, FP_AT_FP, FP_SAME,
    PAGE_BYTES, REGISTER_BX, REGISTER_FP, REGISTER_SP, REGISTERS, Rule,
};
use profiler_common::{INNERMOST_FRAMES, MAX_USER_DEPTH, MAX_USER_FRAMES, OUTERMOST_FRAMES};

use super::{Entry, Table};

/// Memory of a thread's process.
pub trait Memory {
    /// The word at an address, which need not be aligned; none if it is not known.
    fn read_u64(&self, address: u64) -> Option<u64>;

    /// Where the thread keeps what is its own (x86-64: the base of fs); none if it is not known.
    fn thread_pointer(&self) -> Option<u64> {
        None
    }
}

/// What is mapped where.
pub trait Code {
    /// What is at an address.
    fn at(&self, address: u64) -> Place<'_>;
}

/// What is known of the code at an address.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// It is of a file with this table, and the file's own address of it.
    Table(&'a Table, u64),
    /// It is of a file that says nothing about its frames.
    NoTable,
    /// It is of a file whose table is not loaded.
    Absent,
    /// It was made at run time.
    Jit,
    /// Nothing is mapped there.
    Unmapped,
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The innermost frame's address.
    pub pc: u64,
    /// It is a return address.
    pub is_return: bool,
    /// All registers are known, else only the stack pointer and perhaps the frame pointer.
    pub all_known: bool,
    /// The frame pointer is known.
    pub fp_known: bool,
    /// By DWARF's number.
    pub registers: [u64; REGISTERS],
}

impl From<&CopyHead> for Start {
    fn from(head: &CopyHead) -> Start {
        let all_known = head.all_known != 0;
        Start {
            pc: head.pc,
            is_return: head.is_return != 0,
            all_known,
            // One that is not known comes as 0.
            fp_known: all_known || head.registers[usize::from(REGISTER_FP)] != 0,
            registers: head.registers,
        }
    }
}

/// What a walk has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Addresses, leaf first; `EXACT_ADDRESS` is set in those behind the leaf that are no return
    /// addresses. `LEFT_OUT` stands for the middle of a deep stack.
    pub addresses: Vec<u64>,
    /// Why there are no more: an `END_*` constant of `profiler_common::sample`.
    pub end: u16,
}

/// Walks a stack, of which the frames `before` were found already; limits are for all of them. What is
/// returned is what is kept of both.
pub fn walk(start: &Start, before: &[u64], code: &impl Code, memory: &impl Memory) -> Walked {
    let mut frame = Frame {
        pc: start.pc,
        is_return: start.is_return,
        all_known: start.all_known,
        fp_known: start.fp_known,
        guessed: None,
        bx: match start.all_known {
            true => Bx::Register,
            false => Bx::Lost,
        },
        registers: start.registers,
    };
    let mut walked = Walked {
        addresses: before.to_vec(),
        end: 0,
    };
    walked.end = loop {
        let count = walked.addresses.len();
        if count >= MAX_USER_DEPTH {
            break END_TRUNCATED;
        }
        let exact = count > 0 && !frame.is_return;
        let mark = if exact { EXACT_ADDRESS } else { 0 };
        walked.addresses.push(frame.pc | mark);
        match frame.caller(code, memory) {
            Ok(caller) => frame = caller,
            Err(Stop::End(end)) => break end,
            Err(Stop::TakeBack(end)) => {
                walked.addresses.pop();
                break end;
            }
        }
    };
    walked.keep();
    walked
}

impl Walked {
    /// Leaves out what the kernel side leaves out: the middle, or all but the innermost frames if the outermost
    /// was not reached. The frames may lack some of the middle already.
    fn keep(&mut self) {
        let lacks = self.addresses.get(INNERMOST_FRAMES) == Some(&LEFT_OUT);
        if !lacks && self.addresses.len() <= MAX_USER_FRAMES {
            return;
        }
        if self.end == END_TRUNCATED {
            self.addresses.truncate(INNERMOST_FRAMES);
            return;
        }
        let behind = INNERMOST_FRAMES + 1;
        let outer = self.addresses.len().saturating_sub(OUTERMOST_FRAMES);
        self.addresses.drain(behind..outer.max(behind));
        if let Some(middle) = self.addresses.get_mut(INNERMOST_FRAMES) {
            *middle = LEFT_OUT;
        }
        if self.end == END_COMPLETE {
            self.end = END_LEFT_OUT;
        }
    }
}

/// Why there is no caller.
enum Stop {
    End(u16),
    /// There is not even this frame.
    TakeBack(u16),
}

impl From<u16> for Stop {
    fn from(end: u16) -> Stop {
        Stop::End(end)
    }
}

/// Where a frame's rbx is.
#[derive(Clone, Copy)]
enum Bx {
    /// Among the registers.
    Register,
    /// In memory.
    At(u64),
    Lost,
}

#[derive(Clone, Copy)]
struct Frame {
    pc: u64,
    is_return: bool,
    all_known: bool,
    fp_known: bool,
    /// It was found by a frame pointer that may be something else: why the walk ends if so.
    guessed: Option<u16>,
    bx: Bx,
    registers: [u64; REGISTERS],
}

/// Addresses of user space have so many bits.
const ADDRESS_BITS: u32 = 47;
/// Where a `ucontext_t` has the registers, by DWARF's number (x86-64, `uc_mcontext.gregs`).
const CONTEXT: [u64; REGISTERS] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96,
];
const CONTEXT_PC: u64 = 168;
/// Where Go keeps the current goroutine, from the thread pointer (linux/amd64).
const GO_CURRENT: u64 = 8;

impl Frame {
    /// The frame's caller.
    fn caller(&self, code: &impl Code, memory: &impl Memory) -> Result<Frame, Stop> {
        let address = self.pc.wrapping_sub(u64::from(self.is_return));
        match code.at(address) {
            Place::Unmapped => Err(self
                .guessed
                .map_or(Stop::End(END_NO_MAPPING), Stop::TakeBack)),
            Place::Absent => Err(END_NO_TABLE.into()),
            Place::Jit => self.by_frame_pointer(memory, END_JIT),
            Place::NoTable => self.by_frame_pointer(memory, END_NO_RULE),
            Place::Table(table, address) => match table.entry_at(address) {
                Entry::None => self.by_frame_pointer(memory, END_NO_RULE),
                Entry::End => Err(END_COMPLETE.into()),
                Entry::Rule(rule) => Ok(self.by_rule(&rule, memory)?),
            },
        }
    }

    fn by_frame_pointer(&self, memory: &impl Memory, otherwise: u16) -> Result<Frame, Stop> {
        let fp = self.register(REGISTER_FP).ok_or(otherwise)?;
        if fp == 0 && self.is_return {
            return Err(END_COMPLETE.into());
        }
        if fp < self.sp() || fp % 8 != 0 || fp >> ADDRESS_BITS != 0 {
            return Err(otherwise.into());
        }
        let saved = memory.read_u64(fp).ok_or(otherwise)?;
        let pc = memory.read_u64(fp + 8).ok_or(otherwise)?;
        let mut caller = self.returned(pc, fp + 16, Some(saved))?;
        caller.guessed = Some(otherwise);
        Ok(caller)
    }

    fn by_rule(&self, rule: &Rule, memory: &impl Memory) -> Result<Frame, u16> {
        match rule.cfa {
            CFA_SIGNAL => return self.interrupted(rule, memory),
            CFA_GO_SWITCH => return self.goroutine(rule, memory),
            _ => {}
        }
        let base = self.base(rule.register, memory).ok_or(END_NO_RULE)?;
        let cfa = match rule.cfa {
            CFA_REGISTER | CFA_OTHER_STACK => add(base, rule.cfa_offset),
            CFA_MEMORY => add(read(memory, add(base, rule.cfa_offset))?, rule.cfa_addend),
            CFA_PLT => {
                let late = (self.pc & 15) as i64 >= i64::from(rule.cfa_addend);
                add(self.sp(), rule.cfa_offset).wrapping_add(if late { 8 } else { 0 })
            }
            CFA_UNLESS_NEW if base == 0 => return Err(END_COMPLETE),
            CFA_RETURN_REGISTER | CFA_UNLESS_NEW => add(self.sp(), rule.cfa_offset),
            _ => return Err(END_NO_RULE),
        };
        // Stacks grow downwards; a frame that does not is bogus.
        let below = cfa <= self.sp() && rule.cfa < CFA_OTHER_STACK;
        if below || cfa >> ADDRESS_BITS != 0 {
            return Err(END_BAD_MEMORY);
        }
        let pc = match rule.cfa {
            CFA_RETURN_REGISTER => base,
            _ => read(memory, add(cfa, i32::from(rule.ra_offset) * 8))?,
        };
        let saved = i32::from(rule.fp_offset) * 8;
        let fp = match rule.fp {
            FP_SAME => self.register(REGISTER_FP),
            FP_AT_CFA => Some(read(memory, add(cfa, saved))?),
            FP_AT_FP => match self.register(REGISTER_FP) {
                Some(fp) => Some(read(memory, add(fp, saved))?),
                None => None,
            },
            _ => None,
        };
        let mut caller = self.returned(pc, cfa, fp)?;
        match rule.bx {
            BX_UNKNOWN => {}
            BX_SAME => {
                caller.bx = self.bx;
                let bx = usize::from(REGISTER_BX);
                caller.registers[bx] = self.registers[bx];
            }
            words => caller.bx = Bx::At(cfa.wrapping_sub(u64::from(words) * 8)),
        }
        Ok(caller)
    }

    /// What a signal has interrupted.
    fn interrupted(&self, rule: &Rule, memory: &impl Memory) -> Result<Frame, u16> {
        let context = add(self.sp(), rule.cfa_offset);
        let mut frame = Frame {
            pc: read(memory, context.wrapping_add(CONTEXT_PC))?,
            is_return: false,
            all_known: true,
            fp_known: true,
            guessed: None,
            bx: Bx::Register,
            registers: [0; REGISTERS],
        };
        for (register, offset) in frame.registers.iter_mut().zip(CONTEXT) {
            *register = read(memory, context.wrapping_add(offset))?;
        }
        Ok(frame)
    }

    /// The goroutine that a thread has left for its own stack.
    fn goroutine(&self, rule: &Rule, memory: &impl Memory) -> Result<Frame, u16> {
        let thread = memory.thread_pointer().ok_or(END_BAD_MEMORY)?;
        let current = read(memory, thread.wrapping_sub(GO_CURRENT))?;
        let machine = read(memory, add(current, rule.cfa_offset))?;
        let left = read(memory, add(machine, rule.cfa_addend))?;
        if left == 0 {
            // The runtime itself.
            return Err(END_COMPLETE);
        }
        let saved = add(left, i32::from(rule.fp_offset) * 8);
        let mut frame = Frame {
            pc: read(memory, saved.wrapping_add(8))?,
            is_return: false,
            all_known: false,
            fp_known: true,
            guessed: None,
            bx: Bx::Lost,
            registers: [0; REGISTERS],
        };
        frame.registers[usize::from(REGISTER_SP)] = read(memory, saved)?;
        frame.registers[usize::from(REGISTER_FP)] =
            read(memory, add(saved, i32::from(rule.ra_offset) * 8))?;
        if frame.pc == 0 {
            return Err(END_COMPLETE);
        }
        Ok(frame)
    }

    fn returned(&self, pc: u64, sp: u64, fp: Option<u64>) -> Result<Frame, u16> {
        if pc == 0 {
            return Err(END_COMPLETE);
        }
        let mut registers = [0; REGISTERS];
        registers[usize::from(REGISTER_SP)] = sp;
        registers[usize::from(REGISTER_FP)] = fp.unwrap_or(0);
        Ok(Frame {
            pc,
            is_return: true,
            all_known: false,
            fp_known: fp.is_some(),
            guessed: None,
            bx: Bx::Lost,
            registers,
        })
    }

    /// The register of a rule, if it is known.
    fn base(&self, register: u8, memory: &impl Memory) -> Option<u64> {
        match (register, self.bx) {
            (REGISTER_BX, Bx::At(place)) => memory.read_u64(place),
            (REGISTER_BX, Bx::Register) => Some(self.registers[usize::from(REGISTER_BX)]),
            _ => self.register(register),
        }
    }

    fn sp(&self) -> u64 {
        self.registers[usize::from(REGISTER_SP)]
    }

    fn register(&self, register: u8) -> Option<u64> {
        let known = match register {
            REGISTER_SP => true,
            REGISTER_FP => self.fp_known,
            _ => self.all_known,
        };
        let value = self.registers.get(usize::from(register))?;
        known.then_some(*value)
    }
}

fn add(address: u64, offset: i32) -> u64 {
    address.wrapping_add_signed(i64::from(offset))
}

fn read(memory: &impl Memory, address: u64) -> Result<u64, u16> {
    memory.read_u64(address).ok_or(END_BAD_MEMORY)
}

/// A copied piece of a stack.
#[derive(Clone, Copy, Debug)]
pub struct StackCopy<'a> {
    /// The address of the first byte.
    pub address: u64,
    /// What was there.
    pub bytes: &'a [u8],
    /// Pages that could not be read, as [`CopyHead::absent`] has them.
    pub absent: u64,
}

impl StackCopy<'_> {
    fn is_absent(&self, address: u64) -> bool {
        let page = (address / PAGE_BYTES).wrapping_sub(self.address / PAGE_BYTES);
        page < 64 && self.absent >> page & 1 != 0
    }
}

impl Memory for StackCopy<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.address)?).ok()?;
        let word = self.bytes.get(at..)?.first_chunk()?;
        if self.is_absent(address) || self.is_absent(address.wrapping_add(7)) {
            return None;
        }
        Some(u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use profiler_common::unwind::FP_UNKNOWN;

    const STACK: u64 = 0x7000_0000;

    #[test]
    fn what_could_not_be_read_of_a_stack_is_not_0() {
        let bytes = [7; 16 + 2 * 4096];
        let copy = StackCopy {
            address: STACK - 16,
            bytes: &bytes,
            absent: 0b010,
        };
        let word = Some(u64::from_le_bytes([7; 8]));
        let read = |at: i64| copy.read_u64(STACK.wrapping_add_signed(at));
        assert_eq!([read(-8), read(4096), read(8184)], [word; 3]);
        for at in [-24, -4, 0, 4088, 4095, 8192] {
            assert_eq!(read(at), None, "{at}");
        }
    }

    /// Code at 0x1000 has the rule that is tried, at 0x2000 the outermost function, at 0x3000 no rule,
    /// at 0x4000 code made at run time.
    struct Rules(Table);

    impl Rules {
        fn of(rule: Rule) -> Rules {
            let mut builder = Builder::default();
            builder.push(0x1000, Entry::Rule(rule));
            builder.push(0x2000, Entry::End);
            builder.push(0x3000, Entry::None);
            Rules(builder.finish().unwrap())
        }
    }

    impl Code for Rules {
        fn at(&self, address: u64) -> Place<'_> {
            match address {
                0x1000..0x4000 => Place::Table(&self.0, address),
                0x4000..0x5000 => Place::Jit,
                0x5000..0x6000 => Place::Absent,
                0x6000..0x7000 => Place::NoTable,
                _ => Place::Unmapped,
            }
        }
    }

    struct Words(Vec<u64>);

    impl Memory for Words {
        fn read_u64(&self, address: u64) -> Option<u64> {
            let at = address.checked_sub(STACK)? / 8;
            self.0.get(at as usize).copied()
        }

        fn thread_pointer(&self) -> Option<u64> {
            Some(STACK + 8)
        }
    }

    fn start(pc: u64, fp: u64) -> Start {
        let mut start = Start {
            pc,
            all_known: true,
            fp_known: true,
            ..Start::default()
        };
        start.registers[usize::from(REGISTER_SP)] = STACK;
        start.registers[usize::from(REGISTER_FP)] = fp;
        start.registers[10] = STACK + 8;
        start
    }

    fn walked(rule: Rule, start: &Start, words: &[u64]) -> (Vec<u64>, u16) {
        let found = walk(start, &[], &Rules::of(rule), &Words(words.to_vec()));
        (found.addresses, found.end)
    }

    fn rule(cfa: u8, register: u8, cfa_offset: i32, cfa_addend: i32) -> Rule {
        Rule {
            cfa,
            register,
            cfa_offset,
            cfa_addend,
            ra_offset: -1,
            ..Rule::default()
        }
    }

    #[test]
    fn a_cfa_is_found_in_all_its_ways() {
        let words = [9, 0x2004, STACK + 8, 0x2008, 0x200c];
        let at = |rule, pc| walked(rule, &start(pc, STACK + 16), &words);
        let cases = [
            (rule(CFA_REGISTER, REGISTER_SP, 16, 0), 0x1000, 0x2004),
            (rule(CFA_REGISTER, REGISTER_FP, 16, 0), 0x1000, 0x2008),
            (rule(CFA_REGISTER, 10, 8, 0), 0x1000, 0x2004),
            (rule(CFA_MEMORY, REGISTER_SP, 16, 24), 0x1000, 0x2008),
            (rule(CFA_MEMORY, 10, 8, 8), 0x1000, 0x2004),
            (rule(CFA_PLT, REGISTER_SP, 32, 11), 0x101a, 0x2008),
            (rule(CFA_PLT, REGISTER_SP, 32, 11), 0x101b, 0x200c),
        ];
        for (rule, pc, caller) in cases {
            assert_eq!(at(rule, pc), (vec![pc, caller], END_COMPLETE), "{rule:?}");
        }
    }

    #[test]
    fn the_frame_pointer_of_the_caller_is_found_in_all_its_ways() {
        // The caller has no rule, so its frame pointer says where its own caller is.
        let words = [STACK + 48, 0x3004, STACK + 32, 0, 0, 0x2004, 0, 0x2008];
        let with = |fp, fp_offset| Rule {
            fp,
            fp_offset,
            ..rule(CFA_REGISTER, REGISTER_SP, 16, 0)
        };
        let at = |rule| walked(rule, &start(0x1000, STACK + 32), &words);
        let found = |last| (vec![0x1000, 0x3004, last], END_COMPLETE);
        assert_eq!(at(with(FP_SAME, 0)), found(0x2004));
        assert_eq!(at(with(FP_AT_CFA, -2)), found(0x2008));
        assert_eq!(at(with(FP_AT_FP, -2)), found(0x2004));
        let unknown = (vec![0x1000, 0x3004], END_NO_RULE);
        assert_eq!(at(with(FP_UNKNOWN, 0)), unknown);
    }

    #[test]
    fn a_signal_gives_all_registers_back_and_an_exact_address() {
        let mut words = vec![0; 40];
        // The context is at the stack pointer: rbx and the pc there.
        words[128 / 8] = STACK + 30 * 8;
        words[CONTEXT_PC as usize / 8] = 0x1000;
        words[CONTEXT[7] as usize / 8] = STACK + 24 * 8;
        words[31] = 0x2004;
        let signal = rule(CFA_SIGNAL, REGISTER_SP, 0, 0);
        let mut builder = Builder::default();
        builder.push(0x1000, Entry::Rule(rule(CFA_REGISTER, 3, 16, 0)));
        builder.push(0x1800, Entry::Rule(signal));
        builder.push(0x2000, Entry::End);
        let code = Rules(builder.finish().unwrap());
        let found = walk(&start(0x1801, 0), &[], &code, &Words(words.clone()));
        assert_eq!(found.addresses, [0x1801, 0x1000 | EXACT_ADDRESS, 0x2004]);
        assert_eq!(found.end, END_COMPLETE);
        // Behind a call only the stack pointer and the frame pointer are known.
        words[CONTEXT_PC as usize / 8] = 0x3000;
        words[CONTEXT[6] as usize / 8] = STACK + 28 * 8;
        words[29] = 0x1004;
        let found = walk(&start(0x1801, 0), &[], &code, &Words(words));
        let expected = [0x1801, 0x3000 | EXACT_ADDRESS, 0x1004];
        assert_eq!(
            (&found.addresses[..], found.end),
            (&expected[..], END_NO_RULE)
        );
    }

    #[test]
    fn a_thread_of_go_goes_on_where_its_goroutine_left() {
        // g at +16, m at +32, curg at +48; sched.sp, pc, bp in curg.
        let rule = Rule {
            cfa: CFA_GO_SWITCH,
            cfa_offset: 8,
            cfa_addend: 8,
            fp_offset: 1,
            ra_offset: 3,
            ..Rule::default()
        };
        let mut words = vec![
            STACK + 16,
            0,
            0,
            STACK + 32,
            0,
            STACK + 48,
            0,
            STACK + 96,
            0x3000,
            0,
            STACK + 96,
            0,
            0,
            0x2004,
        ];
        let expected = vec![0x1000, 0x3000 | EXACT_ADDRESS, 0x2004];
        let found = walked(rule, &start(0x1000, 0), &words);
        assert_eq!(found, (expected, END_COMPLETE));
        words[5] = 0;
        let found = walked(rule, &start(0x1000, 0), &words);
        assert_eq!(found, (vec![0x1000], END_COMPLETE));
    }

    #[test]
    fn a_return_address_in_a_register_is_one_of_a_leaf() {
        // All of the stack is the caller's still.
        let leaf = rule(CFA_RETURN_REGISTER, 10, 0, 0);
        let mut from = start(0x1000, 0);
        from.registers[10] = 0x2004;
        let words = [9, 9];
        let found = walked(leaf, &from, &words);
        assert_eq!(found, (vec![0x1000, 0x2004], END_COMPLETE));
        from.all_known = false;
        assert_eq!(walked(leaf, &from, &words), (vec![0x1000], END_NO_RULE));
    }

    #[test]
    fn a_frame_is_found_by_rbx_wherever_that_was_saved() {
        let saves = |bx| Rule {
            bx,
            ..rule(CFA_REGISTER, REGISTER_SP, 24, 0)
        };
        let finds = rule(CFA_REGISTER, REGISTER_BX, 16, 0);
        // Two frames of 24 bytes, then one that ends where rbx says: at +88.
        let words = [1, STACK + 72, 0x1104, 2, 3, 0x1204, 4, 5, 6, 7, 0x2004];
        let chain = vec![0x1000, 0x1104, 0x1204, 0x2004];
        let at = |first, second, bx| {
            let mut builder = Builder::default();
            builder.push(0x1000, Entry::Rule(saves(first)));
            builder.push(0x1100, Entry::Rule(saves(second)));
            builder.push(0x1200, Entry::Rule(finds));
            builder.push(0x2000, Entry::End);
            let code = Rules(builder.finish().unwrap());
            let mut from = start(0x1000, 0);
            from.registers[usize::from(REGISTER_BX)] = bx;
            let found = walk(&from, &[], &code, &Words(words.to_vec()));
            (found.addresses, found.end)
        };
        let whole = (chain.clone(), END_COMPLETE);
        let lost = (chain[..3].to_vec(), END_NO_RULE);
        assert_eq!(at(BX_SAME, BX_SAME, STACK + 72), whole);
        assert_eq!(at(2, BX_SAME, 9), whole);
        assert_eq!(at(2, BX_UNKNOWN, STACK + 72), lost);
        assert_eq!(at(BX_UNKNOWN, BX_SAME, STACK + 72), lost);
        // The second frame's CFA is at +48, what it saved at +8.
        assert_eq!(at(BX_UNKNOWN, 5, 9), whole);
    }

    #[test]
    fn every_end_has_its_reason() {
        let plain = rule(CFA_REGISTER, REGISTER_SP, 16, 0);
        let at = |pc, words: &[u64]| walked(plain, &start(pc, 0), words).1;
        assert_eq!(at(0x1000, &[0, 0]), END_COMPLETE);
        assert_eq!(at(0x1000, &[0, 0x8000]), END_NO_MAPPING);
        assert_eq!(at(0x1000, &[0, 0x5001]), END_NO_TABLE);
        assert_eq!(at(0x1000, &[0]), END_BAD_MEMORY);
        assert_eq!(at(0x3000, &[0]), END_NO_RULE);
        assert_eq!(at(0x4000, &[0]), END_JIT);
        assert_eq!(at(0x6000, &[0]), END_NO_RULE);
        assert_eq!(at(0x1000, &[0, 0x4001]), END_COMPLETE);
        let down = rule(CFA_REGISTER, REGISTER_SP, 0, 0);
        assert_eq!(walked(down, &start(0x1000, 0), &[0]).1, END_BAD_MEMORY);
        let other = rule(CFA_REGISTER, 10, 8, 0);
        let unknown = Start {
            all_known: false,
            ..start(0x1000, 0)
        };
        assert_eq!(walked(other, &unknown, &[0; 4]).1, END_NO_RULE);
    }

    #[test]
    fn a_frame_pointer_that_is_none_leaves_no_trace() {
        let plain = rule(CFA_REGISTER, REGISTER_SP, 16, 0);
        for (pc, end) in [(0x3000, END_NO_RULE), (0x4000, END_JIT)] {
            for (fp, word) in [(STACK, 0x8000), (STACK + 1, 0x2004), (STACK - 8, 0x2004)] {
                let found = walked(plain, &start(pc, fp), &[0, word]);
                assert_eq!(found, (vec![pc], end), "{fp:x}");
            }
        }
    }

    #[test]
    fn the_limit_is_for_all_frames_of_a_stack() {
        let plain = rule(CFA_REGISTER, REGISTER_SP, 16, 0);
        // A return address in the second word of each frame, all different; the outermost function's is last.
        let chain = |len: usize| -> (Vec<u64>, Vec<u64>) {
            let caller = |depth: usize| match depth + 1 == len {
                true => 0x2004,
                false => 0x1004 + depth as u64 % 1000,
            };
            let words = (1..len).flat_map(|depth| [depth as u64, caller(depth)]);
            let chain = std::iter::once(0x1000).chain((1..len).map(caller));
            (words.collect(), chain.collect())
        };
        for len in [2, 127, 128, 500, 510, 511] {
            let (words, whole) = chain(len);
            let found = walked(plain, &start(0x1000, 0), &words);
            assert_eq!(found, (whole, END_COMPLETE), "{len}");
        }
        let ends = |chain: &[u64], len: usize| {
            let (inner, outer) = (&chain[..INNERMOST_FRAMES], &chain[len - OUTERMOST_FRAMES..]);
            [inner, &[LEFT_OUT], outer].concat()
        };
        for len in [512, 513, 600, 1000, MAX_USER_DEPTH] {
            let (words, whole) = chain(len);
            let found = walked(plain, &start(0x1000, 0), &words);
            assert_eq!(found, (ends(&whole, len), END_LEFT_OUT), "{len}");
            // The same from what was found before.
            let code = Rules::of(plain);
            for before in [1, 100, 511] {
                let from = Start {
                    pc: whole[before],
                    is_return: true,
                    all_known: false,
                    ..start(0, 0)
                };
                let from = Start {
                    registers: [STACK + 16 * before as u64; REGISTERS],
                    ..from
                };
                let found = walk(&from, &whole[..before], &code, &Words(words.clone()));
                assert_eq!(found.addresses, ends(&whole, len), "{len} {before}");
                assert_eq!(found.end, END_LEFT_OUT);
            }
        }
        let (words, whole) = chain(MAX_USER_DEPTH + 1);
        let found = walked(plain, &start(0x1000, 0), &words);
        let inner = whole[..INNERMOST_FRAMES].to_vec();
        assert_eq!(found, (inner, END_TRUNCATED));
    }

    #[test]
    fn what_lacks_its_middle_already_keeps_both_ends() {
        let plain = rule(CFA_REGISTER, REGISTER_SP, 16, 0);
        let code = Rules::of(plain);
        let words = [1, 0x1104, 2, 0x2004];
        let mut before: Vec<u64> = (0..512).map(|depth| 0x1200 + depth).collect();
        before[INNERMOST_FRAMES] = LEFT_OUT;
        let found = walk(&start(0x1004, 0), &before, &code, &Words(words.to_vec()));
        let mut expected = before.clone();
        expected.extend([0x1004 | EXACT_ADDRESS, 0x1104, 0x2004]);
        expected.drain(INNERMOST_FRAMES + 1..INNERMOST_FRAMES + 4);
        assert_eq!((found.addresses, found.end), (expected, END_LEFT_OUT));
        // However few are said to be behind it.
        before.truncate(INNERMOST_FRAMES + 1);
        let found = walk(&start(0x3000, 0), &before, &code, &Words(vec![]));
        assert_eq!(found.addresses.len(), INNERMOST_FRAMES + 2);
        assert_eq!(found.end, END_NO_RULE);
    }
}
