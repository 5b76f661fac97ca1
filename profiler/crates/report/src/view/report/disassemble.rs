//! Machine code in words.
//!
//! Input: pieces of code kept in a recording (untrusted bytes); output: x86-64 instructions in Intel
//! syntax. A piece starts at an instruction. Frame addresses in, frame addresses out; operands that
//! are addresses are shown as the object file's own symbols have them.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use profiler_model::sorting::InOrder;
use profiler_model::*;

/// A function longer than this is shown up to here.
const MAX_BYTES: usize = 1 << 18;

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Frame address.
    pub(super) address: u64,
    bytes: Vec<u8>,
    /// In words.
    pub(super) text: String,
}

impl Instruction {
    pub(super) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its bytes, as `objdump` prints them.
    pub(super) fn hex(&self) -> String {
        let bytes: Vec<String> = self
            .bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        bytes.join(" ")
    }
}

/// The instructions from `start` up to `end` (without an end: of the piece around `start`).
pub(super) fn range(
    tables: &Tables,
    module: ModuleId,
    start: u64,
    end: Option<u64>,
    bias: u64,
) -> Vec<Instruction> {
    let mut pieces: Vec<(u64, &[u8])> = tables
        .code()
        .filter(|(of, _, _)| *of == module)
        .filter_map(|(_, address, bytes)| clip(address, bytes, start, end))
        .collect();
    pieces.order_by_key(|(address, bytes)| (*address, std::cmp::Reverse(bytes.len())));
    let mut instructions: Vec<Instruction> = Vec::new();
    let mut next = start;
    for (address, bytes) in pieces {
        // Of pieces that overlap, the first is shown and the rest of the second.
        if address >= next {
            decode(address, bytes, bias, &mut instructions);
            next = address.saturating_add(bytes.len() as u64);
        }
    }
    instructions
}

/// The part of a piece that is in the range; none if it starts outside.
fn clip(address: u64, bytes: &[u8], start: u64, end: Option<u64>) -> Option<(u64, &[u8])> {
    let (address, bytes) = match start.checked_sub(address) {
        // A piece that starts before the function holds it, or not.
        Some(skip) => (start, bytes.get(usize::try_from(skip).ok()?..)?),
        None if end.is_some_and(|end| address < end) => (address, bytes),
        None => return None,
    };
    let room = end.map_or(u64::MAX, |end| end.saturating_sub(address));
    let length = bytes.len().min(MAX_BYTES);
    let length = usize::try_from(room).map_or(length, |room| length.min(room));
    (length > 0).then(|| (address, &bytes[..length]))
}

fn decode(address: u64, bytes: &[u8], bias: u64, instructions: &mut Vec<Instruction>) {
    let shown = address.wrapping_add(bias);
    let mut decoder = Decoder::with_ip(64, bytes, shown, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(true);
    while decoder.can_decode() {
        let from = decoder.position();
        let instruction = decoder.decode();
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        instructions.push(Instruction {
            address: instruction.ip().wrapping_sub(bias),
            bytes: bytes[from..decoder.position()].to_vec(),
            text,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(pieces: &[(u64, &[u8])]) -> (Tables, ModuleId) {
        let mut tables = Tables::default();
        let module = ModuleId::from_index(0);
        for &(address, bytes) in pieces {
            tables.add_code(Code {
                module,
                address,
                bytes: bytes.into(),
            });
        }
        (tables, module)
    }

    fn texts(instructions: &[Instruction]) -> Vec<(u64, &str)> {
        (instructions.iter())
            .map(|i| (i.address, i.text.as_str()))
            .collect()
    }

    #[test]
    fn instructions_of_a_function() {
        // push rbp; mov rbp,rsp; call +0x10; ret; and a byte of the next function.
        let code = [0x55, 0x48, 0x89, 0xe5, 0xe8, 0x10, 0, 0, 0, 0xc3, 0x90];
        let (tables, module) = tables(&[(0x1000, &code)]);
        let all = range(&tables, module, 0x1000, Some(0x100a), 0x40_0000);
        let expected = [
            (0x1000, "push rbp"),
            (0x1001, "mov rbp, rsp"),
            (0x1004, "call 0x401019"),
            (0x1009, "ret"),
        ];
        assert_eq!(texts(&all), expected);
        assert_eq!(all[1].hex(), "48 89 e5");
    }

    #[test]
    fn pieces_are_clipped_and_do_not_overlap() {
        let pieces: [(u64, &[u8]); 3] = [
            (0xff0, &[0x90; 0x20]),
            (0x1008, &[0xc3; 4]),
            (0x1018, &[0xcc; 0x100]),
        ];
        let (tables, module) = tables(&pieces);
        let all = range(&tables, module, 0x1000, Some(0x101a), 0);
        assert_eq!(all.len(), 0x12);
        assert_eq!(
            (all[0x10].address, all[0x10].text.as_str()),
            (0x1018, "int3")
        );
        assert!(range(&tables, module, 0x9000, None, 0).is_empty());
        assert_eq!(range(&tables, module, u64::MAX - 1, None, u64::MAX), []);
    }

    #[test]
    fn damaged_code_does_not_stop_it() {
        let (tables, module) = tables(&[(0, &[0x06, 0xff, 0xff, 0x0f])]);
        let all = range(&tables, module, 0, None, 0);
        assert!(all.iter().all(|i| i.length() > 0));
        assert_eq!(all.iter().map(Instruction::length).sum::<u64>(), 4);
    }
}
