//! How far each piece of code reaches, as the unwinding tables say.
//!
//! `.eh_frame` -> address and length of every function, also of those without a symbol, and of every
//! part that a compiler moved away from its function. Source: Linux Standard Base Core 5, 10.6.
//!
//! What does not belong here: unwinding.

use super::Part;
use crate::cfi::{Kind, Section};

/// Most bytes of tables that are read.
const MAX_BYTES: u64 = 256 << 20;

/// Reads the extents, by address. An entry that can't be read costs itself.
pub(super) fn read(main: &Part) -> Vec<(u64, u64)> {
    const NAME: &str = ".eh_frame";
    let Some(section) = main.section(NAME) else {
        return Vec::new();
    };
    let Some(bytes) = main.contents(NAME, MAX_BYTES) else {
        return Vec::new();
    };
    let address = |name| main.section(name).map_or(0, |section| section.address);
    let section = Section {
        kind: Kind::Eh,
        bytes: &bytes,
        address: section.address,
        text: address(".text"),
        got: address(".got"),
    };
    let entries = section.entries().fdes;
    let mut extents: Vec<(u64, u64)> = entries
        .iter()
        .map(|entry| (entry.start, entry.end - entry.start))
        .collect();
    extents.sort_unstable();
    extents.dedup_by_key(|&mut (start, _)| start);
    extents
}

/// The extent that an address lies in.
pub(crate) fn find(extents: &[(u64, u64)], address: u64) -> Option<(u64, u64)> {
    let after = extents.partition_point(|&(start, _)| start <= address);
    let &(start, len) = extents[..after].last()?;
    (address - start < len).then_some((start, len))
}
