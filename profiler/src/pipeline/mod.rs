//! pipeline
pub mod marks;
pub mod scope;
pub mod writer;
