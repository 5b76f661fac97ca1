//! Traced functions as the kernel side names them: by the index of their probe.
//!
//! [`TracedProbe`]s, registered before their first record -> functions of the current epoch, each
//! announced with its first use.
//!
//! What does not belong here: which calls are open (`shadow`), what was traced and why (`trace`).

use std::sync::Arc;

use super::Calls;
use crate::epoch::Epoch;
use crate::mapping::{CodeModule, next_uid};
use profiler_model::{BuildId, FunctionId, ModuleKind, ReturnMode, TracedKind};
use profiler_trace::CallValues;
use serde::{Deserialize, Serialize};

/// Most probes that can be registered; the kernel side has no more.
const MAX_PROBES: usize = profiler_common::call::MAX_PROBES as usize;

/// Names what is thrown, from what its record says of it: for [`Role::CxxThrow`] the mangled name of
/// its type, for [`Role::UnwindThrow`] the eight bytes of the exception's class.
pub type ExceptionName = fn(&[u8]) -> String;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Calls of a function that was asked for.
    Call,
    /// It throws an exception of C++: the record says its type.
    CxxThrow,
    /// It throws an exception of any language, a panic for one.
    UnwindThrow,
    /// It throws the last exception again; the record says nothing of it.
    Rethrow,
    /// It begins to leave all functions of a thread that is to end (`pthread_exit`, cancellation).
    Unwind,
    /// An exception has landed in the function that calls it.
    Land,
    /// It leaves functions without returning from them (longjmp).
    Jump,
}

/// A function that is traced, or that the tracing of others needs.
#[derive(Clone, Debug)]
pub struct TracedProbe {
    /// Demangled name; of a marker `provider:name`.
    pub name: Box<str>,
    /// Name as in the symbol table, where that differs.
    pub linkage_name: Option<Box<str>>,
    /// Its object file, as the processes see it.
    pub path: Box<str>,
    /// Build id of that.
    pub build_id: Option<BuildId>,
    /// See [`profiler_model::Module::address_bias`].
    pub address_bias: u64,
    /// File offset of its first instruction.
    pub start: u64,
    /// Length in bytes; 0: not known.
    pub size: u64,
    /// Source file, where debug information says it.
    pub source: Option<Box<str>>,
    /// The line that its name stands on there; 0: not known.
    pub declared: u32,
    /// Line of source of its first instruction; 0: not known.
    pub line: u32,
    /// Line of source of each exit site, by its number less 1; 0, or not there: not known.
    pub exit_lines: Box<[u32]>,
    /// A function or a marker.
    pub kind: TracedKind,
    /// Distance of the entry's probe from the first instruction.
    pub entry_offset: u32,
    /// How its exits are seen.
    pub returns: ReturnMode,
    /// What one call costs the target, as predicted.
    pub cost_ns: u32,
    /// Its values, if they are fetched.
    pub values: Option<Arc<dyn CallValues + Send + Sync>>,
    /// What the probe is for.
    pub role: Role,
    /// What names that which it throws.
    pub exception: Option<ExceptionName>,
}

/// A registered probe.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) traced: TracedProbe,
    module: CodeModule,
    /// Epoch and id under which its function was announced.
    function: Option<(u32, FunctionId)>,
    /// An exception goes on from here after cleaning up; it is not caught.
    pub(super) resumes: bool,
    /// Its exits were watched, and are no more.
    pub(super) unwatched: bool,
    /// It is not watched, or not to the end of its calls, at the time that events have come to.
    pub(super) over: bool,
}

impl TracedProbe {
    /// Line of source of the exit site with this number (1 and up); 0: not known.
    #[inline]
    pub(super) fn exit_line(&self, site: u8) -> u32 {
        let index = usize::from(site).checked_sub(1);
        let line = index.and_then(|index| self.exit_lines.get(index));
        line.copied().unwrap_or(0)
    }
}

/// All registered probes, by index.
#[derive(Debug, Default)]
pub(super) struct Probes(Vec<Option<Box<Probe>>>);

impl Probes {
    /// A probe.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Probe> {
        self.0.get(index as usize)?.as_deref()
    }

    /// Whether nothing is registered.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says whether a probe is not watched from now on.
    pub(super) fn set_over(&mut self, index: u32, over: bool) {
        if let Some(Some(probe)) = self.0.get_mut(index as usize) {
            probe.over = over;
        }
    }

    fn set(&mut self, index: u32, probe: Probe) {
        let index = index as usize;
        if index >= MAX_PROBES {
            return;
        }
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(Box::new(probe));
    }
}

impl Calls {
    /// Says what the records of a probe are about, before the first of them is resolved. A probe
    /// that is registered anew has changed (its exits are not watched any more).
    pub(crate) fn trace(&mut self, probe: u32, traced: TracedProbe) {
        let module = CodeModule {
            uid: next_uid(),
            kind: ModuleKind::File,
            path: traced.path.clone(),
            build_id: traced.build_id.clone(),
            bias: traced.address_bias,
            copy: None,
            key: None,
            elf: None,
            jit: None,
            first: None,
            code: None,
        };
        let resumes = traced.role == Role::Land && traced.name.starts_with("_Unwind_Resume");
        let before = self.probes.get(probe);
        let over = before.is_some_and(|before| before.over);
        let unwatched = traced.returns == ReturnMode::None
            && before.is_some_and(|before| {
                before.unwatched || before.traced.returns != ReturnMode::None
            });
        if unwatched {
            self.shadows.unwatch(probe);
        }
        let registered = Probe {
            traced,
            module,
            function: None,
            resumes,
            unwatched,
            over,
        };
        self.probes.set(probe, registered);
    }

    /// The function of a probe in this epoch, announced if it was not yet.
    #[inline]
    pub(super) fn traced_function(&mut self, probe: u32, epoch: &mut Epoch) -> Option<FunctionId> {
        let probe = self.probes.0.get_mut(probe as usize)?.as_mut()?;
        match probe.function {
            Some((number, function)) if number == epoch.tables.number => Some(function),
            _ => {
                let function = epoch.tables.traced(&probe.traced, &probe.module);
                probe.function = Some((epoch.tables.number, function));
                Some(function)
            }
        }
    }
}
