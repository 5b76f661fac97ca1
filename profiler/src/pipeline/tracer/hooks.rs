//! The functions that tell of exceptions and of jumps out of functions: probes beside those asked for.
//!
//! An object -> plans for those that it has. What does not belong here: what their hits mean
//! (`resolve`).

use profiler_object::Object;
use profiler_resolve::Role;
use profiler_trace::arguments::exception_class;
use profiler_trace::place::{PlaceOptions, Placer, Returns};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Function, Plan};

/// Functions that tell of exceptions and of jumps out of functions.
/// Sources: the Itanium C++ ABI (exception handling), glibc's setjmp.h.
const HOOKS: &[(&str, Role)] = &[
    ("__cxa_throw", Role::CxxThrow),
    ("_Unwind_RaiseException", Role::UnwindThrow),
    ("__cxa_rethrow", Role::Rethrow),
    ("_Unwind_ForcedUnwind", Role::Unwind),
    ("__cxa_begin_catch", Role::Land),
    ("_Unwind_Resume", Role::Land),
    ("_Unwind_DeleteException", Role::Land),
    ("__rust_panic_cleanup", Role::Land),
    ("longjmp", Role::Jump),
    ("_longjmp", Role::Jump),
    ("siglongjmp", Role::Jump),
    ("__longjmp_chk", Role::Jump),
];

/// Where exceptions are thrown and land; needed only if exits are watched.
pub(super) fn plan_hooks(
    object: &Object,
    options: PlaceOptions<'_>,
    safety: &ProcessSafety,
    plans: &mut Vec<(Plan, Role)>,
) {
    if options.returns == Returns::None {
        return;
    }
    let entries = PlaceOptions {
        returns: Returns::None,
        ..options
    };
    let mut placer = Placer::new(object, entries, safety);
    let mut seen = Vec::new();
    for &(name, role) in HOOKS {
        let named = |function: &&Function| {
            let linkage = function.linkage_name.as_deref();
            linkage.unwrap_or(&function.name) == name
                || function.aliases.iter().any(|alias| **alias == *name)
        };
        let Some(function) = object.functions().iter().find(named) else {
            continue;
        };
        if seen.contains(&function.offset) {
            continue;
        }
        seen.push(function.offset);
        if let Ok(plan) = placer.plan(function) {
            plans.push((plan, role));
        }
    }
}

/// What `_Unwind_RaiseException` raises: the record has the class of the exception.
pub(super) fn unwind_class(class: &[u8]) -> String {
    match class.try_into() {
        Ok(class) => exception_class(u64::from_ne_bytes(class)),
        Err(_) => "exception".to_owned(),
    }
}

/// Whether a library has the functions that tell of exceptions and jumps.
pub(super) fn is_hook_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    [
        "libstdc++",
        "libgcc_s",
        "libc++abi",
        "libunwind",
        "libc.so",
        "libc-",
    ]
    .iter()
    .any(|stem| name.starts_with(stem))
}
