//! What can be known of a value.
//!
//! What does not belong here: where values are kept.

/// Base of offsets from the stack pointer at the entry.
pub(super) const ENTRY: u64 = 0;

/// What a register or a piece of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::code) enum Value {
    /// Something that was made at one place, and not by reckoning with an index.
    Plain(u64),
    /// Something that was made at one place, in a way that is not followed.
    Computed(u64),
    /// An address on the stack: `offset` from the stack pointer at the entry ([`ENTRY`]), or from
    /// where it was after the instruction named aligned it.
    Stack { base: u64, offset: i64 },
    /// A number.
    Constant(u64),
    /// A number of at most `max`, times `scale`.
    Index {
        /// The value as it was before it was bounded.
        id: u64,
        max: u64,
        scale: u64,
        /// Whether a comparison said so, and not just its width.
        exact: bool,
    },
    /// An entry of a table.
    Entry(Table),
    /// An entry of a table, plus a base.
    Target(Table, u64),
}

/// A table of places to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::code) struct Table {
    /// Where it begins.
    pub(in crate::code) address: u64,
    /// Bytes of an entry: 4 or 8.
    pub(in crate::code) width: u8,
    /// Distance between entries.
    pub(in crate::code) stride: u64,
    /// The last index.
    pub(in crate::code) max: u64,
    /// Whether the last index is sure.
    pub(in crate::code) exact: bool,
}

impl Value {
    pub(super) fn id(self) -> Option<u64> {
        match self {
            Value::Plain(id) | Value::Computed(id) | Value::Index { id, scale: 1, .. } => Some(id),
            _ => None,
        }
    }

    /// What is known where two ways meet. `id` names the new value.
    pub(super) fn meet(self, other: Value, id: u64) -> Value {
        if self == other {
            return self;
        }
        match (self, other) {
            (Value::Computed(old), _) if old == id => self,
            (Value::Plain(old), Value::Plain(_)) if old == id => self,
            (Value::Plain(_), Value::Plain(_)) => Value::Plain(id),
            _ if self.id().is_some() && self.id() == other.id() => {
                Value::Computed(self.id().unwrap_or(id))
            }
            _ => Value::Computed(id),
        }
    }
}
