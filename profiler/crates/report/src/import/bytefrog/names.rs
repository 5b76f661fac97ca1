//! Names of a run's methods and exceptions, and their ids in the running epoch.
//!
//! Names may come after the first use: an id is given at once, and its definition waits until the
//! batch is handed on. A method whose name has not come by then is called by its number; calls that
//! are entered later get the name. All of it is bounded.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::signature::Signature;
use profiler_model::{EpochId, FunctionId, StringId};

/// Most methods and exceptions, and most bytes of their names.
const MAX_NAMES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 128 << 20;

/// Stands for all methods or exceptions beyond the bound; agents' numbers begin with 1.
const OTHERS: u32 = 0;

/// A definition that can be made now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// With what it is called, and whether that is only its number.
    Function(FunctionId, Arc<Signature>, bool),
    /// With the name of the exception, and whether that is only its number.
    Exception(StringId, Arc<str>, bool),
}

impl Known {
    pub(super) fn is_unnamed(&self) -> bool {
        matches!(
            self,
            Known::Function(_, _, true) | Known::Exception(_, _, true)
        )
    }
}

#[derive(Debug, Default)]
struct Method {
    name: Option<Arc<Signature>>,
    /// A batch was handed on in which it is called by its number.
    numbered: bool,
    /// Of its signature, where that is the one that its hash leads to.
    hash: Option<u64>,
    /// How many names it has had, each told anew under the same number.
    names: u16,
    /// Ids of this epoch: by its number, and by its name.
    ids: [Option<FunctionId>; 2],
}

#[derive(Debug, Default)]
pub(super) struct Names {
    methods: FxHashMap<u32, Method>,
    /// Which method has a signature, by its hash, which nobody can foresee.
    numbers: FxHashMap<u64, u32>,
    hashes: RandomState,
    exceptions: FxHashMap<u32, Arc<str>>,
    kinds: FxHashMap<u32, StringId>,
    bytes: usize,
    /// Used and not defined yet.
    waiting_methods: Vec<(u32, FunctionId)>,
    waiting_kinds: Vec<(u32, StringId)>,
}

impl Names {
    /// Learns the name of a method; false if there are too many.
    pub(super) fn method(&mut self, method: u32, signature: &str) -> bool {
        let full = self.is_full(signature.len());
        if full && !self.methods.contains_key(&method) || self.bytes >= MAX_NAME_BYTES {
            return false;
        }
        let hash = self.hashes.hash_one(signature);
        let entry = self.methods.entry(method).or_default();
        if let Some(before) = entry.hash.replace(hash)
            && self.numbers.get(&before) == Some(&method)
        {
            self.numbers.remove(&before);
        }
        self.numbers.insert(hash, method);
        let signature = Signature::parse(signature);
        self.bytes += signature.bytes();
        let before = entry.name.replace(Arc::new(signature));
        if let Some(before) = &before {
            self.bytes -= before.bytes().min(self.bytes);
        }
        if entry.name != before {
            entry.names = entry.names.wrapping_add(1);
            if before.is_some() {
                // Calls from now on are of another function.
                entry.ids[1] = None;
            }
        }
        true
    }

    /// The method that has this signature now.
    pub(super) fn find(&self, signature: &str) -> Option<u32> {
        let &method = self.numbers.get(&self.hashes.hash_one(signature))?;
        let name = self.methods.get(&method)?.name.as_deref()?;
        (*name == Signature::parse(signature)).then_some(method)
    }

    /// Learns the name of an exception; false if there are too many.
    pub(super) fn exception(&mut self, exception: u32, name: &str) -> bool {
        if self.is_full(name.len()) {
            return false;
        }
        self.bytes += name.len();
        if let Some(before) = self.exceptions.insert(exception, name.into()) {
            self.bytes -= before.len().min(self.bytes);
            if *before != *name {
                self.kinds.remove(&exception);
            }
        }
        true
    }

    /// About how many bytes of memory all of it takes.
    pub(super) fn memory(&self) -> usize {
        // What an allocation costs beside its bytes.
        const ALLOCATION: usize = 16;
        let each = size_of::<Signature>() + 2 * ALLOCATION;
        let named = (self.methods.len() + self.exceptions.len()) * each;
        let maps = self.methods.capacity() * size_of::<(u32, Method)>()
            + self.numbers.capacity() * size_of::<(u64, u32)>()
            + self.exceptions.capacity() * size_of::<(u32, Arc<str>)>()
            + self.kinds.capacity() * size_of::<(u32, StringId)>();
        let waiting = self.waiting_methods.capacity() * size_of::<(u32, FunctionId)>()
            + self.waiting_kinds.capacity() * size_of::<(u32, StringId)>();
        self.bytes + named + maps + waiting
    }

    fn is_full(&self, more: usize) -> bool {
        self.methods.len() + self.exceptions.len() >= MAX_NAMES
            || self.bytes + more > MAX_NAME_BYTES
    }

    /// The method to account a use of `method` to, and whether it has its name.
    pub(super) fn use_method(&mut self, method: u32) -> (u32, bool) {
        if let Some(known) = self.methods.get(&method) {
            return (method, known.name.is_some());
        }
        let method = match self.is_full(0) {
            true => OTHERS,
            false => method,
        };
        self.methods.entry(method).or_default();
        (method, false)
    }

    /// Which of its names a method has; 0 by its number.
    pub(super) fn version(&self, method: u32, named: bool) -> u16 {
        let known = self.methods.get(&method).filter(|_| named);
        known.map_or(0, |known| known.names)
    }

    /// The id of a method, called by its name or (`named` false) by its number, and a definition
    /// if that has to be made now.
    pub(super) fn function(
        &mut self,
        method: u32,
        named: bool,
        next: &mut usize,
    ) -> (FunctionId, Option<Known>) {
        let entry = self.methods.entry(method).or_default();
        // Its name came before anybody has seen its number.
        let name = entry.name.as_ref().filter(|_| named || !entry.numbered);
        let place = &mut entry.ids[usize::from(name.is_some())];
        if let Some(id) = *place {
            return (id, None);
        }
        let id = FunctionId::from_index(*next);
        *next += 1;
        *place = Some(id);
        match name {
            Some(name) => (id, Some(Known::Function(id, Arc::clone(name), false))),
            None => {
                self.waiting_methods.push((method, id));
                (id, None)
            }
        }
    }

    /// The id of an exception's name, and a definition if that has to be made now.
    pub(super) fn kind(&mut self, exception: u32, next: &mut usize) -> (StringId, Option<Known>) {
        let known = self.exceptions.get(&exception);
        let exception = match known.is_none() && self.kinds.len() >= MAX_NAMES {
            true => OTHERS,
            false => exception,
        };
        if let Some(&id) = self.kinds.get(&exception) {
            return (id, None);
        }
        let id = StringId::from_index(*next);
        *next += 1;
        self.kinds.insert(exception, id);
        match known {
            Some(name) => (id, Some(Known::Exception(id, Arc::clone(name), false))),
            None => {
                self.waiting_kinds.push((exception, id));
                (id, None)
            }
        }
    }

    /// Whether a name is missing that may still come.
    pub(super) fn is_waiting(&self) -> bool {
        let unnamed = |method: &u32| {
            let known = self.methods.get(method);
            known.is_none_or(|known| known.name.is_none() && !known.numbered)
        };
        self.waiting_methods
            .iter()
            .any(|(method, _)| unnamed(method))
            || (self.waiting_kinds.iter()).any(|(kind, _)| !self.exceptions.contains_key(kind))
    }

    /// Definitions of all that waited.
    pub(super) fn settle(&mut self) -> Vec<Known> {
        let mut all = Vec::new();
        for (method, id) in self.waiting_methods.drain(..) {
            let entry = self.methods.entry(method).or_default();
            all.push(match &entry.name {
                Some(name) if !entry.numbered => {
                    // What was used by its number is what has the name.
                    entry.ids[1].get_or_insert(id);
                    Known::Function(id, Arc::clone(name), false)
                }
                _ => {
                    let new = !entry.numbered;
                    entry.numbered = true;
                    let text = match method {
                        OTHERS => "(methods beyond the limit)".to_owned(),
                        method => format!("method {method}"),
                    };
                    Known::Function(id, Arc::new(Signature::plain(text)), new)
                }
            });
        }
        for (exception, id) in self.waiting_kinds.drain(..) {
            all.push(match self.exceptions.get(&exception) {
                Some(name) => Known::Exception(id, Arc::clone(name), false),
                None => Known::Exception(id, format!("exception {exception}").into(), true),
            });
        }
        all
    }

    /// Ids start anew.
    pub(super) fn begin_epoch(&mut self) {
        for method in self.methods.values_mut() {
            method.ids = [None; 2];
        }
        self.kinds.clear();
    }
}
