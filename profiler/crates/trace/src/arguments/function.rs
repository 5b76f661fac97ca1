//! A function's parameters and result, as the debug information says.
//!
//! The entry of a function, completed by the entries that it refers to (its declaration, the
//! abstract copy of a function that is also inlined) -> [`Function`]. Source: the DWARF 5 standard,
//! chapter 3.3.
//!
//! What does not belong here: where the values lie (`convention`).

use std::borrow::Cow;

use gimli::constants;
use gimli::read::{AttributeValue, Operation};

use super::location::{self, Location};
use super::reader::{Node, Reader};
use super::types::{Kind, Pointee, Type};
use super::units::entry_at;

/// Most parameters that are read.
const MAX_PARAMETERS: usize = 32;
/// Most entries of a function among which they are looked for.
const MAX_CHILDREN: usize = 256;
/// Most entries that complete one another.
const MAX_ORIGINS: usize = 8;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Its parameters, `this` included, in order.
    pub(super) parameters: Vec<Parameter>,
    /// What it returns: nothing, one value, or several (Go).
    pub(super) results: Vec<Parameter>,
    /// How it is called.
    pub(super) called: Called,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// Its name.
    pub(super) name: Box<str>,
    /// Its type.
    pub(super) ty: Type,
    /// Where it lies at the first instruction, where the debug information says that.
    pub(super) location: Option<Location>,
}

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// By the convention of C and C++ on x86-64.
    SystemV,
    /// By that of Rust.
    Rust,
    /// By that of Go, in registers.
    Go,
    /// In a way of its own, because the compiler sees all calls: only locations tell.
    Freely,
}

/// Reads the function of an entry, whose mangled name is known or empty; none if it is in a language
/// whose calls are not known.
pub(super) fn read<'d>(
    reader: &Reader<'_, 'd>,
    entry: Node<'d>,
    linkage_name: &str,
) -> Option<Function> {
    let chain = origins(reader, entry);
    let concrete = chain.first()?;
    // The abstract copy has all parameters in order; the concrete one may have lost some.
    let own = formals(reader, concrete);
    let called = called(reader, &chain, &own, linkage_name)?;
    let mut lists = chain.iter().skip(1).map(|node| formals(reader, node));
    let list = lists
        .find(|list| !list.is_empty())
        .unwrap_or_else(|| own.clone());
    let same_len = list.len() == own.len();

    let mut function = Function {
        parameters: Vec::new(),
        results: Vec::new(),
        called,
    };
    for (index, formal) in list.iter().enumerate() {
        let refers = |own: &&Node<'_>| own.at == formal.at || refers_to(reader, own, formal);
        let here = own.iter().find(refers);
        let here = here.or_else(|| own.get(index).filter(|_| same_len));
        let Some(mut parameter) = parameter(reader, formal, here, index) else {
            continue;
        };
        parameter.location = location::at_entry(reader, concrete, here.unwrap_or(formal));
        if called == Called::Go && formal.flag(constants::DW_AT_variable_parameter) {
            function.results.push(parameter);
        } else {
            function.parameters.push(parameter);
        }
    }
    let typed = |node: &&Node<'_>| node.entry.attr(constants::DW_AT_type).is_some();
    if called != Called::Go
        && let Some(holder) = chain.iter().find(typed)
    {
        let (name, ty) = ("result".into(), reader.type_of(holder, 0));
        function.results.push(Parameter {
            name,
            ty,
            location: None,
        });
    }
    Some(function)
}

/// One parameter: its abstract form, and its concrete one if there is one.
fn parameter<'d>(
    reader: &Reader<'_, 'd>,
    formal: &Node<'d>,
    here: Option<&Node<'d>>,
    index: usize,
) -> Option<Parameter> {
    let forms = || here.into_iter().chain([formal]);
    let artificial = forms().any(|node| node.flag(constants::DW_AT_artificial));
    let name = forms().find_map(|node| reader.text(node, constants::DW_AT_name));
    let name = match name {
        Some(name) => name,
        None if artificial && index == 0 => "this".into(),
        None => format!("arg{index}").into(),
    };
    if artificial && &*name != "this" && here.is_none() {
        // Passed to other copies of a constructor, not to this one.
        return None;
    }
    let typed = forms().find(|node| node.entry.attr(constants::DW_AT_type).is_some());
    let mut ty = reader.type_of(typed.unwrap_or(formal), 0);
    if let Kind::Pointer(to) = &mut ty.kind
        && &*name == "this"
    {
        // When a string is made, there is none yet.
        *to = Pointee::Other;
    }
    Some(Parameter {
        name,
        ty,
        location: None,
    })
}

/// The entry, then those that complete it.
fn origins<'d>(reader: &Reader<'_, 'd>, entry: Node<'d>) -> Vec<Node<'d>> {
    let mut chain = vec![entry];
    while chain.len() < MAX_ORIGINS
        && let Some(last) = chain.last()
    {
        let next = reader
            .referred(last, constants::DW_AT_abstract_origin)
            .or_else(|| reader.referred(last, constants::DW_AT_specification));
        match next {
            Some(next) if chain.iter().all(|node| node.at != next.at) => chain.push(next),
            _ => break,
        }
    }
    chain
}

/// The mangled name, perhaps only its beginning.
pub(super) fn linkage_name<'d>(reader: &Reader<'_, 'd>, entry: Node<'d>) -> Option<Box<str>> {
    let chain = origins(reader, entry);
    let names = [
        constants::DW_AT_linkage_name,
        constants::DW_AT_MIPS_linkage_name,
    ];
    let mut nodes = chain.iter();
    nodes.find_map(|node| names.iter().find_map(|&name| reader.text(node, name)))
}

fn called(
    reader: &Reader<'_, '_>,
    chain: &[Node<'_>],
    own: &[Node<'_>],
    linkage_name: &str,
) -> Option<Called> {
    let concrete = chain.first()?;
    let root = entry_at(&concrete.unit, concrete.unit.header.root_offset())?;
    let language = match root.attr_value(constants::DW_AT_language) {
        Some(AttributeValue::Language(language)) => language,
        _ => constants::DW_LANG_C,
    };
    let producer = root.attr_value(constants::DW_AT_producer);
    let producer =
        producer.and_then(|value| reader.dwarf().attr_string(&concrete.unit, value).ok());
    let producer = producer.map_or(Cow::Borrowed(""), |text| {
        String::from_utf8_lossy(text.slice())
    });
    // LLVM says it by the convention, or says nothing; GCC by the name of the copy.
    let changed = chain.iter().any(|node| {
        matches!(
            node.entry.attr_value(constants::DW_AT_calling_convention),
            Some(AttributeValue::CallingConvention(constants::DW_CC_nocall))
        )
    });
    let external = chain
        .iter()
        .any(|node| node.flag(constants::DW_AT_external));
    let unsaid = !external && changes_silently(&producer) && own.iter().any(is_optimised);
    let copies = [".isra.", ".constprop.", ".part."];
    let copy = copies.iter().any(|part| linkage_name.contains(part));
    let mangled = linkage_name.starts_with("_R") || linkage_name.starts_with("_ZN");
    Some(match language {
        _ if changed || unsaid || copy => Called::Freely,
        constants::DW_LANG_Go => {
            // Until Go 1.16, everything was on the stack.
            let registers = producer.contains("regabi");
            registers.then_some(Called::Go)?
        }
        // What is for others to call keeps its name, and has C's convention.
        constants::DW_LANG_Rust if mangled => Called::Rust,
        constants::DW_LANG_Swift | constants::DW_LANG_OCaml | constants::DW_LANG_Haskell => {
            return None;
        }
        _ => Called::SystemV,
    })
}

/// Whether a compiler changes parameters of functions that only one file knows without a word: LLVM
/// did before 17.
fn changes_silently(producer: &str) -> bool {
    let version = producer
        .split_once("clang version ")
        .map(|(_, version)| version);
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major < 17)
}

/// Whether a parameter is not simply where it was put in memory once and for all.
fn is_optimised(parameter: &Node<'_>) -> bool {
    let Some(AttributeValue::Exprloc(place)) =
        parameter.entry.attr_value(constants::DW_AT_location)
    else {
        return true;
    };
    let first = place.operations(parameter.unit.encoding()).next();
    !matches!(first, Ok(Some(Operation::FrameOffset { .. })))
}

fn formals<'d>(reader: &Reader<'_, 'd>, node: &Node<'d>) -> Vec<Node<'d>> {
    let mut found = reader.children(node, MAX_CHILDREN);
    found.retain(|child| child.tag() == constants::DW_TAG_formal_parameter);
    found.truncate(MAX_PARAMETERS);
    found
}

/// Whether a parameter is the concrete form of another.
fn refers_to(reader: &Reader<'_, '_>, own: &Node<'_>, formal: &Node<'_>) -> bool {
    let origin = reader.target(own, constants::DW_AT_abstract_origin);
    origin == Some(formal.at)
}
