//! pipeline
pub mod marks;
