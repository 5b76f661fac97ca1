//! Reading entries of debug information, within a budget.
//!
//! Places and references -> entries, their children and names. Every entry that is read is paid
//! for, so that no input takes long. Source: the DWARF 5 standard, chapter 2.
//!
//! What does not belong here: what entries mean (`function`, `describe`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gimli::read::{AttributeValue, DebuggingInformationEntry, Dwarf, Unit};
use gimli::{DwAt, DwTag, UnitOffset, constants};
use rustc_hash::FxHashMap;

use super::units::{At, Entry, Index, Slice, UnitAt, entry_at};

/// Most entries that are read for one function.
const MAX_ENTRIES: u32 = 20_000;
/// Longest name of a type or parameter, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Reads entries of one file for one function.
pub(super) struct Reader<'r, 'd> {
    dwarf: &'r Dwarf<Slice<'d>>,
    index: &'r Index,
    /// Strings that are only declared are those of libstdc++.
    pub(super) cxx11: bool,
    units: RefCell<FxHashMap<UnitAt, Rc<Unit<Slice<'d>>>>>,
    left: Cell<u32>,
}

/// An entry and its unit.
#[derive(Clone)]
pub(super) struct Node<'d> {
    /// The unit.
    pub(super) unit: Rc<Unit<Slice<'d>>>,
    /// The entry.
    pub(super) entry: Entry<'d>,
    /// Where it is.
    pub(super) at: At,
}

impl Node<'_> {
    /// What kind of entry it is.
    pub(super) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    /// Whether a flag is set.
    pub(super) fn flag(&self, attribute: DwAt) -> bool {
        matches!(
            self.entry.attr_value(attribute),
            Some(AttributeValue::Flag(true))
        )
    }

    /// A constant.
    pub(super) fn number(&self, attribute: DwAt) -> Option<u64> {
        self.entry.attr_value(attribute)?.udata_value()
    }
}

impl<'r, 'd> Reader<'r, 'd> {
    /// Begins to read what there is about a function with this mangled name.
    pub(super) fn new(
        dwarf: &'r Dwarf<Slice<'d>>,
        index: &'r Index,
        linkage_name: &str,
    ) -> Reader<'r, 'd> {
        Reader {
            dwarf,
            index,
            cxx11: linkage_name.contains("__cxx11"),
            units: RefCell::default(),
            left: Cell::new(MAX_ENTRIES),
        }
    }

    /// The sections.
    pub(super) fn dwarf(&self) -> &'r Dwarf<Slice<'d>> {
        self.dwarf
    }

    fn pay(&self) -> Option<()> {
        self.left.set(self.left.get().checked_sub(1)?);
        Some(())
    }

    /// The entry there.
    pub(super) fn node(&self, at: At) -> Option<Node<'d>> {
        self.pay()?;
        let known = self.units.borrow().get(&at.unit).cloned();
        let unit = match known {
            Some(unit) => unit,
            None => {
                let unit = self.index.unit(self.dwarf, at.unit)?;
                self.units.borrow_mut().insert(at.unit, unit.clone());
                unit
            }
        };
        let entry = entry_at(&unit, UnitOffset(at.entry))?;
        Some(Node { unit, entry, at })
    }

    /// The entry that an attribute refers to.
    pub(super) fn referred(&self, from: &Node<'d>, attribute: DwAt) -> Option<Node<'d>> {
        self.node(self.target(from, attribute)?)
    }

    /// Where the entry is that an attribute refers to.
    pub(super) fn target(&self, from: &Node<'_>, attribute: DwAt) -> Option<At> {
        match from.entry.attr_value(attribute)? {
            AttributeValue::UnitRef(offset) => Some(At {
                unit: from.at.unit,
                entry: offset.0,
            }),
            AttributeValue::DebugInfoRef(offset) => self.index.unit_around(offset.0),
            AttributeValue::DebugTypesRef(signature) => self.index.type_of(signature.0),
            _ => None,
        }
    }

    /// The entries directly in one, at most so many.
    pub(super) fn children(&self, of: &Node<'d>, most: usize) -> Vec<Node<'d>> {
        let mut found = Vec::new();
        if of.entry.has_children() {
            // Damage ends the list: what is before it is good.
            let _ = self.read_children(of, most, &mut found);
        }
        found
    }

    fn read_children(&self, of: &Node<'d>, most: usize, found: &mut Vec<Node<'d>>) -> Option<()> {
        let mut entries = of.unit.entries_raw(Some(UnitOffset(of.at.entry))).ok()?;
        entries
            .read_entry(&mut DebuggingInformationEntry::null())
            .ok()?;
        let mut level = entries.next_depth();
        while found.len() < most {
            self.pay()?;
            let start = entries.next_offset();
            let depth = entries.next_depth();
            if depth < level {
                return None;
            }
            let mut entry = DebuggingInformationEntry::null();
            if !entries.read_entry(&mut entry).ok()? || depth > level {
                continue;
            }
            let sibling = match entry.attr_value(constants::DW_AT_sibling) {
                Some(AttributeValue::UnitRef(next)) if entry.has_children() => Some(next),
                _ => None,
            };
            let at = At {
                unit: of.at.unit,
                entry: start.0,
            };
            found.push(Node {
                unit: of.unit.clone(),
                entry,
                at,
            });
            if let Some(next) = sibling.filter(|next| next.0 > start.0) {
                entries = of.unit.entries_raw(Some(next)).ok()?;
                level = entries.next_depth();
            }
        }
        None
    }

    /// A name, shortened if need be.
    pub(super) fn text(&self, node: &Node<'d>, attribute: DwAt) -> Option<Box<str>> {
        let value = node.entry.attr_value(attribute)?;
        let bytes = self.dwarf.attr_string(&node.unit, value).ok()?;
        let bytes = &bytes.slice()[..bytes.slice().len().min(MAX_NAME_BYTES)];
        Some(String::from_utf8_lossy(bytes).into())
    }
}
