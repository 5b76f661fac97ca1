//! What unwind information says at an address, as far as a walk needs it, and the rule that it makes.
//!
//! [`State`] -> [`Entry`], or why there is none ([`Unknown`]). Of the registers only the frame pointer,
//! the stack pointer and the return address are kept, and rbx in files that find a frame by it: the
//! others are never needed to go on. Offsets are bytes. What rules mean is in `profiler_common::unwind`.

use profiler_common::unwind::{
    BX_SAME, BX_UNKNOWN, CFA_MEMORY, CFA_PLT, CFA_REGISTER, CFA_RETURN_REGISTER, CFA_SIGNAL,
    FP_AT_CFA, FP_AT_FP, FP_SAME, FP_UNKNOWN, REGISTER_BX, REGISTER_FP, REGISTER_SP, REGISTERS,
    Rule,
};

use super::Entry;
use super::expression::Value;

/// Where `ucontext_t` has registers (x86-64, `uc_mcontext.gregs`).
const CONTEXT_FP: i32 = 120;
const CONTEXT_SP: i32 = 160;
const CONTEXT_PC: i32 = 168;

/// How the CFA is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cfa {
    #[default]
    Unset,
    /// A register plus a number.
    Register { register: u8, offset: i32 },
    /// The word there, plus a number.
    Memory {
        register: u8,
        offset: i32,
        addend: i32,
    },
    /// The stack pointer plus a number, plus 8 late in an entry of a PLT.
    Plt { offset: i32, least: i32 },
    /// In a way that a rule can't say.
    Unknown,
}

/// Where a register's value in the caller is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saved {
    #[default]
    Unset,
    /// Nowhere.
    Undefined,
    /// In the register.
    Same,
    /// In memory, this far from the CFA.
    AtCfa(i32),
    /// It is the CFA plus a number.
    Cfa(i32),
    /// In another register.
    Register(u8),
    /// In memory, this far from where a register points to.
    At { register: u8, offset: i32 },
    /// In a way that a rule can't say.
    Unknown,
}

/// What holds at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) cfa: Cfa,
    pub(super) fp: Saved,
    pub(super) sp: Saved,
    pub(super) ra: Saved,
    /// Unset in files that find no frame by it.
    pub(super) bx: Saved,
}

/// Why there is no rule for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The CFA is an expression, or a register, that rules don't know.
    Cfa,
    /// The return address is elsewhere: in a register behind a prologue, say.
    ReturnAddress,
    /// The caller's stack pointer is not the CFA.
    StackPointer,
}

impl Cfa {
    pub(super) fn register(register: u64, offset: Option<i64>) -> Cfa {
        match (u8::try_from(register), offset.map(i32::try_from)) {
            (Ok(register), Some(Ok(offset))) if usize::from(register) < REGISTERS => {
                Cfa::Register { register, offset }
            }
            _ => Cfa::Unknown,
        }
    }

    pub(super) fn with_offset(self, offset: Option<i64>) -> Cfa {
        match self {
            Cfa::Register { register, .. } => Cfa::register(register.into(), offset),
            _ => Cfa::Unknown,
        }
    }

    pub(super) fn of(value: Option<Value>) -> Cfa {
        match value {
            Some(Value::Register { register, offset }) => {
                Cfa::register(register.into(), Some(offset))
            }
            Some(Value::Memory {
                register,
                offset,
                addend,
            }) if usize::from(register) < REGISTERS => {
                match (i32::try_from(offset), i32::try_from(addend)) {
                    (Ok(offset), Ok(addend)) => Cfa::Memory {
                        register,
                        offset,
                        addend,
                    },
                    _ => Cfa::Unknown,
                }
            }
            Some(Value::Plt {
                register: REGISTER_SP,
                offset,
                least: least @ 0..=16,
            }) => match i32::try_from(offset) {
                Ok(offset) => Cfa::Plt {
                    offset,
                    least: least as i32,
                },
                Err(_) => Cfa::Unknown,
            },
            _ => Cfa::Unknown,
        }
    }
}

impl Saved {
    #[inline]
    pub(super) fn at_cfa(offset: Option<i64>) -> Saved {
        match offset.map(i32::try_from) {
            Some(Ok(offset)) => Saved::AtCfa(offset),
            _ => Saved::Unknown,
        }
    }

    pub(super) fn value(offset: Option<i64>) -> Saved {
        match offset.map(i32::try_from) {
            Some(Ok(offset)) => Saved::Cfa(offset),
            _ => Saved::Unknown,
        }
    }

    /// What an expression for the place comes to.
    pub(super) fn of(value: Option<Value>) -> Saved {
        match value {
            Some(Value::Cfa(offset)) => Saved::at_cfa(Some(offset)),
            Some(Value::Register { register, offset }) if usize::from(register) < REGISTERS => {
                i32::try_from(offset)
                    .map_or(Saved::Unknown, |offset| Saved::At { register, offset })
            }
            _ => Saved::Unknown,
        }
    }

    pub(super) fn register(register: u64) -> Saved {
        match u8::try_from(register) {
            Ok(register) if usize::from(register) < REGISTERS => Saved::Register(register),
            _ => Saved::Unknown,
        }
    }

    /// The same place from the CFA, where that is a fixed distance from the register.
    fn seen_from_cfa(self, cfa: Cfa) -> Saved {
        match (self, cfa) {
            (
                Saved::At { register, offset },
                Cfa::Register {
                    register: base,
                    offset: distance,
                },
            ) if register == base => Saved::at_cfa(Some(i64::from(offset) - i64::from(distance))),
            _ => self,
        }
    }
}

impl State {
    /// Whether a register is among those that are kept.
    pub(super) fn keeps(register: u64, return_register: u64) -> bool {
        register == return_register
            || register == u64::from(REGISTER_FP)
            || register == u64::from(REGISTER_SP)
            || register == u64::from(REGISTER_BX)
    }

    #[inline]
    pub(super) fn slot(&mut self, register: u64, return_register: u64) -> Option<&mut Saved> {
        const FP: u64 = REGISTER_FP as u64;
        const SP: u64 = REGISTER_SP as u64;
        const BX: u64 = REGISTER_BX as u64;
        match register {
            _ if register == return_register => Some(&mut self.ra),
            FP => Some(&mut self.fp),
            SP => Some(&mut self.sp),
            BX => Some(&mut self.bx),
            _ => None,
        }
    }

    /// Whether a rule says of the frame pointer that it is lost, though it is not.
    pub(super) fn loses_fp(&self, entry: &Entry) -> bool {
        matches!(entry, Entry::Rule(rule) if rule.fp == FP_UNKNOWN && rule.cfa != CFA_SIGNAL)
            && self.fp != Saved::Undefined
    }

    /// What a walk does with it. `follows_bx`: the file finds a frame by rbx.
    pub(super) fn entry(&self, follows_bx: bool) -> Result<Entry, Unknown> {
        if self.ra == Saved::Undefined {
            return Ok(Entry::End);
        }
        if let Some(rule) = self.signal() {
            return Ok(Entry::Rule(rule));
        }
        let mut rule = match self.cfa {
            Cfa::Register { register, offset } => Rule {
                cfa: CFA_REGISTER,
                register,
                cfa_offset: offset,
                ..Rule::default()
            },
            Cfa::Memory {
                register,
                offset,
                addend,
            } => Rule {
                cfa: CFA_MEMORY,
                register,
                cfa_offset: offset,
                cfa_addend: addend,
                ..Rule::default()
            },
            Cfa::Plt { offset, least } => Rule {
                cfa: CFA_PLT,
                register: REGISTER_SP,
                cfa_offset: offset,
                cfa_addend: least,
                ..Rule::default()
            },
            Cfa::Unset | Cfa::Unknown => return Err(Unknown::Cfa),
        };
        if !matches!(self.sp, Saved::Unset | Saved::Same | Saved::Cfa(0)) {
            return Err(Unknown::StackPointer);
        }
        if follows_bx {
            rule.bx = match self.bx.seen_from_cfa(self.cfa) {
                Saved::Unset | Saved::Same => BX_SAME,
                Saved::AtCfa(offset) => below(offset),
                _ => BX_UNKNOWN,
            };
        }
        if let Saved::Register(register) = self.ra {
            return self
                .in_register(rule, register)
                .ok_or(Unknown::ReturnAddress);
        }
        rule.ra_offset = match self.ra.seen_from_cfa(self.cfa) {
            Saved::AtCfa(offset) => words(offset).ok_or(Unknown::ReturnAddress)?,
            _ => return Err(Unknown::ReturnAddress),
        };
        (rule.fp, rule.fp_offset) = match self.fp.seen_from_cfa(self.cfa) {
            Saved::Unset | Saved::Same => (FP_SAME, 0),
            Saved::AtCfa(offset) => with_words(FP_AT_CFA, offset),
            Saved::At {
                register: REGISTER_FP,
                offset,
            } => with_words(FP_AT_FP, offset),
            _ => (FP_UNKNOWN, 0),
        };
        Ok(Entry::Rule(rule))
    }

    /// A leaf that keeps its return address in a register: `rule` finds its CFA.
    fn in_register(&self, rule: Rule, register: u8) -> Option<Entry> {
        let by_sp = rule.cfa == CFA_REGISTER && rule.register == REGISTER_SP;
        let keeps_fp = matches!(self.fp, Saved::Unset | Saved::Same);
        (by_sp && keeps_fp && register != REGISTER_SP).then_some(Entry::Rule(Rule {
            cfa: CFA_RETURN_REGISTER,
            register,
            ra_offset: -1,
            ..rule
        }))
    }

    /// The frame that returns from a signal: the kernel has put all registers into a `ucontext_t`
    /// at a fixed distance from the stack pointer.
    fn signal(&self) -> Option<Rule> {
        let Cfa::Memory {
            register: REGISTER_SP,
            offset,
            addend: 0,
        } = self.cfa
        else {
            return None;
        };
        let context = offset.checked_sub(CONTEXT_SP)?;
        let has = |saved, distance| {
            saved
                == Saved::At {
                    register: REGISTER_SP,
                    offset: context.saturating_add(distance),
                }
        };
        let all = has(self.sp, CONTEXT_SP) && has(self.ra, CONTEXT_PC) && has(self.fp, CONTEXT_FP);
        all.then_some(Rule {
            cfa: CFA_SIGNAL,
            register: REGISTER_SP,
            cfa_offset: context,
            ..Rule::default()
        })
    }
}

fn words(offset: i32) -> Option<i16> {
    (offset % 8 == 0).then_some(offset / 8)?.try_into().ok()
}

/// So many words below the CFA.
fn below(offset: i32) -> u8 {
    let words = words(offset).and_then(|words| u8::try_from(-i32::from(words)).ok());
    words
        .filter(|&words| words != BX_SAME)
        .unwrap_or(BX_UNKNOWN)
}

fn with_words(kind: u8, offset: i32) -> (u8, i16) {
    words(offset).map_or((FP_UNKNOWN, 0), |offset| (kind, offset))
}
