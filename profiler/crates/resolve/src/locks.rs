//! Locks that a panic elsewhere does not close: a mutex -> what it guards.
//!
//! What does not belong here: values that a panic may leave half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex guards; a panic elsewhere has not harmed such simple values.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
