//! An agent of Bytefrog: a recording's calls -> messages to an HQ, its orders -> the recording.
//!
//! What does not belong here: byte layouts (`wire::bytefrog`), carrying out orders (`pipeline`).

pub mod translate;
