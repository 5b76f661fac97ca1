//! Types, read from debug information.
//!
//! An attribute that names a type -> [`Type`], as deep as passing and showing its values needs.
//! Typedefs and qualifiers are looked through; every chain has an end. Source: the DWARF 5 standard,
//! chapter 5.
//!
//! What does not belong here: which entry describes a function (`units`), and how types are passed
//! (`convention`).

use gimli::constants;
use gimli::read::AttributeValue;

use super::reader::{Node, Reader};
use super::strings;
use super::types::{Field, Kind, Pointee, Struct, Type};

/// Most typedefs and qualifiers in a row.
const MAX_CHAIN: u32 = 32;
/// How deep types in types are read.
const MAX_DEPTH: u32 = 12;
/// Most fields of one structure, and most variants.
const MAX_FIELDS: usize = 128;
/// Most numbers of one enumeration.
const MAX_NAMES: usize = 1024;

impl<'d> Reader<'_, 'd> {
    /// The type that an attribute names; none is `void`.
    pub(super) fn type_of(&self, node: &Node<'d>, depth: u32) -> Type {
        let unknown = || Type::new("?", 0, Kind::Unknown);
        if node.entry.attr(constants::DW_AT_type).is_none() {
            return Type {
                align: 1,
                ..Type::new("void", 0, Kind::Struct(Struct::default()))
            };
        }
        self.referred(node, constants::DW_AT_type)
            .map_or_else(unknown, |node| self.describe(&node, depth))
    }

    /// Looks through typedefs and qualifiers: the first name on the way, and what is behind.
    fn peel(&self, node: &Node<'d>) -> Option<(Option<Box<str>>, String, Node<'d>)> {
        let (mut name, mut qualifiers) = (None, String::new());
        let mut node = node.clone();
        for _ in 0..MAX_CHAIN {
            match node.tag() {
                constants::DW_TAG_typedef => {
                    name = name.or_else(|| self.text(&node, constants::DW_AT_name));
                }
                constants::DW_TAG_const_type if name.is_none() => qualifiers.push_str("const "),
                constants::DW_TAG_volatile_type if name.is_none() => {
                    qualifiers.push_str("volatile ");
                }
                constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_restrict_type
                | constants::DW_TAG_atomic_type
                | constants::DW_TAG_immutable_type
                | constants::DW_TAG_packed_type => {}
                _ => {
                    // Only a name, completed by a unit for this one type.
                    let whole = self.referred(&node, constants::DW_AT_signature);
                    return Some((name, qualifiers, whole.unwrap_or(node)));
                }
            }
            node = self.referred(&node, constants::DW_AT_type)?;
        }
        None
    }

    fn describe(&self, node: &Node<'d>, depth: u32) -> Type {
        let unknown = |name: Box<str>| Type {
            name,
            ..Type::new("", 0, Kind::Unknown)
        };
        let Some((alias, qualifiers, node)) = self.peel(node) else {
            // A qualifier without a type: `const void`.
            return Type {
                align: 1,
                ..Type::new("void", 0, Kind::Struct(Struct::default()))
            };
        };
        let own = self.text(&node, constants::DW_AT_name);
        let name = alias.or_else(|| own.clone());
        if depth >= MAX_DEPTH {
            return unknown(name.unwrap_or_else(|| "?".into()));
        }
        let mut found = match node.tag() {
            constants::DW_TAG_base_type => self.base(&node, own.as_deref().unwrap_or("")),
            constants::DW_TAG_enumeration_type => self.enumeration(&node, depth),
            constants::DW_TAG_pointer_type
            | constants::DW_TAG_reference_type
            | constants::DW_TAG_rvalue_reference_type => self.pointer(&node, depth),
            constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type => self.structure(&node, own.as_deref(), depth),
            constants::DW_TAG_array_type => self.array(&node, depth),
            constants::DW_TAG_ptr_to_member_type => self.member_pointer(&node),
            // A function where a value is needed is its address.
            constants::DW_TAG_subroutine_type => {
                Type::new("function", 8, Kind::Pointer(Pointee::Other))
            }
            constants::DW_TAG_unspecified_type if own.as_deref() == Some("decltype(nullptr)") => {
                Type::new("nullptr_t", 8, Kind::Pointer(Pointee::Other))
            }
            _ => unknown("?".into()),
        };
        if let Some(size) = node.number(constants::DW_AT_byte_size) {
            found.size = size;
        }
        if let Some(align) = node.number(constants::DW_AT_alignment) {
            found.align = found.align.max(align.min(1 << 20));
        }
        if let Some(name) = name {
            // In C, these are but other names of integers.
            if matches!(found.kind, Kind::Signed | Kind::Unsigned)
                && matches!(&*name, "wchar_t" | "char16_t" | "char32_t")
            {
                found.kind = Kind::Char;
            }
            found.name = name;
        }
        if !qualifiers.is_empty() {
            found.name = format!("{qualifiers}{}", found.name).into();
        }
        found
    }

    fn base(&self, node: &Node<'d>, name: &str) -> Type {
        let size = node.number(constants::DW_AT_byte_size).unwrap_or(0);
        let encoding = match node.entry.attr_value(constants::DW_AT_encoding) {
            Some(AttributeValue::Encoding(encoding)) => encoding,
            _ => constants::DwAte(0),
        };
        let kind = match encoding {
            _ if size == 0 => Kind::Struct(Struct::default()),
            constants::DW_ATE_boolean if size <= 8 => Kind::Bool,
            constants::DW_ATE_float => match (size, name) {
                (16, "long double") => Kind::Extended,
                (16, _) => Kind::Vector,
                _ => Kind::Float,
            },
            constants::DW_ATE_complex_float if size == 32 => Kind::Unknown,
            constants::DW_ATE_complex_float => Kind::Complex,
            constants::DW_ATE_UTF => Kind::Char,
            constants::DW_ATE_signed_char | constants::DW_ATE_unsigned_char if name == "char" => {
                Kind::Char
            }
            constants::DW_ATE_signed if name == "wchar_t" => Kind::Char,
            constants::DW_ATE_signed | constants::DW_ATE_signed_char => Kind::Signed,
            constants::DW_ATE_unsigned | constants::DW_ATE_unsigned_char => Kind::Unsigned,
            constants::DW_ATE_address => Kind::Pointer(Pointee::Other),
            _ => Kind::Unknown,
        };
        match kind {
            Kind::Signed | Kind::Unsigned if size > 16 => Type::new(name, size, Kind::Unknown),
            Kind::Complex => Type {
                align: size / 2,
                ..Type::new(name, size, kind)
            },
            kind => Type::new(name, size, kind),
        }
    }

    fn enumeration(&self, node: &Node<'d>, depth: u32) -> Type {
        let typed = node.entry.attr(constants::DW_AT_type);
        let base = typed.map(|_| self.type_of(node, depth + 1));
        let size = base.as_ref().map_or(4, |base| base.size);
        let bytes = node.number(constants::DW_AT_byte_size).unwrap_or(size);
        let mut signed = base.as_ref().is_some_and(|base| base.kind == Kind::Signed);
        let mut names = Vec::new();
        for child in self.children(node, MAX_NAMES) {
            if child.tag() != constants::DW_TAG_enumerator {
                continue;
            }
            let value = child.entry.attr_value(constants::DW_AT_const_value);
            let number = match &value {
                Some(AttributeValue::Sdata(number)) => *number,
                Some(value) => match value.sdata_value() {
                    Some(number) => number,
                    None => continue,
                },
                None => continue,
            };
            signed |= base.is_none() && number < 0;
            if let Some(name) = self.text(&child, constants::DW_AT_name) {
                names.push((number, name));
            }
        }
        if !signed {
            // Compilers write a number in the form that is the shortest, signed or not.
            let unused = 64_u64.saturating_sub(bytes.saturating_mul(8)).min(63);
            for (number, _) in &mut names {
                *number = ((*number as u64) << unused >> unused) as i64;
            }
        }
        Type::new(
            "enum",
            bytes,
            Kind::Enumeration {
                signed,
                names: names.into(),
            },
        )
    }

    fn pointer(&self, node: &Node<'d>, depth: u32) -> Type {
        let sign = match node.tag() {
            constants::DW_TAG_reference_type => "&",
            constants::DW_TAG_rvalue_reference_type => "&&",
            _ => "*",
        };
        let target = self.referred(node, constants::DW_AT_type);
        let Some((alias, qualifiers, target)) =
            target.as_ref().and_then(|target| self.peel(target))
        else {
            return Type::new(&format!("void {sign}"), 8, Kind::Pointer(Pointee::Other));
        };
        let own = self.text(&target, constants::DW_AT_name);
        let to = match (target.tag(), own.as_deref()) {
            (constants::DW_TAG_base_type, Some("char" | "char8_t")) if sign == "*" => {
                match target.number(constants::DW_AT_byte_size) {
                    Some(1) => Pointee::CString,
                    _ => Pointee::Other,
                }
            }
            (constants::DW_TAG_structure_type | constants::DW_TAG_class_type, Some(name))
                // One that points to itself would have no end.
                if strings::may_be_text(name) && depth + 1 < MAX_DEPTH =>
            {
                match self.structure(&target, Some(name), depth + 1).kind {
                    Kind::Struct(Struct {
                        text: Some(text), ..
                    }) => Pointee::Text(text),
                    _ => Pointee::Other,
                }
            }
            _ => Pointee::Other,
        };
        let name = match target.tag() {
            constants::DW_TAG_subroutine_type => alias.unwrap_or_else(|| "function".into()),
            // One level is enough to tell them apart; more may be endless.
            constants::DW_TAG_pointer_type if alias.is_none() && own.is_none() => {
                let inner = self.referred(&target, constants::DW_AT_type);
                let inner = inner.as_ref().and_then(|inner| self.peel(inner));
                let inner = inner.and_then(|(alias, qualifiers, node)| {
                    let name = alias.or_else(|| self.text(&node, constants::DW_AT_name))?;
                    Some(format!("{qualifiers}{name} *"))
                });
                inner.unwrap_or_else(|| "void *".to_owned()).into()
            }
            _ => alias.or(own).unwrap_or_else(|| "?".into()),
        };
        let space = if name.ends_with('*') { "" } else { " " };
        Type::new(
            &format!("{qualifiers}{name}{space}{sign}"),
            8,
            Kind::Pointer(to),
        )
    }

    fn member_pointer(&self, node: &Node<'d>) -> Type {
        let target = self.referred(node, constants::DW_AT_type);
        match target.as_ref().and_then(|target| self.peel(target)) {
            // Of a function: its address and what is added to `this`.
            Some((_, _, target)) if target.tag() == constants::DW_TAG_subroutine_type => {
                let word = |name: &str, offset| Field {
                    name: name.into(),
                    offset,
                    ty: Type::new("long", 8, Kind::Word),
                    bits: None,
                };
                let fields = vec![word("function", 0), word("adjustment", 8)];
                let parts = Struct {
                    fields,
                    ..Struct::default()
                };
                Type {
                    align: 8,
                    ..Type::new("member function", 16, Kind::Struct(parts))
                }
            }
            _ => Type::new("member", 8, Kind::Signed),
        }
    }

    fn array(&self, node: &Node<'d>, depth: u32) -> Type {
        let element = self.type_of(node, depth + 1);
        let mut count = 1_u64;
        for child in self.children(node, 16) {
            let upper = child.number(constants::DW_AT_upper_bound);
            let len = child.number(constants::DW_AT_count);
            // Without a length: a flexible array, which has none of its own.
            let len = len.unwrap_or_else(|| upper.map_or(0, |upper| upper.wrapping_add(1)));
            count = count.saturating_mul(len);
        }
        let size = element.size.saturating_mul(count);
        let align = element.align;
        let name = format!("{}[{count}]", element.name);
        let kind = if node.flag(constants::DW_AT_GNU_vector) {
            Kind::Vector
        } else {
            Kind::Array {
                element: Box::new(element),
                count,
            }
        };
        let align = if kind == Kind::Vector {
            size.clamp(1, 64)
        } else {
            align
        };
        Type {
            align,
            ..Type::new(&name, size, kind)
        }
    }

    fn structure(&self, node: &Node<'d>, name: Option<&str>, depth: u32) -> Type {
        let shown = name.unwrap_or("{}");
        let size = node.number(constants::DW_AT_byte_size);
        if size.is_none() || node.flag(constants::DW_AT_declaration) {
            let text = name.filter(|_| self.cxx11).and_then(strings::undefined);
            let parts = Struct {
                text,
                by_address: true,
                partial: true,
                ..Struct::default()
            };
            let kind = text.map_or(Kind::Unknown, |_| Kind::Struct(parts));
            return Type {
                align: 8,
                ..Type::new(shown, 32, kind)
            };
        }
        let size = size.unwrap_or(0);
        let (mut parts, variants, destructor) = self.parts(node, depth);
        let align = parts.fields.iter().map(|field| field.ty.align).max();
        parts.by_address = match node.entry.attr_value(constants::DW_AT_calling_convention) {
            Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_reference)) => true,
            Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_value)) => false,
            _ => destructor,
        };
        if let Some(name) = name
            && strings::may_be_text(name)
        {
            parts.text = strings::layout(name, &parts);
        }
        let kind = match variants {
            Some(kind) => kind,
            None => Kind::Struct(parts),
        };
        Type {
            align: align.unwrap_or(1),
            ..Type::new(shown, size, kind)
        }
    }

    /// The fields; if it has them, the variants; and whether it needs more than copying.
    fn parts(&self, node: &Node<'d>, depth: u32) -> (Struct, Option<Kind>, bool) {
        let mut parts = Struct::default();
        let (mut variants, mut special) = (None, false);
        let children = self.children(node, 4 * MAX_FIELDS);
        for child in &children {
            if parts.fields.len() >= MAX_FIELDS {
                parts.partial = true;
                break;
            }
            match child.tag() {
                constants::DW_TAG_member | constants::DW_TAG_inheritance => {
                    let elsewhere = child.flag(constants::DW_AT_external)
                        || child.flag(constants::DW_AT_declaration);
                    if elsewhere {
                        continue;
                    }
                    match self.field(child, depth) {
                        Some(field) => {
                            special |=
                                matches!(&field.ty.kind, Kind::Struct(inner) if inner.by_address);
                            parts.fields.push(field);
                        }
                        // A virtual base, say.
                        None => (parts.partial, special) = (true, true),
                    }
                }
                constants::DW_TAG_variant_part => variants = Some(self.variants(child, depth)),
                constants::DW_TAG_subprogram => special |= self.is_destructor(child),
                _ => {}
            }
        }
        parts.partial |= children.len() >= 4 * MAX_FIELDS;
        (parts, variants, special)
    }

    /// Whether it is a destructor that does something: such values are passed by address.
    fn is_destructor(&self, node: &Node<'d>) -> bool {
        let name = self.text(node, constants::DW_AT_name);
        let defaulted = node.entry.attr(constants::DW_AT_defaulted).is_some();
        name.is_some_and(|name| name.starts_with('~'))
            && !defaulted
            && !node.flag(constants::DW_AT_artificial)
    }

    fn field(&self, node: &Node<'d>, depth: u32) -> Option<Field> {
        let ty = self.type_of(node, depth + 1);
        let name = match self.text(node, constants::DW_AT_name) {
            // Fields of Rust's tuples.
            Some(name) => match name.strip_prefix("__") {
                Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.into(),
                _ => name,
            },
            None if node.tag() == constants::DW_TAG_inheritance => ty.name.clone(),
            None => "".into(),
        };
        let offset = match node.entry.attr_value(constants::DW_AT_data_member_location) {
            Some(value) => Some(value.udata_value()?),
            None => None,
        };
        let bits = match node.number(constants::DW_AT_bit_size) {
            None => None,
            Some(len) => Some((self.bit_offset(node, offset, len, &ty)?, len)),
        };
        let offset = offset.unwrap_or(bits.map_or(0, |(bit, _)| bit / 8));
        Some(Field {
            name,
            offset,
            ty,
            bits,
        })
    }

    /// Of a bit field of `len` bits: where it starts, in bits.
    fn bit_offset(&self, node: &Node<'d>, offset: Option<u64>, len: u64, ty: &Type) -> Option<u64> {
        if let Some(offset) = node.number(constants::DW_AT_data_bit_offset) {
            return Some(offset);
        }
        // Until DWARF 3, and by compilers that still write so: from the other end of the storage.
        let from_end = node.number(constants::DW_AT_bit_offset)?;
        let storage = node.number(constants::DW_AT_byte_size).unwrap_or(ty.size);
        let bits = storage
            .checked_mul(8)?
            .checked_sub(from_end)?
            .checked_sub(len)?;
        offset?.checked_mul(8)?.checked_add(bits)
    }

    fn variants(&self, node: &Node<'d>, depth: u32) -> Kind {
        let tag = self.referred(node, constants::DW_AT_discr);
        let tag = tag.and_then(|tag| self.field(&tag, depth + 1));
        let mut variants = Vec::new();
        for variant in self.children(node, MAX_FIELDS) {
            if variant.tag() != constants::DW_TAG_variant {
                continue;
            }
            let members = self.children(&variant, MAX_FIELDS);
            let fields = members.iter().map(|member| self.field(member, depth + 1));
            let fields: Vec<_> = fields.collect();
            variants.push(Struct {
                partial: fields.iter().any(Option::is_none),
                fields: fields.into_iter().flatten().collect(),
                ..Struct::default()
            });
        }
        Kind::Variants {
            tag: tag.map(|tag| (tag.offset, tag.ty.size)),
            variants,
        }
    }
}
