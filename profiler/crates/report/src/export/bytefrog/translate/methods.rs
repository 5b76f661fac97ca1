//! Numbers of methods and of exceptions' types, told before their first use.
//!
//! Functions of [`Tables`] -> numbers from 1. Within one life of the tables a number is one lookup in
//! a list; beyond that, the same content has the same number as long as it is remembered: a bounded
//! number of bytes, after which a second number for the same thing is told (which the protocol
//! allows).

use profiler_model::text::TextMap;
use rustc_hash::FxHashMap;

use super::Wanted;
use super::names::{self, NameStyle};
use super::stream::Stream;
use crate::derive::ClassPath;
use profiler_model::*;

/// Most bytes of names that are remembered.
const MAX_REMEMBERED_BYTES: usize = 64 << 20;

/// What one remembered name costs beyond its bytes.
const ENTRY_BYTES: usize = 48;

/// Most pairs of thrower and method that are remembered.
const MAX_THROWERS: usize = 1 << 16;

fn signature(
    style: NameStyle,
    path: &ClassPath,
    id: FunctionId,
    function: &Function,
    tables: &Tables,
) -> String {
    let line = tables.traced(id).map_or(0, |traced| traced.line);
    style.function(path, function, line, tables)
}

/// A function that the receiver does not want.
const UNWANTED: u32 = u32::MAX;

/// Numbers by content.
#[derive(Debug, Default)]
struct Numbers {
    known: TextMap<Box<str>, u32>,
    bytes: usize,
    last: u32,
}

impl Numbers {
    /// The number of a content, and whether it is new; none if there are no more numbers.
    fn of(&mut self, key: &str) -> Option<(u32, bool)> {
        if let Some(&number) = self.known.get(key) {
            return Some((number, false));
        }
        let number = self.last.checked_add(1).filter(|&n| n != UNWANTED)?;
        if self.bytes > MAX_REMEMBERED_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += key.len() + ENTRY_BYTES;
        self.known.insert(key.into(), number);
        self.last = number;
        Some((number, true))
    }
}

/// Methods and exceptions.
pub(super) struct Methods {
    style: NameStyle,
    wanted: Option<Wanted>,
    /// By index of the function; 0: not known yet.
    functions: Vec<u32>,
    /// Of frames without a name.
    frames: FxHashMap<FrameId, u32>,
    /// Which functions that throw are which methods.
    throwers: FxHashMap<(FunctionId, u32), bool>,
    /// By name.
    kinds: FxHashMap<StringId, u32>,
    methods: Numbers,
    exceptions: Numbers,
}

impl Methods {
    pub(super) fn new(style: NameStyle, wanted: Option<Wanted>) -> Methods {
        Methods {
            style,
            wanted,
            functions: Vec::new(),
            frames: FxHashMap::default(),
            throwers: FxHashMap::default(),
            kinds: FxHashMap::default(),
            methods: Numbers::default(),
            exceptions: Numbers::default(),
        }
    }

    /// Forgets what ids meant; what they stood for keeps its numbers.
    pub(super) fn new_tables(&mut self) {
        self.functions.clear();
        self.frames.clear();
        self.throwers.clear();
        self.kinds.clear();
    }

    /// Methods told so far.
    pub(super) fn told(&self) -> u64 {
        self.methods.last.into()
    }

    /// Types of exceptions told so far.
    pub(super) fn told_exceptions(&self) -> u64 {
        self.exceptions.last.into()
    }

    /// The number of a function; none if it is not wanted, or not defined.
    #[inline]
    pub(super) fn function(
        &mut self,
        id: FunctionId,
        tables: &Tables,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        match self.functions.get(id.index()) {
            Some(&number) if number != 0 => (number != UNWANTED).then_some(number),
            _ => self.new_function(id, tables, stream, out),
        }
    }

    #[cold]
    fn new_function(
        &mut self,
        id: FunctionId,
        tables: &Tables,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        let function = tables.functions.get(id)?;
        let path = names::class_path(function, tables);
        let number = self.new_method(&path, stream, out, |style| {
            let signature = signature(style, &path, id, function, tables);
            let key = names::identity(&signature, function, tables);
            (signature, key)
        })?;
        // Ids are dense: the list is not longer than the table.
        let len = id.index() + 1;
        if self.functions.len() < len {
            self.functions.resize(len.max(tables.functions.len()), 0);
        }
        self.functions[id.index()] = number;
        (number != UNWANTED).then_some(number)
    }

    /// What a function is called, told or not.
    pub(super) fn signature(&self, id: FunctionId, tables: &Tables) -> Option<String> {
        let function = tables.functions.get(id)?;
        let path = names::class_path(function, tables);
        Some(signature(self.style, &path, id, function, tables))
    }

    /// Whether a method that has been told is this function. A symbol and a probe may know different
    /// things of one function: it is one by the place where it begins, or by its name, as a part that the
    /// compiler moved away from it has another place.
    pub(super) fn is_of(&mut self, id: FunctionId, method: u32, tables: &Tables) -> bool {
        if self.functions.get(id.index()) == Some(&method) {
            return true;
        }
        if let Some(&known) = self.throwers.get(&(id, method)) {
            return known;
        }
        if self.throwers.len() >= MAX_THROWERS {
            self.throwers.clear();
        }
        let is_of = self.is_same(id, method, tables);
        self.throwers.insert((id, method), is_of);
        is_of
    }

    fn is_same(&self, id: FunctionId, method: u32, tables: &Tables) -> bool {
        let Some(symbol) = tables.functions.get(id) else {
            return false;
        };
        let numbers = (0..).zip(&self.functions);
        let mut told = numbers
            .filter(|&(_, &number)| number == method)
            .filter_map(|(index, _)| tables.functions.get(FunctionId::from_index(index)));
        told.any(|told| {
            let begins_there = symbol.start.is_some() && symbol.start == told.start;
            let is_named_so = symbol.name == told.name
                && agree(symbol.linkage_name, told.linkage_name, whole_name, tables)
                && agree(symbol.file, told.file, file_name, tables);
            symbol.module.is_some() && symbol.module == told.module && (begins_there || is_named_so)
        })
    }

    /// The number of a place without a name.
    pub(super) fn place(
        &mut self,
        id: FrameId,
        tables: &Tables,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        if let Some(&number) = self.frames.get(&id) {
            return (number != UNWANTED).then_some(number);
        }
        let path = names::place_path(id, tables);
        let number = self.new_method(&path, stream, out, |style| {
            let signature = style.place(&path);
            let key = names::place_identity(&signature, id, tables);
            (signature, key)
        })?;
        self.frames.insert(id, number);
        (number != UNWANTED).then_some(number)
    }

    /// The number of a method, told if it is new, or [`UNWANTED`]. `name` gives its signature, and what
    /// it is remembered by.
    fn new_method(
        &mut self,
        path: &ClassPath,
        stream: &mut Stream,
        out: &mut Vec<u8>,
        name: impl FnOnce(NameStyle) -> (String, String),
    ) -> Option<u32> {
        if let Some(wanted) = &self.wanted
            && !wanted(&path.full())
        {
            return Some(UNWANTED);
        }
        let (signature, key) = name(self.style);
        let (number, new) = self.methods.of(&key)?;
        if new {
            stream.method_signature(number, &signature, out);
        }
        Some(number)
    }

    /// The number of a type of exceptions.
    pub(super) fn exception(
        &mut self,
        kind: StringId,
        tables: &Tables,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> u32 {
        if let Some(&number) = self.kinds.get(&kind) {
            return number;
        }
        let number = self.exception_named(tables.string(kind), stream, out);
        self.kinds.insert(kind, number);
        number
    }

    /// The number of a type of exceptions by its name.
    pub(super) fn exception_named(
        &mut self,
        name: &str,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> u32 {
        match self.exceptions.of(name) {
            Some((number, new)) => {
                if new {
                    stream.exception_name(number, name, out);
                }
                number
            }
            // All numbers are used: four billion types. The last one stands for the others.
            None => self.exceptions.last,
        }
    }
}

/// Whether two texts say the same, as far as both are known; `part` of them counts.
fn agree(
    one: Option<StringId>,
    other: Option<StringId>,
    part: fn(&str) -> &str,
    tables: &Tables,
) -> bool {
    let part = |id: StringId| part(tables.string(id));
    one.is_none() || other.is_none() || one.map(part) == other.map(part)
}

/// `f` of `f.cold`, which a compiler moved away from it.
fn whole_name(name: &str) -> &str {
    name.split_once(".cold").map_or(name, |(name, _)| name)
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
