//! Where the probes of a function go, and what each call then costs.
//!
//! An object, a function, what is wanted, prices -> [`Plan`]. Costs are nanoseconds per call.
//!
//! The kernel emulates a few instructions and steps over all others, which costs ten times as much
//! or more. So the entry's probe may slide from the first instruction to a cheaper one, as long as
//! every call passes it exactly once, with arguments, return address and stack pointer as they were.
//! Go functions that check their stack start again after it has grown: there the place behind the
//! check is the one that each call passes once.
//!
//! A return probe replaces the return address on top of the stack when the entry is hit: it may sit
//! only where the stack pointer is as it was at the entry. The same holds for probes on the
//! instructions that leave a function, or the exit would be another function's.
//!
//! What does not belong here: control flow (`code`), who can be harmed (`safety`), attaching.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
    UsedMemory,
};

use serde::{Deserialize, Serialize};

use super::code::{self, CodeSource, Flow, Outlines, Way, kernel};
use super::cost::CostTable;
use super::return_address::ReturnAddresses;
use super::safety::{FunctionSafety, ProcessSafety, Verdict, nameless};
use super::{
    Exits, Function, FunctionKind, InstructionKind, Language, NoExits, Plan, Refusal, SelfJump,
    Site,
};

/// Most instructions that the entry's probe slides over.
const MAX_SLIDE: usize = 16;
/// The longest instruction.
const MAX_INSTRUCTION: u64 = 15;

/// Where the entry of a function is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeAt {
    /// On its first instruction (of Go functions that check their stack: the first one behind that).
    Entry,
    /// On the cheapest instruction that serves.
    #[default]
    Cheapest,
}

/// How returns are to be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Returns {
    /// By the cheapest way that can't harm the process.
    #[default]
    Auto,
    /// By return probes. What they may harm is not traced.
    Uretprobe,
    /// By return probes, whatever happens.
    Insist,
    /// By probes on the instructions that leave the function.
    Instructions,
    /// Not at all.
    None,
}

/// What probes cost.
pub trait Costs {
    /// A hit of a probe on an instruction of this kind.
    fn entry_ns(&self, kind: InstructionKind) -> u32;
    /// What a return probe adds to a call.
    fn return_ns(&self) -> u32;
    /// Whether the kernel makes a call of a no-operation of 5 bytes: it writes below the stack pointer.
    fn nop5_is_call(&self) -> bool {
        true
    }
}

impl Costs for CostTable {
    fn entry_ns(&self, kind: InstructionKind) -> u32 {
        CostTable::entry_ns(self, kind)
    }

    fn return_ns(&self) -> u32 {
        CostTable::return_ns(self)
    }

    fn nop5_is_call(&self) -> bool {
        CostTable::nop5_is_call(self)
    }
}

/// What is wanted.
#[derive(Clone, Copy)]
pub struct PlaceOptions<'a> {
    /// Where entries are probed.
    pub at: ProbeAt,
    /// How returns are seen.
    pub returns: Returns,
    /// What probes cost.
    pub costs: &'a dyn Costs,
}

/// Plans the functions of one object.
pub struct Placer<'a> {
    source: &'a dyn CodeSource,
    options: PlaceOptions<'a>,
    process: &'a ProcessSafety,
    outlines: Outlines<'a>,
    functions: FunctionSafety<'a>,
    return_addresses: ReturnAddresses<'a>,
}

/// Plans one function. For several of one object, [`Placer`] remembers what they share.
pub fn plan(
    source: &dyn CodeSource,
    function: &Function,
    options: &PlaceOptions<'_>,
    process: &ProcessSafety,
) -> Result<Plan, Refusal> {
    Placer::new(source, *options, process).plan(function)
}

impl<'a> Placer<'a> {
    /// For the functions of one object in processes that are as safe as `process` says.
    pub fn new(
        source: &'a dyn CodeSource,
        options: PlaceOptions<'a>,
        process: &'a ProcessSafety,
    ) -> Placer<'a> {
        Placer {
            source,
            options,
            process,
            outlines: Outlines::of(source),
            functions: FunctionSafety::of(source),
            return_addresses: ReturnAddresses::of(source),
        }
    }

    /// Plans one function.
    pub fn plan(&mut self, function: &Function) -> Result<Plan, Refusal> {
        let first = self.first(function)?;
        if let FunctionKind::Marker { .. } = function.kind {
            let entry = self.marker(function, first);
            let exits = (Exits::None(NoExits::Marker), None);
            return Ok(self.finish(function, entry?, exits, Vec::new()));
        }
        let flow = code::recover(self.source, function);
        self.outlines.add(function, &flow);
        let entry = self.entry(function, first, &flow)?;
        let self_jumps = self.self_jumps(&flow)?;
        // Entries behind self jumps find what the first one left below the stack pointer.
        let becomes_call = entry.kind == InstructionKind::Nop5 && self.options.costs.nop5_is_call();
        if becomes_call && !self_jumps.is_empty() && (flow.uses_red_zone || !flow.jumps_known) {
            return Err(Refusal::RedZone);
        }
        let exits = self.exits(function, &flow)?;
        Ok(self.finish(function, entry, exits, self_jumps))
    }

    /// Whether a return probe on a function can harm a process, and why.
    pub fn verdict(&mut self, function: &Function) -> Verdict {
        let flow = self.outlines.get(function);
        self.verdict_of(function, &flow)
    }

    fn verdict_of(&mut self, function: &Function, flow: &Flow) -> Verdict {
        if is_go(self.source, function) {
            return Verdict::no("Go moves its stacks");
        }
        if let Some(why) = self.process.none_at_all() {
            return Verdict::no(why);
        }
        if let Some(against) = self
            .return_addresses
            .against(function, flow, &mut self.outlines)
        {
            return Verdict::no(against.why());
        }
        let of_function = self.functions.verdict(function, &mut self.outlines);
        let of_process = self.process.verdict();
        match of_function.uretprobe {
            true => of_function,
            false => of_process,
        }
    }

    fn first(&self, function: &Function) -> Result<Option<InstructionKind>, Refusal> {
        if self.source.offset_of(function.address).is_none() {
            return Err(Refusal::NoCode);
        }
        let bytes =
            instruction_bytes(self.source, function.address).ok_or(Refusal::NotExecutable)?;
        let instruction = decode(function.address, bytes).ok_or(Refusal::NotCode)?;
        Ok(kernel::kind(&bytes[..instruction.len()]))
    }

    fn site(
        &self,
        function: &Function,
        address: u64,
        kind: Option<InstructionKind>,
    ) -> Result<Site, Refusal> {
        let kind = kind.ok_or(Refusal::Forbidden)?;
        // Markers may lie anywhere; functions lie in one piece.
        let offset = match function.kind {
            FunctionKind::Marker { .. } => function.offset,
            FunctionKind::Function => self.source.offset_of(address).ok_or(Refusal::NoCode)?,
        };
        Ok(Site {
            offset,
            kind,
            tail: false,
            line: 0,
        })
    }

    /// The place for a marker's probe. Markers lie anywhere in a function, and where the kernel makes
    /// a call of the no-operation, nothing may live below the stack pointer.
    fn marker(&self, marker: &Function, first: Option<InstructionKind>) -> Result<Site, Refusal> {
        let site = self.site(marker, marker.address, first)?;
        if site.kind != InstructionKind::Nop5 || !self.options.costs.nop5_is_call() {
            return Ok(site);
        }
        let address = marker.address;
        let named = self.source.function_at(address);
        let around = match named.filter(|around| address - around.address < around.size) {
            Some(around) => Some((around.clone(), true)),
            None => {
                let extent = self.source.extent(address);
                extent.map(|extent| (nameless(self.source, extent), false))
            }
        };
        let Some((around, whole)) = around else {
            return Err(Refusal::RedZone);
        };
        let flow = code::recover(self.source, &around);
        let followed = flow.jumps_known
            && !matches!(flow.problem, Some(NoExits::NotCode | NoExits::UnknownSize))
            && flow.instruction(address).is_some();
        // Of a part of a function it isn't known what the rest does. But who calls others has nothing
        // below the stack pointer anywhere.
        if followed && !flow.uses_red_zone && (whole || !flow.calls.is_empty()) {
            return Ok(site);
        }
        // Markers for both kinds of kernels are a no-operation of one byte and then a longer one.
        let pair = flow.instruction(address.wrapping_sub(1));
        let pair =
            pair.is_some_and(|before| before.len == 1 && before.kind == Some(InstructionKind::Nop));
        if followed && pair && flow.targets.binary_search(&address).is_err() {
            return Ok(Site {
                offset: site.offset - 1,
                kind: InstructionKind::Nop,
                ..site
            });
        }
        Err(Refusal::RedZone)
    }

    /// The place for the entry's probe.
    fn entry(
        &self,
        function: &Function,
        first: Option<InstructionKind>,
        flow: &Flow,
    ) -> Result<Site, Refusal> {
        let start = function.address;
        let checked = flow.behind_stack_check.filter(|&at| {
            flow.jumps_known && !flow.lands_between(start, at) && flow.instruction(at).is_some()
        });
        let (base, base_kind) = match checked {
            Some(at) => (at, flow.instruction(at).and_then(|located| located.kind)),
            None => (start, first),
        };
        let here = self.site(function, base, base_kind);
        if self.options.at == ProbeAt::Entry || !flow.jumps_known {
            return here;
        }
        let mut best = here;
        for (address, kind) in self.reachable_unchanged(function, flow, base, here.is_err()) {
            if flow.lands_between(start, address) {
                break;
            }
            let Ok(site) = self.site(function, address, kind) else {
                continue;
            };
            if best.is_ok_and(|best| self.entry_ns(best) <= self.entry_ns(site)) {
                continue;
            }
            best = Ok(site);
        }
        best
    }

    /// Instructions behind `base` that every call comes to, with everything as it was at the entry;
    /// if they `must` be found, but for memory at a fixed place.
    fn reachable_unchanged(
        &self,
        function: &Function,
        flow: &Flow,
        base: u64,
        must: bool,
    ) -> Vec<(u64, Option<InstructionKind>)> {
        let go = is_go(self.source, function);
        let mut info = InstructionInfoFactory::new();
        let mut found = Vec::new();
        let mut at = base;
        for _ in 0..MAX_SLIDE {
            let Some(bytes) = instruction_bytes(self.source, at) else {
                break;
            };
            let Some(instruction) = decode(at, bytes) else {
                break;
            };
            if !keeps_everything(&instruction, &mut info, go, must) {
                break;
            }
            at = instruction.next_ip();
            // Another function may begin here.
            let other = self
                .source
                .function_at(at)
                .is_some_and(|other| other.address == at);
            let Some(located) = flow.instruction(at).filter(|_| !other) else {
                break;
            };
            found.push((at, located.kind));
        }
        found
    }

    /// How exits are seen, and why not by a return probe if one was thought of.
    fn exits(
        &mut self,
        function: &Function,
        flow: &Flow,
    ) -> Result<(Exits, Option<&'static str>), Refusal> {
        let by_instructions = self.exit_sites(flow);
        let instructions = |sites: Result<Vec<Site>, NoExits>| match sites {
            Ok(sites) => Exits::Instructions(sites),
            Err(why) => Exits::None(why),
        };
        // At each turn the kernel would take one more return to be pending.
        let self_jumps = !flow.self_jumps.is_empty();
        let exits = match self.options.returns {
            Returns::None => Exits::None(NoExits::NotWanted),
            Returns::Insist if !self_jumps => Exits::Uretprobe,
            Returns::Insist | Returns::Instructions => instructions(by_instructions),
            Returns::Uretprobe => {
                let verdict = self.verdict_of(function, flow);
                match by_instructions {
                    // There is nothing to see.
                    Ok(sites) if sites.is_empty() => Exits::Instructions(sites),
                    _ if !verdict.uretprobe => return Err(Refusal::NoReturnProbe(verdict.why)),
                    sites if self_jumps => instructions(sites),
                    _ => Exits::Uretprobe,
                }
            }
            Returns::Auto => {
                let mut verdict = self.verdict_of(function, flow);
                if self_jumps {
                    verdict = Verdict::no("it jumps to its own beginning");
                } else if verdict.uretprobe
                    && !self
                        .functions
                        .verdict(function, &mut self.outlines)
                        .uretprobe
                    && self.functions.is_recursive(function, &mut self.outlines)
                {
                    verdict = Verdict::no("it calls itself, and only 64 returns can be pending");
                }
                let cheaper = match &by_instructions {
                    Ok(sites) => self.dearest(sites) <= self.options.costs.return_ns(),
                    Err(_) => false,
                };
                if verdict.uretprobe && !cheaper {
                    Exits::Uretprobe
                } else {
                    let why = (!verdict.uretprobe).then_some(verdict.why);
                    return Ok((instructions(by_instructions), why));
                }
            }
        };
        Ok((exits, None))
    }

    /// The jumps that lead to the entry again.
    fn self_jumps(&self, flow: &Flow) -> Result<Vec<SelfJump>, Refusal> {
        let self_jumps = flow.self_jumps.iter().map(|back| {
            let (when, kind) = (back.when?, back.at.kind?);
            let offset = self.source.offset_of(back.at.address)?;
            Some(SelfJump {
                site: Site {
                    offset,
                    kind,
                    tail: false,
                    line: 0,
                },
                when,
            })
        });
        self_jumps.collect::<Option<_>>().ok_or(Refusal::Loop)
    }

    /// Places for probes on every instruction that leaves the function.
    fn exit_sites(&self, flow: &Flow) -> Result<Vec<Site>, NoExits> {
        if let Some(problem) = flow.problem {
            return Err(problem);
        }
        let mut sites = Vec::with_capacity(flow.exits.len());
        for exit in &flow.exits {
            // The same stack pointer as at the entry, or it would be no exit of this call.
            if exit.height != Some(0) || matches!(exit.way, Way::Conditional(_)) {
                return Err(NoExits::UnknownStack);
            }
            let (Some(kind), Some(offset)) = (exit.at.kind, self.source.offset_of(exit.at.address))
            else {
                return Err(NoExits::Forbidden);
            };
            let tail = !matches!(exit.way, Way::Return);
            let mut site = Site {
                offset,
                kind,
                tail,
                line: 0,
            };
            // Compilers leave room for probes before an exit when asked to.
            if let Some(before) = self.nop_before(flow, exit.at.address)
                && self.entry_ns(before) < self.entry_ns(site)
            {
                site = Site { tail, ..before };
            }
            sites.push(site);
        }
        sites.sort_unstable_by_key(|site| site.offset);
        sites.dedup();
        Ok(sites)
    }

    /// A no-operation right before an exit, if there is no other way to that exit.
    fn nop_before(&self, flow: &Flow, exit: u64) -> Option<Site> {
        if flow.targets.binary_search(&exit).is_ok() {
            return None;
        }
        let after = flow
            .instructions
            .partition_point(|located| located.address < exit);
        let before = flow.instructions.get(after.checked_sub(1)?)?;
        let adjacent = before.address + u64::from(before.len) == exit;
        match before.kind? {
            kind @ (InstructionKind::Nop5 | InstructionKind::Nop) if adjacent => Some(Site {
                offset: self.source.offset_of(before.address)?,
                kind,
                tail: false,
                line: 0,
            }),
            _ => None,
        }
    }

    fn entry_ns(&self, site: Site) -> u32 {
        self.options.costs.entry_ns(site.kind)
    }

    fn dearest(&self, sites: &[Site]) -> u32 {
        sites
            .iter()
            .map(|&site| self.entry_ns(site))
            .max()
            .unwrap_or(0)
    }

    fn finish(
        &self,
        function: &Function,
        entry: Site,
        (exits, no_return_probe): (Exits, Option<&'static str>),
        self_jumps: Vec<SelfJump>,
    ) -> Plan {
        let exit_ns = match &exits {
            Exits::None(_) => 0,
            Exits::Uretprobe => self.options.costs.return_ns(),
            Exits::Instructions(sites) => self.dearest(sites),
        };
        Plan {
            function: function.clone(),
            line: 0,
            entry,
            exits,
            no_return_probe,
            self_jumps,
            cost_ns: self.entry_ns(entry).saturating_add(exit_ns),
            fetches: Vec::new(),
        }
    }
}

fn is_go(source: &dyn CodeSource, function: &Function) -> bool {
    source.is_go() || function.language == Language::Go
}

fn instruction_bytes(source: &dyn CodeSource, address: u64) -> Option<&[u8]> {
    // Near the end of a segment there are fewer bytes than the longest instruction has.
    (1..=MAX_INSTRUCTION)
        .rev()
        .find_map(|len| source.code(address, len))
}

fn decode(address: u64, bytes: &[u8]) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
}

/// Whether behind this instruction arguments, stack and memory are what they were before (if it `must`
/// be passed, but for memory at a fixed place), and the next one follows at once.
fn keeps_everything(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    go: bool,
    must: bool,
) -> bool {
    if instruction.flow_control() != FlowControl::Next
        || instruction.is_string_instruction()
        || instruction.has_lock_prefix() && !must
        || instruction.is_privileged()
        || instruction.fpu_stack_increment_info().writes_top()
    {
        return false;
    }
    let info = info.info(instruction);
    let writes = |access| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    !info
        .used_memory()
        .iter()
        .any(|memory| writes(memory.access()) && !(must && is_elsewhere(memory)))
        && !info
            .used_registers()
            .iter()
            .any(|used| writes(used.access()) && carries_arguments(used.register(), go))
}

/// Whether memory is at a fixed place: neither on the stack, nor what an argument points to.
fn is_elsewhere(memory: &UsedMemory) -> bool {
    matches!(memory.base(), Register::None | Register::RIP) && memory.index() == Register::None
}

/// Registers in which a caller hands over what is read of a call: arguments of C, C++ and Rust; or
/// arguments, closure and goroutine of Go. And the stack pointer.
fn carries_arguments(register: Register, go: bool) -> bool {
    use Register::*;
    if register.is_vector_register() {
        return register.number() < if go { 15 } else { 8 };
    }
    match register.full_register() {
        RSP | RDI | RSI | RDX | RCX | R8 | R9 => true,
        RAX | RBX | R10 | R11 | R14 => go,
        other => !other.is_gpr(),
    }
}
