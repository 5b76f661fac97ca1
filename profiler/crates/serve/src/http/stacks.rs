//! Stacks that samples of sessions have: ids of the session's tables -> small keys that outlive these.
//!
//! All sessions share them. When tables begin anew, what is known of each stack by then is kept in words. What does not
//! belong here: which frames a session may see (`Realm`).

use rustc_hash::FxHashMap;

use profiler_model::*;
use profiler_report::derive::{Placed, Realm, RealmFrame, realm_frames};
use profiler_wire::self_profiling::{self as wire, Frame, Trace};

/// Distinct stacks that are kept; samples of others have none.
const MOST: usize = 1 << 20;

/// A stack of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StackKey(u32);

/// Stacks of the kernel and of the user, by the ids of the tables.
type Ids = (Option<StackId>, Option<StackId>);

#[derive(Debug)]
enum Entry {
    InTables(Ids),
    InWords(Box<[u32]>),
}

/// A frame in words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Words {
    name: Box<str>,
    resource: Option<Box<str>>,
    line: Option<u32>,
    object: Box<str>,
    is_built_in: bool,
}

/// All stacks.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    entries: Vec<Entry>,
    keys: FxHashMap<Ids, StackKey>,
    words: Vec<Words>,
    word_ids: FxHashMap<Words, u32>,
}

impl Stacks {
    /// The key of a sample's stacks; none if there are too many.
    pub(super) fn key(&mut self, ids: Ids) -> Option<StackKey> {
        if let Some(key) = self.keys.get(&ids) {
            return Some(*key);
        }
        if self.entries.len() >= MOST {
            return None;
        }
        let key = StackKey(self.entries.len() as u32);
        self.entries.push(Entry::InTables(ids));
        self.keys.insert(ids, key);
        Some(key)
    }

    /// Nobody has a key any more.
    pub(super) fn clear(&mut self) {
        *self = Stacks::default();
    }

    /// From now on ids mean something else.
    pub(super) fn turn(&mut self, tables: &Tables) {
        self.keys.clear();
        for entry in &mut self.entries {
            let Entry::InTables((kernel, user)) = *entry else {
                continue;
            };
            let frames = realm_frames(tables, kernel, user).into_iter();
            let ids = frames.map(|frame| {
                let words = Words {
                    name: frame.name.as_ref().into(),
                    resource: frame.resource.map(Into::into),
                    line: frame.line,
                    object: frame.object.into(),
                    is_built_in: frame.is_built_in,
                };
                *self.word_ids.entry(words).or_insert_with_key(|words| {
                    self.words.push(words.clone());
                    self.words.len() as u32 - 1
                })
            });
            *entry = Entry::InWords(ids.collect());
        }
    }

    /// Whether it is known what all frames of a stack are called, or that it can't be known.
    pub(super) fn is_named(&self, key: StackKey, tables: &Tables) -> bool {
        let Some(Entry::InTables((kernel, user))) = self.entries.get(key.0 as usize) else {
            return true;
        };
        let mut frames = tables.frames_of_both(*kernel, *user);
        frames.all(|frame| tables.symbol(frame).is_some())
    }

    /// Adds a stack to a trace, without what is withheld.
    pub(super) fn add(
        &self,
        key: StackKey,
        realm: &Realm,
        tables: &Tables,
        trace: &mut Trace,
    ) -> Option<wire::StackId> {
        match self.entries.get(key.0 as usize)? {
            Entry::InTables((kernel, user)) => {
                let frames = realm_frames(tables, *kernel, *user);
                trace.stack(realm.shown(&frames).map(RealmFrame::as_frame))
            }
            Entry::InWords(ids) => {
                let words = ids.iter().filter_map(|id| self.words.get(*id as usize));
                trace.stack(realm.shown(words).map(Words::as_frame))
            }
        }
    }
}

impl Words {
    fn as_frame(&self) -> Frame<'_> {
        Frame {
            name: &self.name,
            resource: self.resource.as_deref(),
            line: self.line,
            column: None,
        }
    }
}

impl Placed for Words {
    fn object(&self) -> &str {
        &self.object
    }

    fn is_built_in(&self) -> bool {
        self.is_built_in
    }
}
