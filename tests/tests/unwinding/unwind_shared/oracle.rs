//! Another reader's opinion of a file's unwind information: gimli's rows, turned into entries here.
//!
//! An ELF file -> for each row of each function its addresses and what must hold there. Shares no code
//! with the profiler's reader.

use std::collections::BTreeMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, LittleEndian, Operation, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, X86_64,
};
use object::{Object, ObjectSection};
use profiler_common::unwind::{
    BX_SAME, BX_UNKNOWN, CFA_MEMORY, CFA_PLT, CFA_REGISTER, CFA_RETURN_REGISTER, CFA_SIGNAL,
    FP_AT_CFA, FP_AT_FP, FP_SAME, FP_UNKNOWN, REGISTER_BX, Rule,
};
use profiler_unwind::Entry;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// What must hold over some addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// None: a rule can't say it, and why.
    pub(crate) entry: Result<Entry, &'static str>,
}

/// All rows of all functions, by where the function begins; of functions with the same address the
/// longest.
pub(crate) fn rows(file: &[u8]) -> BTreeMap<u64, Vec<Row>> {
    let elf = object::File::parse(file).unwrap();
    let Some(section) = elf.section_by_name(".eh_frame") else {
        return BTreeMap::new();
    };
    let address = |name| {
        elf.section_by_name(name)
            .map_or(0, |section| section.address())
    };
    let bases = BaseAddresses::default()
        .set_eh_frame(section.address())
        .set_text(address(".text"))
        .set_got(address(".got"));
    let data = section.data().unwrap();
    let frames = EhFrame::new(data, LittleEndian);
    let mut functions = read(&frames, &bases, false);
    let by_bx = |row: &Row| {
        matches!(row.entry, Ok(Entry::Rule(rule)) if rule.cfa <= CFA_MEMORY
            && rule.register == REGISTER_BX)
    };
    if functions.values().flatten().any(by_bx) {
        functions = read(&frames, &bases, true);
    }
    functions
}

fn read(
    frames: &EhFrame<Slice<'_>>,
    bases: &BaseAddresses,
    follows_bx: bool,
) -> BTreeMap<u64, Vec<Row>> {
    let mut entries = frames.entries(bases);
    let mut context = UnwindContext::new();
    let mut functions = BTreeMap::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        let Ok(mut table) = fde.rows(frames, bases, &mut context) else {
            continue;
        };
        let mut rows = Vec::new();
        while let Ok(Some(row)) = table.next_row() {
            let column = fde.cie().return_address_register();
            let entry = expected(frames, row, column, follows_bx);
            rows.push(Row {
                start: row.start_address(),
                end: row.end_address().min(fde.end_address()),
                entry,
            });
        }
        let known = functions.entry(fde.initial_address());
        let len = |rows: &Vec<Row>| rows.last().map_or(0, |row| row.end);
        let end = len(&rows);
        let kept = known.or_insert_with(Vec::new);
        if end > len(kept) {
            *kept = rows;
        }
    }
    functions
}

fn expected(
    frames: &EhFrame<Slice<'_>>,
    row: &gimli::UnwindTableRow<usize>,
    column: Register,
    follows_bx: bool,
) -> Result<Entry, &'static str> {
    let (ra, sp, fp) = (
        row.register(column),
        row.register(X86_64::RSP),
        row.register(X86_64::RBP),
    );
    let operations = |expression: &UnwindExpression<usize>| {
        let bytes = expression.get(frames).unwrap();
        let encoding = gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 5,
        };
        let mut list = Vec::new();
        let mut left = bytes.operations(encoding);
        while let Ok(Some(operation)) = left.next() {
            list.push(operation);
        }
        list
    };
    // A single "register plus offset".
    let place = |rule: &Option<RegisterRule<usize>>| match rule {
        Some(RegisterRule::Expression(expression)) => match operations(expression)[..] {
            [
                Operation::RegisterOffset {
                    register, offset, ..
                },
            ] => Some((register, offset)),
            _ => None,
        },
        _ => None,
    };
    if ra == Some(RegisterRule::Undefined) {
        return Ok(Entry::End);
    }
    let mut rule = Rule::default();
    let base;
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            base = Some((*register, *offset));
            rule.cfa = CFA_REGISTER;
            rule.register = register.0 as u8;
            rule.cfa_offset = *offset as i32;
        }
        CfaRule::Expression(expression) => {
            base = None;
            match operations(expression)[..] {
                [
                    Operation::RegisterOffset {
                        register, offset, ..
                    },
                    Operation::Deref { .. },
                    ref rest @ ..,
                ] => {
                    rule.cfa = CFA_MEMORY;
                    rule.register = register.0 as u8;
                    rule.cfa_offset = offset as i32;
                    rule.cfa_addend = match rest {
                        [] => 0,
                        [Operation::PlusConstant { value }] => *value as i32,
                        _ => return Err("CFA: what follows the dereference"),
                    };
                    let context = offset - 160;
                    let at = |distance| Some((X86_64::RSP, context + distance));
                    if register == X86_64::RSP
                        && place(&sp) == at(160)
                        && place(&ra) == at(168)
                        && place(&fp) == at(120)
                    {
                        return Ok(Entry::Rule(Rule {
                            cfa: CFA_SIGNAL,
                            register: 7,
                            cfa_offset: context as i32,
                            ..Rule::default()
                        }));
                    }
                }
                [
                    Operation::RegisterOffset {
                        register: X86_64::RSP,
                        offset,
                        ..
                    },
                    Operation::RegisterOffset {
                        register: X86_64::RA,
                        offset: 0,
                        ..
                    },
                    Operation::UnsignedConstant { value: 15 },
                    Operation::And,
                    Operation::UnsignedConstant { value },
                    Operation::Ge,
                    Operation::UnsignedConstant { value: 3 },
                    Operation::Shl,
                    Operation::Plus,
                ] => {
                    rule.cfa = CFA_PLT;
                    rule.register = 7;
                    rule.cfa_offset = offset as i32;
                    rule.cfa_addend = value as i32;
                }
                _ => return Err("CFA: other expression"),
            }
        }
    }
    match sp {
        None | Some(RegisterRule::SameValue) => {}
        _ => return Err("stack pointer"),
    }
    rule.ra_offset = match ra {
        Some(RegisterRule::Offset(offset)) if offset % 8 == 0 => (offset / 8) as i16,
        Some(RegisterRule::Register(_)) => -1,
        None => return Err("return address: nothing said"),
        _ => return Err("return address: other"),
    };
    let (kind, offset) = match &fp {
        None | Some(RegisterRule::SameValue) => (FP_SAME, 0i64),
        Some(RegisterRule::Offset(offset)) if offset % 8 == 0 => (FP_AT_CFA, *offset / 8),
        Some(RegisterRule::Expression(_)) => match (place(&fp), base) {
            (Some((register, offset)), Some((other, distance))) if register == other => {
                (FP_AT_CFA, (offset - distance) / 8)
            }
            (Some((X86_64::RBP, offset)), _) => (FP_AT_FP, offset / 8),
            _ => (FP_UNKNOWN, 0),
        },
        _ => (FP_UNKNOWN, 0),
    };
    (rule.fp, rule.fp_offset) = (kind, offset as i16);
    if follows_bx {
        rule.bx = match row.register(X86_64::RBX) {
            None | Some(RegisterRule::SameValue) => BX_SAME,
            Some(RegisterRule::Offset(offset @ -2032..=-8)) if offset % 8 == 0 => {
                (-offset / 8) as u8
            }
            _ => BX_UNKNOWN,
        };
    }
    if let Some(RegisterRule::Register(register)) = ra {
        if (rule.cfa, rule.register, rule.fp) != (CFA_REGISTER, 7, FP_SAME) {
            return Err("return address: in a register");
        }
        (rule.cfa, rule.register) = (CFA_RETURN_REGISTER, register.0 as u8);
    }
    Ok(Entry::Rule(rule))
}
