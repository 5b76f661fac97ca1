//! Debug information that no compiler makes: everything that refers to itself.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use super::*;

const ABBREVIATIONS: &[u8] = &[
    // 1: unit, with children: language, producer.
    1, 0x11, 1, 0x13, 0x0b, 0x25, 0x08, 0, 0, //
    // 2: function, with children: low_pc, high_pc.
    2, 0x2e, 1, 0x11, 0x01, 0x12, 0x0b, 0, 0, //
    // 3: parameter: type.
    3, 0x05, 0, 0x49, 0x13, 0, 0, //
    // 4: structure, with children: size.
    4, 0x13, 1, 0x0b, 0x0b, 0, 0, //
    // 5: member: type, location.
    5, 0x0d, 0, 0x49, 0x13, 0x38, 0x0b, 0, 0, //
    // 6: typedef: type.
    6, 0x16, 0, 0x49, 0x13, 0, 0, //
    // 7: pointer: type.
    7, 0x0f, 0, 0x49, 0x13, 0, 0, //
    // 8: array, with children: type.
    8, 0x01, 1, 0x49, 0x13, 0, 0, //
    // 9: bounds: count of 8 bytes.
    9, 0x21, 0, 0x37, 0x07, 0, 0, //
    // 10: base type: size of 8 bytes, encoding.
    10, 0x24, 0, 0x0b, 0x07, 0x3e, 0x0b, 0, 0, //
    // 11: function without code, with children: origin.
    11, 0x2e, 1, 0x11, 0x01, 0x12, 0x0b, 0x31, 0x13, 0, 0, //
    // 12: structure, with children: name, size.
    12, 0x13, 1, 0x03, 0x08, 0x0b, 0x0b, 0, 0, //
    0,
];

const FUNCTION: u64 = 0x1000;
const START: usize = 20;

/// A unit of version 4 in `language`, of whose entries `make` knows where they start.
fn unit(language: u8, make: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1, language];
    bytes.extend(b"regabi\0");
    assert_eq!(bytes.len(), START);
    make(&mut bytes);
    bytes.push(0);
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn reference(bytes: &mut Vec<u8>, code: u8, to: usize) {
    bytes.push(code);
    bytes.extend((to as u32).to_le_bytes());
}

/// A function with parameters of these types.
fn function(bytes: &mut Vec<u8>, types: &[usize]) {
    bytes.push(2);
    bytes.extend(FUNCTION.to_le_bytes());
    bytes.push(16);
    for &ty in types {
        reference(bytes, 3, ty);
    }
    bytes.push(0);
}

fn signature(info: &[u8]) -> Option<Signature> {
    let began = Instant::now();
    // The unit has no range of its own: a table says where the function is.
    let mut ranges = vec![44, 0, 0, 0, 2, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0];
    for word in [FUNCTION, 16, 0, 0] {
        ranges.extend(word.to_le_bytes());
    }
    let mut signatures = Signatures::open(|name| {
        Some(Cow::Borrowed(match name {
            ".debug_info" => info,
            ".debug_abbrev" => ABBREVIATIONS,
            ".debug_aranges" => &ranges,
            _ => &[],
        }))
    })?;
    let signature = signatures.signature(FUNCTION, "");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let signature = signature?;
    // Decoding is in proportion to what is shown, whatever the type is.
    let items = [0, 0, 0xff, 0, 0, 0, 0, 0]
        .into_iter()
        .chain([7; 256])
        .collect::<Vec<u8>>();
    let text: Vec<_> = signature
        .decode(&items.repeat(8), false, 64)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(text.iter().all(|text| text.len() < 1024));
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    Some(signature)
}

#[test]
fn types_that_hold_themselves() {
    for language in [0x0c, 0x1c, 0x16, 0x1a] {
        for size in [0, 8, 16, 200] {
            let info = unit(language, |bytes| {
                bytes.extend([4, size]);
                for field in 0..100 {
                    reference(bytes, 5, START);
                    bytes.push(field);
                }
                bytes.push(0);
                function(bytes, &[START; 20]);
            });
            signature(&info);
        }
    }
}

#[test]
fn strings_that_point_to_themselves() {
    for language in [0x0c, 0x1c, 0x16, 0x1a] {
        let info = unit(language, |bytes| {
            bytes.extend(b"\x0cString\0\x08");
            // The pointer is behind it: 9 bytes, a member of 6 and an end.
            let pointer = START + 9 + 6 + 1;
            reference(bytes, 5, pointer);
            bytes.push(0);
            bytes.push(0);
            assert_eq!(bytes.len(), pointer);
            reference(bytes, 7, START);
            function(bytes, &[pointer; 20]);
        });
        assert!(signature(&info).is_some());
    }
}

#[test]
fn chains_without_an_end() {
    let info = unit(0x0c, |bytes| {
        // Two typedefs of each other, a pointer to itself, an array of itself.
        reference(bytes, 6, START + 5);
        reference(bytes, 6, START);
        reference(bytes, 7, START + 10);
        reference(bytes, 8, START + 15);
        bytes.push(9);
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.push(0);
        function(bytes, &[START, START + 10, START + 15, START + 10]);
    });
    let signature = signature(&info).unwrap();
    assert_eq!(signature.parameters.len(), 4);
    assert_eq!(&*signature.parameters[1].kind, "void **");
}

#[test]
fn a_function_that_is_its_own_origin() {
    let info = unit(0x04, |bytes| {
        bytes.push(11);
        bytes.extend(FUNCTION.to_le_bytes());
        bytes.push(16);
        bytes.extend((START as u32).to_le_bytes());
        bytes.push(0);
    });
    assert_eq!(signature(&info), Some(Signature::default()));
}

#[test]
fn sizes_beyond_all_bounds() {
    for language in [0x0c, 0x1c, 0x16] {
        for size in [0, 3, 9, 17, 1 << 20, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
            for encoding in 0..0x13 {
                let info = unit(language, |bytes| {
                    bytes.push(10);
                    bytes.extend(size.to_le_bytes());
                    bytes.push(encoding);
                    // A structure of two of them, and an array of many.
                    let pair = bytes.len();
                    bytes.extend([4, 16]);
                    for offset in [0, 8] {
                        reference(bytes, 5, START);
                        bytes.push(offset);
                    }
                    bytes.push(0);
                    let array = bytes.len();
                    reference(bytes, 8, START);
                    bytes.push(9);
                    bytes.extend(size.to_le_bytes());
                    bytes.push(0);
                    function(
                        bytes,
                        &[START, pair, array, START, pair, START, array, START],
                    );
                });
                let signature = signature(&info).unwrap();
                assert_eq!(signature.parameters.len(), 8);
            }
        }
    }
}
