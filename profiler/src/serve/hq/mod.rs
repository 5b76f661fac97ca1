//! An HQ of Bytefrog: accepts agents, sends them orders, checks and hands on what they send.
//!
//! What does not belong here: byte layouts (`wire::bytefrog`), what messages mean as events
//! (`import::bytefrog`).
