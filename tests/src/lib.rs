//! What the end-to-end tests share.

pub mod arbitrary;
pub mod fuzzing;
