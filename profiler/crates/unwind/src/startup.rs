//! How to find the callers of what begins and ends a file, and of what creates threads, of which the file does not say
//! it.
//!
//! An open ELF file and its sections -> the code that the loader calls and some of what is around it ([`Startup`]);
//! that and where the file says nothing -> ranges of addresses and their rules ([`rules`]). Addresses are ELF virtual
//! addresses. Every program and library has such code, which the C library (`_init`, `_fini`) and the compiler
//! (`frame_dummy`, `__do_global_dtors_aux` and what they call) bring without unwind information. It is the first of a
//! library that runs, so that a thread that waits there for the file to be read is often sampled in it.
//!
//! Nothing is guessed: the loader calls what is named in `.init_array` and its like, so the return address is on top
//! of the stack there, and each instruction from there on is known to move the stack pointer by so much, or else the
//! whole function has no rule. What it calls has to leave the stack pointer as it was, as the System V ABI (x86-64,
//! chapter 3) has it.
//!
//! glibc's `clone` and `clone3` say nothing of where their system call returns, since it does so in two threads: in
//! the new one, where the result is 0, nothing on the stack is a return address. `pthread_create` and `posix_spawn`
//! spend their time there. Source: glibc 2.36, sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S.
//!
//! What does not belong here: functions of which files say something (`build`).

use std::collections::BTreeMap;
use std::fs::File;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use profiler_common::unwind::{
    CFA_REGISTER, CFA_UNLESS_NEW, FP_AT_CFA, FP_SAME, FP_UNKNOWN, REGISTER_SP, Rule,
};
use profiler_object::elf::{Elf, Section, read_up_to, word};

use super::outermost::{MAX_CODE_BYTES, read};

/// Most functions of a file that the loader calls: of further ones nothing is found out. The compiler's come first in
/// the arrays, but for those with a priority.
pub(super) const MAX_ENTRIES: usize = 32;
/// What is read before such a function, where those lie that it calls, and of it.
const BEFORE: u64 = 256;
const BEHIND: u64 = 128;
/// Most bytes of code, all pieces together.
pub(super) const MAX_BYTES: u64 = MAX_ENTRIES as u64 * (BEFORE + BEHIND);
/// Most places of a file where threads are created: C libraries have two.
pub(super) const MAX_CREATORS: usize = 4;
/// `mov $NUMBER,%eax`, which comes before the system call.
const MOV_EAX: u8 = 0xb8;
const MOV_BYTES: u64 = 5;
/// From the system call on until it returns to the caller: `syscall; test %rax,%rax; jl; je; ret`, where the jumps
/// are as long as they can be.
const CREATOR_BYTES: usize = 18;
/// Most instructions that are followed.
const MAX_INSTRUCTIONS: usize = 4096;
/// Most bytes that a function takes of the stack.
const MAX_TAKEN: i64 = 1 << 16;

const WORD: usize = 8;
/// Where system calls return their result: rax, by DWARF's number.
const REGISTER_RESULT: u8 = 0;
const RELA_BYTES: u64 = 24;
const R_X86_64_RELATIVE: u64 = 8;

/// Code that the loader calls, and what creates threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Startup {
    /// Where what the loader calls begins, in the order of addresses.
    pub(super) entries: Vec<u64>,
    /// System calls that create threads, and return in them as well.
    pub(super) creators: Vec<u64>,
    /// The code there and around: addresses and bytes, in their order.
    pub(super) code: Vec<(u64, Vec<u8>)>,
}

impl Startup {
    /// Reads it from a file of 64 bits.
    pub(super) fn read(file: &File, elf: &Elf, sections: &[Section]) -> Startup {
        let named = |name| {
            sections
                .iter()
                .find(|section: &&Section| section.name == name)
        };
        let mut entries: Vec<u64> = [".init", ".fini"]
            .into_iter()
            .filter_map(|name| Some(named(name)?.address))
            .collect();
        let relocations = named(".rela.dyn").map(Section::place);
        for name in [".fini_array", ".preinit_array", ".init_array"] {
            if let Some(section) = named(name) {
                entries.extend(pointers(
                    file,
                    section.address,
                    section.place(),
                    relocations,
                ));
            }
        }
        let segment_of = |address: u64| {
            let mut code = elf.segments.iter().filter(|segment| segment.executable);
            code.find_map(|of| {
                let end = of.address.saturating_add(of.len);
                (of.address..end)
                    .contains(&address)
                    .then_some((of.address, end))
            })
        };
        entries.retain(|&entry| segment_of(entry).is_some());
        entries.truncate(MAX_ENTRIES);
        entries.sort_unstable();
        entries.dedup();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &entry in &entries {
            let Some((start, end)) = segment_of(entry) else {
                continue;
            };
            let from = entry.saturating_sub(BEFORE).max(start);
            let until = entry.saturating_add(BEHIND).min(end);
            match ranges.last_mut() {
                Some(last) if from < last.1 => last.1 = last.1.max(until),
                _ => ranges.push((from, until)),
            }
        }
        let read = |&(from, until): &(u64, u64)| {
            let mut bytes = vec![0; usize::try_from(until - from).ok()?];
            let got = read_up_to(file, &mut bytes, elf.offset_of(from)?).ok()?;
            bytes.truncate(got);
            Some((from, bytes))
        };
        let code = ranges.iter().filter_map(read).collect();
        Startup {
            entries,
            creators: Vec::new(),
            code,
        }
    }

    /// Adds what creates threads in a C library.
    pub(super) fn add_creators(&mut self, file: &File, elf: &Elf) {
        for segment in elf.segments.iter().filter(|segment| segment.executable) {
            if segment.len > MAX_CODE_BYTES {
                continue;
            }
            let code = read(file, elf, segment.address, segment.len);
            for at in creators(&code) {
                let from = at.saturating_sub(MOV_BYTES as usize);
                let Some(piece) = code.get(from..code.len().min(at + CREATOR_BYTES)) else {
                    continue;
                };
                let place = |at: usize| segment.address.saturating_add(at as u64);
                if self.creators.len() < MAX_CREATORS && self.at(place(at)).is_none() {
                    self.creators.push(place(at));
                    self.code.push((place(from), piece.to_vec()));
                }
            }
        }
        self.code.sort_unstable_by_key(|&(start, _)| start);
    }

    /// The bytes from an address on.
    fn at(&self, address: u64) -> Option<&[u8]> {
        let behind = self.code.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = &self.code[behind.checked_sub(1)?];
        let rest = bytes.get(usize::try_from(address - start).ok()?..)?;
        (!rest.is_empty()).then_some(rest)
    }
}

/// Where code creates a thread: it makes a system call, and returns what that gives unless it is 0 or an error.
fn creators(code: &[u8]) -> impl Iterator<Item = usize> {
    let windows = code.windows(CREATOR_BYTES).enumerate();
    windows.filter_map(|(at, bytes)| {
        let behind = bytes.strip_prefix(&[0x0f, 0x05, 0x48, 0x85, 0xc0])?;
        let behind = match behind {
            [0x7c, _, behind @ ..] | [0x0f, 0x8c, _, _, _, _, behind @ ..] => behind,
            _ => return None,
        };
        behind.starts_with(&[0x74, 0x01, 0xc3]).then_some(at)
    })
}

/// Offset and length of a section in the file.
type Place = (u64, u64);

/// The addresses in an array of functions. Where a file can be mapped anywhere, its linker may leave them to
/// the relocations alone.
fn pointers(file: &File, address: u64, place: Place, relocations: Option<Place>) -> Vec<u64> {
    let (offset, len) = place;
    let mut bytes = [0; MAX_ENTRIES * WORD];
    let len = bytes.len().min(usize::try_from(len).unwrap_or(0));
    let got = read_up_to(file, &mut bytes[..len], offset).unwrap_or(0);
    let addresses = (address..).step_by(WORD);
    let words = bytes[..got].chunks_exact(WORD).zip(addresses);
    let pointers = words.filter_map(|(bytes, of)| match word(bytes, 0, true).ok()? {
        0 => relocated(file, relocations?, of),
        value => Some(value),
    });
    pointers.collect()
}

/// What the word at an address becomes if the file is mapped as it was linked. Linkers put those relocations first
/// that ask for no symbol, by their address.
fn relocated(file: &File, (offset, len): Place, place: u64) -> Option<u64> {
    let (mut first, mut behind) = (0, len / RELA_BYTES);
    while first < behind {
        let middle = first + (behind - first) / 2;
        let mut bytes = [0; RELA_BYTES as usize];
        let at = offset.checked_add(middle * RELA_BYTES)?;
        if read_up_to(file, &mut bytes, at).ok()? != bytes.len() {
            return None;
        }
        let number = |at| word(&bytes, at, true).ok();
        let (of, kind, value) = (number(0)?, number(8)?, number(16)?);
        if kind == R_X86_64_RELATIVE && of == place {
            return Some(value);
        }
        match kind == R_X86_64_RELATIVE && of < place {
            true => first = middle + 1,
            false => behind = middle,
        }
    }
    None
}

/// What is known at an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Bytes of the stack below the return address.
    taken: i64,
    /// Of these, when the caller's frame pointer had been pushed.
    saved: Option<i64>,
    /// Of these, when the frame pointer was set to the stack pointer.
    frame: Option<i64>,
    /// It may be in a thread that was just created.
    may_be_new: bool,
}

impl State {
    /// Whether stack and frame pointer are those that the function was called with.
    fn is_as_called(self) -> bool {
        (self.taken, self.saved, self.frame) == (0, None, None)
    }

    fn rule(self) -> Rule {
        let (fp, fp_offset) = match (self.saved, self.frame) {
            (Some(saved), _) => (FP_AT_CFA, -(saved / 8) - 1),
            (None, None) => (FP_SAME, 0),
            (None, Some(_)) => (FP_UNKNOWN, 0),
        };
        let (cfa, register) = match self.may_be_new {
            true => (CFA_UNLESS_NEW, REGISTER_RESULT),
            false => (CFA_REGISTER, REGISTER_SP),
        };
        // Neither is beyond MAX_TAKEN.
        Rule {
            cfa,
            register,
            fp,
            cfa_offset: self.taken as i32 + 8,
            fp_offset: fp_offset as i16,
            ra_offset: -1,
            ..Rule::default()
        }
    }

    /// Behind an instruction that does not leave the function; none if that is not known.
    fn behind(self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<State> {
        let is_fp = |operand| instruction.op_register(operand) == Register::RBP;
        let mut state = self;
        match instruction.mnemonic() {
            Mnemonic::Push if instruction.stack_pointer_increment() == -8 => {
                state.taken += 8;
                if is_fp(0) && state.saved.is_none() && state.frame.is_none() {
                    state.saved = Some(state.taken);
                }
            }
            Mnemonic::Pop
                if instruction.stack_pointer_increment() == 8
                    && instruction.op0_kind() == OpKind::Register
                    && instruction.op0_register() != Register::RSP =>
            {
                if is_fp(0) {
                    (state.saved == Some(state.taken)).then_some(())?;
                    (state.saved, state.frame) = (None, None);
                }
                state.taken -= 8;
            }
            Mnemonic::Leave if instruction.code() == Code::Leaveq => {
                (state.frame.is_some() && state.frame == state.saved).then_some(())?;
                state.taken = state.frame? - 8;
                (state.saved, state.frame) = (None, None);
            }
            Mnemonic::Mov
                if instruction.op0_kind() == OpKind::Register
                    && is_fp(0)
                    && instruction.op1_register() == Register::RSP =>
            {
                state.frame = Some(state.taken);
            }
            Mnemonic::Sub | Mnemonic::Add
                if instruction.op0_register() == Register::RSP
                    && matches!(
                        instruction.op1_kind(),
                        OpKind::Immediate8to64 | OpKind::Immediate32to64
                    ) =>
            {
                let by = instruction.immediate(1) as i64;
                state.taken += match instruction.mnemonic() {
                    Mnemonic::Sub => by,
                    _ => -by,
                };
            }
            _ if is_written(info, instruction) => return None,
            _ => {}
        }
        // What was saved must still be there.
        let least = state.saved.unwrap_or(0);
        ((least..MAX_TAKEN).contains(&state.taken) && state.taken % 8 == 0).then_some(state)
    }
}

/// Whether the stack or the frame pointer gets another value.
fn is_written(info: &mut InstructionInfoFactory, instruction: &Instruction) -> bool {
    // A call brings the stack pointer back.
    let calls = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    let mut used = info.info(instruction).used_registers().iter();
    used.any(|used| {
        let reads = matches!(
            used.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::None
        );
        match used.register().full_register() {
            Register::RSP => !reads && !calls,
            Register::RBP => !reads,
            _ => false,
        }
    })
}

/// An instruction's end, and what is known at it.
type Known = BTreeMap<u64, (u64, State)>;

/// Addresses, ends and rules of what is reached from where the loader calls, in their order. `is_said`: whether the
/// file itself says something of an address.
pub(super) fn rules(startup: &Startup, is_said: impl Fn(u64) -> bool) -> Vec<(u64, u64, Rule)> {
    let mut known = Known::new();
    let mut left = MAX_INSTRUCTIONS;
    let mut functions = startup.entries.clone();
    for &creator in &startup.creators {
        let before = creator.saturating_sub(MOV_BYTES);
        if startup.at(before).is_some_and(|code| code[0] == MOV_EAX) {
            functions.push(before);
        }
        functions.push(creator);
    }
    let mut seen = functions.clone();
    while let Some(function) = functions.pop() {
        if is_said(function) {
            continue;
        }
        let mut called = Vec::new();
        let Some(followed) = follow(startup, function, &is_said, &mut called, &mut left) else {
            continue;
        };
        // Two ways to one place that bring different stacks: one of them is none that is taken.
        let differs =
            |(at, what): (&u64, &(u64, State))| known.get(at).is_some_and(|it| it != what);
        if followed.iter().any(differs) {
            continue;
        }
        known.extend(followed);
        called.retain(|target| !seen.contains(target));
        seen.extend(&called);
        functions.extend(called);
    }
    let mut rules: Vec<(u64, u64, Rule)> = Vec::new();
    for (start, (end, state)) in known {
        let rule = state.rule();
        match rules.last_mut() {
            // Code that can be read from two of its bytes on is not what it seems to be.
            Some(last) if start < last.1 => return Vec::new(),
            Some(last) if start == last.1 && rule == last.2 => last.1 = end,
            _ => rules.push((start, end, rule)),
        }
    }
    rules
}

/// All instructions of a function, and of those that it goes over to; none if one of them is not understood.
fn follow(
    startup: &Startup,
    function: u64,
    is_said: &impl Fn(u64) -> bool,
    called: &mut Vec<u64>,
    left: &mut usize,
) -> Option<Known> {
    let mut info = InstructionInfoFactory::new();
    let mut known = Known::new();
    let mut ways = vec![(function, State::default())];
    while let Some((address, state)) = ways.pop() {
        if is_said(address) {
            // It went over to another function, which has the stack that it was called with.
            (state.taken == 0).then_some(())?;
            continue;
        }
        if let Some((_, before)) = known.get(&address) {
            (*before == state).then_some(())?;
            continue;
        }
        *left = left.checked_sub(1)?;
        let bytes = startup.at(address)?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return None;
        }
        known.insert(address, (instruction.next_ip(), state));
        let flow = instruction.flow_control();
        let is_near = instruction.op0_kind() == OpKind::NearBranch64;
        match flow {
            FlowControl::Return => {
                let is_plain = instruction.op_count() == 0 && state.is_as_called();
                (is_plain && instruction.mnemonic() == Mnemonic::Ret).then_some(())?;
            }
            FlowControl::IndirectBranch => (state.taken == 0).then_some(())?,
            FlowControl::Exception => {}
            FlowControl::UnconditionalBranch => {
                is_near.then_some(())?;
                ways.push((instruction.near_branch_target(), state));
            }
            FlowControl::ConditionalBranch => {
                is_near.then_some(())?;
                ways.push((instruction.near_branch_target(), state));
                ways.push((instruction.next_ip(), state));
            }
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                if flow == FlowControl::Call && is_near {
                    called.push(instruction.near_branch_target());
                }
                let mut then = state.behind(&instruction, &mut info)?;
                then.may_be_new |= startup.creators.contains(&address);
                ways.push((instruction.next_ip(), then));
            }
            _ => return None,
        }
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What binutils and gcc 12 make of a library: `_init`, and of the compiler's start of `.text` all but what is
    /// between the functions.
    const INIT: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8b, 0x05, 0xc5, 0x2f, 0, 0, 0x48, 0x85, 0xc0, 0x74, 2,
        0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    /// `deregister_tm_clones`.
    const CLONES: &[u8] = &[
        0x48, 0x8d, 0x3d, 0x91, 0x2f, 0, 0, 0x48, 0x8d, 0x05, 0x8a, 0x2f, 0, 0, 0x48, 0x39, 0xf8,
        0x74, 0x15, 0x48, 0x8b, 0x05, 0x0e, 0x2f, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x09, 0xff, 0xe0,
        0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0,
    ];
    /// `__do_global_dtors_aux`, 0x30 behind `CLONES`; its first call is to 0x50 before `CLONES`.
    const DTORS: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, 0x80, 0x3d, 0x1d, 0x2f, 0, 0, 0, 0x75, 0x2b, 0x55, 0x48, 0x83,
        0x3d, 0xba, 0x2e, 0, 0, 0, 0x48, 0x89, 0xe5, 0x74, 0x0c, 0x48, 0x8b, 0x3d, 0xfe, 0x2e, 0,
        0, 0xe8, 0x59, 0xff, 0xff, 0xff, 0xe8, 0xa4, 0xff, 0xff, 0xff, 0xc6, 0x05, 0xf5, 0x2e, 0,
        0, 1, 0x5d, 0xc3, 0x0f, 0x1f, 0, 0xc3,
    ];

    fn startup(entries: &[u64], code: &[(u64, &[u8])]) -> Startup {
        Startup {
            entries: entries.to_vec(),
            creators: Vec::new(),
            code: code
                .iter()
                .map(|(at, bytes)| (*at, bytes.to_vec()))
                .collect(),
        }
    }

    /// The CFA's distance from the stack pointer, and the caller's frame pointer, by address.
    fn found(startup: &Startup, is_said: impl Fn(u64) -> bool) -> Vec<(u64, u64, i32, u8)> {
        let rules = rules(startup, is_said).into_iter();
        let found = rules.map(|(start, end, rule)| {
            assert_eq!(
                (rule.cfa, rule.register, rule.ra_offset),
                (CFA_REGISTER, REGISTER_SP, -1)
            );
            let at_cfa = rule.fp == FP_AT_CFA;
            assert_eq!(rule.fp_offset, if at_cfa { -2 } else { 0 });
            (start, end, rule.cfa_offset, rule.fp)
        });
        found.collect()
    }

    fn of(bytes: &[u8]) -> Vec<(u64, u64, i32, u8)> {
        found(&startup(&[0x1000], &[(0x1000, bytes)]), |_| false)
    }

    #[test]
    fn the_c_librarys_and_the_compilers_functions_have_rules_at_each_instruction() {
        assert_eq!(
            of(INIT),
            [
                (0x1000, 0x1004, 8, FP_SAME),
                (0x1004, 0x1016, 16, FP_SAME),
                (0x1016, 0x1017, 8, FP_SAME),
            ]
        );
        let code = [CLONES, DTORS].concat();
        let begun = startup(&[0x1030], &[(0x1000, &code)]);
        assert_eq!(
            found(&begun, |_| false),
            [
                // What is called; not what lies between the jump and the return.
                (0x1000, 0x1021, 8, FP_SAME),
                (0x1028, 0x1029, 8, FP_SAME),
                (0x1030, 0x103e, 8, FP_SAME),
                (0x103e, 0x1064, 16, FP_AT_CFA),
                (0x1064, 0x1065, 8, FP_SAME),
                (0x1068, 0x1069, 8, FP_SAME),
            ]
        );
        // Where the file says something, that holds.
        let said = |address| address < 0x1030;
        assert_eq!(found(&begun, said)[0].0, 0x1030);
        assert_eq!(found(&begun, |_| true), []);
    }

    #[test]
    fn a_function_of_which_one_instruction_is_not_understood_has_no_rule() {
        // push %rax; pop %rdx; ret
        assert_eq!(of(&[0x50, 0x5a, 0xc3]).len(), 3);
        let unknown: &[&[u8]] = &[
            // push %rax; ret
            &[0x50, 0xc3],
            // ret $8
            &[0xc2, 8, 0],
            // and $-16,%rsp; ret
            &[0x48, 0x83, 0xe4, 0xf0, 0xc3],
            // mov %rax,%rsp; ret
            &[0x48, 0x89, 0xc4, 0xc3],
            // xchg %rax,%rsp; ret
            &[0x48, 0x94, 0xc3],
            // add $8,%rsp; sub $8,%rsp; ret
            &[0x48, 0x83, 0xc4, 8, 0x48, 0x83, 0xec, 8, 0xc3],
            // push %rbp; pop %rax; pop %rbp: of the caller
            &[0x55, 0x58, 0x5d, 0xc3],
            // mov %rax,%rbp; ret
            &[0x48, 0x89, 0xc5, 0xc3],
            // je to ret; push %rax; ret: with two depths
            &[0x74, 1, 0x50, 0xc3],
            // push %rax; jmp *%rax
            &[0x50, 0xff, 0xe0],
            // a jump into its own middle
            &[0xeb, 0xff, 0xc3],
            // nop, and no more bytes
            &[0x90],
            // not an instruction
            &[0x06],
        ];
        for bytes in unknown {
            assert_eq!(of(bytes), [], "{bytes:x?}");
        }
        // push %rbp; mov %rsp,%rbp; sub $16,%rsp; leave; ret
        let framed = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xc9, 0xc3];
        assert_eq!(
            of(&framed),
            [
                (0x1000, 0x1001, 8, FP_SAME),
                (0x1001, 0x1008, 16, FP_AT_CFA),
                (0x1008, 0x1009, 32, FP_AT_CFA),
                (0x1009, 0x100a, 8, FP_SAME),
            ]
        );
    }

    /// Its startup code has symbols, if it is a C library's, and `.init_array` names one of them.
    #[test]
    fn all_that_begins_a_program_has_rules() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        let sections = elf.sections(&file).unwrap();
        let startup = Startup::read(&file, &elf, &sections);
        let named = |name| {
            sections
                .iter()
                .find(|section: &&Section| section.name == name)
        };
        let init = named(".init").unwrap().address;
        assert!(startup.entries.contains(&init));
        let array = named(".init_array").unwrap();
        let relocations = named(".rela.dyn").map(Section::place);
        let in_array = pointers(&file, array.address, array.place(), relocations);
        assert!(
            in_array.iter().all(|entry| startup.entries.contains(entry)),
            "{in_array:x?}"
        );
        assert!(!in_array.is_empty());
        let rules = rules(&startup, |_| false);
        assert!(rules.iter().any(|&(start, ..)| start == init), "{rules:x?}");
    }

    #[test]
    fn an_array_that_is_left_to_relocations_is_read_there() {
        let relocations = [(0x100, 0x1000), (0x108, 0x1010), (0x118, 0x1020)];
        let mut bytes = vec![0_u8; 16];
        for (place, value) in relocations {
            for number in [place, R_X86_64_RELATIVE, value] {
                bytes.extend(u64::to_le_bytes(number));
            }
        }
        // Behind those that ask for no symbol there is one that does.
        for number in [0x110, 1, 0x1030] {
            bytes.extend(u64::to_le_bytes(number));
        }
        let made = rustix::fs::memfd_create("array", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(made);
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        let relocations = (16, 4 * RELA_BYTES);
        let at = |place| relocated(&file, relocations, place);
        assert_eq!(
            (at(0x100), at(0x108), at(0x118)),
            (Some(0x1000), Some(0x1010), Some(0x1020))
        );
        assert_eq!((at(0x110), at(0xf8), at(0x120)), (None, None, None));
        let of = |relocations| pointers(&file, 0x100, (0, 16), relocations);
        assert_eq!(of(Some(relocations)), [0x1000, 0x1010]);
        assert_eq!(of(None), []);
    }

    /// `clone3` of glibc 2.36 from the system call's number on: what comes before and behind has rules.
    const CLONE3: &[u8] = &[
        0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 0x18, 0x74, 1, 0xc3,
    ];

    #[test]
    fn what_creates_threads_has_callers_but_in_the_new_thread() {
        let mut code = vec![0x90; 9];
        code.extend(CLONE3);
        code.extend([0x90; 20]);
        assert_eq!(creators(&code).collect::<Vec<_>>(), [14]);
        let startup = Startup {
            creators: vec![0x1005],
            ..startup(&[], &[(0x1000, CLONE3)])
        };
        let rule = |cfa, register| Rule {
            cfa,
            register,
            fp: FP_SAME,
            cfa_offset: 8,
            ra_offset: -1,
            ..Rule::default()
        };
        let (plain, new) = (
            rule(CFA_REGISTER, REGISTER_SP),
            rule(CFA_UNLESS_NEW, REGISTER_RESULT),
        );
        let is_behind = |address| address >= 0x100f;
        let expected = [(0x1000, 0x1007, plain), (0x1007, 0x100f, new)];
        assert_eq!(rules(&startup, is_behind), expected);
        // Where the file says something of the number.
        let said = rules(&startup, |address| address < 0x1005 || is_behind(address));
        assert_eq!(said, [(0x1005, 0x1007, plain), (0x1007, 0x100f, new)]);
        // Where an error would lead is not known.
        assert_eq!(rules(&startup, |_| false), []);
    }

    #[test]
    fn the_library_of_this_program_has_two() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps.lines().find(|line| line.contains("/libc.so.6"));
        let Some(path) = library.and_then(|line| line.split_whitespace().last()) else {
            return;
        };
        let file = File::open(path).unwrap();
        let elf = Elf::read(&file).unwrap();
        let mut startup = Startup::default();
        startup.add_creators(&file, &elf);
        assert_eq!(startup.creators.len(), 2);
    }
}
