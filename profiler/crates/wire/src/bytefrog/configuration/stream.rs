//! Java's object streams, as far as reading what somebody else has written needs them: bytes -> a
//! graph of values by handle.
//!
//! Objects are read by the class descriptors that come with them, so that any class is understood
//! whose data are fields, and objects behind these. Everything is bounded: nesting, the number of
//! values, and nothing is allocated by a length that is only claimed.
//!
//! Source: the Java Object Serialization Specification, chapter 6. What does not belong here: what a
//! class means.

use super::ConfigurationError;

/// Deepest nesting of values and of superclasses.
const MAX_DEPTH: u8 = 32;
/// Most values of a stream; a few million bytes of one-byte values are no use.
const MAX_VALUES: usize = 1 << 17;
/// The first handle.
const BASE_HANDLE: u32 = 0x7e_0000;
/// Magic number and version.
const HEADER: [u8; 4] = [0xac, 0xed, 0, 5];

pub(super) const NULL: u8 = 0x70;
pub(super) const REFERENCE: u8 = 0x71;
pub(super) const CLASS_DESC: u8 = 0x72;
pub(super) const OBJECT: u8 = 0x73;
pub(super) const STRING: u8 = 0x74;
const ARRAY: u8 = 0x75;
const CLASS: u8 = 0x76;
pub(super) const BLOCK_DATA: u8 = 0x77;
pub(super) const END_BLOCK_DATA: u8 = 0x78;
const BLOCK_DATA_LONG: u8 = 0x7a;
pub(super) const LONG_STRING: u8 = 0x7c;
const PROXY_CLASS_DESC: u8 = 0x7d;
const ENUM: u8 = 0x7e;

/// The class writes more than its fields.
const WRITE_METHOD: u8 = 1;
const SERIALIZABLE: u8 = 2;
const EXTERNALIZABLE: u8 = 4;
/// What an externalizable class writes can be skipped.
const BLOCKS: u8 = 8;

/// A value of a field, of an array, or behind the fields of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    /// A primitive integer, character or truth.
    Integer(i64),
    /// A primitive number that is no integer.
    Fraction,
    /// What has a handle.
    Handle(usize),
}

/// What has a handle.
#[derive(Debug)]
pub(super) enum Handled<'a> {
    Class(Class<'a>),
    /// In modified UTF-8.
    Text(&'a [u8]),
    Object(Object<'a>),
    /// A class, a constant of an enum; or an object that is not read whole.
    Opaque,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Class<'a> {
    pub(super) name: &'a [u8],
    flags: u8,
    /// The first of its fields, and behind the last.
    fields: (usize, usize),
    superclass: Option<usize>,
    /// Superclasses; none while it is not read whole.
    depth: Option<u8>,
}

/// An object, or an array: that has contents only.
#[derive(Debug)]
pub(super) struct Object<'a> {
    pub(super) class: usize,
    /// With their names, those of superclasses first.
    pub(super) fields: Vec<(&'a [u8], Value)>,
    /// Elements of an array, or objects that a class wrote behind its fields.
    pub(super) contents: Vec<Value>,
}

/// Reads a stream from its beginning.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    bytes: &'a [u8],
    at: usize,
    values: usize,
    handles: Vec<Handled<'a>>,
    /// Of all classes: type and name.
    fields: Vec<(u8, &'a [u8])>,
}

type Outcome<T> = Result<T, ConfigurationError>;

impl<'a> Stream<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Outcome<Stream<'a>> {
        let mut stream = Stream {
            bytes,
            at: 0,
            values: 0,
            handles: Vec::new(),
            fields: Vec::new(),
        };
        match stream.array()? {
            HEADER => Ok(stream),
            _ => Err(ConfigurationError::Syntax { at: 0 }),
        }
    }

    /// What a handle stands for.
    pub(super) fn get(&self, handle: usize) -> &Handled<'a> {
        self.handles.get(handle).unwrap_or(&Handled::Opaque)
    }

    /// The name of a class.
    pub(super) fn class_name(&self, class: usize) -> &'a [u8] {
        match self.get(class) {
            Handled::Class(class) => class.name,
            _ => b"",
        }
    }

    /// The next value.
    pub(super) fn value(&mut self) -> Outcome<Value> {
        self.content(0)
    }

    fn content(&mut self, depth: u8) -> Outcome<Value> {
        let depth = self.deeper(depth)?;
        let at = self.at;
        Ok(Value::Handle(match self.u8()? {
            NULL => return Ok(Value::Null),
            REFERENCE => self.reference()?,
            STRING => {
                let text = self.utf()?;
                self.assign(Handled::Text(text))
            }
            LONG_STRING => {
                let len = usize::try_from(self.u64()?).map_err(|_| ConfigurationError::Cut)?;
                let text = self.take(len)?;
                self.assign(Handled::Text(text))
            }
            OBJECT => self.object(depth)?,
            ARRAY => self.elements(depth)?,
            CLASS => {
                self.class(depth)?;
                self.assign(Handled::Opaque)
            }
            ENUM => {
                self.class(depth)?;
                let handle = self.assign(Handled::Opaque);
                self.content(depth)?;
                handle
            }
            CLASS_DESC | PROXY_CLASS_DESC => {
                self.at = at;
                self.some_class(depth)?
            }
            _ => return Err(ConfigurationError::Syntax { at }),
        }))
    }

    fn object(&mut self, depth: u8) -> Outcome<usize> {
        let class = self.some_class(depth)?;
        let handle = self.assign(Handled::Opaque);
        let (mut fields, mut contents) = (Vec::new(), Vec::new());
        let mut chain = Vec::new();
        let mut next = Some(class);
        while let Some(Handled::Class(class)) = next.map(|next| self.get(next)) {
            chain.push(*class);
            next = class.superclass;
        }
        for class in chain.into_iter().rev() {
            if class.flags & SERIALIZABLE != 0 {
                for field in class.fields.0..class.fields.1 {
                    let (kind, name) = self.fields[field];
                    fields.push((name, self.field(kind, depth)?));
                }
                if class.flags & WRITE_METHOD != 0 {
                    self.annotation(depth, &mut contents)?;
                }
            } else if class.flags & EXTERNALIZABLE != 0 {
                if class.flags & BLOCKS == 0 {
                    return Err(ConfigurationError::Syntax { at: self.at });
                }
                self.annotation(depth, &mut contents)?;
            }
        }
        self.handles[handle] = Handled::Object(Object {
            class,
            fields,
            contents,
        });
        Ok(handle)
    }

    fn elements(&mut self, depth: u8) -> Outcome<usize> {
        let class = self.some_class(depth)?;
        let handle = self.assign(Handled::Opaque);
        let len = self.u32()?;
        let mut contents = Vec::new();
        match self.class_name(class) {
            [b'[', b'L' | b'[', ..] => {
                for _ in 0..len {
                    contents.push(self.content(depth)?);
                }
            }
            [b'[', kind] => {
                let bytes = u64::from(len) * width(*kind).unwrap_or(1) as u64;
                self.take(usize::try_from(bytes).map_err(|_| ConfigurationError::Cut)?)?;
            }
            _ => return Err(ConfigurationError::Syntax { at: self.at }),
        }
        self.handles[handle] = Handled::Object(Object {
            class,
            fields: Vec::new(),
            contents,
        });
        Ok(handle)
    }

    fn field(&mut self, kind: u8, depth: u8) -> Outcome<Value> {
        let width = match kind {
            b'L' | b'[' => return self.content(depth),
            _ => width(kind).ok_or(ConfigurationError::Syntax { at: self.at })?,
        };
        self.count()?;
        let bytes = self.take(width)?;
        let number = bytes
            .iter()
            .fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        let unused = 64 - 8 * width as u32;
        Ok(match kind {
            b'F' | b'D' => Value::Fraction,
            b'C' | b'Z' => Value::Integer(number as i64),
            _ => Value::Integer((number << unused) as i64 >> unused),
        })
    }

    /// Blocks are skipped.
    fn annotation(&mut self, depth: u8, contents: &mut Vec<Value>) -> Outcome<()> {
        loop {
            let at = self.at;
            let len = match self.u8()? {
                END_BLOCK_DATA => return Ok(()),
                BLOCK_DATA => u32::from(self.u8()?),
                BLOCK_DATA_LONG => self.u32()?,
                _ => {
                    self.at = at;
                    contents.push(self.content(depth)?);
                    continue;
                }
            };
            self.take(len as usize)?;
        }
    }

    fn some_class(&mut self, depth: u8) -> Outcome<usize> {
        let at = self.at;
        self.class(depth)?.ok_or(ConfigurationError::Syntax { at })
    }

    fn class(&mut self, depth: u8) -> Outcome<Option<usize>> {
        let depth = self.deeper(depth)?;
        let at = self.at;
        match self.u8()? {
            NULL => Ok(None),
            REFERENCE => {
                let handle = self.reference()?;
                match self.get(handle) {
                    // One that is not read whole could be its own superclass.
                    Handled::Class(class) if class.depth.is_some() => Ok(Some(handle)),
                    _ => Err(ConfigurationError::Syntax { at }),
                }
            }
            CLASS_DESC => {
                let name = self.utf()?;
                self.array::<8>()?;
                let handle = self.assign_class(name);
                let flags = self.u8()?;
                let mut own = Vec::new();
                for _ in 0..self.u16()? {
                    self.count()?;
                    let (kind, name) = (self.u8()?, self.utf()?);
                    if matches!(kind, b'L' | b'[') {
                        self.content(depth)?;
                    }
                    own.push((kind, name));
                }
                let first = self.fields.len();
                self.fields.extend(own);
                self.class_end(handle, flags, (first, self.fields.len()), depth)
            }
            PROXY_CLASS_DESC => {
                let handle = self.assign_class(b"");
                for _ in 0..self.u32()? {
                    self.utf()?;
                }
                self.class_end(handle, SERIALIZABLE, (0, 0), depth)
            }
            _ => Err(ConfigurationError::Syntax { at }),
        }
    }

    fn class_end(
        &mut self,
        handle: usize,
        flags: u8,
        fields: (usize, usize),
        depth: u8,
    ) -> Outcome<Option<usize>> {
        self.annotation(depth, &mut Vec::new())?;
        let superclass = self.class(depth)?;
        let above = match superclass.map(|superclass| self.get(superclass)) {
            Some(Handled::Class(Class {
                depth: Some(above), ..
            })) => above + 1,
            _ => 0,
        };
        if above > MAX_DEPTH {
            return Err(ConfigurationError::TooLarge);
        }
        if let Some(Handled::Class(class)) = self.handles.get_mut(handle) {
            class.flags = flags;
            class.fields = fields;
            class.superclass = superclass;
            class.depth = Some(above);
        }
        Ok(Some(handle))
    }

    fn assign_class(&mut self, name: &'a [u8]) -> usize {
        self.assign(Handled::Class(Class {
            name,
            flags: 0,
            fields: (0, 0),
            superclass: None,
            depth: None,
        }))
    }

    fn assign(&mut self, what: Handled<'a>) -> usize {
        self.handles.push(what);
        self.handles.len() - 1
    }

    fn reference(&mut self) -> Outcome<usize> {
        let at = self.at;
        let handle = self.u32()?.checked_sub(BASE_HANDLE);
        handle
            .map(|handle| handle as usize)
            .filter(|&handle| handle < self.handles.len())
            .ok_or(ConfigurationError::Syntax { at })
    }

    fn deeper(&mut self, depth: u8) -> Outcome<u8> {
        self.count()?;
        if depth >= MAX_DEPTH {
            return Err(ConfigurationError::TooLarge);
        }
        Ok(depth + 1)
    }

    fn count(&mut self) -> Outcome<()> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(ConfigurationError::TooLarge);
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> Outcome<&'a [u8]> {
        let bytes = self.bytes[self.at..].get(..len);
        let bytes = bytes.ok_or(ConfigurationError::Cut)?;
        self.at += len;
        Ok(bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Outcome<[u8; LEN]> {
        let bytes = self.bytes[self.at..].first_chunk();
        let bytes = *bytes.ok_or(ConfigurationError::Cut)?;
        self.at += LEN;
        Ok(bytes)
    }

    fn u8(&mut self) -> Outcome<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Outcome<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Outcome<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Outcome<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A text with a length of 16 bits.
    fn utf(&mut self) -> Outcome<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}

/// Bytes of a primitive type.
fn width(kind: u8) -> Option<usize> {
    Some(match kind {
        b'B' | b'Z' => 1,
        b'C' | b'S' => 2,
        b'F' | b'I' => 4,
        b'D' | b'J' => 8,
        _ => return None,
    })
}
