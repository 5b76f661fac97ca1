//! Names of functions that were chosen by patterns -> whether a filter of their paths admits them as well.
//!
//! Paths are those of [`ClassPath`]: `libfoo.so/ns/Class/function`.
//!
//! What does not belong here: patterns (`trace::pattern`), how a filter decides.

use std::fmt;
use std::sync::Arc;

use profiler_report::derive::ClassPath;
use profiler_resolve::objects::TargetObject;

/// Says of the path of a function whether it is to be traced.
#[derive(Clone)]
pub struct PathFilter(pub Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl fmt::Debug for PathFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PathFilter(..)")
    }
}

impl PathFilter {
    /// Whether a function or marker of an object is admitted.
    pub(super) fn admits(&self, target: &TargetObject, name: &str) -> bool {
        let PathFilter(admits) = self;
        admits(&ClassPath::new(&target.path, name).full())
    }
}
