//! Functions of our own that begin with each kind of instruction, to try and to measure probes on.
//!
//! They do nothing and touch nothing but registers that a call may change, in assembly, because a
//! compiler promises nothing of first instructions. How their callers are found is said as a compiler would: samples
//! fall on them as well. Offsets are those in the file of this program.

#![allow(unsafe_code)]

use std::{fs, io};

use profiler_trace::cost::KINDS;

/// A function to probe.
#[derive(Clone, Copy)]
pub(super) struct Specimen(extern "C" fn());

macro_rules! functions {
    ($($name:ident $code:literal)*) => {$(
        #[unsafe(naked)]
        extern "C" fn $name() {
            core::arch::naked_asm!(".cfi_startproc", $code, ".cfi_endproc")
        }
    )*};
}

functions! {
    nop5 ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00; ret"
    nop "nop; ret"
    push "push rbp; .cfi_adjust_cfa_offset 8; pop rbp; .cfi_adjust_cfa_offset -8; ret"
    jump "jmp 2f; .byte 0xcc; 2: ret"
    conditional_jump "jz 2f; nop; 2: ret"
    call "call 2f; ret; .byte 0xcc; .cfi_adjust_cfa_offset 8; 2: ret"
    stepped "mov rax, rdi; ret"
    returning "push rbp; .cfi_adjust_cfa_offset 8; nop; pop rbp; .cfi_adjust_cfa_offset -8; ret"
}

/// One for each of [`KINDS`].
pub(super) const SPECIMENS: [Specimen; KINDS.len()] = [
    Specimen(nop5),
    Specimen(nop),
    Specimen(push),
    Specimen(jump),
    Specimen(conditional_jump),
    Specimen(call),
    Specimen(stepped),
];

/// What [`in_red_zone`] keeps below the stack pointer.
const KEPT: u64 = 0x5a5a_5a5a;
/// Where its no-operation of 5 bytes begins.
const NOP5_WITHIN: u64 = 9;

/// Keeps a number below the stack pointer over a no-operation of 5 bytes, and returns what has become
/// of it.
#[unsafe(naked)]
extern "C" fn in_red_zone() -> u64 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // mov qword ptr [rsp - 8], KEPT
        ".byte 0x48, 0xc7, 0x44, 0x24, 0xf8, 0x5a, 0x5a, 0x5a, 0x5a",
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
        "mov rax, [rsp - 8]",
        "ret",
        ".cfi_endproc",
    )
}

/// Where the file of this program has a no-operation of 5 bytes over which [`red_zone_lives`] keeps
/// something.
pub(super) fn red_zone_offset() -> io::Result<u64> {
    Ok(offset_of(in_red_zone as *const () as usize as u64)? + NOP5_WITHIN)
}

/// Whether what is kept below the stack pointer there is still there afterwards. The kernel changes
/// the code when it is run first.
pub(super) fn red_zone_lives() -> bool {
    (0..16).all(|_| in_red_zone() == KEPT)
}

/// The cheapest to probe.
pub(super) const NOP5: Specimen = SPECIMENS[0];

/// For probes at its entry and on its return; its entry is a `push`.
pub(super) const RETURNING: Specimen = Specimen(returning);

impl Specimen {
    /// Calls it so many times.
    pub(super) fn call(&self, times: u32) {
        for _ in 0..times {
            (self.0)();
        }
    }

    /// Where it lies in the file of this program.
    pub(super) fn offset(&self) -> io::Result<u64> {
        offset_of(self.0 as usize as u64)
    }
}

/// Where a function of this program lies in its file.
fn offset_of(address: u64) -> io::Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let found = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(fields.nth(1)?)?;
        (start..end)
            .contains(&address)
            .then(|| address - start + offset)
    });
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
