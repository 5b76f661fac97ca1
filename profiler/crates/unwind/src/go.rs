//! How to find the callers of Go's functions.
//!
//! An executable that Go's linker made -> what holds from which address on, in the order of addresses
//! ([`entries`]). Go's compiler and assembler keep the stack pointer of each instruction in the table of
//! functions that the runtime needs to walk stacks itself (`pclntab`), whether a program is stripped or
//! not. Where assembly leaves a goroutine's stack for the thread's own, the code itself is read
//! (`assembly`), as it is for where the runtime keeps what the goroutine goes on with (`switch`).
//! Addresses are ELF virtual addresses. What does not belong here: names (`resolve`).

use std::fs::File;

use super::Entry;
use profiler_object::elf::Elf;

mod assembly;
mod locate;
mod merge;
mod pclntab;
mod rows;
mod switch;
#[cfg(test)]
mod tests;

pub use locate::Program;
pub(crate) use locate::may_be_go;
pub use merge::merge;

/// What holds from which address on, in the order of addresses; none if the file is no Go program, or is
/// one of before Go 1.16. Where nothing is known it is [`Entry::None`]: something else may know.
pub fn entries(file: &File, elf: &Elf) -> Option<Vec<(u64, Entry)>> {
    let program = Program::find(file, elf)?;
    Some(rows::rows(&program.table, file, elf))
}
