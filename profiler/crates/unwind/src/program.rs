//! The programs of unwind information: what holds at each address of a function.
//!
//! A function's instructions, behind those of its CIE -> [`State`]s in the order of their addresses.
//! Offsets are bytes from the CFA; addresses are ELF virtual addresses. Source: the DWARF standard,
//! 6.4.2 and 6.4.3, and the GNU extensions that binutils know. What a state means for a walk does not
//! belong here (`state`).
//!
//! Time is linear in the length of a program: every instruction makes one row at most, however far it
//! advances.

use profiler_common::unwind::REGISTER_BX;

use super::expression::{Value, evaluate};
use super::state::{Cfa, Saved, State};
use profiler_object::cfi::{Cie, Fde, Section};
use profiler_object::cursor::Cursor;

/// Most states that a program remembers at a time. Compilers need one or two.
const MAX_REMEMBERED: usize = 64;

/// A program has an instruction that is not known, is cut off, or goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// Runs programs, one after the other.
#[derive(Debug, Default)]
pub(super) struct Machine {
    remembered: Vec<State>,
    /// Whether rbx is followed; otherwise nothing is noted of it.
    pub(super) follows_bx: bool,
}

struct Run<'a> {
    section: &'a Section<'a>,
    cie: &'a Cie,
    /// What the CIE's program has made, to which registers are restored.
    initial: State,
    state: State,
    address: u64,
    follows_bx: bool,
}

impl Machine {
    /// The state that the functions of a CIE begin with.
    pub(super) fn begin(&mut self, section: &Section<'_>, cie: &Cie) -> Result<State, Damaged> {
        let mut run = Run {
            section,
            cie,
            initial: State::default(),
            state: State::default(),
            address: 0,
            follows_bx: self.follows_bx,
        };
        self.remembered.clear();
        let bytes = section.bytes.get(..cie.program.end).unwrap_or_default();
        let mut cursor = Cursor::new(bytes, cie.program.start);
        while !cursor.is_at_end() {
            let moved = self.step(&mut run, &mut cursor).ok_or(Damaged)?;
            if moved.is_some() {
                return Err(Damaged);
            }
        }
        Ok(run.state)
    }

    /// Gives `row` each state and the address that it holds from, up to `end` and not further. After
    /// an error nothing is known from the last address on.
    pub(super) fn run(
        &mut self,
        section: &Section<'_>,
        cie: &Cie,
        initial: State,
        fde: &Fde,
        mut row: impl FnMut(u64, &State),
    ) -> Result<(), (u64, Damaged)> {
        let mut run = Run {
            section,
            cie,
            initial,
            state: initial,
            address: fde.start,
            follows_bx: self.follows_bx,
        };
        self.remembered.clear();
        let bytes = section.bytes.get(..fde.program.end).unwrap_or_default();
        let mut cursor = Cursor::new(bytes, fde.program.start);
        while !cursor.is_at_end() {
            let moved = self.step(&mut run, &mut cursor);
            let moved = moved.ok_or((run.address, Damaged))?;
            if let Some(to) = moved.filter(|&to| to != run.address) {
                row(run.address, &run.state);
                if to < run.address {
                    return Err((run.address, Damaged));
                }
                run.address = to;
                if to >= fde.end {
                    return Ok(());
                }
            }
        }
        row(run.address, &run.state);
        Ok(())
    }

    /// One instruction: where it advances to, if it does. None: damaged.
    #[inline]
    fn step(&mut self, run: &mut Run<'_>, cursor: &mut Cursor<'_>) -> Option<Option<u64>> {
        let byte = cursor.u8()?;
        let low = u64::from(byte & 0x3f);
        match byte >> 6 {
            // DW_CFA_advance_loc
            1 => return run.advance(low).map(Some),
            // DW_CFA_offset
            2 => {
                let offset = run.scaled(cursor.uleb()? as i64);
                run.set(low, Saved::at_cfa(offset));
            }
            // DW_CFA_restore
            3 => run.restore(low),
            _ => return self.step_extended(run, byte, cursor),
        }
        Some(None)
    }

    fn step_extended(
        &mut self,
        run: &mut Run<'_>,
        operation: u8,
        cursor: &mut Cursor<'_>,
    ) -> Option<Option<u64>> {
        match operation {
            // DW_CFA_nop; DW_CFA_GNU_window_save, which says nothing here
            0x00 | 0x2d => {}
            // DW_CFA_set_loc
            0x01 => return run.section.pointer(cursor, run.cie.encoding).map(Some),
            // DW_CFA_advance_loc1, 2, 4, MIPS_advance_loc8
            0x02 => return run.advance(u64::from(cursor.u8()?)).map(Some),
            0x03 => return run.advance(u64::from(cursor.u16()?)).map(Some),
            0x04 => return run.advance(u64::from(cursor.u32()?)).map(Some),
            0x1d => return run.advance(cursor.u64()?).map(Some),
            // DW_CFA_offset_extended, and signed
            0x05 => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.uleb()? as i64);
                run.set(register, Saved::at_cfa(offset));
            }
            0x11 => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.sleb()?);
                run.set(register, Saved::at_cfa(offset));
            }
            // DW_CFA_GNU_negative_offset_extended
            0x2f => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.uleb()? as i64);
                run.set(register, Saved::at_cfa(offset.and_then(i64::checked_neg)));
            }
            // DW_CFA_restore_extended
            0x06 => run.restore(cursor.uleb()?),
            // DW_CFA_undefined, DW_CFA_same_value
            0x07 => run.set(cursor.uleb()?, Saved::Undefined),
            0x08 => run.set(cursor.uleb()?, Saved::Same),
            // DW_CFA_register
            0x09 => {
                let register = cursor.uleb()?;
                run.set(register, Saved::register(cursor.uleb()?));
            }
            // DW_CFA_remember_state, DW_CFA_restore_state
            0x0a => {
                if self.remembered.len() >= MAX_REMEMBERED {
                    return None;
                }
                self.remembered.push(run.state);
            }
            0x0b => run.state = self.remembered.pop()?,
            // DW_CFA_def_cfa, and signed
            0x0c => {
                let register = cursor.uleb()?;
                let offset = i64::try_from(cursor.uleb()?).ok();
                run.state.cfa = Cfa::register(register, offset);
            }
            0x12 => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.sleb()?);
                run.state.cfa = Cfa::register(register, offset);
            }
            // DW_CFA_def_cfa_register
            0x0d => {
                let register = cursor.uleb()?;
                run.state.cfa = match run.state.cfa {
                    Cfa::Register { offset, .. } => Cfa::register(register, Some(offset.into())),
                    _ => Cfa::Unknown,
                };
            }
            // DW_CFA_def_cfa_offset, and signed
            0x0e => {
                let offset = i64::try_from(cursor.uleb()?).ok();
                run.state.cfa = run.state.cfa.with_offset(offset);
            }
            0x13 => {
                let offset = run.scaled(cursor.sleb()?);
                run.state.cfa = run.state.cfa.with_offset(offset);
            }
            // DW_CFA_def_cfa_expression
            0x0f => run.state.cfa = Cfa::of(evaluate(cursor.block()?, false)),
            // DW_CFA_expression
            0x10 => {
                let register = cursor.uleb()?;
                let block = cursor.block()?;
                if run.keeps(register) {
                    run.set(register, Saved::of(evaluate(block, true)));
                }
            }
            // DW_CFA_val_offset, and signed
            0x14 => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.uleb()? as i64);
                run.set(register, Saved::value(offset));
            }
            0x15 => {
                let register = cursor.uleb()?;
                let offset = run.scaled(cursor.sleb()?);
                run.set(register, Saved::value(offset));
            }
            // DW_CFA_val_expression
            0x16 => {
                let register = cursor.uleb()?;
                let block = cursor.block()?;
                if run.keeps(register) {
                    let saved = match evaluate(block, true) {
                        Some(Value::Cfa(offset)) => Saved::value(Some(offset)),
                        _ => Saved::Unknown,
                    };
                    run.set(register, saved);
                }
            }
            // DW_CFA_GNU_args_size
            0x2e => drop(cursor.uleb()?),
            _ => return None,
        }
        Some(None)
    }
}

impl Run<'_> {
    #[inline]
    fn advance(&self, delta: u64) -> Option<u64> {
        self.address
            .checked_add(delta.checked_mul(self.cie.code_factor)?)
    }

    /// An offset in units of the CIE's factor.
    #[inline]
    fn scaled(&self, offset: i64) -> Option<i64> {
        offset.checked_mul(self.cie.data_factor)
    }

    #[inline]
    fn keeps(&self, register: u64) -> bool {
        State::keeps(register, self.cie.return_register)
            && (register != u64::from(REGISTER_BX) || self.follows_bx)
    }

    #[inline]
    fn set(&mut self, register: u64, saved: Saved) {
        if register == u64::from(REGISTER_BX) && !self.follows_bx {
            return;
        }
        if let Some(slot) = self.state.slot(register, self.cie.return_register) {
            *slot = saved;
        }
    }

    #[inline]
    fn restore(&mut self, register: u64) {
        let initial = self.initial.slot(register, self.cie.return_register);
        if let Some(initial) = initial.map(|slot| *slot) {
            self.set(register, initial);
        }
    }
}
