//! Optional parts of samples and calls, behind their other fields: a kind, a length in bytes, and what it says.
//!
//! That is where a field goes that few events have, or that came late: a reader that does not know the kind passes
//! over it. Kinds with an even number refer to nothing: no definition, no time. Whoever does not know one of these
//! keeps it as it came ([`Sections`]), so that a copy of a capture has it as well; the others are left out of a copy,
//! because nobody could say what their ids are there.

use profiler_model::Sections;

use super::item::{self, Bad, Fields};

/// Most bytes that are kept of one event, so that an item always fits a block.
const MAX_KEPT: usize = 1 << 20;

/// What was found behind an event's fields.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What this version does not know and a copy may have.
    pub(super) kept: Option<Box<Sections>>,
    /// Whether there is anything that this version does not know.
    pub(super) unknown: bool,
}

/// Reads the sections of an event: all that is left of its fields. `each` takes the kind and the fields of one, and
/// says whether it knows it.
#[inline]
pub(super) fn read<'a>(
    fields: &mut Fields<'a>,
    each: impl FnMut(u64, Fields<'a>) -> Result<bool, Bad>,
) -> Result<Found, Bad> {
    if fields.0.is_empty() {
        return Ok(Found::default());
    }
    read_some(fields, each)
}

#[cold]
fn read_some<'a>(
    fields: &mut Fields<'a>,
    mut each: impl FnMut(u64, Fields<'a>) -> Result<bool, Bad>,
) -> Result<Found, Bad> {
    let (mut kept, mut unknown) = (Vec::new(), false);
    while !fields.0.is_empty() {
        let before = fields.0;
        let (kind, section) = (fields.get()?, fields.bytes()?);
        if each(kind, Fields(section))? {
            continue;
        }
        unknown = true;
        if kind.is_multiple_of(2) {
            kept.extend_from_slice(&before[..before.len() - fields.0.len()]);
        }
    }
    if kept.len() > MAX_KEPT {
        return Err(Bad("the sections of an event are too long"));
    }
    let kept = (!kept.is_empty()).then(|| Box::new(Sections(kept.into())));
    Ok(Found { kept, unknown })
}

/// Appends a section that says all by being there.
pub(super) fn put_mark(out: &mut Vec<u8>, kind: u64) {
    item::put(out, kind);
    item::put(out, 0);
}

/// Appends a section that holds a number.
pub(super) fn put_number(out: &mut Vec<u8>, kind: u64, number: u64) {
    let mut bytes = Vec::with_capacity(10);
    item::put(&mut bytes, number);
    item::put(out, kind);
    item::put(out, bytes.len() as u64);
    out.extend_from_slice(&bytes);
}

/// Appends the sections that are not known; those that are come before.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, sections: Option<&Sections>) {
    if let Some(Sections(bytes)) = sections {
        out.extend_from_slice(bytes);
    }
}
