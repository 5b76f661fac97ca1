//! The markers of an object: places that its authors named for tracers (SDT, USDT).
//!
//! The section `.note.stapsdt` -> [`Function`]s of kind marker, named `provider:name`, sorted by
//! address. A marker stands at a no-operation; its arguments are text in systemtap's notation. Some
//! have a counter that must not be zero for the target to prepare the arguments.
//! Source: systemtap's `sys/sdt.h`, version 3 of the notes.
//!
//! What does not belong here: what arguments mean, and raising counters (the kernel does that).

use super::demangle::MAX_NAME_BYTES;
use super::elf::{Elf, Section, u32_at, word};
use super::{Function, FunctionKind, Language};

/// Most markers of an object.
const MAX_MARKERS: usize = 1 << 20;
const NT_STAPSDT: u32 = 3;
const OWNER: &[u8] = b"stapsdt\0";

/// The markers that a section of notes tells of.
pub(super) fn markers(notes: &[u8], elf: &Elf, sections: &[Section]) -> Vec<Function> {
    // Addresses in notes are those at link time; a tool may have moved the object since, and this
    // section with it.
    let base = sections.iter().find(|s| s.name == ".stapsdt.base");
    let base = base.map(|section| section.address);
    let mut found = Vec::new();
    let mut rest = notes;
    while let Some((description, next)) = note(rest) {
        rest = next;
        let marker = description.and_then(|description| marker(description, elf, base));
        found.extend(marker);
        if found.len() == MAX_MARKERS {
            break;
        }
    }
    found.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
    found
}

/// The description of the first note if it is a marker, and what follows the note.
fn note(notes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let name_len = u32_at(notes, 0).ok()? as usize;
    let description_len = u32_at(notes, 4).ok()? as usize;
    let kind = u32_at(notes, 8).ok()?;
    let name = notes.get(12..12usize.checked_add(name_len)?)?;
    let start = name_len.checked_next_multiple_of(4)?.checked_add(12)?;
    let description = notes.get(start..start.checked_add(description_len)?)?;
    let end = start.checked_add(description_len.checked_next_multiple_of(4)?)?;
    let is_marker = kind == NT_STAPSDT && name == OWNER;
    let rest = notes.get(end..).unwrap_or_default();
    Some((is_marker.then_some(description), rest))
}

fn marker(description: &[u8], elf: &Elf, base: Option<u64>) -> Option<Function> {
    let size = if elf.wide { 8 } else { 4 };
    let number = |index| word(description, index * size, elf.wide).ok();
    let moved = base.map_or(0, |base| base.wrapping_sub(number(1).unwrap_or(base)));
    let address = number(0)?.wrapping_add(moved);
    let semaphore = match number(2)? {
        0 => None,
        semaphore => Some(elf.offset_of(semaphore.wrapping_add(moved))?),
    };
    let mut texts = description.get(size * 3..)?.split(|&byte| byte == 0);
    let mut text = || {
        let text = texts.next()?;
        (text.len() <= MAX_NAME_BYTES).then(|| String::from_utf8_lossy(text))
    };
    let (provider, name, arguments) = (text()?, text()?, text()?);
    if provider.is_empty() || name.is_empty() {
        return None;
    }
    Some(Function {
        name: format!("{provider}:{name}").into(),
        linkage_name: None,
        aliases: Vec::new(),
        offset: elf.offset_of(address)?,
        address,
        size: 0,
        source: None,
        line: 0,
        kind: FunctionKind::Marker {
            arguments: arguments.into(),
            semaphore,
        },
        language: Language::C,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Segment;

    fn elf() -> Elf {
        let mut elf = Elf::default();
        let code = Segment {
            offset: 0x1000,
            address: 0x40_1000,
            len: 0x1000,
            executable: true,
        };
        elf.segments = [code].into();
        elf.wide = true;
        elf
    }

    fn bytes(pc: u64, semaphore: u64, texts: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [8, 24 + texts.len() as u32, NT_STAPSDT] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(OWNER);
        for number in [pc, 0x40_1f00, semaphore] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(texts);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn markers_are_told() {
        let mut notes = bytes(0x40_1010, 0x40_1ff0, b"app\0start\0-4@%edi\0");
        notes.extend(bytes(0x40_1008, 0, b"app\0end\0\0"));
        let found = markers(&notes, &elf(), &[]);
        let names: Vec<(&str, u64)> = found.iter().map(|m| (&*m.name, m.offset)).collect();
        assert_eq!(names, [("app:end", 0x1008), ("app:start", 0x1010)]);
        let kind = FunctionKind::Marker {
            arguments: "-4@%edi".into(),
            semaphore: Some(0x1ff0),
        };
        assert_eq!(found[1].kind, kind);
    }

    #[test]
    fn damaged_notes_end_the_list() {
        let whole = bytes(0x40_1010, 0, b"app\0start\0-4@%edi\0");
        for len in 0..whole.len() {
            assert!(markers(&whole[..len], &elf(), &[]).len() <= 1);
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0xff;
            assert!(markers(&flipped, &elf(), &[]).len() <= 1);
        }
        let outside = bytes(0x50_0000, 0, b"app\0start\0\0");
        assert!(markers(&outside, &elf(), &[]).is_empty());
    }
}
