//! Arguments and results: what to fetch when a function is entered or left, and what it means.
//!
//! Debug information, or the notation of a marker -> [`Signature`]: names and types of the
//! parameters and the result, and the list of fetches for the kernel side; later, the items that it
//! sent -> values. Addresses are ELF virtual addresses, lengths bytes. All of it comes from files
//! and memory of targets: bounded in time and size, no panic.
//!
//! ```text
//! address -> units -> function (reader, describe, strings, location) -> convention -> fetch -> decode
//! ```
//! What does not belong here: opening files and finding their debug information (`resolve`), where
//! probes are placed (the rest of `trace`), the fetching itself (the kernel side).

mod convention;
mod decode;
mod describe;
mod exception;
mod fetch;
pub(crate) mod fetches;
mod function;
#[cfg(test)]
mod hostile;
mod location;
mod marker;
mod reader;
mod strings;
mod types;
mod units;

use std::borrow::Cow;

use gimli::LittleEndian;
use gimli::read::{Dwarf, EndianSlice};
use profiler_common::call::*;
use serde::{Deserialize, Serialize};

pub use exception::{exception_class, exception_name};

use fetch::{Form, Recipe};
use location::Address;
use reader::Reader;
use types::{Kind, Type};
use units::{Index, Slice};

/// What a function takes and returns, and how to have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Its parameters in order; [`Signature::decode`] gives a value for each.
    pub parameters: Vec<ParameterType>,
    /// Its result; none if it returns nothing.
    pub result: Option<ParameterType>,
    /// What the kernel side is to fetch: at most [`MAX_FETCHES`], those of entries first.
    #[serde(with = "fetches")]
    pub fetches: Vec<Fetch>,
    at_entry: Vec<Recipe>,
    at_exit: Vec<Recipe>,
}

/// A parameter, or the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterType {
    /// Its name.
    pub name: Box<str>,
    /// The name of its type.
    pub kind: Box<str>,
    /// Why its value will not be there; none if it will.
    pub missing: Option<Missing>,
}

/// Why a value can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Missing {
    /// It is in a floating-point register, which the kernel side can't read.
    #[error("in a floating-point register")]
    FloatingPoint,
    /// The fetches of other parameters leave no room.
    #[error("more values than are fetched at one call")]
    Room,
    /// Its type is not supported, or where it lies is not known.
    #[error("of a type or in a place that is not supported")]
    Place,
}

impl Signature {
    /// Of a function of which nothing is known: the six registers of arguments, and that of results.
    pub fn registers() -> Signature {
        let mut signature = Signature::default();
        let word = |register| {
            let fetch = Address::of(register, 0).fetch(FETCH_WORD, 0);
            Ok((Form::Bytes(vec![(0, 8)]), vec![fetch]))
        };
        let registers = [
            ("rdi", REGISTER_RDI),
            ("rsi", REGISTER_RSI),
            ("rdx", REGISTER_RDX),
            ("rcx", REGISTER_RCX),
            ("r8", REGISTER_R8),
            ("r9", REGISTER_R9),
        ];
        for (name, register) in registers {
            signature.add(
                name,
                Type::new("word", 8, Kind::Word),
                word(register),
                false,
            );
        }
        signature.add(
            "rax",
            Type::new("word", 8, Kind::Word),
            word(REGISTER_RAX),
            true,
        );
        signature
    }

    /// Lets the kernel side fetch at most so many bytes of each text.
    pub fn limit_text(&mut self, bytes: usize) {
        let most = u16::try_from(bytes)
            .unwrap_or(u16::MAX)
            .min(MAX_STRING as u16);
        for fetch in &mut self.fetches {
            if matches!(fetch.kind, FETCH_STRING | FETCH_COUNTED) {
                fetch.size = most;
            }
        }
    }

    fn of(function: &function::Function) -> Signature {
        let placed = convention::place(function);
        let result = match (&function.results[..], &placed.results[..]) {
            ([], _) => None,
            ([only], [passed]) => Some((only.ty.clone(), passed.clone())),
            (several, places) => convention::together(several, places).or_else(|| {
                Some((
                    Type::new("several", 8, Kind::Unknown),
                    convention::Passed::Unknown,
                ))
            }),
        };
        let planned = result.map(|(ty, passed)| {
            let plan = fetch::plan(&ty, &passed, MAX_FETCHES);
            (ty, plan)
        });
        // Nothing is returned, which is not the same as something unknown.
        let planned = planned.filter(|(ty, _)| ty.size > 0 || ty.kind == Kind::Unknown);
        let for_result = match &planned {
            Some((_, Ok((_, fetches)))) => fetches.len(),
            _ => 0,
        };
        let mut signature = Signature::default();
        for (parameter, passed) in function.parameters.iter().zip(&placed.parameters) {
            let room = (MAX_FETCHES - for_result).saturating_sub(signature.fetches.len());
            let plan = fetch::plan(&parameter.ty, passed, room);
            signature.add(&parameter.name, parameter.ty.clone(), plan, false);
        }
        if let Some((ty, plan)) = planned {
            signature.add("result", ty, plan, true);
        }
        signature
    }

    fn add(&mut self, name: &str, ty: Type, plan: Result<(Form, Vec<Fetch>), Missing>, exit: bool) {
        let (form, fetches, missing) = match plan {
            Ok((form, fetches)) => (form, fetches, None),
            Err(missing) => (Form::Missing, Vec::new(), Some(missing)),
        };
        debug_assert_eq!(form.items(), fetches.len());
        let parameter = ParameterType {
            name: name.into(),
            kind: ty.name.clone(),
            missing,
        };
        let at_exit = u8::from(exit);
        self.fetches
            .extend(fetches.into_iter().map(|fetch| Fetch { at_exit, ..fetch }));
        let recipe = Recipe { ty, form };
        if exit {
            self.result = Some(parameter);
            self.at_exit.push(recipe);
        } else {
            self.parameters.push(parameter);
            self.at_entry.push(recipe);
        }
    }
}

/// The debug information of a file, from which signatures are read.
pub struct Signatures<'d> {
    sections: Vec<(&'static str, Cow<'d, [u8]>)>,
    index: Index,
}

impl<'d> Signatures<'d> {
    /// Takes the sections that are needed (`.debug_info` and others, uncompressed); none if there
    /// is no debug information. Nothing is read yet.
    pub fn open(sections: impl Fn(&str) -> Option<Cow<'d, [u8]>>) -> Option<Signatures<'d>> {
        let names = [
            ".debug_info",
            ".debug_abbrev",
            ".debug_addr",
            ".debug_aranges",
            ".debug_line_str",
            ".debug_loc",
            ".debug_loclists",
            ".debug_ranges",
            ".debug_rnglists",
            ".debug_str",
            ".debug_str_offsets",
            ".debug_types",
        ];
        let found = names.map(|name| Some((name, sections(name)?)));
        let sections: Vec<_> = found.into_iter().flatten().collect();
        let any = sections
            .iter()
            .any(|(name, bytes)| *name == ".debug_info" && !bytes.is_empty());
        any.then(|| Signatures {
            sections,
            index: Index::default(),
        })
    }

    /// The signature of the function that starts at an ELF virtual address. The name in the symbol
    /// table decides between functions that share their code; empty: not known.
    pub fn signature(&mut self, address: u64, linkage_name: &str) -> Option<Signature> {
        let dwarf = dwarf(&self.sections);
        let found = self.index.find(&dwarf, address);
        if found.is_empty() {
            return None;
        }
        self.index.read_headers(&dwarf);
        let reader = Reader::new(&dwarf, &self.index, linkage_name);
        let mut entries = found.iter().filter_map(|&at| reader.node(at));
        let first = entries.next()?;
        let own = function::linkage_name(&reader, first.clone());
        let entry = match &own {
            Some(own) if !linkage_name.starts_with(&**own) => {
                let same = entries.find(|entry| {
                    let name = function::linkage_name(&reader, entry.clone());
                    name.is_some_and(|name| linkage_name.starts_with(&*name))
                });
                same.unwrap_or(first)
            }
            _ => first,
        };
        // A name that is only another one of the same code says less than its own.
        let name = match &own {
            Some(own) if !linkage_name.starts_with(&**own) => own,
            _ => linkage_name,
        };
        function::read(&reader, entry, name).map(|function| Signature::of(&function))
    }
}

fn dwarf<'s>(sections: &'s [(&'static str, Cow<'_, [u8]>)]) -> Dwarf<Slice<'s>> {
    let section = |id: gimli::SectionId| {
        let found = sections.iter().find(|(name, _)| *name == id.name());
        let bytes = found.map_or(&[][..], |(_, bytes)| bytes);
        Ok::<_, std::convert::Infallible>(EndianSlice::new(bytes, LittleEndian))
    };
    match Dwarf::load(section) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}
