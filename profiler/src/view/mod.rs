//! What people look at: summaries and reports of captures.

pub mod info;
