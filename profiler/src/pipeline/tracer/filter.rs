//! Functions that were chosen by patterns -> those that a filter of their paths admits as well.
//!
//! Paths are those of [`ClassPath`]: `libfoo.so/ns/Class/function`.
//!
//! What does not belong here: patterns (`trace::pattern`), how a filter decides.

use std::fmt;
use std::sync::Arc;

use profiler_object::Object;
use profiler_report::derive::ClassPath;
use profiler_resolve::objects::TargetObject;
use profiler_trace::pattern::Choice;

/// Says of the path of a function whether it is to be traced.
#[derive(Clone)]
pub struct PathFilter(pub Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl fmt::Debug for PathFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PathFilter(..)")
    }
}

impl PathFilter {
    /// Takes out of a choice what is not admitted. Says whether that was all of it.
    pub(super) fn sift(&self, target: &TargetObject, object: &Object, choice: &mut Choice) -> bool {
        let PathFilter(admits) = self;
        let before = count(choice);
        let is_admitted = |name: &str| admits(&ClassPath::new(&target.path, name).full());
        let (functions, markers) = (object.functions(), object.markers());
        let named = |index: &usize| functions.get(*index).map(|function| &*function.name);
        let is_wanted = |index: &usize| named(index).is_some_and(is_admitted);
        choice.functions.retain(is_wanted);
        let named = |index: &usize| markers.get(*index).map(|marker| &*marker.name);
        let is_wanted = |index: &usize| named(index).is_some_and(is_admitted);
        choice.markers.retain(is_wanted);
        before > 0 && count(choice) == 0
    }
}

fn count(choice: &Choice) -> usize {
    choice.functions.len() + choice.markers.len()
}
