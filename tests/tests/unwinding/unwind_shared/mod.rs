//! What tests of unwind tables share: the judge's reading of them, and processes to read them of. The
//! assembler's files are of `unwind_rules`.

pub(crate) mod live;
pub(crate) mod oracle;
