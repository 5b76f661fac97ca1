//! The table of an object file: rows by page of code, and the rules that they name.
//!
//! [`Entry`]s in the order of their addresses -> [`Table`], in the shape that
//! `profiler_common::unwind` gives it; rules are numbered by their place in [`Table::rules`] from
//! [`FIRST_RULE`] on, until a table is loaded and gets numbers that all tables share.

use profiler_common::unwind::{
    FIRST_RULE, PAGE_BITS, RULE_END, RULE_NONE, Rule, row, row_place, row_rule,
};
use rustc_hash::FxHashMap;

/// Most different rules of a table: no file may use up the room that all of them share.
pub(super) const MAX_TABLE_RULES: u32 = 8192;
/// Most rows of a table.
pub(super) const MAX_ROWS: usize = 32 << 20;
const PAGE_BYTES: u64 = 1 << PAGE_BITS;
/// Most pages of a table: a directory lies within one segment.
pub(super) const MAX_PAGES: u64 = profiler_common::unwind::SEGMENT_WORDS as u64;

/// What holds from an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Nothing is known: frame pointers are tried.
    None,
    /// This is the outermost function.
    End,
    /// This rule.
    Rule(Rule),
}

/// The rows of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Index of the first one.
    pub first: u32,
    /// How many; 0: nothing is known of this page.
    pub len: u32,
}

/// The unwind rows of an object file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Address of the first page.
    pub base: u64,
    /// All pages from there on.
    pub pages: Vec<Page>,
    /// As `profiler_common::unwind::row` packs them.
    pub rows: Vec<u32>,
    /// Different rules; the first has the number `FIRST_RULE`.
    pub rules: Vec<Rule>,
}

/// A file's code, or the number of its rows, is beyond what a table can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its code is too large for an unwind table")]
pub struct TooLarge;

impl Table {
    /// What holds at an address.
    pub fn entry_at(&self, address: u64) -> Entry {
        let Some(offset) = address.checked_sub(self.base) else {
            return Entry::None;
        };
        let Some(page) = self.pages.get((offset >> PAGE_BITS) as usize) else {
            return Entry::None;
        };
        let (first, len) = (page.first as usize, page.len as usize);
        let Some(rows) = self.rows.get(first..first + len) else {
            return Entry::None;
        };
        let place = (offset & (PAGE_BYTES - 1)) as u32;
        let behind = rows.partition_point(|&row| row_place(row) <= place);
        match behind.checked_sub(1).map(|index| row_rule(rows[index])) {
            None | Some(RULE_NONE) => Entry::None,
            Some(RULE_END) => Entry::End,
            Some(number) => match self.rules.get((number - FIRST_RULE) as usize) {
                Some(rule) => Entry::Rule(*rule),
                None => Entry::None,
            },
        }
    }

    /// Memory that it takes in the kernel, without its rules.
    pub fn bytes(&self) -> u64 {
        let rows: u64 = self
            .pages
            .iter()
            .map(|page| u64::from(page.len.div_ceil(2)))
            .sum();
        (rows + self.pages.len() as u64) * 8
    }
}

/// Makes a [`Table`] of entries in the order of their addresses.
#[derive(Debug, Default)]
pub struct Builder {
    table: Table,
    numbers: FxHashMap<Rule, u32>,
    /// The rule number that holds behind the last row.
    last: u32,
    begun: bool,
    too_large: bool,
    refused: u64,
}

impl Builder {
    /// From `address` on, `entry` holds. Addresses must not decrease; of two for one address the later
    /// one counts.
    pub fn push(&mut self, address: u64, entry: Entry) {
        let number = self.number(entry);
        self.too_large |= self.table.rows.len() > MAX_ROWS;
        if self.too_large {
            return;
        }
        if !self.begun {
            if number == RULE_NONE {
                return;
            }
            self.begun = true;
            self.table.base = address & !(PAGE_BYTES - 1);
        }
        let Some(offset) = address.checked_sub(self.table.base) else {
            return;
        };
        let place = (offset & (PAGE_BYTES - 1)) as u32;
        if !self.fill_pages((offset >> PAGE_BITS) + 1) {
            return;
        }
        let Some(page) = self.table.pages.last_mut() else {
            return;
        };
        if let Some(last) = self.table.rows.last_mut().filter(|_| page.len > 0)
            && row_place(*last) == place
        {
            *last = row(place, number);
        } else if number != self.last || page.len == 0 {
            if page.len == 0 && place > 0 {
                // The page begins with what held before.
                self.table.rows.push(row(0, self.last));
                page.len += 1;
            }
            if place == 0 || number != self.last {
                self.table.rows.push(row(place, number));
                page.len += 1;
            }
        }
        self.last = number;
    }

    /// How many entries had a rule for which there was no room: they became [`Entry::None`].
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The table; what holds last holds to the end of its page, so the last entry should be
    /// [`Entry::None`].
    pub fn finish(self) -> Result<Table, TooLarge> {
        if self.too_large {
            return Err(TooLarge);
        }
        let mut table = self.table;
        // It is kept for as long as the file is mapped somewhere.
        table.pages.shrink_to_fit();
        table.rows.shrink_to_fit();
        table.rules.shrink_to_fit();
        Ok(table)
    }

    fn number(&mut self, entry: Entry) -> u32 {
        let rule = match entry {
            Entry::None => return RULE_NONE,
            Entry::End => return RULE_END,
            Entry::Rule(rule) => rule,
        };
        if let Some(number) = self.numbers.get(&rule) {
            return *number;
        }
        let number = FIRST_RULE + self.table.rules.len() as u32;
        if number >= MAX_TABLE_RULES {
            self.refused += 1;
            return RULE_NONE;
        }
        self.table.rules.push(rule);
        self.numbers.insert(rule, number);
        number
    }

    /// Adds pages until there are `count`; those that are passed have what held before all over.
    /// The last one stays empty: its first row is to come.
    fn fill_pages(&mut self, count: u64) -> bool {
        if count > MAX_PAGES {
            self.too_large = true;
            return false;
        }
        while (self.table.pages.len() as u64) < count {
            let first = self.table.rows.len() as u32;
            let is_passed = (self.table.pages.len() as u64) + 1 < count;
            let mut len = 0;
            if is_passed && self.last != RULE_NONE {
                self.table.rows.push(row(0, self.last));
                len = 1;
            }
            self.table.pages.push(Page { first, len });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(cfa_offset: i32) -> Entry {
        Entry::Rule(Rule {
            cfa_offset,
            ra_offset: -1,
            ..Rule::default()
        })
    }

    #[test]
    fn every_address_has_what_was_pushed_last_before_it() {
        let entries = [
            (0x1010, rule(8)),
            (0x1014, rule(16)),
            (0x1ff0, rule(8)),
            (0x5008, Entry::None),
            (0x7000, rule(16)),
            (0x7004, rule(24)),
            (0x7004, rule(32)),
            (0x7ffc, Entry::End),
            (0x9001, Entry::None),
        ];
        let mut builder = Builder::default();
        for (address, entry) in entries {
            builder.push(address, entry);
        }
        let table = builder.finish().unwrap();
        for address in 0xff0..0xa000 {
            let expected = entries.iter().rev().find(|(at, _)| *at <= address);
            let expected = expected.map_or(Entry::None, |(_, entry)| *entry);
            assert_eq!(table.entry_at(address), expected, "{address:x}");
        }
        assert_eq!(table.rules.len(), 3 + 1);
    }

    #[test]
    fn a_finished_table_has_no_room_to_spare() {
        let mut builder = Builder::default();
        for index in 0..700 {
            builder.push(index * 100, rule(index as i32 * 8));
        }
        let table = builder.finish().unwrap();
        assert_eq!(table.pages.capacity(), table.pages.len());
        assert_eq!(table.rows.capacity(), table.rows.len());
        assert_eq!(table.rules.capacity(), table.rules.len());
    }
}
