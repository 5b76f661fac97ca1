//! What the tests of arguments need: sections of a program, and a program under ptrace.

// One test, of which these are parts.
#![allow(unreachable_pub)]

pub mod build;
pub mod elf;
pub mod traced;
