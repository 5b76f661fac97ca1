//! pipeline
pub mod marks;
pub mod scope;
