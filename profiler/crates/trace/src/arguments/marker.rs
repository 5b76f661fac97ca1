//! The arguments of statically defined markers.
//!
//! systemtap's notation, `-4@%edi 8@-16(%rbp) 8@$5` -> [`Signature`]: for each argument its length
//! in bytes, negative if it is signed, and an operand as the assembler writes it. Source:
//! systemtap's wiki, "UserSpaceProbeImplementation". What an argument means is not said there, so
//! all are numbers, but those of the profiler's own markers (`sdk`), which are addresses of text.
//!
//! What does not belong here: finding markers in a file (`trace`'s functions).

use profiler_common::call::*;

use super::fetch::{Form, Known};
use super::location::Address;
use super::types::{Kind, Pointee, Type};
use super::{Missing, Signature};

/// Most arguments; the macros that make them have no more.
const MAX_ARGUMENTS: usize = 12;
/// What the names of the profiler's own markers begin with.
const OWN: &str = "profiler:";

impl Signature {
    /// The arguments of a marker, `provider:name`.
    pub fn of_marker(name: &str, arguments: &str) -> Signature {
        let is_own = name.starts_with(OWN);
        let mut signature = Signature::default();
        // Operands may have spaces behind commas; no operand begins without a length.
        for (index, argument) in split(arguments).into_iter().take(MAX_ARGUMENTS).enumerate() {
            let name = format!("arg{}", index + 1);
            let (ty, found) = match text(argument).filter(|_| is_own) {
                Some((ty, found)) => (ty, Ok(found)),
                None => read(argument),
            };
            let found = found.and_then(|(form, fetches)| {
                let room = MAX_FETCHES - signature.fetches.len();
                if fetches.len() > room {
                    Err(Missing::Room)
                } else {
                    Ok((form, fetches))
                }
            });
            signature.add(&name, ty, found, false);
        }
        signature
    }
}

/// The arguments, each with its operand: an argument begins at a word with an `@` in it.
fn split(arguments: &str) -> Vec<&str> {
    let mut starts = Vec::new();
    let mut at = 0;
    for word in arguments.split(' ') {
        if !word.is_empty() && (word.contains('@') || starts.is_empty()) {
            starts.push(at);
        }
        at += word.len() + 1;
    }
    let ends = starts.iter().skip(1).copied().chain([arguments.len()]);
    let pairs = starts.iter().zip(ends);
    pairs
        .map(|(&start, end)| arguments[start..end].trim())
        .collect()
}

/// The argument as the address of text, if it is one.
fn text(argument: &str) -> Option<(Type, (Form, Vec<Fetch>))> {
    let operand = argument.strip_prefix("8@")?;
    let at = match operand.strip_prefix('%') {
        Some(name) => Address::of(register(name)?, 0),
        None => memory(operand)?.followed()?,
    };
    let ty = Type::new("char*", 8, Kind::Pointer(Pointee::CString));
    let fetch = at.fetch(FETCH_STRING, MAX_STRING as u16);
    Some((ty, (Form::CString, vec![fetch])))
}

fn read(argument: &str) -> (Type, Result<(Form, Vec<Fetch>), Missing>) {
    let (len, operand) = argument.split_once('@').unwrap_or(("8", argument));
    // Without a length, the operand's own counts; a word holds any.
    let (signed, len) = match len.parse::<i64>() {
        Ok(len) if matches!(len.unsigned_abs(), 1 | 2 | 4 | 8) => (len < 0, len.unsigned_abs()),
        Ok(_) => return (Type::new("?", 8, Kind::Unknown), Err(Missing::Place)),
        // 4f, 8f: a floating-point number.
        Err(_) => {
            return (
                Type::new("float", 8, Kind::Float),
                Err(Missing::FloatingPoint),
            );
        }
    };
    let (prefix, kind) = if signed {
        ("int", Kind::Signed)
    } else {
        ("uint", Kind::Unsigned)
    };
    let ty = Type::new(&format!("{prefix}{}", len * 8), len, kind);
    let found = fetch(operand.trim(), len as u16).ok_or(Missing::Place);
    (ty, found)
}

fn fetch(operand: &str, len: u16) -> Option<(Form, Vec<Fetch>)> {
    if let Some(number) = operand.strip_prefix('$') {
        return Some((Form::Known(Known::Number(integer(number)?)), Vec::new()));
    }
    let bytes = Form::Bytes(vec![(0, usize::from(len))]);
    if let Some(name) = operand.strip_prefix('%') {
        let fetch = Address::of(register(name)?, 0).fetch(FETCH_WORD, 0);
        return Some((bytes, vec![fetch]));
    }
    let fetch = memory(operand)?.fetch(FETCH_MEMORY, len);
    Some((bytes, vec![fetch]))
}

/// Where an operand in memory lies.
fn memory(operand: &str) -> Option<Address> {
    let (offset, base) = operand.strip_suffix(')')?.split_once('(')?;
    let offset = if offset.is_empty() {
        0
    } else {
        integer(offset)?
    };
    // With an index or of another segment: not among what can be fetched.
    let base = register(base.trim().strip_prefix('%')?).filter(|_| !base.contains(','))?;
    Some(Address::of(base, i32::try_from(offset).ok()?))
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    // Constants of 8 bytes may be written as unsigned numbers.
    Some(if negative {
        (number as i64).wrapping_neg()
    } else {
        number as i64
    })
}

/// A register by any of its names, but for those of the second byte.
fn register(name: &str) -> Option<u8> {
    let numbered = name
        .strip_prefix('r')
        .map(|rest| rest.trim_end_matches(['d', 'w', 'b']));
    Some(match name {
        "rdi" | "edi" | "di" | "dil" => REGISTER_RDI,
        "rsi" | "esi" | "si" | "sil" => REGISTER_RSI,
        "rdx" | "edx" | "dx" | "dl" => REGISTER_RDX,
        "rcx" | "ecx" | "cx" | "cl" => REGISTER_RCX,
        "rax" | "eax" | "ax" | "al" => REGISTER_RAX,
        "rbx" | "ebx" | "bx" | "bl" => REGISTER_RBX,
        "rsp" | "esp" | "sp" | "spl" => REGISTER_RSP,
        "rbp" | "ebp" | "bp" | "bpl" => REGISTER_RBP,
        _ => match numbered? {
            "8" => REGISTER_R8,
            "9" => REGISTER_R9,
            "10" => REGISTER_R10,
            "11" => REGISTER_R11,
            "12" => REGISTER_R12,
            "13" => REGISTER_R13,
            "14" => REGISTER_R14,
            "15" => REGISTER_R15,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::Value;

    fn word(register: u8) -> Fetch {
        Address::of(register, 0).fetch(FETCH_WORD, 0)
    }

    fn memory(register: u8, offset: i32, len: u16) -> Fetch {
        Address::of(register, offset).fetch(FETCH_MEMORY, len)
    }

    fn item(payload: &[u8]) -> Vec<u8> {
        let mut item = vec![0, 0, payload.len() as u8, 0, 0, 0, 0, 0];
        item.extend_from_slice(payload);
        item.resize(item.len().next_multiple_of(8), 0);
        item
    }

    #[test]
    fn operands() {
        let signature = Signature::of_marker(
            "a:b",
            "-4@%edi 8@$5 -8@-16(%rbp) 8@(%rax,%rcx,8) 8@x(%rip) 1@%r15b 8@%ah 8f@%xmm0 2@0x10(%rsp)",
        );
        assert_eq!(
            signature.fetches,
            [
                word(REGISTER_RDI),
                memory(REGISTER_RBP, -16, 8),
                word(REGISTER_R15),
                memory(REGISTER_RSP, 16, 2),
            ]
        );
        let missing: Vec<_> = signature.parameters.iter().map(|p| p.missing).collect();
        assert_eq!(
            missing,
            [
                None,
                None,
                None,
                Some(Missing::Place),
                Some(Missing::Place),
                None,
                Some(Missing::Place),
                Some(Missing::FloatingPoint),
                None
            ]
        );
        let kinds: Vec<_> = signature.parameters.iter().map(|p| &*p.kind).collect();
        assert_eq!(kinds[..3], ["int32", "uint64", "int64"]);
        let items = [
            item(&0xffff_ffff_ffff_fffe_u64.to_ne_bytes()),
            item(&(-7_i64).to_ne_bytes()),
            item(&0x1234_u64.to_ne_bytes()),
            item(&[0xcd, 0xab]),
        ]
        .concat();
        assert_eq!(
            signature.decode(&items, false, 64),
            [
                Value::Signed(-2),
                Value::Signed(5),
                Value::Signed(-7),
                Value::Unavailable,
                Value::Unavailable,
                Value::Unsigned(0x34),
                Value::Unavailable,
                Value::Unavailable,
                Value::Unsigned(0xabcd),
            ]
        );
    }

    /// Those of the profiler's own markers are text, wherever its address is; what can't be one stays a number.
    #[test]
    fn own_markers_have_text() {
        let operands = "8@%rsi 8@-16(%rbp) -4@%edi 8@$0";
        let own = Signature::of_marker("profiler:start_trace", operands);
        let text = |register, offsets: &[i32]| {
            let fetch = own.fetches.iter().find(|it| it.register == register);
            let fetch = fetch.unwrap();
            assert_eq!(fetch.kind, FETCH_STRING);
            assert_eq!(&fetch.offsets[..offsets.len()], offsets);
        };
        text(REGISTER_RSI, &[0]);
        text(REGISTER_RBP, &[-16, 0]);
        assert_eq!(own.fetches[2], word(REGISTER_RDI));
        assert_eq!(own.fetches.len(), 3);
        let items = [item(b"foo"), item(b""), item(&7_u64.to_ne_bytes())].concat();
        let values = own.decode(&items, false, 64);
        assert_eq!(values[0], Value::Text("foo".into(), false));
        assert_eq!(values[2..], [Value::Signed(7), Value::Signed(0)]);
        let others = Signature::of_marker("profile:start_trace", operands);
        assert!(others.fetches.iter().all(|it| it.kind != FETCH_STRING));
    }

    #[test]
    fn any_text_is_some_signature() {
        for text in [
            "",
            "@",
            "8@",
            " ",
            "@@",
            "8@(",
            "8@)",
            "8@%",
            "-@$",
            "9@%rax",
            "8@$99999999999999999999",
            "é@é(é)",
        ] {
            let signature = Signature::of_marker("profiler:a", text);
            assert!(signature.fetches.is_empty(), "{text}");
        }
        let many = "8@%rax ".repeat(40);
        let signature = Signature::of_marker("a:b", &many);
        assert_eq!(signature.fetches.len(), MAX_FETCHES);
        assert_eq!(signature.parameters.len(), MAX_ARGUMENTS);
        assert_eq!(
            signature.parameters[MAX_FETCHES].missing,
            Some(Missing::Room)
        );
    }
}
