//! What the kernel makes of a probe on an instruction: emulate, step out of line, or refuse.
//!
//! Bytes of one instruction -> [`InstructionKind`], or nothing if no probe may sit there.
//!
//! What the kernel rewrites, and what that costs a program that looks closely:
//! - emulated instructions write what they would write themselves: `push` and `call` the word on top
//!   of the stack, the others nothing;
//! - `jmp`, `jcc`, `call` to a fixed place and no-operations never run, so prefixes that mean
//!   something else there are refused;
//! - what is stepped runs elsewhere under the trap flag: the kernel corrects where it goes on, the
//!   return address of an indirect call and operands relative to the instruction. It does not correct
//!   the flags that `pushf` saves: the trap flag is among them, and the `popf` that restores them ends
//!   the program by SIGTRAP. Each turn of a `rep` passes the probe again and would count as a call.
//!   Both are refused;
//! - since Linux 6.18 a no-operation of 5 bytes becomes a call, which writes below the stack pointer
//!   ([`Costs::nop5_is_call`](crate::place::Costs)): only where nothing lives there.
//!
//! Source: the rules of Linux for user-space probes on x86-64 (`arch/x86/kernel/uprobes.c`). Which of
//! the no-operations are emulated depends on the kernel's version; what they cost is measured, not
//! assumed.
//!
//! What does not belong here: costs, control flow.

use crate::InstructionKind;

/// One-byte opcodes that the kernel refuses in 64-bit programs, one bit each.
const REFUSED: [u64; 4] = opcodes(&[
    0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60, 0x61, 0x62, 0x6c, 0x6d,
    0x6e, 0x6f, 0x82, 0x9a, 0xcc, 0xcd, 0xce, 0xcf, 0xd4, 0xd5, 0xd6, 0xe4, 0xe5, 0xe6, 0xe7, 0xea,
    0xec, 0xed, 0xee, 0xef, 0xf1, 0xf4, 0xfa, 0xfb,
]);

/// Opcodes behind `0f` that it refuses, or that a single step would not survive (`syscall`).
const REFUSED_0F: [u64; 4] = opcodes(&[
    0x00, 0x01, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x30, 0x34, 0x35, 0x37, 0x78, 0x79, 0xae,
]);

const fn opcodes(list: &[u8]) -> [u64; 4] {
    let mut bits = [0; 4];
    let mut at = 0;
    while at < list.len() {
        bits[list[at] as usize / 64] |= 1 << (list[at] % 64);
        at += 1;
    }
    bits
}

fn contains(bits: &[u64; 4], opcode: u8) -> bool {
    bits[usize::from(opcode / 64)] >> (opcode % 64) & 1 != 0
}

/// What kind of instruction `bytes` (exactly one, whole) is for the kernel; nothing if it refuses a
/// probe there, or if a probe there would do harm.
pub fn kind(bytes: &[u8]) -> Option<InstructionKind> {
    if bytes == [0x0f, 0x1f, 0x44, 0x00, 0x00] {
        return Some(InstructionKind::Nop5);
    }
    let mut at = 0;
    let mut operand_size = false;
    let mut repeat = None;
    loop {
        match *bytes.get(at)? {
            // Segments other than fs and gs, and lock. Among them is `notrack`.
            0x26 | 0x2e | 0x36 | 0x3e | 0xf0 => return None,
            0x66 => operand_size = true,
            prefix @ (0xf2 | 0xf3) => repeat = Some(prefix),
            0x64 | 0x65 | 0x67 => {}
            _ => break,
        }
        at += 1;
    }
    let mut rex = None;
    if let 0x40..=0x4f = *bytes.get(at)? {
        rex = Some(bytes[at]);
        at += 1;
    }
    let opcode = *bytes.get(at)?;
    match opcode {
        0xc4 | 0xc5 | 0x62 => return vector(bytes, at),
        0x0f => {}
        _ => {
            if contains(&REFUSED, opcode) {
                return None;
            }
            // `pushf`, and string instructions that are repeated: see above.
            let string = matches!(opcode, 0xa4..=0xa7 | 0xaa..=0xaf);
            if opcode == 0x9c || string && repeat.is_some() {
                return None;
            }
            let plain = at == usize::from(rex.is_some());
            return match opcode {
                // `pause` waits, xchg with r8 exchanges.
                0x90 if repeat != Some(0xf3) && rex.is_none_or(|rex| rex & 1 == 0) => {
                    Some(InstructionKind::Nop)
                }
                0x50..=0x57 if plain && rex.is_none_or(|rex| rex == 0x41) => {
                    Some(InstructionKind::Push)
                }
                0xe8 | 0xe9 | 0xeb | 0x70..=0x7f if operand_size => None,
                0xe8 => Some(InstructionKind::Call),
                0xe9 | 0xeb => Some(InstructionKind::Jump),
                0x70..=0x7f => Some(InstructionKind::ConditionalJump),
                // A load of the stack segment holds back the trap of the single step.
                0x8e if bytes.get(at + 1)? >> 3 & 7 == 2 => None,
                _ => Some(InstructionKind::Stepped),
            };
        }
    }
    let second = *bytes.get(at + 1)?;
    match second {
        _ if contains(&REFUSED_0F, second) => None,
        0x1f if bytes.get(at + 2)? >> 3 & 7 == 0 => Some(InstructionKind::Nop),
        0x80..=0x8f if operand_size => None,
        0x80..=0x8f => Some(InstructionKind::ConditionalJump),
        _ => Some(InstructionKind::Stepped),
    }
}

/// Instructions with a VEX or EVEX prefix. The kernel looks them up by their last opcode byte as if
/// it were a one-byte opcode: some are refused for that, and those that look like a branch or a
/// no-operation would be emulated as one, so that their work is left out.
fn vector(bytes: &[u8], at: usize) -> Option<InstructionKind> {
    let length = match bytes[at] {
        0xc5 => 2,
        0xc4 => 3,
        _ => 4,
    };
    match *bytes.get(at + length)? {
        0x70..=0x7f | 0x90 | 0xe8 | 0xe9 | 0xeb | 0x0f => None,
        opcode if contains(&REFUSED, opcode) => None,
        _ => Some(InstructionKind::Stepped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulated_ones_and_no_others() {
        use InstructionKind::*;
        let cases: &[(&[u8], Option<InstructionKind>)] = &[
            (&[0x0f, 0x1f, 0x44, 0, 0], Some(Nop5)),
            (&[0x90], Some(Nop)),
            (&[0x66, 0x90], Some(Nop)),
            (&[0x0f, 0x1f, 0x40, 0], Some(Nop)),
            (&[0x66, 0x0f, 0x1f, 0x44, 0, 0], Some(Nop)),
            (&[0xf3, 0x90], Some(Stepped)),                   // pause
            (&[0x49, 0x90], Some(Stepped)),                   // xchg %r8,%rax
            (&[0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], None), // cs nopl
            (&[0xf3, 0x0f, 0x1e, 0xfa], Some(Stepped)),       // endbr64
            (&[0x55], Some(Push)),
            (&[0x54], Some(Push)),
            (&[0x41, 0x57], Some(Push)),
            (&[0x48, 0x55], Some(Stepped)), // push with a needless prefix
            (&[0x66, 0x55], Some(Stepped)), // push %bp
            (&[0x5d], Some(Stepped)),
            (&[0x6a, 1], Some(Stepped)),
            (&[0xff, 0x35, 0, 0, 0, 0], Some(Stepped)), // push mem
            (&[0xe9, 0, 0, 0, 0], Some(Jump)),
            (&[0xeb, 0], Some(Jump)),
            (&[0xf2, 0xe9, 0, 0, 0, 0], Some(Jump)), // bnd jmp
            (&[0x66, 0xe9, 0, 0, 0, 0], None),
            (&[0x74, 0], Some(ConditionalJump)),
            (&[0x0f, 0x84, 0, 0, 0, 0], Some(ConditionalJump)),
            (&[0xe3, 0], Some(Stepped)), // jrcxz
            (&[0xe8, 0, 0, 0, 0], Some(Call)),
            (&[0xff, 0xe0], Some(Stepped)),
            (&[0x3e, 0xff, 0xe0], None), // notrack jmp
            (&[0xc3], Some(Stepped)),
            (&[0xf3, 0xc3], Some(Stepped)),
            (&[0xf0, 0x0f, 0xb1, 0x0f], None), // lock cmpxchg
            (&[0x9c], None),                   // pushf
            (&[0x9d], Some(Stepped)),          // popf
            (&[0xf3, 0xaa], None),             // rep stos
            (&[0xf3, 0x48, 0xa5], None),       // rep movsq
            (&[0xf2, 0xae], None),             // repne scas
            (&[0xaa], Some(Stepped)),          // stos
            (&[0xcc], None),
            (&[0xf4], None),
            (&[0x0f, 0x0b], None),
            (&[0x0f, 0x05], None),
            (&[0x8e, 0xd0], None), // mov %eax,%ss
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], Some(Stepped)),
            (&[0xc5, 0xf9, 0x6e, 0xc6], None),             // vmovd
            (&[0xc5, 0xf8, 0x28, 0xc1], Some(Stepped)),    // vmovaps
            (&[0xc5, 0xfd, 0x74, 0x0f], None),             // vpcmpeqb
            (&[0xc5, 0xf8, 0x77], None),                   // vzeroupper
            (&[0x62, 0xf1, 0xfe, 0x28, 0x6f, 0x07], None), // vmovdqu64
            (&[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1], Some(Stepped)), // vmovaps
            (&[], None),
            (&[0x66, 0x66], None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(kind(bytes), *expected, "{bytes:02x?}");
        }
    }
}
