//! Following the code of a function.
//!
//! What is done first decides how much is known: jumps are followed before calls are assumed to
//! return, so that code behind a call that never returns, but is not known for it, is met from
//! where it really comes from.
//!
//! What does not belong here: what one instruction does (`state`).

mod outside;

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;

pub(crate) use outside::single;

use super::part::Part;
use super::state::{Bounds, State, Value};
use super::{
    Back, CodeSource, Exit, Flow, Located, MAX_BYTES, Odd, Target, Touch, Way, kernel, names,
};
use crate::{Function, NoExits, When};

/// Steps per instruction before a function counts as one that can't be recovered.
const STEPS: usize = 60;
/// Longest instruction of x86, in bytes.
const MAX_INSTRUCTION: u64 = 15;
/// Most parts of one function.
const MAX_PARTS: usize = 64;

/// The code of a function, half followed.
pub(super) struct Walk<'a> {
    source: &'a dyn CodeSource,
    start: u64,
    parts: Vec<Part<'a>>,
    /// Parts that a compiler may have moved away: address, length.
    cold: Vec<(u64, u64)>,
    info: InstructionInfoFactory,
    /// Places where ways meet, and what is known there once they were reached.
    leaders: FxHashMap<u64, Option<State>>,
    /// Instructions that were reached, and from which leader.
    reached: FxHashMap<u64, u64>,
    work: Vec<u64>,
    /// Behind calls.
    behind_calls: BTreeMap<u64, State>,
    /// What holds at every call.
    at_calls: Option<State>,
    targets: BTreeSet<u64>,
    exits: BTreeMap<u64, Exit>,
    self_jumps: BTreeMap<u64, Back>,
    calls: BTreeMap<u64, Target>,
    /// Indirect jumps, and whether it is known where they go.
    indirect: BTreeMap<u64, bool>,
    /// Go: jumps to the start after the stack has grown.
    restarts: Vec<u64>,
    behind_stack_check: Option<u64>,
    steps: usize,
    system_calls: bool,
    switches_stack: bool,
    bounds: Bounds,
    /// What is done to the place of the return address first; and in code that only an exception
    /// leads to.
    touches: [Option<(u64, Touch)>; 2],
    uses_red_zone: bool,
    odd: Option<Odd>,
    watched: bool,
    runs_on: BTreeMap<u64, Option<i64>>,
    not_code: bool,
    /// Exits in code that only an exception leads to.
    landing_exits: bool,
    /// Tail calls to a computed address.
    computed_tail: bool,
}

impl<'a> Walk<'a> {
    /// Nothing if the function's bytes can't be read.
    pub(super) fn of(source: &'a dyn CodeSource, function: &Function) -> Option<Walk<'a>> {
        let size = function.size.min(MAX_BYTES);
        let main = Part::decode(function.address, source.code(function.address, size)?);
        let mut walk = Walk {
            source,
            start: function.address,
            parts: vec![main],
            cold: source.cold_parts(function),
            info: InstructionInfoFactory::new(),
            leaders: FxHashMap::default(),
            reached: FxHashMap::default(),
            work: Vec::new(),
            behind_calls: BTreeMap::new(),
            at_calls: None,
            targets: BTreeSet::new(),
            exits: BTreeMap::new(),
            self_jumps: BTreeMap::new(),
            calls: BTreeMap::new(),
            indirect: BTreeMap::new(),
            restarts: Vec::new(),
            behind_stack_check: None,
            steps: 0,
            system_calls: false,
            switches_stack: false,
            bounds: Bounds::default(),
            touches: [None; 2],
            uses_red_zone: false,
            odd: None,
            watched: false,
            runs_on: BTreeMap::new(),
            not_code: function.size > MAX_BYTES,
            landing_exits: false,
            computed_tail: false,
        };
        walk.cold.truncate(MAX_PARTS);
        // Known beforehand, a meeting place costs no second walk.
        for instruction in walk.parts[0].instructions() {
            if let Some(target) = near_target(instruction)
                && walk.parts[0].contains(target)
                && !instruction.is_call_near()
            {
                walk.leaders.entry(target).or_default();
            }
        }
        if source.is_go() {
            walk.find_stack_check();
        }
        Some(walk)
    }

    /// Follows everything.
    pub(super) fn run(mut self) -> Flow {
        self.arrive(self.start, State::entry(), false);
        self.drain();
        let orphans = self.cold_orphans();
        let unreached = self.follow_the_rest();
        let unreached = unreached || orphans;
        let jumps_known = self.indirect.values().all(|known| *known);
        let too_much = self.out_of_steps();
        let mut instructions: Vec<Located> = Vec::with_capacity(self.reached.len());
        for &address in self.reached.keys() {
            let Some(instruction) = self.instruction(address) else {
                continue;
            };
            instructions.push(self.located(&instruction));
        }
        instructions.sort_unstable_by_key(|located| located.address);
        let exceptions = (self.source.is_go() || self.source.has_section(".gcc_except_table"))
            && !self.calls.is_empty();
        let is_within = self.exits.keys().any(|&exit| self.is_within_another(exit));
        let exits: Vec<Exit> = self.exits.into_values().collect();
        let problem = if self.not_code || is_within {
            Some(NoExits::NotCode)
        } else if !jumps_known || too_much || (unreached && self.computed_tail && !exceptions) {
            Some(NoExits::ComputedJump)
        } else if self.landing_exits && !exceptions {
            // Code that nothing leads to, or data that looks like it.
            Some(NoExits::NotCode)
        } else if !self.runs_on.is_empty() {
            Some(NoExits::RunsOn)
        } else if exits
            .iter()
            .any(|exit| matches!(exit.way, Way::Conditional(_)))
        {
            Some(NoExits::ConditionalExit)
        } else if exits.iter().any(|exit| exit.height != Some(0)) {
            Some(NoExits::UnknownStack)
        } else if exits.iter().any(|exit| exit.at.kind.is_none()) {
            Some(NoExits::Forbidden)
        } else {
            None
        };
        let [touches, landing_touches] = self.touches;
        Flow {
            touches: touches.or(landing_touches.filter(|_| exceptions)),
            uses_red_zone: self.uses_red_zone,
            odd: self.odd,
            watched: self.watched,
            runs_on: self.runs_on.into_iter().collect(),
            instructions,
            targets: self.targets.into_iter().collect(),
            exits,
            self_jumps: self.self_jumps.into_values().collect(),
            calls: self.calls.into_iter().collect(),
            system_calls: self.system_calls,
            switches_stack: self.switches_stack,
            jumps_known: jumps_known && !too_much,
            behind_stack_check: self.behind_stack_check,
            problem,
        }
    }

    /// Whether an instruction lies within another one that is reached as well, so that what is written there changes
    /// what that one does.
    fn is_within_another(&self, address: u64) -> bool {
        (1..MAX_INSTRUCTION).any(|back| {
            let before = address.wrapping_sub(back);
            self.reached.contains_key(&before)
                && self
                    .part(before)
                    .and_then(|part| part.instruction(before))
                    .is_some_and(|instruction| instruction.len() as u64 > back)
        })
    }

    fn part(&self, address: u64) -> Option<&Part<'a>> {
        self.parts.iter().find(|part| part.contains(address))
    }

    fn instruction(&self, address: u64) -> Option<Instruction> {
        self.part(address)?.instruction(address)
    }

    fn located(&self, instruction: &Instruction) -> Located {
        let part = self.part(instruction.ip());
        Located {
            address: instruction.ip(),
            len: instruction.len() as u8,
            kind: part.and_then(|part| kernel::kind(part.bytes_of(instruction))),
        }
    }

    fn out_of_steps(&self) -> bool {
        let instructions: usize = self
            .parts
            .iter()
            .map(|part| part.instructions().len())
            .sum();
        self.steps > STEPS * instructions + 1_000
    }

    /// One way comes to a place within.
    fn arrive(&mut self, address: u64, state: State, behind_call: bool) {
        let leader = self.leaders.entry(address).or_default();
        match leader {
            None => {
                *leader = Some(state);
                // Someone went over this place without knowing that ways meet here.
                if let Some(&from) = self.reached.get(&address) {
                    self.work.push(from);
                }
            }
            Some(known) if known.landing != state.landing => {
                if state.landing {
                    return;
                }
                *known = state;
            }
            Some(known) => {
                let other_height = known.height().is_some() && known.height() != state.height();
                // The call never returns, it seems.
                if behind_call && other_height {
                    return;
                }
                if known.loses_slot(&state) {
                    touch(&mut self.touches, &state, address, Touch::Computed);
                }
                if !known.meet(&state, address) {
                    return;
                }
            }
        }
        self.work.push(address);
    }

    fn drain(&mut self) {
        loop {
            while let Some(leader) = self.work.pop() {
                if self.out_of_steps() {
                    return;
                }
                self.follow(leader);
            }
            let Some((address, state)) = self.behind_calls.pop_first() else {
                return;
            };
            self.arrive(address, state, true);
        }
    }

    /// From one meeting place to the next, or to an end.
    fn follow(&mut self, leader: u64) {
        let Some(Some(state)) = self.leaders.get(&leader) else {
            return;
        };
        let mut state = state.clone();
        let mut address = leader;
        loop {
            if address != leader && self.leaders.contains_key(&address) {
                return self.arrive(address, state, false);
            }
            let Some(part) = self.part(address) else {
                if !state.landing {
                    self.runs_on.insert(address, state.height());
                }
                self.not_code |= state.landing;
                return;
            };
            let Some(instruction) = part.instruction(address) else {
                self.not_code = true;
                return;
            };
            self.steps += 1;
            if self.out_of_steps() {
                return;
            }
            self.reached.insert(address, leader);
            if !self.pass(&instruction, &mut state) {
                return;
            }
            address = instruction.next_ip();
        }
    }

    /// One instruction; says whether the next one follows.
    fn pass(&mut self, instruction: &Instruction, state: &mut State) -> bool {
        let next = instruction.next_ip();
        let used = state.stack_use(instruction, &mut self.info, &self.bounds);
        self.uses_red_zone |= used.below;
        if let Some(what) = used.touch {
            touch(&mut self.touches, state, instruction.ip(), what);
        }
        match instruction.mnemonic() {
            Mnemonic::Syscall | Mnemonic::Sysenter => {
                self.system_calls = true;
                self.odd = self.odd.or(match state.register(Register::RAX) {
                    Some(Value::Constant(number)) => odd(number),
                    _ => None,
                });
                self.step(instruction, state);
                return true;
            }
            Mnemonic::Int => {
                self.system_calls = true;
                self.step(instruction, state);
                return true;
            }
            Mnemonic::Hlt => return false,
            _ => {}
        }
        match instruction.flow_control() {
            FlowControl::Next => {
                self.step(instruction, state);
                true
            }
            FlowControl::ConditionalBranch => {
                let mut taken = state.clone();
                taken.bounded(instruction.mnemonic(), true);
                state.bounded(instruction.mnemonic(), false);
                self.jump(instruction, instruction.near_branch_target(), taken, true);
                true
            }
            FlowControl::XbeginXabortXend => {
                if let Some(target) = near_target(instruction) {
                    self.jump(instruction, target, State::unknown(target), true);
                }
                self.step(instruction, state);
                true
            }
            FlowControl::UnconditionalBranch => {
                match near_target(instruction) {
                    Some(target) => self.jump(instruction, target, state.clone(), false),
                    None => self.not_code = true,
                }
                false
            }
            FlowControl::IndirectBranch => {
                self.indirect_jump(instruction, state);
                false
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                self.call(instruction, state, next);
                false
            }
            FlowControl::Return => {
                let plain = matches!(instruction.mnemonic(), Mnemonic::Ret);
                self.leave(instruction, state, Way::Return);
                self.not_code |= !plain;
                false
            }
            FlowControl::Interrupt | FlowControl::Exception => false,
        }
    }

    fn step(&mut self, instruction: &Instruction, state: &mut State) {
        let source = self.source;
        let data = |address, size| number(source, address, size);
        let known = state.on_stack();
        let before = makes_base(instruction).then(|| state.clone());
        state.step(instruction, &mut self.info, &data);
        if let Some(before) = before {
            self.bounds.learn(instruction, &before, state);
        }
        self.switches_stack |= known && !state.on_stack();
        if state.is_above_return_address(&self.bounds) {
            touch(&mut self.touches, state, instruction.ip(), Touch::Popped);
        }
    }

    fn leave(&mut self, instruction: &Instruction, state: &State, way: Way) {
        if !matches!(way, Way::Return) && state.hands_out_slot() {
            touch(&mut self.touches, state, instruction.ip(), Touch::HandedOut);
        }
        let exit = Exit {
            at: self.located(instruction),
            height: state.height(),
            way,
        };
        self.landing_exits |= state.landing;
        self.exits.insert(instruction.ip(), exit);
    }

    fn jump(&mut self, instruction: &Instruction, target: u64, state: State, conditional: bool) {
        let at = instruction.ip();
        let way = |target| match conditional {
            true => Way::Conditional(target),
            false => Way::TailCall(Target::Direct(target)),
        };
        if target == self.start {
            self.targets.insert(target);
            if self.restarts.contains(&at) {
                return;
            }
            let back = Back {
                at: self.located(instruction),
                when: when(instruction),
            };
            self.self_jumps.insert(at, back);
            return self.arrive(target, state, false);
        }
        // Behind what never returns, compilers may leave a jump to the end.
        if target == self.parts[0].end() && state.height() != Some(0) {
            return;
        }
        if self.part(target).is_none() && !self.adopt(target, state.height(), conditional) {
            let way = match self.source.plt(target) {
                Some(name) => {
                    self.watched |= names::reads_return_address(name);
                    match conditional {
                        true => way(target),
                        false => Way::TailCall(Target::Import),
                    }
                }
                None => way(target),
            };
            return self.leave(instruction, &state, way);
        }
        self.targets.insert(target);
        // A place that was an exit before the part it leads to was known.
        self.exits.remove(&at);
        self.arrive(target, state, false);
    }

    fn call(&mut self, instruction: &Instruction, state: &mut State, next: u64) {
        let at = instruction.ip();
        let (target, name) = match near_target(instruction) {
            Some(target) => match self.source.plt(target) {
                Some(name) => (Target::Import, Some(name)),
                None => {
                    let function = self.source.function_at(target);
                    let function = function.filter(|function| function.address == target);
                    (Target::Direct(target), function.map(linkage_name))
                }
            },
            None if instruction.is_ip_rel_memory_operand() => {
                match self.source.import_at(instruction.ip_rel_memory_address()) {
                    Some(name) => (Target::Import, Some(name)),
                    None => (Target::Computed, None),
                }
            }
            None => (Target::Computed, None),
        };
        self.calls.insert(at, target);
        self.watched |= name.is_some_and(names::reads_callers_return_address);
        if state.hands_out_slot() {
            touch(&mut self.touches, state, at, Touch::HandedOut);
        }
        // What makes a stack grow is called before there is a frame.
        let grows = self.behind_stack_check.is_some() && state.height() == Some(0);
        match &mut self.at_calls {
            _ if grows => {}
            Some(known) => {
                known.meet(state, 0);
            }
            none => {
                let mut first = state.clone();
                first.landing = true;
                *none = Some(first);
            }
        }
        if let Target::Direct(target) = target
            && target != self.start
            && self.part(target).is_some()
        {
            // A subroutine within.
            self.targets.insert(target);
            self.arrive(target, State::unknown(target), false);
        }
        if name.is_some_and(names::never_returns) || self.only_padding(next) {
            return;
        }
        // Where other ways come to the place behind the call, it matters whether this one does.
        if let Target::Direct(target) = target
            && self.leaders.contains_key(&next)
            && self.never_returns(target)
        {
            return;
        }
        state.after_call(at);
        match self.leaders.get(&next) {
            Some(Some(_)) => self.arrive(next, state.clone(), true),
            _ => {
                self.behind_calls.insert(next, state.clone());
            }
        }
    }

    fn indirect_jump(&mut self, instruction: &Instruction, state: &mut State) {
        let at = instruction.ip();
        if instruction.op0_kind() == OpKind::Memory
            && instruction.is_ip_rel_memory_operand()
            && let Some(name) = self.source.import_at(instruction.ip_rel_memory_address())
        {
            self.watched |= names::reads_return_address(name);
            self.indirect.insert(at, true);
            return self.leave(instruction, state, Way::TailCall(Target::Import));
        }
        let source = self.source;
        let data = |address, size| number(source, address, size);
        let targets = match state.jump_value(instruction, &data) {
            Value::Target(table, base) => self.table(table, Some(base)),
            Value::Entry(table) if table.width == 8 => self.table(table, None),
            Value::Plain(_) if state.height() == Some(0) => {
                self.computed_tail = true;
                self.indirect.insert(at, true);
                return self.leave(instruction, state, Way::TailCall(Target::Computed));
            }
            Value::Constant(target) => Some(vec![target]),
            _ => None,
        };
        self.exits.remove(&at);
        let Some(targets) = targets else {
            self.indirect.insert(at, false);
            return;
        };
        self.indirect.insert(at, true);
        for target in targets {
            self.jump(instruction, target, state.clone(), false);
        }
    }

    /// Whether there is nothing but padding from here to the end of the part.
    fn only_padding(&self, address: u64) -> bool {
        let Some(part) = self.part(address) else {
            return true;
        };
        let mut at = address;
        while at < part.end() {
            let Some(instruction) = part.instruction(at) else {
                return false;
            };
            if !is_padding(&instruction) {
                return false;
            }
            at = instruction.next_ip();
        }
        true
    }

    /// Follows what nothing leads to; says whether there is such code.
    fn follow_the_rest(&mut self) -> bool {
        let mut found = false;
        let mut which = 0;
        while which < self.parts.len() {
            let mut at = self.parts[which].start;
            while at < self.parts[which].end() {
                let Some(instruction) = self.parts[which].instruction(at) else {
                    at += 1;
                    continue;
                };
                let next = instruction.next_ip();
                if !self.reached.contains_key(&at) && !is_padding(&instruction) {
                    // In the middle of what was reached otherwise.
                    if (1..instruction.len() as u64)
                        .any(|byte| self.reached.contains_key(&(at + byte)))
                    {
                        at += 1;
                        continue;
                    }
                    found = true;
                    let mut state = match &self.at_calls {
                        Some(state) => state.clone(),
                        None => State::unknown(at),
                    };
                    state.after_call(at);
                    state.landing = true;
                    self.arrive(at, state, false);
                    self.drain();
                    if self.not_code || self.out_of_steps() {
                        return true;
                    }
                }
                at = next;
            }
            which += 1;
        }
        found
    }

    /// Go: the comparison of the stack pointer with the goroutine's limit, and the way back to the
    /// start after the stack has grown.
    fn find_stack_check(&mut self) {
        let mut compared = false;
        let mut grow = None;
        for instruction in self.parts[0].instructions().iter().take(8) {
            match instruction.mnemonic() {
                Mnemonic::Cmp => {
                    compared = instruction.op0_kind() == OpKind::Register
                        && matches!(
                            instruction.op0_register(),
                            Register::RSP | Register::R12 | Register::RAX
                        )
                        && instruction.op1_kind() == OpKind::Memory
                        && matches!(instruction.memory_displacement64(), 0x10 | 0x18);
                    if !compared {
                        return;
                    }
                }
                Mnemonic::Jbe | Mnemonic::Jb if compared => {
                    grow = near_target(instruction).map(|target| (target, instruction.next_ip()));
                    break;
                }
                // Large frames: the limit may wrap around.
                Mnemonic::Jb | Mnemonic::Lea | Mnemonic::Mov | Mnemonic::Sub => {}
                _ => return,
            }
        }
        let Some((mut at, behind)) = grow else { return };
        for _ in 0..64 {
            let Some(instruction) = self.parts[0].instruction(at) else {
                return;
            };
            if instruction.mnemonic() == Mnemonic::Jmp {
                if near_target(&instruction) == Some(self.start) {
                    self.restarts.push(at);
                    self.behind_stack_check = Some(behind);
                }
                return;
            }
            at = instruction.next_ip();
        }
    }
}

/// Where a jump or call with a fixed place leads.
pub(crate) fn near_target(instruction: &Instruction) -> Option<u64> {
    match instruction.op0_kind() {
        OpKind::NearBranch64 if instruction.op_count() > 0 => Some(instruction.near_branch64()),
        _ => None,
    }
}

/// When a jump is taken.
fn when(instruction: &Instruction) -> Option<When> {
    if instruction.is_jmp_short_or_near() {
        return Some(When::Always);
    }
    let condition = instruction.is_jcc_short_or_near();
    // The library counts from 1, the processor from 0.
    let number = condition.then(|| (instruction.condition_code() as u8).checked_sub(1))?;
    number.map(When::If)
}

/// Notes the first thing that is done to the place of the return address.
fn touch(touches: &mut [Option<(u64, Touch)>; 2], state: &State, at: u64, what: Touch) {
    touches[usize::from(state.landing)].get_or_insert((at, what));
}

/// Whether an instruction may put an address on the stack in relation to nothing that was known.
fn makes_base(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::And | Mnemonic::Add | Mnemonic::Sub
    ) && instruction.op0_kind() == OpKind::Register
}

/// System calls that don't come back as others do, by their numbers (x86-64).
fn odd(number: u64) -> Option<Odd> {
    match number {
        15 => Some(Odd::SignalReturn),
        56 | 58 | 435 => Some(Odd::Twice),
        _ => None,
    }
}

fn linkage_name(function: &Function) -> &str {
    function.linkage_name.as_deref().unwrap_or(&function.name)
}

/// What compilers and assemblers fill holes with.
fn is_padding(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Ud2 => true,
        Mnemonic::Xchg => {
            instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register()
        }
        _ => false,
    }
}

/// A number in the file.
fn number(source: &dyn CodeSource, address: u64, size: usize) -> Option<u64> {
    let bytes = source.bytes(address, size as u64)?;
    let mut word = [0; 8];
    word.get_mut(..size)?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}
