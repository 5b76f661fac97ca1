//! Which structures are text, and where they have its address and length.
//!
//! The name and fields of a structure -> [`TextLayout`]. Known are the strings of libstdc++, libc++
//! (only its views), Rust and Go. The offsets come from the debug information, never from here, but
//! for [`undefined`].
//!
//! What does not belong here: reading the text (`decode`).

use super::types::{Kind, Struct, TextLayout, Type};

/// How deep the address of a string may lie in structures of its own.
const MAX_DEPTH: u32 = 8;

/// Whether a structure of this name may be text: the others need not be read.
pub(super) fn may_be_text(name: &str) -> bool {
    matches!(name, "String" | "string" | "&str" | "&mut str")
        || matches!(
            name,
            "Box<str>" | "Box<str, alloc::alloc::Global>" | "*const str" | "*mut str"
        )
        || is_basic(name)
}

/// `std::string`, `std::string_view` and their kin for other sets of characters of one byte.
fn is_basic(name: &str) -> bool {
    let arguments = name
        .strip_prefix("basic_string<")
        .or_else(|| name.strip_prefix("basic_string_view<"));
    arguments.is_some_and(|arguments| {
        let first = arguments.split([',', '>']).next().unwrap_or("");
        matches!(first.trim(), "char" | "char8_t")
    })
}

/// The layout of the text that a structure is, if it is.
pub(super) fn layout(name: &str, parts: &Struct) -> Option<TextLayout> {
    let pair = |pointer, len| {
        Some(TextLayout {
            pointer: offset_of(parts, pointer)?,
            len: offset_of(parts, len)?,
        })
    };
    match name {
        "&str" | "&mut str" | "*const str" | "*mut str" => pair("data_ptr", "length"),
        "Box<str>" | "Box<str, alloc::alloc::Global>" => pair("data_ptr", "length"),
        // Go.
        "string" => pair("str", "len"),
        // Rust: a vector of bytes.
        "String" => {
            let (at, vec) = inner(parts, "vec")?;
            let len = offset_of(vec, "len")?;
            let (buffer_at, buffer) = inner(vec, "buf")?;
            let pointer = u64::from(buffer_at) + first_pointer(buffer, 0)?;
            Some(TextLayout {
                pointer: at.checked_add(u32::try_from(pointer).ok()?)?,
                len: at.checked_add(len)?,
            })
        }
        // libstdc++: the string; and its view; libc++'s view.
        _ => pair("_M_dataplus", "_M_string_length")
            .or_else(|| pair("_M_str", "_M_len"))
            .or_else(|| pair("__data_", "__size_"))
            .or_else(|| pair("__data", "__size")),
    }
}

/// The layout of a string that the debug information only names, as Clang writes it for the string
/// of a library that has the string compiled in. That of libstdc++, whose strings are these in all
/// programs that were built since 2015, if the mangled name of the function names them.
pub(super) fn undefined(name: &str) -> Option<TextLayout> {
    (name.starts_with("basic_string<") && is_basic(name))
        .then_some(TextLayout { pointer: 0, len: 8 })
}

fn offset_of(parts: &Struct, name: &str) -> Option<u32> {
    let field = parts.fields.iter().find(|field| &*field.name == name)?;
    u32::try_from(field.offset)
        .ok()
        .filter(|&offset| offset < 1 << 16)
}

fn inner<'p>(parts: &'p Struct, name: &str) -> Option<(u32, &'p Struct)> {
    let field = parts.fields.iter().find(|field| &*field.name == name)?;
    match &field.ty.kind {
        Kind::Struct(inner) => Some((offset_of(parts, name)?, inner)),
        _ => None,
    }
}

/// Offset of the only pointer of a structure, in whatever layers it is wrapped.
fn first_pointer(parts: &Struct, depth: u32) -> Option<u64> {
    if depth >= MAX_DEPTH {
        return None;
    }
    let within = |ty: &Type| match &ty.kind {
        Kind::Pointer(_) => Some(0),
        Kind::Struct(inner) => first_pointer(inner, depth + 1),
        _ => None,
    };
    let mut fields = parts.fields.iter();
    fields.find_map(|field| within(&field.ty)?.checked_add(field.offset))
}
