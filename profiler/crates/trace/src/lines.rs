//! Lines of source of functions and their exits, from the line number programs of an object.
//!
//! Planned places of an object -> the line of each, 0 where nothing says it. Only `.debug_line` is
//! read, in one pass and without keeping its rows: programs say of themselves which addresses they
//! are about. What is a target's own is bounded in size and time. Source: DWARF 5, chapter 6.2.
//!
//! Of several rows for one address the last counts, as it does for `addr2line`; the line of a return
//! instruction is often that of the closing brace. Where the compiler has inlined the code around an
//! exit, the line is one of the inlined function.
//!
//! What does not belong here: names of files, inlined functions (the symbolizer's).

use std::time::{Duration, Instant};

use gimli::{DebugLine, DebugLineOffset, EndianSlice, LineRow, LittleEndian};

use super::{Exits, Plan, Site};
use profiler_object::Object;

/// Most bytes of the section, when unpacked.
const MAX_BYTES: u64 = 256 << 20;
/// How long reading one object's lines may take. What is not optimised takes longer.
const DEADLINE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 2 });
/// Rows between two looks at the clock.
const ROWS_PER_LOOK: u32 = 1 << 14;
/// Bytes of an address, for programs that don't say it (before DWARF 5).
const ADDRESS_BYTES: u8 = 8;

/// Finds the lines of functions and of their exits.
pub fn of_plans<'p>(object: &Object, plans: impl IntoIterator<Item = &'p mut Plan>) {
    let mut places = Vec::new();
    for plan in plans {
        places.push((plan.function.address, &mut plan.line));
        places.extend(of_sites(object, &mut plan.exits));
    }
    find(object, places);
}

/// Finds the lines of exits.
pub fn of_exits<'p>(object: &Object, exits: impl IntoIterator<Item = &'p mut Exits>) {
    let exits = exits.into_iter();
    find(
        object,
        exits.flat_map(|exits| of_sites(object, exits)).collect(),
    );
}

fn of_sites<'o, 'p>(
    object: &'o Object,
    exits: &'p mut Exits,
) -> impl Iterator<Item = (u64, &'p mut u32)> + use<'o, 'p> {
    let sites: &mut [Site] = match exits {
        Exits::Instructions(sites) => sites,
        Exits::None(_) | Exits::Uretprobe => &mut [],
    };
    sites
        .iter_mut()
        .filter_map(|site| Some((object.address_of(site.offset)?, &mut site.line)))
}

/// Finds the line of each address.
fn find(object: &Object, mut places: Vec<(u64, &mut u32)>) {
    if places.is_empty() {
        return;
    }
    let Some(section) = object.section_within(".debug_line", MAX_BYTES) else {
        return;
    };
    places.sort_unstable_by_key(|&(address, _)| address);
    let mut search = Search {
        left: places.len(),
        found: vec![false; places.len()],
        places,
        began: Instant::now(),
        rows: 0,
    };
    if !search.read(object, &section) {
        let path = object.path();
        log::warn!("{path}: its line numbers take too long to read; not all lines are known");
    }
}

struct Search<'p> {
    /// By address.
    places: Vec<(u64, &'p mut u32)>,
    found: Vec<bool>,
    left: usize,
    began: Instant,
    rows: u32,
}

impl Search<'_> {
    /// Runs all programs; false if there was no time to.
    fn read(&mut self, object: &Object, section: &[u8]) -> bool {
        let lines = DebugLine::new(section, LittleEndian);
        let mut offset = 0;
        while let Some(next) = end_of_program(section, offset) {
            if self.left == 0 {
                return true;
            }
            if self.began.elapsed() > DEADLINE {
                return false;
            }
            let program = lines.program(DebugLineOffset(offset), ADDRESS_BYTES, None, None);
            match program.map(|program| self.run(object, program)) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => log::debug!("{}: line numbers: {error}", object.path()),
            }
            offset = next;
        }
        true
    }

    /// Runs a program up to its first damage; false if there was no time to.
    fn run(
        &mut self,
        object: &Object,
        program: gimli::IncompleteLineProgram<EndianSlice<'_, LittleEndian>>,
    ) -> bool {
        let mut rows = program.rows();
        let mut before: Option<(u64, u32)> = None;
        // Code that the linker left out has rows that begin at 0 or at some other place without code.
        let mut is_code = false;
        while let Ok(Some((_, row))) = rows.next_row() {
            self.rows = self.rows.wrapping_add(1);
            if self.rows.is_multiple_of(ROWS_PER_LOOK) && self.began.elapsed() > DEADLINE {
                return false;
            }
            match before {
                None => is_code = row.address() != 0 && object.is_executable(row.address()),
                Some((start, line)) if is_code => self.put(start, row.address(), line),
                Some(_) => {}
            }
            before = (!row.end_sequence()).then(|| (row.address(), line_of(row)));
        }
        true
    }

    /// What lies from `start` to before `end` is of this line.
    fn put(&mut self, start: u64, end: u64, line: u32) {
        if start >= end {
            return;
        }
        let first = self.places.partition_point(|&(address, _)| address < start);
        for (place, found) in self.places[first..]
            .iter_mut()
            .zip(&mut self.found[first..])
        {
            if place.0 >= end {
                break;
            }
            // Of programs that tell of the same code, the first one counts.
            if !std::mem::replace(found, true) {
                *place.1 = line;
                self.left -= 1;
            }
        }
    }
}

fn line_of(row: &LineRow) -> u32 {
    row.line()
        .and_then(|line| u32::try_from(line.get()).ok())
        .unwrap_or(0)
}

/// Where the program that starts at `offset` ends; none if it is not whole.
fn end_of_program(section: &[u8], offset: usize) -> Option<usize> {
    let rest = section.get(offset..)?;
    let (head, rest) = rest.split_first_chunk()?;
    let (head_len, len) = match u32::from_le_bytes(*head) {
        u32::MAX => (12, u64::from_le_bytes(*rest.first_chunk()?)),
        len => (4, u64::from(len)),
    };
    let end = offset
        .checked_add(head_len)?
        .checked_add(usize::try_from(len).ok()?)?;
    (end <= section.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_lengths() {
        let mut section = vec![6, 0, 0, 0, 1, 2, 3, 4, 5, 6];
        section.extend([0xff; 4]);
        section.extend(2_u64.to_le_bytes());
        section.extend([1, 2]);
        section.extend([0; 4]);
        section.extend([1, 0, 0, 0]);
        let ends: Vec<usize> =
            std::iter::successors(Some(0), |&at| end_of_program(&section, at)).collect();
        // The last one is cut off.
        assert_eq!(ends, [0, 10, 24, 28]);
        let huge = [[0xff; 4], [0xff; 4], [0xff; 4]].concat();
        assert_eq!(end_of_program(&huge, 0), None);
        assert_eq!(end_of_program(&huge, 100), None);
    }
}
