//! The table of lines of a code object: where in the source each instruction is from.
//!
//! `co_linetable` as CPython 3.11 and newer write it, that of 3.10, or `co_lnotab` -> lines by code unit (2 bytes).
//! Columns are not kept. Source: Objects/locations.md of CPython, Objects/lnotab_notes.txt of 3.9 and 3.10.
//!
//! What does not belong here: where the table comes from (`code`).

/// Location without a place in the source.
const KIND_NONE: u8 = 15;
/// Lines and columns as numbers of variable length.
const KIND_LONG: u8 = 14;
/// A line alone, as a number of variable length.
const KIND_LINE: u8 = 13;
/// One line, 0 to 2 below, and columns of a byte each.
const KIND_ONE_LINE: std::ops::RangeInclusive<u8> = 10..=12;
/// Most bytes of a number: more than 32 bits have no meaning.
const MAX_NUMBER_BYTES: usize = 6;

/// Lines of a code object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// The first code unit of each run, and its line; 0: none.
    runs: Box<[(u32, u32)]>,
    /// Code units in all.
    units: u32,
}

impl Lines {
    /// Reads a table of a code object that begins in line `first`. What is behind damage is left out.
    pub(super) fn read(table: &[u8], first: u32) -> Lines {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let (mut rest, mut units, mut line) = (table, 0_u32, i64::from(first));
        while let Some((&head, behind)) = rest.split_first() {
            if head & 0x80 == 0 {
                break;
            }
            rest = behind;
            let kind = head >> 3 & 15;
            let Some(delta) = line_delta(kind, &mut rest) else {
                break;
            };
            line = line.saturating_add(delta);
            let shown = match kind {
                KIND_NONE => 0,
                _ => u32::try_from(line).unwrap_or(0),
            };
            if runs.last().is_none_or(|(_, last)| *last != shown) {
                runs.push((units, shown));
            }
            units = units.saturating_add(u32::from(head & 7) + 1);
        }
        Lines {
            runs: runs.into(),
            units,
        }
    }

    /// Reads `co_lnotab`: steps of bytes and lines, the last of which holds to the end.
    pub(super) fn of_steps(table: &[u8], first: u32) -> Lines {
        let mut runs = vec![(0, first)];
        let (mut bytes, mut line) = (0_u32, i64::from(first));
        for step in table.as_chunks::<2>().0 {
            bytes = bytes.saturating_add(step[0].into());
            line += i64::from(step[1].cast_signed());
            let run = (bytes / 2, u32::try_from(line).unwrap_or(0));
            match runs.last_mut() {
                Some(last) if last.0 == run.0 => *last = run,
                Some((_, shown)) if *shown == run.1 => {}
                _ => runs.push(run),
            }
        }
        Lines {
            runs: runs.into(),
            units: u32::MAX,
        }
    }

    /// Reads `co_linetable` of 3.10: how many bytes, and by how many lines they are below those before.
    pub(super) fn of_ranges(table: &[u8], first: u32) -> Lines {
        /// No line.
        const NONE: i8 = -128;
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let (mut bytes, mut line) = (0_u32, i64::from(first));
        for range in table.as_chunks::<2>().0 {
            let delta = range[1].cast_signed();
            line += if delta == NONE { 0 } else { delta.into() };
            let shown = match delta {
                NONE => 0,
                _ => u32::try_from(line).unwrap_or(0),
            };
            if range[0] > 0 && runs.last().is_none_or(|(_, last)| *last != shown) {
                runs.push((bytes / 2, shown));
            }
            bytes = bytes.saturating_add(range[0].into());
        }
        Lines {
            runs: runs.into(),
            units: bytes / 2,
        }
    }

    /// The line of a code unit; 0: none, or beyond the table.
    pub(super) fn at(&self, unit: u32) -> u32 {
        if unit >= self.units {
            return 0;
        }
        let behind = self.runs.partition_point(|(start, _)| *start <= unit);
        behind.checked_sub(1).map_or(0, |index| self.runs[index].1)
    }

    /// Whether no code unit has a line.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.iter().all(|(_, line)| *line == 0)
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.runs)
    }
}

/// How far the line moves; steps over the rest of the entry. None if the entry is cut.
fn line_delta(kind: u8, rest: &mut &[u8]) -> Option<i64> {
    match kind {
        KIND_NONE => Some(0),
        KIND_LONG => {
            let delta = signed(rest)?;
            for _ in 0..3 {
                number(rest)?;
            }
            Some(delta)
        }
        KIND_LINE => signed(rest),
        kind if KIND_ONE_LINE.contains(&kind) => {
            *rest = rest.get(2..)?;
            Some(i64::from(kind - KIND_ONE_LINE.start()))
        }
        _ => {
            *rest = rest.get(1..)?;
            Some(0)
        }
    }
}

/// A number in pieces of 6 bits, lowest first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..MAX_NUMBER_BYTES {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 63) << (6 * index);
        if byte & 64 == 0 {
            return Some(number);
        }
    }
    None
}

/// A number whose lowest bit is its sign.
fn signed(rest: &mut &[u8]) -> Option<i64> {
    let number = number(rest)?;
    let size = (number >> 1) as i64;
    Some(if number & 1 != 0 { -size } else { size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_kinds_of_entries_are_read() {
        let table = [
            // Short: 2 units of line 10.
            0x80 | 3 << 3 | 1,
            0x21,
            // One line, 2 below: 1 unit of line 12.
            0x80 | 12 << 3,
            4,
            9,
            // A line alone, 3 above (sign, 6 bits): 8 units of line 9.
            0x80 | 13 << 3 | 7,
            3 << 1 | 1,
            // None: 1 unit.
            0x80 | 15 << 3,
            // Long, 100 below (two pieces): 1 unit of line 109.
            0x80 | 14 << 3,
            64 | (200 & 63),
            (200 >> 6) as u8,
            1,
            2,
            3,
        ];
        let lines = Lines::read(&table, 10);
        let all: Vec<u32> = (0..14).map(|unit| lines.at(unit)).collect();
        assert_eq!(all, [10, 10, 12, 9, 9, 9, 9, 9, 9, 9, 9, 0, 109, 0]);
        // What is behind a cut is not there.
        assert_eq!(Lines::read(&table[..4], 10).at(2), 0);
        assert_eq!(Lines::read(&table[..4], 10).at(1), 10);
    }

    #[test]
    fn a_table_of_this_python_s_own_is_read() {
        // def f(a):
        //     b = a
        //
        //     return g(
        //         b)
        // in line 7: RESUME; LOAD_FAST, STORE_FAST; LOAD_GLOBAL + 5 caches + LOAD_FAST ...
        let table = [0x80, 0x00, 0xd8, 0x08, 0x09, 0x80, 0x41];
        let lines = Lines::read(&table, 7);
        assert_eq!((lines.at(0), lines.at(1), lines.at(2)), (7, 8, 8));
    }

    #[test]
    fn tables_of_older_pythons_are_read() {
        // 4 bytes of line 5; 6 of line 7; of line 6 all that follows.
        let steps = Lines::of_steps(&[4, 2, 6, 0xff], 5);
        let all: Vec<u32> = (0..7).map(|unit| steps.at(unit)).collect();
        assert_eq!(all, [5, 5, 7, 7, 7, 6, 6]);
        // A step of more than 255 bytes, and one of more than 127 lines.
        let far = Lines::of_steps(&[255, 0, 45, 127, 0, 3], 1);
        assert_eq!((far.at(149), far.at(150)), (1, 131));
        // 4 bytes of line 5, 2 of none, 6 of line 4; nothing of line 10.
        let ranges = Lines::of_ranges(&[4, 0, 2, 0x80, 6, 0xff, 0, 6], 5);
        let all: Vec<u32> = (0..7).map(|unit| ranges.at(unit)).collect();
        assert_eq!(all, [5, 5, 0, 4, 4, 4, 0]);
        assert_eq!(Lines::of_ranges(&[], 5).at(0), 0);
    }

    proptest! {
        #[test]
        fn any_table_of_older_pythons_is_read(table in prop::collection::vec(any::<u8>(), 0..300), first in any::<u32>(), unit in any::<u32>()) {
            let _ = Lines::of_steps(&table, first).at(unit);
            let _ = Lines::of_ranges(&table, first).at(unit);
        }

        #[test]
        fn any_table_is_read(table in prop::collection::vec(any::<u8>(), 0..300), first in any::<u32>(), unit in any::<u32>()) {
            let lines = Lines::read(&table, first);
            prop_assert!(lines.runs.len() <= table.len());
            prop_assert!(lines.units as usize <= table.len() * 8);
            let _ = lines.at(unit);
        }
    }
}
