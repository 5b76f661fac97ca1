//! Values on the heap, made in frames that are gone when work begins.
//!
//! A function that makes a large value has room for it on the stack, twice or more, as long as it runs: also while
//! it calls what works. How a recording begins is recorded like everything else, when there are no unwind tables
//! yet; of a stack without tables the kernel side copies `profiler_common::unwind::COPY_BYTES`, and what lies
//! deeper is missing. What does not belong here: what is made.

/// What this makes.
#[inline(never)]
pub fn boxed<T>(make: impl FnOnce() -> T) -> Box<T> {
    Box::new(make())
}

/// The same, where that may fail. Of what is made there is one on the stack meanwhile, and not a second one for what
/// becomes of it.
pub fn try_boxed<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<Box<T>, E> {
    unpacked(boxed(make))
}

// It is on the heap for no other frame to have room for it.
#[allow(clippy::boxed_local)]
#[inline(never)]
fn unpacked<T, E>(made: Box<Result<T, E>>) -> Result<Box<T>, E> {
    (*made).map(Box::new)
}
