//! What the end-to-end tests share.

pub mod canonical;
pub mod arbitrary;
