//! The control flow of one function, recovered from its machine code (x86-64).
//!
//! Bytes of a function and of the parts that a compiler moved away from it -> [`Flow`]: its
//! instructions, every place that is jumped to, whom it calls, and every instruction that leaves it,
//! with the height of the stack there. Addresses are ELF virtual addresses, heights bytes.
//!
//! The code is followed from the entry, both ways at each branch, with what is known of registers
//! and stack slots ([`state`]); indirect jumps are followed through the tables that the common
//! compilers make of a switch. What is then left of the function can only be reached by an exception
//! (or not at all) and is followed from there, with what holds at every call. What can't be
//! recovered is said ([`Flow::problem`]), never guessed at.
//!
//! Code is untrusted: the work is bounded by [`MAX_BYTES`] and by a number of steps per instruction.
//!
//! What does not belong here: where probes go (`place`), reading files (`object`).

pub mod kernel;
mod names;
mod outline;
mod part;
mod state;
mod walk;

use super::{Function, InstructionKind, NoExits, When};
use profiler_object::Object;

pub use names::switches_stack;
pub use outline::Outlines;
pub(crate) use walk::{near_target, single};

/// Longest function that is read.
pub const MAX_BYTES: u64 = 4 << 20;

/// Where code comes from: an object file, as far as control flow needs it.
pub trait CodeSource {
    /// Bytes of executable segments; none if not all are there.
    fn code(&self, address: u64, len: u64) -> Option<&[u8]>;
    /// Bytes of any loaded segment, as they are in the file; none if not all are there.
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]>;
    /// The file offset of an address.
    fn offset_of(&self, address: u64) -> Option<u64>;
    /// The name of the function that a stub of the procedure linkage table leads to.
    fn plt(&self, address: u64) -> Option<&str>;
    /// The name of what the dynamic linker puts into a slot of the global offset table.
    fn import_at(&self, slot: u64) -> Option<&str>;
    /// Address and length of the parts that a compiler moved away from a function.
    fn cold_parts(&self, function: &Function) -> Vec<(u64, u64)>;
    /// The function that an address lies in.
    fn function_at(&self, address: u64) -> Option<&Function>;
    /// Address and length of the function, or of the part of one, that an address lies in, as the
    /// unwinding tables say.
    fn extent(&self, address: u64) -> Option<(u64, u64)>;
    /// The name of what the code at an address chooses from several implementations, for the dynamic
    /// linker (`STT_GNU_IFUNC`).
    fn chooses(&self, _address: u64) -> Option<&str> {
        None
    }
    /// Whether it has a section.
    fn has_section(&self, name: &str) -> bool;
    /// Whether it was made by Go's compiler.
    fn is_go(&self) -> bool;
    /// Its functions, by address.
    fn functions(&self) -> &[Function];
    /// Names of what it takes from other objects.
    fn imports(&self) -> Vec<&str>;
    /// The name that the dynamic linker knows it by, or else that of its file.
    fn name(&self) -> &str;
    /// Address and length of what is loaded as code.
    fn code_ranges(&self) -> Vec<(u64, u64)>;
}

impl CodeSource for Object {
    fn code(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.code(address, len)
    }

    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.bytes(address, len)
    }

    fn offset_of(&self, address: u64) -> Option<u64> {
        self.offset_of(address)
    }

    fn plt(&self, address: u64) -> Option<&str> {
        self.plt(address)
    }

    fn import_at(&self, slot: u64) -> Option<&str> {
        self.import_at(slot)
    }

    fn cold_parts(&self, function: &Function) -> Vec<(u64, u64)> {
        self.cold_parts(function)
    }

    fn function_at(&self, address: u64) -> Option<&Function> {
        self.function_at(address)
    }

    fn extent(&self, address: u64) -> Option<(u64, u64)> {
        self.extent(address)
    }

    fn chooses(&self, address: u64) -> Option<&str> {
        self.chooses(address)
    }

    fn has_section(&self, name: &str) -> bool {
        self.has_section(name)
    }

    fn is_go(&self) -> bool {
        self.is_go()
    }

    fn functions(&self) -> &[Function] {
        self.functions()
    }

    fn imports(&self) -> Vec<&str> {
        self.imports().collect()
    }

    fn name(&self) -> &str {
        let file = || self.path().rsplit('/').next().unwrap_or_default();
        self.soname().unwrap_or_else(file)
    }

    fn code_ranges(&self) -> Vec<(u64, u64)> {
        self.code_ranges().collect()
    }
}

/// An instruction that can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Where it is.
    pub address: u64,
    /// Bytes.
    pub len: u8,
    /// What it is for the kernel; nothing if no probe may sit there.
    pub kind: Option<InstructionKind>,
}

/// An instruction that leaves the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The instruction.
    pub at: Located,
    /// Bytes between the stack pointer before it and the place of the return address; nothing if
    /// that is not known.
    pub height: Option<i64>,
    /// How it leaves.
    pub way: Way,
}

/// A jump of a function to its own first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// The jump.
    pub at: Located,
    /// When it is taken; nothing if that can't be told from the flags of the processor.
    pub when: Option<When>,
}

/// How an instruction leaves a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It returns.
    Return,
    /// It jumps to a function.
    TailCall(Target),
    /// It jumps to another place if a condition holds.
    Conditional(u64),
}

/// Whom a call, or a jump out of the function, leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address in the same object.
    Direct(u64),
    /// A function of another object, maybe.
    Import,
    /// An address that is computed.
    Computed,
}

/// What code does to the place of its return address, other than to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Reads it.
    Read,
    /// Writes over it.
    Written,
    /// Moves the stack pointer past it.
    Popped,
    /// Tells others where it lies.
    HandedOut,
    /// Reckons with its address, or with one that may be, in a way that is not followed.
    Computed,
}

/// What code asks the kernel for that doesn't come back as a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// The kernel may return twice: `clone`, `clone3`, `vfork`.
    Twice,
    /// The kernel goes on where a signal had interrupted the thread: `rt_sigreturn`.
    SignalReturn,
}

/// A function's control flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Its instructions, by address.
    pub instructions: Vec<Located>,
    /// Places in it that are jumped to, by address, each once.
    pub targets: Vec<u64>,
    /// The instructions that leave it, by address.
    pub exits: Vec<Exit>,
    /// The jumps to its own beginning, by address, but for those of Go after the stack has grown.
    pub self_jumps: Vec<Back>,
    /// Whom it calls, with the address of the call; tail calls are among the exits.
    pub calls: Vec<(u64, Target)>,
    /// It asks the kernel for something.
    pub system_calls: bool,
    /// It sets the stack pointer to something that has nothing to do with its own frame.
    pub switches_stack: bool,
    /// What it does to the place of its return address, and where: the first such instruction that
    /// was met.
    pub touches: Option<(u64, Touch)>,
    /// It uses memory below the stack pointer, the red zone, or might.
    pub uses_red_zone: bool,
    /// System calls of it that don't come back as others do.
    pub odd: Option<Odd>,
    /// It calls, or leaves by a jump to, a function of another object that reads the return address
    /// of its caller, or its own.
    pub watched: bool,
    /// Where it runs on into other code, with the height of the stack there.
    pub runs_on: Vec<(u64, Option<i64>)>,
    /// All of its jumps are known, so that [`Flow::targets`] is complete.
    pub jumps_known: bool,
    /// Go: the instruction behind the check whether the stack has to grow, which starts the function
    /// again when it has grown.
    pub behind_stack_check: Option<u64>,
    /// Why its exits can't be watched one by one.
    pub problem: Option<NoExits>,
}

impl Flow {
    /// The instruction at an address.
    pub fn instruction(&self, address: u64) -> Option<&Located> {
        let at = self
            .instructions
            .binary_search_by_key(&address, |located| located.address);
        self.instructions.get(at.ok()?)
    }

    /// Whether something jumps to an address behind `from`, up to `to`.
    pub fn lands_between(&self, from: u64, to: u64) -> bool {
        let first = self.targets.partition_point(|&target| target <= from);
        self.targets.get(first).is_some_and(|&target| target <= to)
    }
}

/// Recovers the control flow of a function.
pub fn recover(source: &dyn CodeSource, function: &Function) -> Flow {
    let mut flow = Flow::default();
    if function.size == 0 {
        flow.problem = Some(NoExits::UnknownSize);
        return flow;
    }
    match walk::Walk::of(source, function) {
        Some(walk) => walk.run(),
        None => {
            flow.problem = Some(NoExits::NotCode);
            flow
        }
    }
}
