//! Code by what it is, not by ids: the same place in two epochs is equal.
//!
//! Modules and frames of tables -> values that outlive those tables. Addresses are those of frames:
//! see [`ModuleKind`]. What does not belong here: where code is in a process (`memory`, `places`).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use profiler_model::*;

/// Something that code lives in.
#[derive(Debug)]
pub(super) struct CodeModule {
    /// Another one for each content.
    pub(super) uid: u64,
    pub(super) kind: ModuleKind,
    pub(super) path: Arc<str>,
}

/// One place in code.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) kind: FrameKind,
    pub(super) module: Option<Arc<CodeModule>>,
    pub(super) address: u64,
}

impl Code {
    fn identity(&self) -> (FrameKind, Option<u64>, u64) {
        let module = self.module.as_ref().map(|module| module.uid);
        (self.kind, module, self.address)
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Code) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Code {}

impl Hash for Code {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

type Content = (ModuleKind, Arc<str>, Option<BuildId>, u64);

/// All modules that anything refers to.
#[derive(Debug, Default)]
pub(super) struct Modules {
    known: FxHashMap<Content, Arc<CodeModule>>,
    last: u64,
}

impl Modules {
    /// The one with this content.
    pub(super) fn intern(&mut self, module: &Module, path: &str) -> Arc<CodeModule> {
        let path: Arc<str> = path.into();
        let content = (
            module.kind,
            path.clone(),
            module.build_id.clone(),
            module.address_bias,
        );
        let last = &mut self.last;
        let known = self.known.entry(content).or_insert_with(|| {
            *last += 1;
            Arc::new(CodeModule {
                uid: *last,
                kind: module.kind,
                path,
            })
        });
        known.clone()
    }

    /// Forgets those that nothing refers to.
    pub(super) fn tidy(&mut self) {
        self.known.retain(|_, module| Arc::strong_count(module) > 1);
    }
}
