//! What holds in functions that were written in assembly.
//!
//! The instructions of a function, and how much stack each has taken as far as the assembler knows ->
//! entries. Read once from the beginning to the end: what the code behind a jump or a return begins with is
//! what the table of the assembler says, for it is reached from before. Where the stack pointer gets a
//! value that the assembler does not follow, the frame pointer of the function's own frame finds the
//! caller, if it has one; functions that leave a goroutine's stack are known by their names (`Kind`).
//! Source: the runtime's asm_amd64.s and sys_linux_amd64.s. Addresses are ELF virtual addresses.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use profiler_common::unwind::{CFA_OTHER_STACK, FP_AT_CFA, FP_SAME, FP_UNKNOWN, REGISTER_FP, Rule};

use super::pclntab::{Function, Held};
use super::rows::by_stack_pointer;
use crate::Entry;

/// How a function treats stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As any other.
    Plain,
    /// Nobody called it.
    Outermost,
    /// A signal's handler returns to it.
    Signal,
    /// It goes on on the thread's own stack, and comes back.
    Switch,
    /// It leaves its stack for good.
    Left,
    /// What the assembler knows holds on both stacks that it uses.
    Both,
}

/// What is known of the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// What the assembler says.
    Followed,
    /// It is on the thread's own stack.
    Switched,
    /// Nothing.
    Lost,
}

#[derive(Clone, Copy)]
struct State {
    stack: Stack,
    /// Where the caller's frame pointer was saved, from the CFA.
    saved: Option<i32>,
    /// CFA - frame pointer, while that is the function's own.
    frame: Option<i32>,
    /// The caller's frame pointer is neither saved nor in the register.
    fp_lost: bool,
}

impl State {
    const BEGIN: State = State {
        stack: Stack::Followed,
        saved: None,
        frame: None,
        fp_lost: false,
    };

    fn fp(&self) -> (u8, i16) {
        match self.saved {
            Some(place) if place % 8 == 0 => match i16::try_from(place / 8) {
                Ok(place) => (FP_AT_CFA, place),
                Err(_) => (FP_UNKNOWN, 0),
            },
            Some(_) => (FP_UNKNOWN, 0),
            None if self.fp_lost => (FP_UNKNOWN, 0),
            None => (FP_SAME, 0),
        }
    }

    fn entry(&self, kind: Kind, taken: i32, switch: Option<Rule>) -> Entry {
        let (fp, fp_offset) = self.fp();
        match (self.stack, kind, self.frame) {
            (Stack::Followed, ..) => by_stack_pointer(taken, (fp, fp_offset)),
            (_, Kind::Left, _) => Entry::End,
            (Stack::Switched, _, _) if let Some(rule) = switch => Entry::Rule(rule),
            (_, _, Some(distance)) => Entry::Rule(Rule {
                cfa: CFA_OTHER_STACK,
                register: REGISTER_FP,
                fp,
                cfa_offset: distance,
                fp_offset,
                ra_offset: -1,
                ..Rule::default()
            }),
            (_, Kind::Switch, None) => Entry::End,
            (_, _, None) => Entry::None,
        }
    }
}

/// Reads a function. `stack`: how much it has taken where, of which there is some: no less than nothing, and
/// no more than is believed. What the code adds to that can be any number.
pub(super) fn read(
    function: &Function,
    stack: &[Held],
    bytes: &[u8],
    kind: Kind,
    switch: Option<Rule>,
    push: &mut dyn FnMut(u64, Entry),
) {
    let taken_at = |address: u64| {
        let behind = stack.partition_point(|held| held.at.start <= address);
        let held = behind.checked_sub(1).and_then(|index| stack.get(index));
        held.map_or(0, |held| held.value)
    };
    let mut decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
    let mut reader = Reader {
        kind,
        info: InstructionInfoFactory::new(),
        state: State::BEGIN,
        kept: State::BEGIN,
    };
    let mut instruction = Instruction::default();
    let mut last = None;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let taken = taken_at(instruction.ip());
        let entry = reader.state.entry(kind, taken, switch);
        if last != Some(entry) {
            push(instruction.ip(), entry);
            last = Some(entry);
        }
        if instruction.is_invalid() {
            // Data among code: what follows can't be told apart.
            let next = instruction.next_ip();
            let rest = stack.iter().filter(|held| held.at.end > next);
            for held in rest {
                push(
                    held.at.start.max(next),
                    State::BEGIN.entry(kind, held.value, None),
                );
            }
            return;
        }
        reader.step(&instruction, taken, taken_at(instruction.next_ip()));
    }
}

struct Reader {
    kind: Kind,
    info: InstructionInfoFactory,
    state: State,
    /// With the frame as it was made first.
    kept: State,
}

impl Reader {
    fn step(&mut self, instruction: &Instruction, taken: i32, then: i32) {
        match instruction.mnemonic() {
            Mnemonic::Push if instruction.op0_register() == Register::RBP => {
                self.saves(Some(-16 - taken));
            }
            Mnemonic::Mov
                if instruction.op1_kind() == OpKind::Register
                    && instruction.op1_register() == Register::RBP
                    && let Some(place) = from_stack_pointer(instruction, 0) =>
            {
                self.saves(place.checked_sub(taken + 8));
            }
            Mnemonic::Pop if instruction.op0_register() == Register::RBP => self.restores(),
            Mnemonic::Leave => self.restores(),
            _ if writes(&mut self.info, instruction, Register::RBP) => {
                self.frame_pointer(instruction, taken);
            }
            _ if writes(&mut self.info, instruction, Register::RSP) => {
                self.stack_pointer(instruction, then - taken);
            }
            _ => {}
        }
        if matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) {
            // What follows was jumped to, from where the frame was there if it has its room now.
            let whole = self.kept.saved.is_some_and(|place| place >= -8 - then);
            self.state = if whole { self.kept } else { State::BEGIN };
        }
    }

    /// The caller's frame pointer is saved; none: too far from the CFA to be said.
    fn saves(&mut self, place: Option<i32>) {
        if let Some(place) = place
            && self.state.saved.is_none()
            && !self.state.fp_lost
            && self.state.frame.is_none()
        {
            self.state.saved = Some(place);
            if self.kept.saved.is_none() {
                self.kept.saved = Some(place);
            }
        }
    }

    fn restores(&mut self) {
        self.state = State::BEGIN;
    }

    /// The frame pointer gets another value.
    fn frame_pointer(&mut self, instruction: &Instruction, taken: i32) {
        let followed = self.state.stack == Stack::Followed;
        let place = match instruction.mnemonic() {
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                (instruction.op1_register() == Register::RSP).then_some(0)
            }
            Mnemonic::Lea => from_stack_pointer(instruction, 1),
            _ => None,
        };
        let is_load =
            instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Memory;
        match place {
            Some(place) if followed && let Some(frame) = (taken + 8).checked_sub(place) => {
                self.state.frame = Some(frame);
                self.state.fp_lost |= self.state.saved.is_none();
                if self.kept.frame.is_none() && self.kept.saved.is_some() {
                    self.kept.frame = self.state.frame;
                }
            }
            // From where it was saved at: so the stack pointer is the function's own again, too.
            _ if is_load
                && self.state.saved.is_some()
                && from_stack_pointer(instruction, 1)
                    .and_then(|place| place.checked_sub(taken + 8))
                    == self.state.saved =>
            {
                self.restores();
            }
            // Back from the thread's own stack, it is what it was before.
            _ if is_load && !followed && self.state.frame.is_some() => {}
            _ => {
                self.state.frame = None;
                self.state.fp_lost |= self.state.saved.is_none();
            }
        }
    }

    /// The stack pointer gets another value; `change` is what the assembler thinks that was.
    fn stack_pointer(&mut self, instruction: &Instruction, change: i32) {
        if self.kind == Kind::Both {
            return;
        }
        let by = match instruction.mnemonic() {
            Mnemonic::Sub if is_immediate(instruction) => Some(instruction.immediate(1) as i64),
            Mnemonic::Add if is_immediate(instruction) => {
                Some((instruction.immediate(1) as i64).wrapping_neg())
            }
            Mnemonic::Lea => from_stack_pointer(instruction, 1).map(|place| -i64::from(place)),
            _ => None,
        };
        let is_followed = by == Some(i64::from(change)) && change != 0;
        let is_load = instruction.mnemonic() == Mnemonic::Mov;
        self.state.stack = match self.state.stack {
            Stack::Followed if is_followed => Stack::Followed,
            Stack::Followed if is_load && self.kind == Kind::Switch => Stack::Switched,
            Stack::Switched if !is_load => Stack::Switched,
            // Without a frame of its own it is back where it was before it left.
            Stack::Switched if self.state.frame.is_none() => Stack::Followed,
            _ => Stack::Lost,
        };
    }
}

fn is_immediate(instruction: &Instruction) -> bool {
    instruction.op_count() == 2
        && matches!(
            instruction.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64
        )
}

/// What is added to the stack pointer in the memory operand with this number.
fn from_stack_pointer(instruction: &Instruction, operand: u32) -> Option<i32> {
    let is_it = instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None;
    let displacement = instruction.memory_displacement64() as i64;
    i32::try_from(displacement).ok().filter(|_| is_it)
}

/// Whether an instruction has `register` as an operand that it writes to.
fn writes(
    info: &mut InstructionInfoFactory,
    instruction: &Instruction,
    register: Register,
) -> bool {
    let info = info.info(instruction);
    (0..instruction.op_count()).any(|operand| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand).full_register() == register
            && !matches!(
                info.op_access(operand),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
    })
}
