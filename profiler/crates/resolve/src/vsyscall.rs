//! The page of code for user space among the kernel's addresses (x86-64), as a file that says what is in it.
//!
//! Nothing -> an ELF file with the names of its three functions, and how their frames are left: nothing is pushed there, the
//! caller's address is on top of the stack. Most kernels have no code in the page, but do what was asked for when it is entered, so
//! that a sample of it is one in the kernel, with this page as its place in user space. Source: the kernel's
//! `vsyscall_emu_64.S`; addresses are bytes behind the page's start, above [`ADDRESS`].
//!
//! What does not belong here: who has it mapped (`modules`).

/// Where the page is in all processes.
pub(super) const START: u64 = 0xffff_ffff_ff60_0000;
/// Its length.
pub(super) const LEN: u64 = 0x1000;
/// Its addresses.
pub(super) const RANGE: std::ops::Range<u64> = START..START + LEN;
/// What it is called in lists of mappings.
pub(super) const NAME: &str = "[vsyscall]";
/// Where it is in the file, and the file's own address of it.
pub(super) const ADDRESS: u64 = 0x1000;

/// Names, and where functions begin.
const FUNCTIONS: [(&str, u64); 3] = [("gettimeofday", 0), ("time", 0x400), ("getcpu", 0x800)];

/// The caller's address is at the top of the stack: version 1, no augmentation, factors 1 and -8, rip; the frame is at rsp + 8, and
/// rip is kept 8 below.
const COMMON: [u8; 14] = [0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x80 | 16, 1];

/// The bytes of the file.
pub(super) fn file() -> Vec<u8> {
    let ends = FUNCTIONS.iter().skip(1).map(|&(_, start)| start);
    let functions = FUNCTIONS.iter().zip(ends.chain([LEN]));

    let mut frames = Vec::new();
    frames.extend(20_u32.to_le_bytes());
    frames.extend(COMMON);
    frames.resize(24, 0);
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    for (&(name, start), end) in functions {
        let (address, len) = (ADDRESS + start, end - start);
        frames.extend(20_u32.to_le_bytes());
        // Distance of the common part.
        frames.extend((frames.len() as u32).to_le_bytes());
        frames.extend(address.to_le_bytes());
        frames.extend(len.to_le_bytes());
        symbols.extend((names.len() as u32).to_le_bytes());
        // A global function in the first section.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(address.to_le_bytes());
        symbols.extend(len.to_le_bytes());
        names.extend(name.bytes());
        names.push(0);
    }
    frames.extend([0; 4]);

    let mut bytes = vec![0; (ADDRESS + LEN) as usize];
    let mut section_names = vec![0];
    let mut headers = vec![0; 64];
    let mut section =
        |name: &str, kind: u32, flags: u64, content: Option<&[u8]>, link: u32, entry: u64| {
            let (at, len) = match content {
                None => (ADDRESS, LEN),
                Some(content) => {
                    bytes.resize(bytes.len().next_multiple_of(8), 0);
                    let at = bytes.len() as u64;
                    bytes.extend(content);
                    (at, content.len() as u64)
                }
            };
            headers.extend((section_names.len() as u32).to_le_bytes());
            headers.extend(kind.to_le_bytes());
            // Where it is in the file is its address.
            for word in [flags, at, at, len] {
                headers.extend(word.to_le_bytes());
            }
            headers.extend(link.to_le_bytes());
            // The first symbol that is not local.
            headers.extend(u32::from(link != 0).to_le_bytes());
            headers.extend(8_u64.to_le_bytes());
            headers.extend(entry.to_le_bytes());
            section_names.extend(name.bytes());
            section_names.push(0);
        };
    const PROGBITS: u32 = 1;
    const SYMTAB: u32 = 2;
    const STRTAB: u32 = 3;
    section(".text", PROGBITS, 6, None, 0, 0);
    section(".eh_frame", PROGBITS, 2, Some(&frames), 0, 0);
    section(".symtab", SYMTAB, 0, Some(&symbols), 4, 24);
    section(".strtab", STRTAB, 0, Some(&names), 0, 0);
    let listed = b"\0.text\0.eh_frame\0.symtab\0.strtab\0.shstrtab\0";
    section(".shstrtab", STRTAB, 0, Some(listed), 0, 0);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let sections_at = bytes.len() as u64;
    bytes.extend(headers);

    let mut head = Vec::new();
    head.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // A shared object of this machine, version 1, without an entry; program headers behind this one.
    head.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0, 64, sections_at] {
        head.extend(word.to_le_bytes());
    }
    head.extend([0; 4]);
    for half in [64_u16, 56, 1, 64, 6, 5] {
        head.extend(half.to_le_bytes());
    }
    // It is loaded, to be read and executed.
    head.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [ADDRESS, ADDRESS, ADDRESS, LEN, LEN, 0x1000] {
        head.extend(word.to_le_bytes());
    }
    bytes[..head.len()].copy_from_slice(&head);
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use profiler_common::unwind::{CFA_REGISTER, FP_SAME, REGISTER_SP};

    use super::*;

    #[test]
    fn it_says_how_its_frames_are_left() {
        let memory = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC);
        let mut memory = std::fs::File::from(memory.unwrap());
        memory.write_all(&file()).unwrap();
        let (table, _) = profiler_unwind::build_file(&memory, None).unwrap();
        let [rule] = &table.rules[..] else {
            panic!("{:?}", table.rules);
        };
        let found = (rule.cfa, rule.register, rule.cfa_offset, rule.ra_offset);
        assert_eq!(found, (CFA_REGISTER, REGISTER_SP, 8, -1));
        assert_eq!(rule.fp, FP_SAME);
    }
}
