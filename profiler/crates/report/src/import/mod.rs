//! Other tools' data -> definitions and events of the model.
//!
//! What does not belong here: sockets, byte layouts (`wire`).

pub mod bytefrog;
pub mod profiles;
