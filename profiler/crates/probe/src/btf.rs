//! The kernel's description of its own types: bytes of BTF -> offsets of members, values of
//! enumerators.
//!
//! Only what offsets need is read. Reading is total: any bytes give an answer or none, never a panic,
//! in time linear in their length. Offsets are bytes. Layout: "BPF Type Format (BTF)" in the kernel's
//! documentation.
//!
//! What does not belong here: which members are needed, and what for (`offsets`).

use std::{
    fs::File,
    io::{self, Read},
    ops::Deref,
    os::unix::fs::OpenOptionsExt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::sys::KernelMemory;

const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Longest description read; kernels of distributions have 4 to 8 MB.
const MAX_BYTES: u64 = 64 << 20;

const MAGIC: u16 = 0xeb9f;

/// Size of what each type begins with: name, kind and count, size or type.
const TYPE_BYTES: usize = 12;
/// Size of a member of a structure: name, type, offset.
const MEMBER_BYTES: usize = 12;

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_ENUM64: u32 = 19;
const KIND_POINTER: u32 = 2;
const KIND_TYPEDEF: u32 = 8;
const KIND_ARGUMENTS: u32 = 13;
const KIND_FUNCTION: u32 = 12;

/// Most anonymous members within each other that are looked into.
const MAX_NESTING: u32 = 8;
/// Most members that are looked at for one name.
const MAX_MEMBERS: u32 = 100_000;

/// A description.
enum Bytes {
    Read(Vec<u8>),
    Mapped(KernelMemory),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Read(bytes) => bytes,
            Bytes::Mapped(memory) => memory,
        }
    }
}

/// The types of a kernel.
pub(super) struct Btf {
    bytes: Bytes,
    /// Where strings are.
    strings: std::ops::Range<usize>,
    /// Where each type is, by its id less 1.
    types: Vec<u32>,
    /// Those of the types that are structures with a name, and enumerations.
    structures: Vec<u32>,
    enumerations: Vec<u32>,
    typedefs: Vec<u32>,
}

impl Btf {
    /// The types of the running kernel. They are read once as long as somebody holds them: who has several
    /// questions keeps the `Arc` until the last one.
    pub(super) fn of_kernel() -> io::Result<Arc<Btf>> {
        static HELD: Mutex<Weak<Btf>> = Mutex::new(Weak::new());
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(btf) = held.upgrade() {
            return Ok(btf);
        }
        let btf = Btf::parse(read(open()?)?).ok_or_else(|| {
            let what = "it is not in a format that this version knows";
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        let btf = Arc::new(btf);
        *held = Arc::downgrade(&btf);
        Ok(btf)
    }

    /// Finds the types in `bytes`.
    fn parse(bytes: Bytes) -> Option<Btf> {
        if u16_at(&bytes, 0)? != MAGIC {
            return None;
        }
        let head = u32_at(&bytes, 4)? as usize;
        let section = |offset: usize, len: usize| -> Option<std::ops::Range<usize>> {
            let start = head.checked_add(u32_at(&bytes, offset)? as usize)?;
            let end = start.checked_add(u32_at(&bytes, len)? as usize)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let (all, strings) = (section(8, 12)?, section(16, 20)?);
        let (mut types, mut structures, mut enumerations) = (Vec::new(), Vec::new(), Vec::new());
        let mut typedefs = Vec::new();
        let mut at = all.start;
        while at + TYPE_BYTES <= all.end {
            let (kind, count) = kind_and_count(&bytes, at)?;
            let place = u32::try_from(at).ok()?;
            types.push(place);
            match kind {
                KIND_STRUCT if u32_at(&bytes, at)? != 0 => structures.push(place),
                KIND_ENUM | KIND_ENUM64 => enumerations.push(place),
                KIND_TYPEDEF => typedefs.push(place),
                _ => {}
            }
            at += TYPE_BYTES + trailing_bytes(kind, count)?;
        }
        (at == all.end).then_some(Btf {
            bytes,
            strings,
            types,
            structures,
            enumerations,
            typedefs,
        })
    }

    /// The offset of a member of a structure, those of its anonymous members included.
    pub(super) fn member(&self, structure: &str, member: &str) -> Option<u32> {
        let mut budget = MAX_MEMBERS;
        // There may be several of a name, of different parts of the kernel.
        self.structures
            .iter()
            .filter(|at| self.is_named(**at as usize, structure))
            .find_map(|at| self.member_of(*at as usize, member, MAX_NESTING, &mut budget))
    }

    /// The value of an enumerator.
    pub(super) fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        self.enumerations
            .iter()
            .map(|at| *at as usize)
            .filter(|at| self.is_named(*at, enumeration))
            .find_map(|at| {
                let (kind, count) = kind_and_count(&self.bytes, at)?;
                let size = trailing_bytes(kind, 1)?;
                let mut places = (0..count).map(|index| at + TYPE_BYTES + index * size);
                let place = places.find(|place| self.is_named(*place, name))?;
                u32_at(&self.bytes, place + 4)
            })
    }

    /// The number of a function.
    pub(super) fn function(&self, name: &str) -> Option<u32> {
        let mut types = self.types.iter().map(|at| *at as usize);
        let index = types.position(|at| {
            let is_function =
                kind_and_count(&self.bytes, at).is_some_and(|(kind, _)| kind == KIND_FUNCTION);
            is_function && self.is_named(at, name)
        })?;
        u32::try_from(index + 1).ok()
    }

    /// Of each argument of a tracepoint, whether it is a pointer.
    pub(super) fn tracepoint(&self, name: &str) -> Option<Vec<bool>> {
        let name = format!("btf_trace_{name}");
        let mut found = self.typedefs.iter().map(|at| *at as usize);
        let function = found.find(|at| self.is_named(*at, &name))?;
        let mut at = self.target(function)?;
        if kind_and_count(&self.bytes, at)?.0 == KIND_POINTER {
            at = self.target(at)?;
        }
        let (kind, count) = kind_and_count(&self.bytes, at)?;
        if kind != KIND_ARGUMENTS {
            return None;
        }
        // The first one is what the program was registered with.
        (1..count)
            .map(|index| {
                let argument = u32_at(&self.bytes, at + TYPE_BYTES + index * 8 + 4)?;
                let kind = kind_and_count(&self.bytes, self.type_at(argument)?)?.0;
                Some(kind == KIND_POINTER)
            })
            .collect()
    }

    /// The type that the typedef or pointer at `at` is of.
    fn target(&self, at: usize) -> Option<usize> {
        self.type_at(u32_at(&self.bytes, at + 8)?)
    }

    /// The offset of a member of the structure or union at `at`.
    fn member_of(&self, at: usize, name: &str, nesting: u32, budget: &mut u32) -> Option<u32> {
        let (kind, count) = kind_and_count(&self.bytes, at)?;
        if kind != KIND_STRUCT && kind != KIND_UNION {
            return None;
        }
        let has_bit_fields = u32_at(&self.bytes, at + 4)? >> 31 != 0;
        for index in 0..count {
            *budget = budget.checked_sub(1)?;
            let place = at + TYPE_BYTES + index * MEMBER_BYTES;
            let bits = u32_at(&self.bytes, place + 8)?;
            let bits = if has_bit_fields {
                bits & 0x00ff_ffff
            } else {
                bits
            };
            if u32_at(&self.bytes, place)? != 0 {
                if self.is_named(place, name) {
                    return bits.is_multiple_of(8).then_some(bits / 8);
                }
                continue;
            }
            let kind = u32_at(&self.bytes, place + 4)?;
            if let Some(nested) = self.type_at(kind)
                && let Some(nesting) = nesting.checked_sub(1)
                && let Some(offset) = self.member_of(nested, name, nesting, budget)
            {
                return offset.checked_add(bits / 8);
            }
        }
        None
    }

    fn type_at(&self, id: u32) -> Option<usize> {
        let index = id.checked_sub(1)? as usize;
        Some(*self.types.get(index)? as usize)
    }

    /// Whether the name that the type, member or enumerator at `at` begins with is `name`.
    fn is_named(&self, at: usize, name: &str) -> bool {
        let is_there = || {
            let start = u32_at(&self.bytes, at)? as usize;
            let strings = self.bytes.get(self.strings.clone())?;
            let rest = strings.get(start..)?.strip_prefix(name.as_bytes())?;
            Some(rest.first() == Some(&0))
        };
        is_there().unwrap_or(false)
    }
}

/// Whatever is there in its place, nobody waits for it.
fn open() -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(VMLINUX)
}

/// Reading megabytes takes ten times as long as looking through them: kernels since 6.16 let them be mapped.
fn read(file: File) -> io::Result<Bytes> {
    let len = file.metadata()?.len().min(MAX_BYTES) as usize;
    match KernelMemory::map(&file, len) {
        Ok(memory) => Ok(Bytes::Mapped(memory)),
        Err(_) => {
            let mut bytes = Vec::with_capacity(len + 1);
            file.take(MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(Bytes::Read(bytes))
        }
    }
}

fn kind_and_count(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let info = u32_at(bytes, at + 4)?;
    Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
}

/// How many bytes follow the beginning of a type; none if this version does not know its kind.
fn trailing_bytes(kind: u32, count: usize) -> Option<usize> {
    let bytes = match kind {
        // Integer, variable, tag of a declaration.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, section of data, 64-bit enumeration.
        KIND_STRUCT | KIND_UNION | 15 | KIND_ENUM64 => count * 12,
        // Enumeration, parameters of a function.
        KIND_ENUM | 13 => count * 8,
        // Pointer; forward, typedef and qualifiers; function, float, tag of a type.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    };
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a description.
    #[derive(Default)]
    struct Writer {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Writer {
        fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            at
        }

        fn words(&mut self, words: &[u32]) {
            self.types
                .extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        /// A type with members or enumerators: a name and two words each.
        fn aggregate(&mut self, name: &str, kind: u32, bits: bool, parts: &[(&str, u32, u32)]) {
            let name = self.name(name);
            let info = kind << 24 | u32::from(bits) << 31 | parts.len() as u32;
            self.words(&[name, info, 64]);
            for (part, one, other) in parts {
                let part = self.name(part);
                if kind == KIND_ENUM {
                    self.words(&[part, *one]);
                } else {
                    self.words(&[part, *one, *other]);
                }
            }
        }

        fn finish(self) -> Vec<u8> {
            let lens = [self.types.len() as u32, self.strings.len() as u32];
            let mut bytes = Vec::new();
            bytes.extend(MAGIC.to_ne_bytes());
            bytes.extend([1, 0]);
            for word in [24, 0, lens[0], lens[0], lens[1]] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(self.types);
            bytes.extend(self.strings);
            bytes
        }
    }

    fn example() -> Vec<u8> {
        let mut writer = Writer::default();
        // 1: an integer of 4 bytes.
        let int = writer.name("int");
        writer.words(&[int, 1 << 24, 4, 32]);
        // 2: an anonymous structure in 3, which is in "node".
        writer.aggregate("", KIND_STRUCT, false, &[("inner", 1, 0), ("id", 1, 32)]);
        writer.aggregate("", KIND_UNION, false, &[("flat", 1, 0), ("", 2, 0)]);
        writer.aggregate("node", KIND_STRUCT, false, &[("first", 1, 0), ("", 3, 64)]);
        let bits = [("low", 1, 3 << 24), ("odd", 1, 5 << 24 | 3), ("on", 1, 128)];
        writer.aggregate("bits", KIND_STRUCT, true, &bits);
        writer.aggregate("which", KIND_ENUM, false, &[("one", 1, 0), ("two", 7, 0)]);
        writer.aggregate("wide", KIND_ENUM64, false, &[("three", 9, 0)]);
        // Another one of this name, with what the first one lacks.
        writer.aggregate("node", KIND_STRUCT, false, &[("late", 1, 96)]);
        // Contains itself without a name.
        writer.aggregate("loop", KIND_STRUCT, false, &[("", 9, 0), ("", 9, 0)]);
        writer.finish()
    }

    #[test]
    fn members_are_found_in_anonymous_ones_too() {
        let btf = Btf::parse(Bytes::Read(example())).unwrap();
        for (structure, member, offset) in [
            ("node", "first", Some(0)),
            ("node", "flat", Some(8)),
            ("node", "id", Some(12)),
            ("node", "late", Some(12)),
            ("node", "i", None),
            ("node", "id ", None),
            ("nod", "first", None),
            ("bits", "low", Some(0)),
            ("bits", "odd", None),
            ("bits", "on", Some(16)),
            ("loop", "none", None),
            ("int", "first", None),
        ] {
            assert_eq!(
                btf.member(structure, member),
                offset,
                "{structure}.{member}"
            );
        }
    }

    #[test]
    fn enumerators_are_found() {
        let btf = Btf::parse(Bytes::Read(example())).unwrap();
        assert_eq!(btf.enumerator("which", "two"), Some(7));
        assert_eq!(btf.enumerator("wide", "three"), Some(9));
        assert_eq!(btf.enumerator("which", "three"), None);
    }

    #[test]
    fn the_kernel_s_own_is_the_same_however_it_is_read() {
        let Ok(file) = File::open(VMLINUX) else {
            return;
        };
        let bytes = std::fs::read(VMLINUX).unwrap();
        let read = read(file).unwrap();
        assert!(*read == *bytes);
        let (read, copied) = (Btf::parse(read), Btf::parse(Bytes::Read(bytes)));
        let pid = |btf: Option<Btf>| btf.unwrap().member("task_struct", "pid");
        let found = pid(read);
        assert!(found.is_some());
        assert_eq!(found, pid(copied));
        // What is no file of the kernel's is never mapped.
        let other = File::open("/proc/self/exe").unwrap();
        assert!(KernelMemory::map(&other, 4096).is_err());
    }

    #[test]
    fn what_is_no_description_is_refused() {
        assert!(Btf::parse(Bytes::Read(Vec::new())).is_none());
        let whole = example();
        for len in 0..whole.len() {
            assert!(
                Btf::parse(Bytes::Read(whole[..len].to_vec())).is_none(),
                "{len}"
            );
        }
        let mut unknown = whole;
        unknown[24 + 7] = 31;
        assert!(Btf::parse(Bytes::Read(unknown)).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(changes in prop::collection::vec((0_usize..500, any::<u8>()), 0..8)) {
            let mut bytes = example();
            for (at, with) in changes {
                let at = at % bytes.len();
                bytes[at] = with;
            }
            if let Some(btf) = Btf::parse(Bytes::Read(bytes)) {
                for name in ["node", "bits", "loop", "which"] {
                    let _ = (btf.member(name, "id"), btf.enumerator(name, "two"));
                }
            }
        }
    }
}
