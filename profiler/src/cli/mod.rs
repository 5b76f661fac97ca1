//! cli
pub mod values;
