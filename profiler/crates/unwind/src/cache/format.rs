//! A table as bytes, and back: see the layout at [`super`].
//!
//! Bytes that are read are checked whole: their length, the checksum, every number in its range.
//!
//! What does not belong here: files (`folder`).

use profiler_common::unwind::{
    CFA_UNLESS_NEW, FIRST_RULE, FP_UNKNOWN, REGISTERS, Rule, row_place, row_rule,
};

use super::super::table::{MAX_PAGES, MAX_ROWS, MAX_TABLE_RULES};
use super::super::{BuildReport, Page, Table};
use super::MAGIC;

/// Bytes before the pages.
pub(super) const HEAD_BYTES: usize = 16 + 4 * 8 + REPORT_WORDS * 8;
const REPORT_WORDS: usize = 16;

/// A table and its report as bytes.
pub fn encode(table: &Table, report: &BuildReport) -> Vec<u8> {
    let lens = [table.pages.len(), table.rows.len(), table.rules.len()];
    let body = (lens[0] + lens[1]) * 4 + lens[2] * size_of::<Rule>();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body);
    bytes.extend(MAGIC);
    bytes.extend([0; 8]);
    let lens = lens.map(|len| len as u64);
    for number in [table.base].into_iter().chain(lens).chain(words(report)) {
        bytes.extend(number.to_le_bytes());
    }
    for page in &table.pages {
        bytes.extend(page.len.to_le_bytes());
    }
    for row in &table.rows {
        bytes.extend(row.to_le_bytes());
    }
    for rule in &table.rules {
        bytes.extend([rule.cfa, rule.register, rule.fp, rule.bx]);
        bytes.extend(rule.cfa_offset.to_le_bytes());
        bytes.extend(rule.cfa_addend.to_le_bytes());
        bytes.extend(rule.fp_offset.to_le_bytes());
        bytes.extend(rule.ra_offset.to_le_bytes());
    }
    let checksum = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The table and the report in some bytes, if these are sound.
pub fn decode(bytes: &[u8]) -> Option<(Table, BuildReport)> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
    let checksum = u32::from_le_bytes(*head[8..].first_chunk()?);
    if !head.starts_with(MAGIC) || crc32fast::hash(&bytes[12..]) != checksum {
        return None;
    }
    let mut numbers = head[16..]
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(u64::from_le_bytes);
    let base = numbers.next()?;
    let mut len = || usize::try_from(numbers.next()?).ok();
    let (pages, rows, rules) = (len()?, len()?, len()?);
    if pages as u64 > MAX_PAGES || rows > MAX_ROWS || rules > MAX_TABLE_RULES as usize {
        return None;
    }
    let report = report_of(numbers)?;
    let (page_bytes, body) = body.split_at_checked(pages * 4)?;
    let (row_bytes, rule_bytes) = body.split_at_checked(rows * 4)?;
    if rule_bytes.len() != rules * size_of::<Rule>() {
        return None;
    }
    let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let mut first = 0u32;
    let pages = page_bytes.as_chunks().0.iter().map(|bytes| {
        let page = Page {
            first,
            len: number(bytes),
        };
        first = first.checked_add(page.len)?;
        Some(page)
    });
    let mut pages: Vec<Page> = pages.collect::<Option<_>>()?;
    pages.shrink_to_fit();
    let table = Table {
        base,
        pages,
        rows: row_bytes.as_chunks().0.iter().map(number).collect(),
        rules: rule_bytes.as_chunks().0.iter().map(rule_of).collect(),
    };
    (first as usize == rows && is_sound(&table)).then_some((table, report))
}

/// Whether all numbers are in their ranges.
fn is_sound(table: &Table) -> bool {
    let known = FIRST_RULE + table.rules.len() as u32;
    let rows = |page: &Page| &table.rows[page.first as usize..][..page.len as usize];
    let sound = |rows: &[u32]| {
        rows.first().is_none_or(|&first| row_place(first) == 0)
            && rows.is_sorted_by(|&a, &b| row_place(a) < row_place(b))
            && rows.iter().all(|&row| row_rule(row) < known)
    };
    let possible = |rule: &Rule| {
        rule.cfa <= CFA_UNLESS_NEW
            && usize::from(rule.register) < REGISTERS
            && rule.fp <= FP_UNKNOWN
    };
    table.pages.iter().all(|page| sound(rows(page))) && table.rules.iter().all(possible)
}

fn rule_of(bytes: &[u8; size_of::<Rule>()]) -> Rule {
    let [cfa, register, fp, bx, a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    Rule {
        cfa,
        register,
        fp,
        bx,
        cfa_offset: i32::from_le_bytes([a, b, c, d]),
        cfa_addend: i32::from_le_bytes([e, f, g, h]),
        fp_offset: i16::from_le_bytes([i, j]),
        ra_offset: i16::from_le_bytes([k, l]),
    }
}

fn words(report: &BuildReport) -> [u64; REPORT_WORDS] {
    [
        report.section_bytes,
        report.functions,
        report.functions_left_out,
        report.functions_unreadable,
        report.functions_damaged,
        u64::from(report.cut),
        report.rows_read,
        report.rows_cfa,
        report.rows_return_address,
        report.rows_stack_pointer,
        report.rows_frame_pointer,
        report.rows_refused,
        report.rows,
        report.rules,
        report.table_bytes,
        0,
    ]
}

fn report_of(mut words: impl Iterator<Item = u64>) -> Option<BuildReport> {
    let mut next = || words.next();
    Some(BuildReport {
        section_bytes: next()?,
        functions: next()?,
        functions_left_out: next()?,
        functions_unreadable: next()?,
        functions_damaged: next()?,
        cut: next()? != 0,
        rows_read: next()?,
        rows_cfa: next()?,
        rows_return_address: next()?,
        rows_stack_pointer: next()?,
        rows_frame_pointer: next()?,
        rows_refused: next()?,
        rows: next()?,
        rules: next()?,
        table_bytes: next()?,
    })
}
