//! The entries of `.eh_frame` and `.debug_frame`: which code they are for and where its program is.
//!
//! A section's bytes and the addresses that its pointers are relative to -> [`Cie`]s (what many
//! functions have in common) and [`Fde`]s (a function each). Addresses are ELF virtual addresses.
//! Sources: Linux Standard Base Core 5, 10.6 (`.eh_frame`); the DWARF standard, 6.4.1
//! (`.debug_frame`). What the programs do does not belong here.
//!
//! An entry that can't be read costs itself, not those behind it. `.eh_frame_hdr` is not used: it is
//! one more thing that may be wrong, and reading all entries is no slower.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::cursor::Cursor;

/// Most functions of a section.
const MAX_FDES: usize = 4 << 20;
/// Most CIEs of a section. Linkers leave a few dozen.
const MAX_CIES: usize = 1 << 18;

/// Which of the two, which differ slightly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `.eh_frame`.
    Eh,
    /// `.debug_frame`.
    Debug,
}

/// A section.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Which of the two sections it is.
    pub kind: Kind,
    /// Its contents.
    pub bytes: &'a [u8],
    /// Its own address, and those of `.text` and `.got`, for pointers that are relative to them.
    pub address: u64,
    /// Address of the code that pointers may be relative to.
    pub text: u64,
    /// Address of the table that pointers may be relative to.
    pub got: u64,
}

/// What functions have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cie {
    /// What advances of the location are multiplied by.
    pub code_factor: u64,
    /// What offsets from the frame are multiplied by.
    pub data_factor: i64,
    /// Number of the register, or of the column, that is the return address.
    pub return_register: u64,
    /// Encoding of pointers to code.
    pub encoding: u8,
    augmented: bool,
    /// The program that comes before each function's own: a range of the section.
    pub program: Range<usize>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fde {
    /// First address of the code it speaks of.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Index into [`Entries::cies`].
    pub cie: u32,
    /// Its program: a range of the section.
    pub program: Range<usize>,
}

/// All that a section has.
#[derive(Debug, Default)]
pub struct Entries {
    /// What entries share.
    pub cies: Vec<Cie>,
    /// One entry for each piece of code.
    pub fdes: Vec<Fde>,
    /// Functions that could not be read.
    pub unreadable: u64,
    /// There were too many, or one that hides where the next one is.
    pub cut: bool,
}

const PE_OMIT: u8 = 0xff;
const PE_INDIRECT: u8 = 0x80;

impl Section<'_> {
    /// Reads all entries.
    pub fn entries(&self) -> Entries {
        let mut entries = Entries::default();
        // By offset. Only what is an entry of its own counts, so that programs don't overlap: each is
        // run once, and the time for all of them is linear.
        let mut known: FxHashMap<usize, u32> = FxHashMap::default();
        entries.cut |= self.each(|at, frame| {
            let Frame::Cie(end) = frame else {
                return true;
            };
            if let Some(cie) = self.cie(at, *end) {
                known.insert(at, entries.cies.len() as u32);
                entries.cies.push(cie);
            }
            entries.cies.len() < MAX_CIES
        });
        let mut last = (usize::MAX, None);
        entries.cut |= self.each(|_, frame| {
            let Frame::Fde { cie, body, .. } = frame else {
                return true;
            };
            if last.0 != *cie {
                last = (*cie, known.get(cie).copied());
            }
            let fde = last.1.and_then(|index| {
                let cie = entries.cies.get(index as usize)?;
                self.fde(cie, index, body.clone())
            });
            match fde {
                Some(fde) if fde.start < fde.end => entries.fdes.push(fde),
                Some(_) => {}
                None => entries.unreadable += 1,
            }
            entries.fdes.len() < MAX_FDES
        });
        entries
    }

    /// Gives `found` all entries with their offsets, until it says no. Whether something may be left.
    fn each(&self, mut found: impl FnMut(usize, &Frame) -> bool) -> bool {
        let mut at = 0;
        while at < self.bytes.len() {
            let frame = self.frame(at);
            let next = match &frame {
                Frame::End => return false,
                Frame::Lost => return true,
                Frame::Skip(next) | Frame::Cie(next) | Frame::Fde { next, .. } => *next,
            };
            if !found(at, &frame) {
                return true;
            }
            at = next;
        }
        false
    }

    /// The entry at an offset.
    fn frame(&self, at: usize) -> Frame {
        let mut cursor = Cursor::new(self.bytes, at);
        let Some((len, wide)) = length(&mut cursor) else {
            return Frame::Lost;
        };
        let body = cursor.place();
        if len == 0 {
            // The end of `.eh_frame`. A linker may put several sections' entries behind each other
            // with their ends between them; what is behind then counts too, as padding does not.
            return if self.kind == Kind::Eh && self.is_empty_from(body) {
                Frame::End
            } else {
                Frame::Skip(body)
            };
        }
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| body.checked_add(len));
        let Some(end) = end.filter(|&end| end <= self.bytes.len()) else {
            return Frame::Lost;
        };
        let pointer_at = cursor.place();
        let id = match (self.kind, wide) {
            (Kind::Debug, true) => cursor.u64(),
            _ => cursor.u32().map(u64::from),
        };
        let Some(id) = id.filter(|_| cursor.place() <= end) else {
            return Frame::Skip(end);
        };
        let cie = match (self.kind, wide) {
            (Kind::Eh, _) if id == 0 => return Frame::Cie(end),
            (Kind::Debug, true) if id == u64::MAX => return Frame::Cie(end),
            (Kind::Debug, false) if id == u64::from(u32::MAX) => return Frame::Cie(end),
            (Kind::Eh, _) => usize::try_from(id)
                .ok()
                .and_then(|back| pointer_at.checked_sub(back)),
            (Kind::Debug, _) => usize::try_from(id).ok(),
        };
        Frame::Fde {
            // Beyond the end there is no CIE.
            cie: cie.unwrap_or(usize::MAX),
            body: cursor.place()..end,
            next: end,
        }
    }

    fn is_empty_from(&self, at: usize) -> bool {
        // Looking further than this would take quadratic time.
        let rest = self.bytes.get(at..).unwrap_or_default();
        rest.iter().take(64).all(|&byte| byte == 0)
    }

    /// The CIE at an offset.
    fn cie(&self, at: usize, end: usize) -> Option<Cie> {
        let bytes = self.bytes.get(..end)?;
        let mut cursor = Cursor::new(bytes, at);
        let (_, wide) = length(&mut cursor)?;
        let id_len = if wide && self.kind == Kind::Debug {
            8
        } else {
            4
        };
        cursor.take(id_len)?;
        let version = cursor.u8()?;
        if !matches!(version, 1 | 3 | 4) {
            return None;
        }
        let augmentation = cursor.text()?;
        if version == 4 && (cursor.u8()?, cursor.u8()?) != (8, 0) {
            return None;
        }
        let code_factor = cursor.uleb()?;
        let data_factor = cursor.sleb()?;
        let return_register = match version {
            1 => u64::from(cursor.u8()?),
            _ => cursor.uleb()?,
        };
        let mut cie = Cie {
            code_factor,
            data_factor,
            return_register,
            encoding: 0,
            augmented: false,
            program: 0..0,
        };
        if let Some((b'z', letters)) = augmentation.split_first() {
            cie.augmented = true;
            let len = usize::try_from(cursor.uleb()?).ok()?;
            let behind = cursor.place().checked_add(len)?;
            for letter in letters {
                match letter {
                    b'R' => cie.encoding = cursor.u8()?,
                    b'L' => drop(cursor.u8()?),
                    b'P' => {
                        let encoding = cursor.u8()?;
                        self.skip_pointer(&mut cursor, encoding)?;
                    }
                    b'S' => {}
                    // What this says is not known, but where it ends.
                    _ => break,
                }
            }
            if cursor.place() > behind || behind > end {
                return None;
            }
            cursor = Cursor::new(bytes, behind);
        } else if !augmentation.is_empty() {
            return None;
        }
        cie.program = cursor.place()..end;
        Some(cie)
    }

    fn fde(&self, cie: &Cie, index: u32, body: Range<usize>) -> Option<Fde> {
        let bytes = self.bytes.get(..body.end)?;
        let mut cursor = Cursor::new(bytes, body.start);
        let start = self.pointer(&mut cursor, cie.encoding)?;
        // A length is a plain number of the same size.
        let len = number(&mut cursor, cie.encoding & 0x07)?;
        if cie.augmented {
            cursor.block()?;
        }
        Some(Fde {
            start,
            end: start.checked_add(len)?,
            cie: index,
            program: cursor.place()..body.end,
        })
    }

    /// A pointer to code.
    pub fn pointer(&self, cursor: &mut Cursor<'_>, encoding: u8) -> Option<u64> {
        let base = match encoding & 0xf0 {
            0 => 0,
            0x10 => self.address.wrapping_add(cursor.place() as u64),
            0x20 => self.text,
            0x30 => self.got,
            _ => return None,
        };
        Some(number(cursor, encoding & 0x0f)?.wrapping_add(base))
    }

    fn skip_pointer(&self, cursor: &mut Cursor<'_>, encoding: u8) -> Option<()> {
        match encoding {
            PE_OMIT => return Some(()),
            // Aligned to 8 bytes in memory, which sections are themselves.
            0x50 => {
                let padding = cursor.place().wrapping_neg() % 8;
                cursor.take(padding)?;
                cursor.u64()?;
            }
            _ => {
                number(cursor, encoding & !PE_INDIRECT & 0x0f)?;
            }
        }
        Some(())
    }
}

enum Frame {
    /// Nothing follows.
    End,
    /// Where the next one is can't be said.
    Lost,
    /// Nothing of use; the next one is there.
    Skip(usize),
    Cie(usize),
    Fde {
        cie: usize,
        body: Range<usize>,
        next: usize,
    },
}

/// The length of an entry, and whether it is of the kind with 64 bits.
fn length(cursor: &mut Cursor<'_>) -> Option<(u64, bool)> {
    match cursor.u32()? {
        0xffff_ffff => Some((cursor.u64()?, true)),
        0xffff_fff0.. => None,
        len => Some((u64::from(len), false)),
    }
}

/// A number in the format of a pointer's encoding; signed ones are extended.
fn number(cursor: &mut Cursor<'_>, format: u8) -> Option<u64> {
    match format {
        0x00 | 0x04 | 0x08 | 0x0c => cursor.u64(),
        0x01 => cursor.uleb(),
        0x02 => cursor.u16().map(u64::from),
        0x03 => cursor.u32().map(u64::from),
        0x09 => cursor.sleb().map(|number| number as u64),
        0x0a => cursor.u16().map(|number| number as i16 as u64),
        0x0b => cursor.u32().map(|number| number as i32 as u64),
        _ => None,
    }
}
