//! A contiguous piece of code, decoded from its first byte to its last.
//!
//! Bytes and their address -> instructions, found by address. Where the bytes are no instructions the
//! decoding goes on with the next byte, so that every instruction that a compiler put there is found
//! again soon.
//!
//! What does not belong here: which of them can be reached.

use iced_x86::{Decoder, DecoderOptions, Instruction};

/// A piece of code.
pub(super) struct Part<'a> {
    pub(super) start: u64,
    pub(super) bytes: &'a [u8],
    instructions: Vec<Instruction>,
    /// For each byte the number of the instruction that begins there, plus one.
    begins: Vec<u32>,
}

impl<'a> Part<'a> {
    pub(super) fn decode(start: u64, bytes: &'a [u8]) -> Part<'a> {
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let mut part = Part {
            start,
            bytes,
            instructions: Vec::new(),
            begins: vec![0; bytes.len()],
        };
        while decoder.can_decode() {
            let at = decoder.position();
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                if decoder.set_position(at + 1).is_err() {
                    break;
                }
                decoder.set_ip(start.wrapping_add(at as u64 + 1));
                continue;
            }
            part.instructions.push(instruction);
            part.begins[at] = part.instructions.len() as u32;
        }
        part
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.end()
    }

    /// The instruction at an address within, also if the decoding from the start went over it.
    pub(super) fn instruction(&self, address: u64) -> Option<Instruction> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        match *self.begins.get(at)? {
            0 => {
                let bytes = &self.bytes[at..];
                let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
                Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
            }
            number => self.instructions.get(number as usize - 1).copied(),
        }
    }

    /// Whether an instruction begins there when the part is read from its start.
    pub(super) fn begins_at(&self, address: u64) -> bool {
        let at = address
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.begins.get(at))
            .is_some_and(|&number| number != 0)
    }

    /// The instructions in the order of their addresses.
    pub(super) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    pub(super) fn bytes_of(&self, instruction: &Instruction) -> &'a [u8] {
        let at = (instruction.ip() - self.start) as usize;
        self.bytes
            .get(at..at + instruction.len())
            .unwrap_or_default()
    }
}
