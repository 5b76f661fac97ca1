//! Go's functions and those of other languages in one table.
//!
//! Entries of Go's functions, and the table of what the executable's other unwind information says -> a
//! table in which Go's entries count, and where there are none, the others: C code that was linked in.

use profiler_common::unwind::{FIRST_RULE, PAGE_BITS, RULE_END, RULE_NONE, row_place, row_rule};

use crate::{Builder, Entry, Table, TooLarge};

/// Joins them. `go` is in the order of addresses.
pub fn merge(go: &[(u64, Entry)], others: &Table) -> Result<Table, TooLarge> {
    let mut builder = Builder::default();
    let mut go = go.iter().copied().peekable();
    let mut others = rows(others).peekable();
    let (mut ours, mut theirs) = (Entry::None, Entry::None);
    loop {
        let next = match (go.peek(), others.peek()) {
            (Some((ours, _)), Some((theirs, _))) => *ours.min(theirs),
            (Some((address, _)), None) | (None, Some((address, _))) => *address,
            (None, None) => return builder.finish(),
        };
        while let Some((_, entry)) = go.next_if(|(address, _)| *address == next) {
            ours = entry;
        }
        while let Some((_, entry)) = others.next_if(|(address, _)| *address == next) {
            theirs = entry;
        }
        builder.push(next, if ours == Entry::None { theirs } else { ours });
    }
}

/// The rows of a table, in the order of their addresses. Pages without rows say nothing.
fn rows(table: &Table) -> impl Iterator<Item = (u64, Entry)> + '_ {
    let pages = table.pages.iter().enumerate();
    let rows = pages.flat_map(move |(index, page)| {
        let start = table.base + ((index as u64) << PAGE_BITS);
        let first = page.first as usize;
        let rows = table.rows.get(first..first + page.len as usize);
        let rows = rows.unwrap_or_default().iter();
        let unknown = (page.len == 0).then_some((start, Entry::None));
        unknown.into_iter().chain(rows.map(move |&row| {
            let entry = match row_rule(row) {
                RULE_NONE => Entry::None,
                RULE_END => Entry::End,
                number => match table.rules.get((number - FIRST_RULE) as usize) {
                    Some(rule) => Entry::Rule(*rule),
                    None => Entry::None,
                },
            };
            (start + u64::from(row_place(row)), entry)
        }))
    });
    // Behind the last page there may be no address.
    let end = table
        .base
        .checked_add((table.pages.len() as u64) << PAGE_BITS);
    let end = end.filter(|_| !table.pages.is_empty());
    rows.chain(end.map(|end| (end, Entry::None)))
}

#[cfg(test)]
mod tests {
    use profiler_common::unwind::Rule;

    use super::*;

    fn entry(cfa_offset: i32) -> Entry {
        Entry::Rule(Rule {
            cfa_offset,
            ra_offset: -1,
            ..Rule::default()
        })
    }

    #[test]
    fn the_others_hold_where_go_knows_nothing() {
        let go = [
            (0x1800, entry(8)),
            (0x1900, Entry::None),
            (0x4100, entry(16)),
            (0x9000, Entry::None),
        ];
        let others = [
            (0x1000, entry(24)),
            (0x1880, entry(32)),
            (0x3000, Entry::None),
            (0x8000, Entry::End),
            (0xa000, Entry::None),
        ];
        let at = |entries: &[(u64, Entry)], address: u64| {
            let found = entries.iter().rev().find(|(start, _)| *start <= address);
            found.map_or(Entry::None, |(_, entry)| *entry)
        };
        let mut builder = Builder::default();
        for (address, entry) in others {
            builder.push(address, entry);
        }
        let merged = merge(&go, &builder.finish().unwrap()).unwrap();
        for address in 0x800..0xb000 {
            let expected = match at(&go, address) {
                Entry::None => at(&others, address),
                known => known,
            };
            assert_eq!(merged.entry_at(address), expected, "{address:x}");
        }
    }
}
