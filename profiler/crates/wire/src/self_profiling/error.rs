//! Errors by the names that scripts know.
//!
//! A name and a sentence -> JSON, and the status of HTTP that fits. What does not belong here: when there is one.

use serde::Serialize;

/// Names of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ErrorName {
    /// Not of the type that it has to be, or missing.
    TypeError,
    /// Of the type, and not within what is possible.
    RangeError,
    /// Not in this state.
    InvalidStateError,
    /// Not for this client.
    NotAllowedError,
    /// There is no such thing.
    NotFoundError,
    /// Nothing that can be done to it.
    NotSupportedError,
    /// More than a client may have.
    QuotaExceededError,
    /// It can't be done now.
    OperationError,
}

impl ErrorName {
    /// The status of HTTP that says as much.
    pub fn status(self) -> u16 {
        match self {
            ErrorName::TypeError | ErrorName::RangeError => 400,
            ErrorName::NotAllowedError => 403,
            ErrorName::NotFoundError => 404,
            ErrorName::NotSupportedError => 405,
            ErrorName::InvalidStateError => 409,
            ErrorName::QuotaExceededError => 429,
            ErrorName::OperationError => 503,
        }
    }
}

/// An error, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Its name.
    #[serde(rename = "error")]
    pub name: ErrorName,
    /// For people.
    pub message: String,
}

impl Error {
    /// Of this name.
    pub fn new(name: ErrorName, message: impl Into<String>) -> Error {
        Error {
            name,
            message: message.into(),
        }
    }
}
