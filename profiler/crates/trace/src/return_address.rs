//! Where a return probe may sit: the criterion, shown from the code.
//!
//! A function's control flow -> nothing that speaks against a return probe, or [`NoReturnProbe`].
//!
//! The kernel puts another address over the one on top of the stack when the entry is hit, and takes
//! it back when a `ret` has gone there. So a return probe may sit only where, at the probed
//! instruction, the top of the stack holds a return address that exactly one `ret` takes, the
//! function's own or that of a function that it jumps on to, and that nothing else reads, moves or
//! compares. All of this is shown from the code or it doesn't hold; names decide only on what lies in
//! other objects. Functions that are called are taken to keep to the calling convention, and leaving
//! by `longjmp` is allowed. Each condition stands in docs/tracing.md, with the program that breaks
//! without it.
//!
//! What does not belong here: who else looks at the stack of a process (`safety`).

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::code::{CodeSource, Flow, Odd, Outlines, Target, Touch, Way};
use super::safety::nameless;
use super::{Function, NoExits};

/// Most functions that are followed from one to the next by jumps.
const MAX_TAILS: usize = 32;

/// Why a return probe on a function is not shown to be harmless to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReturnProbe {
    /// Its length is not known, or not all of it is code.
    NotFollowed,
    /// A jump to a place that is computed.
    ComputedJump,
    /// It leaves by a jump to a function that is only known when it runs.
    ComputedTail,
    /// It leaves by a jump to a place for which this doesn't hold.
    Tail,
    /// It runs on into other code with something on the stack.
    RunsOn,
    /// At one of its exits the stack pointer isn't provably back where it was at its entry.
    StackNotBack,
    /// It sets the stack pointer.
    ChangesStacks,
    /// It reads its return address.
    Reads,
    /// It writes over its return address.
    Writes,
    /// It takes its return address off the stack, or what it takes for one.
    Pops,
    /// It tells others where its return address lies.
    HandsOut,
    /// It may use its return address in a way that can't be followed.
    Computes,
    /// It calls, or jumps on to, a function that is known to read the return address.
    Watched,
    /// It may return twice.
    ReturnsTwice,
    /// It goes on where a signal had interrupted the thread.
    SignalReturn,
    /// It chooses one of several implementations for the dynamic linker.
    WhileLoading,
    /// There is no return.
    NeverReturns,
}

impl NoReturnProbe {
    /// Why, for people.
    pub fn why(self) -> &'static str {
        match self {
            NoReturnProbe::NotFollowed => "not all of its code can be followed",
            NoReturnProbe::ComputedJump => "it jumps to computed places",
            NoReturnProbe::ComputedTail => "it jumps on to a function that is computed",
            NoReturnProbe::Tail => "it jumps on to code that may not have a return probe",
            NoReturnProbe::RunsOn => "it runs on into other code",
            NoReturnProbe::StackNotBack => "its stack can't be followed to all exits",
            NoReturnProbe::ChangesStacks => "it changes stacks",
            NoReturnProbe::Reads => "it reads its return address",
            NoReturnProbe::Writes => "it writes over its return address",
            NoReturnProbe::Pops => "it takes its return address off the stack",
            NoReturnProbe::HandsOut => "it tells others where its return address lies",
            NoReturnProbe::Computes => "it may reckon with the place of its return address",
            NoReturnProbe::Watched => "a function that it calls reads its return address",
            NoReturnProbe::ReturnsTwice => "the kernel may return to it twice",
            NoReturnProbe::SignalReturn => "it returns from a signal",
            NoReturnProbe::WhileLoading => "it runs while its object is still being loaded",
            NoReturnProbe::NeverReturns => "it never returns",
        }
    }
}

/// What is known of the functions of one object.
pub struct ReturnAddresses<'a> {
    source: &'a dyn CodeSource,
    /// By address.
    known: HashMap<u64, Own, FxBuildHasher>,
}

/// What one function's own code says.
#[derive(Clone)]
struct Own {
    against: Option<NoReturnProbe>,
    /// Places in the object that it jumps on to, with the stack as it was at its entry.
    tails: Box<[u64]>,
}

impl<'a> ReturnAddresses<'a> {
    /// For the functions of one object.
    pub fn of(source: &'a dyn CodeSource) -> ReturnAddresses<'a> {
        ReturnAddresses {
            source,
            known: HashMap::default(),
        }
    }

    /// What speaks against a return probe on a function with this control flow.
    pub fn against(
        &mut self,
        function: &Function,
        flow: &Flow,
        outlines: &mut Outlines<'_>,
    ) -> Option<NoReturnProbe> {
        let own = self.own(function.address, flow);
        self.known.insert(function.address, own.clone());
        if own.against.is_some() {
            return own.against;
        }
        // Whoever jumps on hands the return address over with it.
        let mut seen = vec![function.address];
        let mut work = own.tails.into_vec();
        while let Some(address) = work.pop() {
            if seen.contains(&address) {
                continue;
            }
            if seen.len() > MAX_TAILS {
                return Some(NoReturnProbe::Tail);
            }
            seen.push(address);
            match self.place(address, outlines) {
                // From code that never returns nobody ever takes the address.
                Some(place) if place.against == Some(NoReturnProbe::NeverReturns) => {}
                Some(place) if place.against.is_none() => work.extend(place.tails),
                _ => return Some(NoReturnProbe::Tail),
            }
        }
        None
    }

    /// What is known of the code at an address that is jumped to.
    fn place(&mut self, address: u64, outlines: &mut Outlines<'_>) -> Option<Own> {
        if let Some(known) = self.known.get(&address) {
            return Some(known.clone());
        }
        let own = if self.source.plt(address).is_some() {
            // Another object's function: it keeps to the calling convention.
            Own {
                against: None,
                tails: Box::default(),
            }
        } else {
            let function = self.function_from(address)?;
            self.own(address, &outlines.get(&function))
        };
        self.known.insert(address, own.clone());
        Some(own)
    }

    /// The rest of a function from a place on, which most often is all of it.
    fn function_from(&self, address: u64) -> Option<Function> {
        let known = self.source.function_at(address);
        if let Some(function) = known.filter(|known| known.size > 0) {
            let mut rest = function.clone();
            if rest.address != address {
                rest = nameless(self.source, (address, 0));
            }
            rest.size = function.address + function.size - address;
            return Some(rest);
        }
        let (start, len) = self.source.extent(address)?;
        Some(nameless(self.source, (address, start + len - address)))
    }

    fn own(&self, address: u64, flow: &Flow) -> Own {
        let mut tails = Vec::new();
        let against = self.look(address, flow, &mut tails).err();
        Own {
            against,
            tails: tails.into(),
        }
    }

    fn look(&self, address: u64, flow: &Flow, tails: &mut Vec<u64>) -> Result<(), NoReturnProbe> {
        if self.source.chooses(address).is_some() {
            return Err(NoReturnProbe::WhileLoading);
        }
        match flow.odd {
            Some(Odd::Twice) => return Err(NoReturnProbe::ReturnsTwice),
            Some(Odd::SignalReturn) => return Err(NoReturnProbe::SignalReturn),
            None => {}
        }
        // What is seen to be done to the return address says more than that not all is seen.
        match flow.touches {
            Some((_, Touch::Read)) => return Err(NoReturnProbe::Reads),
            Some((_, Touch::Written)) => return Err(NoReturnProbe::Writes),
            Some((_, Touch::Popped)) => return Err(NoReturnProbe::Pops),
            Some((_, Touch::HandedOut)) => return Err(NoReturnProbe::HandsOut),
            Some((_, Touch::Computed)) => return Err(NoReturnProbe::Computes),
            None => {}
        }
        if flow.switches_stack {
            return Err(NoReturnProbe::ChangesStacks);
        }
        if flow.watched {
            return Err(NoReturnProbe::Watched);
        }
        match flow.problem {
            Some(NoExits::NotCode | NoExits::UnknownSize) => {
                return Err(NoReturnProbe::NotFollowed);
            }
            Some(NoExits::ComputedJump) => return Err(NoReturnProbe::ComputedJump),
            _ if !flow.jumps_known => return Err(NoReturnProbe::ComputedJump),
            _ => {}
        }
        for exit in &flow.exits {
            if exit.height != Some(0) {
                return Err(NoReturnProbe::StackNotBack);
            }
            match exit.way {
                Way::Return | Way::TailCall(Target::Import) => {}
                Way::TailCall(Target::Computed) => return Err(NoReturnProbe::ComputedTail),
                Way::TailCall(Target::Direct(target)) | Way::Conditional(target) => {
                    tails.push(target);
                }
            }
        }
        for &(to, height) in &flow.runs_on {
            if height != Some(0) {
                return Err(NoReturnProbe::RunsOn);
            }
            tails.push(to);
        }
        if flow.exits.is_empty() && flow.runs_on.is_empty() {
            return Err(NoReturnProbe::NeverReturns);
        }
        Ok(())
    }
}
