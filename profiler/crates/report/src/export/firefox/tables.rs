//! The tables that all threads of a processed profile share: stacks, frames, functions, objects, texts.
//!
//! Keys of samples -> numbers of stacks; at the end the tables as columns of JSON. What does not belong here: threads.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde_json::json;

use super::json::{self, OrNull};
use crate::derive::Key;
use crate::export::places::{Place, Places};
use crate::export::tree::Tree;
use profiler_model::text::TextMap;
use profiler_model::*;

/// What code is, with its colour; the grey one is what is nothing else.
pub(super) const CATEGORIES: &[(&str, &str)] = &[
    ("Other", "grey"),
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("JIT", "green"),
    ("Interpreted", "blue"),
    ("Waiting", "transparent"),
    ("Calls", "purple"),
    ("Recording", "red"),
];
pub(super) const OTHER: u8 = 0;
const WAITING: u8 = 5;
pub(super) const WAITS: u8 = WAITING;
pub(super) const CALLS: u8 = 6;
pub(super) const RECORDING: u8 = 7;

/// The kind of resource that is an object file.
const LIBRARY: u8 = 1;

pub(super) struct Shared {
    places: Places,
    stacks: Tree<u32>,
    strings: Strings,
    stack: Vec<u32>,
    /// What [`Shared::code`] was asked for: waits come again and again from few places.
    code: FxHashMap<(Option<StackId>, Option<StackId>), Option<u32>>,
}

/// Texts, each once.
#[derive(Default)]
struct Strings {
    numbers: TextMap<String, u32>,
    all: Vec<String>,
}

impl Strings {
    fn of(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.all.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        self.all.push(text.to_owned());
        number
    }
}

impl Shared {
    pub(super) fn new(tables: &Tables) -> Shared {
        Shared {
            places: Places::new(tables),
            stacks: Tree::default(),
            strings: Strings::default(),
            stack: Vec::new(),
            code: FxHashMap::default(),
        }
    }

    /// The stack of a sample, and whether all of it has names.
    pub(super) fn stack(&mut self, key: &Key, tables: &Tables) -> (Option<u32>, bool) {
        let named = self.places.stack(key, tables, &mut self.stack);
        (self.stacks.path(self.stack.iter().copied()), named)
    }

    /// The stack of code.
    pub(super) fn code(
        &mut self,
        kernel: Option<StackId>,
        user: Option<StackId>,
        tables: &Tables,
    ) -> Option<u32> {
        if let Some(&known) = self.code.get(&(kernel, user)) {
            return known;
        }
        self.places.code(kernel, user, tables, &mut self.stack);
        let number = self.stacks.path(self.stack.iter().copied());
        self.code.insert((kernel, user), number);
        number
    }

    /// The number of a text.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        self.strings.of(text)
    }

    /// The name of a traced function.
    pub(super) fn traced(&mut self, id: FunctionId, tables: &Tables) -> u32 {
        let number = self.places.functions.traced(id, tables) as usize;
        let functions = &self.places.functions;
        match functions.all().get(number) {
            Some(&function) => self.strings.of(&functions.name(function, tables)),
            None => self.strings.of(""),
        }
    }

    /// Writes `"libs":..,"shared":..`.
    pub(super) fn write(mut self, out: &mut impl Write, tables: &Tables) -> io::Result<()> {
        let (mut libs, mut lib_of) = (Vec::new(), FxHashMap::default());
        for function in self.places.functions.all() {
            if let Some(id) = function.module_id() {
                lib_of.entry(id).or_insert_with(|| {
                    libs.push(id);
                    libs.len() - 1
                });
            }
        }
        out.write_all(b"\"libs\":[")?;
        for (index, id) in libs.iter().enumerate() {
            out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            json::value(out, &library(*id, tables))?;
        }
        out.write_all(b"],\n\"shared\":{\"resourceTable\":")?;
        let names: Vec<u32> = libs
            .iter()
            .map(|id| self.strings.of(file_name(path(*id, tables))))
            .collect();
        write!(out, "{{\"length\":{}", libs.len())?;
        json::column(out, "lib", 0..libs.len())?;
        json::column(out, "name", names)?;
        json::column(out, "host", libs.iter().map(|_| "null"))?;
        json::column(out, "type", libs.iter().map(|_| LIBRARY))?;

        let (mut sources, mut source_of) = (Vec::new(), FxHashMap::default());
        let functions = self.places.functions.all();
        let (mut names, mut files) = (Vec::new(), Vec::new());
        for function in functions {
            names.push(
                self.strings
                    .of(&self.places.functions.name(*function, tables)),
            );
            let file = function.file(tables).map(|file| self.strings.of(file));
            files.push(file.map(|file| {
                *source_of.entry(file).or_insert_with(|| {
                    sources.push(file);
                    sources.len() - 1
                })
            }));
        }
        let all = || functions.iter();
        let resources = all().map(|it| match it.module_id().and_then(|id| lib_of.get(&id)) {
            Some(&lib) => lib as i64,
            None => -1,
        });
        write!(out, "}},\n\"funcTable\":{{\"length\":{}", functions.len())?;
        json::column(out, "name", names)?;
        json::column(out, "isJS", all().map(|_| false))?;
        json::column(out, "relevantForJS", all().map(|_| false))?;
        json::column(out, "resource", resources)?;
        json::column(out, "source", files.into_iter().map(OrNull))?;
        json::column(out, "lineNumber", all().map(|it| OrNull(it.line(tables))))?;
        json::column(out, "columnNumber", all().map(|_| "null"))?;
        write!(out, "}},\n\"sources\":{{\"length\":{}", sources.len())?;
        json::column(out, "id", sources.iter().map(|_| "null"))?;
        json::column(out, "filename", &sources)?;

        let places = self.places.all();
        let all = || places.iter();
        let line = |place: &Place| OrNull((place.line > 0).then_some(place.line));
        write!(out, "}},\n\"frameTable\":{{\"length\":{}", places.len())?;
        json::column(out, "address", all().map(|it| address(it, tables)))?;
        json::column(out, "inlineDepth", all().map(|it| it.inline_depth))?;
        json::column(out, "category", all().map(|it| category(it, tables)))?;
        json::column(out, "subcategory", all().map(|_| 0))?;
        json::column(out, "func", all().map(|it| it.function))?;
        json::column(out, "nativeSymbol", all().map(|_| "null"))?;
        json::column(out, "innerWindowID", all().map(|_| 0))?;
        json::column(out, "line", all().map(line))?;
        json::column(out, "column", all().map(|_| "null"))?;
        let stacks = self.stacks.nodes();
        write!(out, "}},\n\"stackTable\":{{\"length\":{}", stacks.len())?;
        json::column(out, "frame", stacks.iter().map(|(_, frame)| frame))?;
        json::column(
            out,
            "prefix",
            stacks.iter().map(|(caller, _)| OrNull(*caller)),
        )?;
        out.write_all(
            b"},\n\"nativeSymbols\":{\"length\":0,\"address\":[],\"functionSize\":[],\"libIndex\":[],\"name\":[]}",
        )?;
        out.write_all(b"\n")?;
        json::texts(out, "stringArray", &self.strings.all)?;
        out.write_all(b"}")
    }
}

fn path(id: ModuleId, tables: &Tables) -> &str {
    let module = tables.modules.get(id);
    module.map_or("", |module| tables.string(module.path))
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn library(id: ModuleId, tables: &Tables) -> serde_json::Value {
    let build_id = tables
        .modules
        .get(id)
        .and_then(|module| module.build_id.as_ref());
    let (path, code_id) = (path(id, tables), build_id.map(BuildId::to_string));
    let name = file_name(path);
    json!({
        "name": name,
        "path": path,
        "debugName": name,
        "debugPath": path,
        "breakpadId": breakpad(code_id.as_deref().unwrap_or("")),
        "codeId": code_id,
        "arch": tables.session.arch,
    })
}

/// A build id as symbol servers of Breakpad name it: its first 16 bytes as a GUID, whose first three numbers have
/// their bytes turned round, and an age of 0.
fn breakpad(build_id: &str) -> String {
    let digits: Vec<char> = build_id
        .chars()
        .chain(std::iter::repeat('0'))
        .take(32)
        .collect();
    let byte = |index: usize| [digits[2 * index], digits[2 * index + 1]];
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let guid: String = order.into_iter().flat_map(byte).collect();
    guid.to_uppercase() + "0"
}

/// The address that the object file's own symbols have; -1 of what is no such place.
fn address(place: &Place, tables: &Tables) -> i64 {
    let module = |frame: &Frame| Some((tables.modules.get(frame.module?)?, frame.address));
    let known = (place.frame)
        .and_then(|id| tables.frames.get(id))
        .and_then(module);
    match known {
        Some((module, address)) if module.kind == ModuleKind::File => {
            let address = address.wrapping_add(module.address_bias);
            i32::try_from(address).map_or(-1, i64::from)
        }
        _ => -1,
    }
}

fn category(place: &Place, tables: &Tables) -> u8 {
    let Some(id) = place.frame else {
        return WAITING;
    };
    match tables.frames.get(id).map(|frame| frame.kind) {
        Some(FrameKind::Native) => 1,
        Some(FrameKind::Kernel) => 2,
        Some(FrameKind::Jit) => 3,
        Some(FrameKind::Interpreted) => 4,
        None => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_are_named_as_breakpad_does() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(breakpad(id), "67452301AB89EFCD0123456789ABCDEF0");
        assert_eq!(breakpad("01"), "000000010000000000000000000000000");
        assert_eq!(breakpad(""), "0".repeat(33));
    }
}
