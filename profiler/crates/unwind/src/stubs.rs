//! How to find the callers of stubs that lead to other files (`.plt`), where the file does not say it.
//!
//! An open ELF file and its sections -> where stubs are and which kind of them ([`Stubs`]) -> ranges of addresses and their
//! rules. Addresses are ELF virtual addresses. GNU's linker describes its stubs in `.eh_frame`, LLVM's does not, nor do
//! others: and whatever a program calls in a library goes through them. The stack pointer is where it was called, and 8 or
//! 16 bytes below that on the way to the dynamic loader. That is not assumed but seen in the first stub of a section:
//! all of one section are alike. Source: the System V ABI for x86-64, chapter 5.2; the stubs of lld 14 and mold 1.10.
//!
//! What does not belong here: what stubs are called (`object`), and what files say of them (`build`).

use std::fs::File;

use profiler_common::unwind::{CFA_PLT, CFA_REGISTER, FP_SAME, REGISTER_SP, Rule};
use profiler_object::elf::{Elf, Section, read_up_to};

/// Bytes of a stub, and of what comes before the first one in `.plt`.
const STUB: u64 = 16;
/// Most ranges of one file: four sections, of which one has three.
pub(super) const MAX_STUBS: usize = 8;
const NAMES: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// `push OFFSET(%rip)`, `jmp *OFFSET(%rip)` and `push $NUMBER`, without what they have of their own.
const PUSH_MEMORY: &[u8] = &[0xff, 0x35];
const JMP_MEMORY: &[u8] = &[0xff, 0x25];
const MEMORY_BYTES: usize = 6;
const PUSH_NUMBER: u8 = 0x68;
const PUSH_BYTES: usize = 5;
/// `jmp` and its target.
const JMP: u8 = 0xe9;
/// What indirect jumps may have before them.
const BND: u8 = 0xf2;

/// Stubs from one address to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stubs {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Bytes of the stack below the return address.
    pub(super) taken: u64,
    /// From this byte of a stub on there are 8 more; behind its end: from none.
    pub(super) late: u64,
}

/// Those of a file of 64 bits, in the order of addresses.
pub(super) fn stubs(file: &File, elf: &Elf, sections: &[Section]) -> Vec<Stubs> {
    let mut found = Vec::new();
    for name in NAMES {
        let Some(section) = sections.iter().find(|section| section.name == name) else {
            continue;
        };
        let mut bytes = [0; 2 * STUB as usize];
        let Some(offset) = elf.offset_of(section.address) else {
            continue;
        };
        let got = read_up_to(file, &mut bytes, offset).unwrap_or(0);
        let len = section.bytes_in_file();
        let code = &bytes[..got.min(usize::try_from(len).unwrap_or(usize::MAX))];
        found.extend(stubs_of(section.address, len, code));
    }
    found.sort_unstable_by_key(|stubs| stubs.start);
    found.truncate(MAX_STUBS);
    found
}

/// Those of a section of so many bytes, by its first two stubs.
fn stubs_of(address: u64, len: u64, code: &[u8]) -> Vec<Stubs> {
    let end = address.saturating_add(len);
    if !address.is_multiple_of(STUB) {
        return Vec::new();
    }
    let stub = |start: u64, code: &[u8]| {
        let late = late_of(code)?;
        (start < end).then_some(Stubs {
            start,
            end,
            taken: 0,
            late,
        })
    };
    let Some(behind) = code.strip_prefix(PUSH_MEMORY) else {
        return stub(address, code).into_iter().collect();
    };
    // On the way to the dynamic loader: the number of the stub is on the stack, and then what file it is.
    let is_known = behind
        .get(4..)
        .is_some_and(|jump| after_bnd(jump).starts_with(JMP_MEMORY));
    let first = address.saturating_add(STUB);
    if !is_known || first > end {
        return Vec::new();
    }
    let head = Stubs {
        start: address,
        end: first,
        taken: 8,
        late: MEMORY_BYTES as u64,
    };
    let stubs = code.get(STUB as usize..).and_then(|code| stub(first, code));
    [head].into_iter().chain(stubs).collect()
}

/// From which of its bytes on a stub has pushed its number; behind its end if it does not. None: it is not known.
fn late_of(code: &[u8]) -> Option<u64> {
    let rest = code.strip_prefix(ENDBR64).unwrap_or(code);
    let at = |rest: &[u8]| code.len() - rest.len();
    let (pushes, jumps) = match after_bnd(rest).strip_prefix(JMP_MEMORY) {
        Some(behind) => {
            let behind = behind.get(4..)?;
            match behind.first() {
                // What follows the jump is where it leads at first.
                Some(&PUSH_NUMBER) => (behind, true),
                _ => return Some(STUB),
            }
        }
        None => (rest, rest.first() == Some(&PUSH_NUMBER)),
    };
    let behind = pushes.get(PUSH_BYTES..).filter(|_| jumps)?;
    let leads_on = after_bnd(behind).first() == Some(&JMP);
    (leads_on && at(behind) < STUB as usize).then_some(at(behind) as u64)
}

fn after_bnd(code: &[u8]) -> &[u8] {
    code.strip_prefix(&[BND]).unwrap_or(code)
}

/// Addresses, ends and rules.
pub(super) fn rules(stubs: &[Stubs]) -> impl Iterator<Item = (u64, u64, Rule)> + '_ {
    stubs.iter().map(|stubs| {
        let never = stubs.late >= STUB;
        let rule = Rule {
            cfa: if never { CFA_REGISTER } else { CFA_PLT },
            register: REGISTER_SP,
            cfa_offset: stubs.taken.min(STUB) as i32 + 8,
            cfa_addend: if never { 0 } else { stubs.late as i32 },
            fp: FP_SAME,
            ra_offset: -1,
            ..Rule::default()
        };
        (stubs.start, stubs.end, rule)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; 16] = [
        0xff, 0x35, 1, 2, 3, 4, 0xff, 0x25, 1, 2, 3, 4, 0x0f, 0x1f, 0x40, 0,
    ];
    const LAZY: [u8; 16] = [0xff, 0x25, 1, 2, 3, 4, 0x68, 0, 0, 0, 0, 0xe9, 1, 2, 3, 4];

    fn stubs(start: u64, end: u64, taken: u64, late: u64) -> Stubs {
        Stubs {
            start,
            end,
            taken,
            late,
        }
    }

    #[test]
    fn stubs_are_known_by_what_they_do() {
        let section = [HEAD, LAZY].concat();
        let expected = [stubs(0x1000, 0x1010, 8, 6), stubs(0x1010, 0x1100, 0, 11)];
        assert_eq!(stubs_of(0x1000, 0x100, &section), expected);
        // Only what is known is told.
        assert_eq!(
            stubs_of(0x1000, 0x100, &[HEAD, [0x90; 16]].concat()),
            expected[..1]
        );
        assert_eq!(stubs_of(0x1008, 0x100, &section), []);
        assert_eq!(stubs_of(0x1000, 8, &section[..8]), []);
        assert_eq!(stubs_of(0x1000, 0, &[]), []);

        // .iplt has no head; those that are bound at the start push nothing.
        assert_eq!(
            stubs_of(0x1000, 0x20, &LAZY),
            [stubs(0x1000, 0x1020, 0, 11)]
        );
        let bound = [0xff, 0x25, 1, 2, 3, 4, 0xcc, 0xcc];
        assert_eq!(stubs_of(0x1000, 8, &bound), [stubs(0x1000, 0x1008, 0, 16)]);
        let marked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 1, 2, 3, 4, 0x66, 0x0f, 0x1f, 0x44, 0, 0,
        ];
        assert_eq!(
            stubs_of(0x1000, 0x20, &marked),
            [stubs(0x1000, 0x1020, 0, 16)]
        );
        let marked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 1, 2, 3, 4, 0x0f, 0x1f, 0x44, 0, 0,
        ];
        assert_eq!(
            stubs_of(0x1000, 0x20, &marked),
            [stubs(0x1000, 0x1020, 0, 16)]
        );
        let pushes = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9, 1, 2, 3, 4, 0x66, 0x90,
        ];
        assert_eq!(
            stubs_of(0x1000, 0x20, &pushes),
            [stubs(0x1000, 0x1020, 0, 9)]
        );
        let pushes = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xf2, 0xe9, 1, 2, 3, 4, 0x90,
        ];
        assert_eq!(
            stubs_of(0x1000, 0x20, &pushes),
            [stubs(0x1000, 0x1020, 0, 9)]
        );
        // Any other code: of retpolines, for instance.
        for other in [
            &[0x4c, 0x8b, 0x1d, 1, 2, 3, 4, 0xe8][..],
            &[0x68, 0, 0, 0, 0, 0xe8],
            &[],
        ] {
            assert_eq!(stubs_of(0x1000, 0x20, other), []);
        }
    }

    #[test]
    fn rules_lead_to_the_caller() {
        let both = [stubs(0x10, 0x20, 8, 6), stubs(0x20, 0x80, 0, 16)];
        let rules: Vec<_> = rules(&both).collect();
        let (start, end, rule) = rules[0];
        assert_eq!((start, end), (0x10, 0x20));
        assert_eq!(
            (rule.cfa, rule.cfa_offset, rule.cfa_addend),
            (CFA_PLT, 16, 6)
        );
        let (_, _, rule) = rules[1];
        assert_eq!(
            (rule.cfa, rule.cfa_offset, rule.ra_offset),
            (CFA_REGISTER, 8, -1)
        );
    }
}
