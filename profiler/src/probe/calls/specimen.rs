//! Functions of our own that begin with known instructions, to try and to measure probes on.
//!
//! They do nothing and touch nothing but registers that a call may change, in assembly, because a
//! compiler promises nothing of first instructions. Offsets are those in the
//! file of this program.

#![allow(unsafe_code)]

use std::{fs, io};

/// A function to probe.
#[derive(Clone, Copy)]
pub(super) struct Specimen {
    function: extern "C" fn(),
}

#[unsafe(naked)]
extern "C" fn nop5() {
    core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00; ret")
}

/// The cheapest to probe.
pub(super) const NOP5: Specimen = Specimen { function: nop5 };

impl Specimen {
    /// Calls it so many times.
    pub(super) fn call(&self, times: u32) {
        for _ in 0..times {
            (self.function)();
        }
    }

    /// Where it lies in the file of this program.
    pub(super) fn offset(&self) -> io::Result<u64> {
        let address = self.function as usize as u64;
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
}
