//! Who would take the kernel's system call for one of its own.
//!
//! An object -> why no function of its process may have a return probe. Since Linux 6.11 a return probe ends
//! with a system call. A handler of system calls (Wine has one) would be handed it, and the tracer of a child,
//! which inherits the probes, would count it.
//!
//! What does not belong here: what else forbids return probes (`safety`).

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};

use super::code::{CodeSource, near_target, single};
use super::safety::{C_LIBRARY, linkage_name, pieces};

/// Instructions that make `PR_SET_SYSCALL_USER_DISPATCH` the first argument of a call: `mov` of 4 and of 8
/// bytes, `push` and `pop`. Source: <linux/prctl.h>.
const DISPATCHES: [&[u8]; 3] = [
    &[0xbf, 59, 0, 0, 0],
    &[0x48, 0xc7, 0xc7, 59, 0, 0, 0],
    &[0x6a, 59, 0x5f],
];

/// Most instructions that are followed from one of them.
const MAX_FOLLOWED: usize = 200;

/// Why the system call of a return probe would be taken for the program's own, if it would.
pub(super) fn watched_by(object: &dyn CodeSource) -> Option<&'static str> {
    if C_LIBRARY.contains(&object.name()) {
        return None;
    }
    let imports = object.imports();
    let names = |wanted: &str| imports.iter().any(|name| is_named(name, wanted));
    if names("ptrace") {
        return Some(
            "it may trace the system calls of its children, of which a return probe is one",
        );
    }
    (names("prctl") && dispatches(object))
        .then_some("it may handle its system calls itself, of which a return probe is one")
}

/// Whether a name, which may carry a version, is this one.
fn is_named(name: &str, wanted: &str) -> bool {
    name.split('@').next() == Some(wanted)
}

/// Whether `prctl` is called somewhere with that number.
fn dispatches(object: &dyn CodeSource) -> bool {
    let mut info = InstructionInfoFactory::new();
    pieces(object).any(|(start, len)| {
        let bytes = object.code(start, len).unwrap_or_default();
        (0..bytes.len()).any(|at| {
            let mut set = DISPATCHES.iter();
            let set = set.find(|set| bytes[at..].starts_with(set));
            let behind = |set: &&[u8]| start + (at + set.len()) as u64;
            set.is_some_and(|set| reaches_prctl(object, behind(set), &mut info))
        })
    })
}

/// Whether code comes to a call of `prctl` before it sets another first argument or calls anybody else. It is
/// followed into functions of the object itself: one may hand its argument on.
fn reaches_prctl(object: &dyn CodeSource, from: u64, info: &mut InstructionInfoFactory) -> bool {
    let mut seen = Vec::new();
    let mut work = vec![from];
    while let Some(mut at) = work.pop() {
        while seen.len() < MAX_FOLLOWED && !seen.contains(&at) {
            seen.push(at);
            let Some(instruction) = single(object, at) else {
                break;
            };
            if leads_to_prctl(object, &instruction) {
                return true;
            }
            work.extend(near_target(&instruction));
            let goes_on = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            );
            if !goes_on || sets_argument(&instruction, info) {
                break;
            }
            at = instruction.next_ip();
        }
    }
    false
}

/// Whether it calls `prctl`, or jumps there.
fn leads_to_prctl(object: &dyn CodeSource, instruction: &Instruction) -> bool {
    let through_table = || {
        let leaves = matches!(
            instruction.flow_control(),
            FlowControl::IndirectCall | FlowControl::IndirectBranch
        );
        (leaves && instruction.is_ip_rel_memory_operand())
            .then(|| object.import_at(instruction.ip_rel_memory_address()))
    };
    let name = match near_target(instruction) {
        Some(target) => object.plt(target).or_else(|| {
            let function = object.function_at(target);
            let function = function.filter(|function| function.address == target);
            function.map(linkage_name)
        }),
        None => through_table().flatten(),
    };
    name.is_some_and(|name| is_named(name, "prctl"))
}

/// Whether the first argument of a call is another one behind it.
fn sets_argument(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    let registers = info.info(instruction).used_registers();
    registers.iter().any(|used| {
        used.register().full_register() == Register::RDI
            && matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite)
    })
}
