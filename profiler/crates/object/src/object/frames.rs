//! How far each piece of code reaches, as the unwinding tables say.
//!
//! `.eh_frame` -> address and length of every function, also of those without a symbol, and of every
//! part that a compiler moved away from its function. Source: Linux Standard Base Core 5, 10.6.
//!
//! What does not belong here: unwinding.

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use super::Object;

/// Most bytes of tables that are read.
const MAX_BYTES: u64 = 256 << 20;
/// Most entries that are read.
const MAX_ENTRIES: usize = 1 << 21;

/// Reads the extents, by address. An entry that can't be read ends them.
pub(super) fn read(object: &Object) -> Vec<(u64, u64)> {
    const NAME: &str = ".eh_frame";
    let main = &object.main;
    let Some(section) = main.section(NAME) else {
        return Vec::new();
    };
    let Some(bytes) = main.contents(NAME, MAX_BYTES) else {
        return Vec::new();
    };
    let address = |name| {
        object
            .main
            .section(name)
            .map_or(0, |section| section.address)
    };
    let bases = BaseAddresses::default()
        .set_eh_frame(section.address)
        .set_text(address(".text"))
        .set_got(address(".got"));
    let frames = EhFrame::new(&bytes, LittleEndian);
    let mut entries = frames.entries(&bases);
    let mut extents = Vec::new();
    while extents.len() < MAX_ENTRIES
        && let Ok(Some(entry)) = entries.next()
    {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        match partial.parse(EhFrame::cie_from_offset) {
            Ok(fde) if fde.len() > 0 => extents.push((fde.initial_address(), fde.len())),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    extents.sort_unstable();
    extents.dedup_by_key(|&mut (start, _)| start);
    extents
}
