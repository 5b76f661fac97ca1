//! Addresses of frames: one for each place in code, in each process and in the kernel.
//!
//! A frame has the address at which it is in memory, if it is there and nothing else had that address
//! before. Otherwise it gets one of a reserved range in which nothing ever lies: not canonical on
//! x86-64, with four or five levels of page tables. Addresses that were given out go on meaning what
//! they meant, also when the tables that their frames were in are gone: then what was known of them is
//! kept (`settle`).
//!
//! The kernel's image has the addresses that it is linked at (x86-64's vmlinux and System.map), not
//! those that it was loaded at. All its places are the same in each process. What does not belong here:
//! what is mapped (`memory`), what names are (`generation`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::code::Code;
use super::generation::{Described, Generation, Meaning};
use profiler_model::*;

/// Where `_stext` of the kernel is linked.
pub(super) const KERNEL_BASE: u64 = 0xffff_ffff_8100_0000;
/// The kernel's image is not longer: its modules lie behind it.
pub(super) const KERNEL_BYTES: u64 = 0x3f00_0000;
/// User addresses lie below, even with five levels of page tables.
const USER_END: u64 = 0x0100_0000_0000_0000;
/// Kernel addresses lie here and above.
const KERNEL_START: u64 = 0xff00_0000_0000_0000;
/// The page that old programs call the kernel by: the kernel's to look at, but in every process.
const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;
/// Reserved for processes.
const RESERVED: u64 = 0x0f00_0000_0000_0000;
/// Reserved for the kernel.
const RESERVED_KERNEL: u64 = 0x0e00_0000_0000_0000;
/// Distance of two reserved addresses of code that is in no module.
const SPACING: u64 = 16;
/// Reserved addresses of one module lie as far from each other as its code does, so that where a
/// function begins has one too: modules of files and of the kernel have this much room each, ...
const MODULE_BYTES: u64 = 1 << 40;
/// ... those made at run time, whose code is anywhere in memory, this much ...
const WIDE_BYTES: u64 = 1 << 48;
/// ... from here on in the reserved range.
const WIDE_START: u64 = 1 << 55;
/// Length of a reserved range.
const RESERVED_BYTES: u64 = 1 << 56;
/// Most addresses of a process that are remembered.
pub(super) const MAX_PLACES: usize = 65_536;
/// The address of all frames for which there was no other left.
const CROWD: u64 = RESERVED;
/// What that is called.
pub(super) const CROWD_NAME: &str = "[too many places]";

/// Whether an address is the one of frames for which there was no other left.
pub(super) fn is_crowd(address: u64) -> bool {
    address == CROWD
}

/// Whether an address can only have been given out here.
pub(super) fn is_reserved(address: u64) -> bool {
    (RESERVED_KERNEL..RESERVED + RESERVED_BYTES).contains(&address)
}

/// Whether other addresses of its module are as far from an address as the module's code is.
pub(super) fn has_neighbours(address: u64) -> bool {
    !is_reserved(address) || address % RESERVED_BYTES >= MODULE_BYTES
}

/// Whether an address is the kernel's, in every process.
pub(super) fn is_of_kernel(address: u64) -> bool {
    (RESERVED_KERNEL..RESERVED).contains(&address)
        || address >= KERNEL_START && !VSYSCALL.contains(&address)
}

/// The place in the kernel's image of an address.
pub(super) fn kernel_offset(address: u64) -> Option<u64> {
    let offset = address.checked_sub(KERNEL_BASE)?;
    (offset < KERNEL_BYTES).then_some(offset)
}

/// Whether a frame is the kernel's, and so in every process.
pub(super) fn is_kernel(frame: &Frame) -> bool {
    match frame.kind {
        FrameKind::Kernel => true,
        // BPF programs.
        FrameKind::Jit => frame.address >= KERNEL_START,
        FrameKind::Native | FrameKind::Interpreted => false,
    }
}

/// Whether code of a process can lie there.
pub(super) fn is_user(address: u64) -> bool {
    address < USER_END || VSYSCALL.contains(&address)
}

/// Where code of the kernel is, if it is at the same place on every machine or nowhere else.
pub(super) fn kernel_address(code: &Code) -> Option<u64> {
    match code.module.as_ref().map(|module| module.kind) {
        Some(ModuleKind::Kernel) => {
            (code.address < KERNEL_BYTES).then(|| KERNEL_BASE + code.address)
        }
        Some(ModuleKind::Jit) | None => {
            let address = code.address;
            let free = kernel_offset(address).is_none() && !VSYSCALL.contains(&address);
            (address >= KERNEL_START && free).then_some(address)
        }
        _ => None,
    }
}

/// What was known of a place when its tables went.
#[derive(Debug)]
pub(super) struct Settled {
    name: Arc<str>,
    start: Option<u64>,
    size: Option<u64>,
    source: Option<(Arc<str>, u32)>,
    own: Option<(Arc<str>, u32)>,
}

impl Settled {
    fn new(described: &Described<'_>, texts: &mut Texts) -> Settled {
        let mut source =
            |source: Option<(&str, u32)>| source.map(|(file, line)| (texts.share(file), line));
        let (innermost, own) = (source(described.source), source(described.own));
        Settled {
            name: texts.share(described.name),
            start: described.start,
            size: described.size,
            source: innermost,
            own,
        }
    }

    pub(super) fn describe(&self) -> Described<'_> {
        fn source(source: &Option<(Arc<str>, u32)>) -> Option<(&str, u32)> {
            source.as_ref().map(|(file, line)| (&**file, *line))
        }
        Described {
            name: &self.name,
            start: self.start,
            size: self.size,
            source: source(&self.source),
            own: source(&self.own),
        }
    }
}

/// Texts of places that settle, each once.
#[derive(Debug, Default)]
pub(super) struct Texts(profiler_model::text::TextSet<Arc<str>>);

impl Texts {
    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }

    /// Forgets those that nothing refers to.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// What an address that was given out means.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) code: Code,
    pub(super) settled: Option<Arc<Settled>>,
    /// It was given out as where a function begins, which is settled.
    pub(super) is_start: bool,
}

/// Addresses of a process, or of the kernel.
#[derive(Debug)]
pub(super) struct Space {
    places: FxHashMap<u64, Place>,
    /// The reserved ones.
    reserved: FxHashMap<Code, u64>,
    /// By frames of the present tables.
    cache: FxHashMap<FrameId, u64>,
    /// Begin of the range.
    base: u64,
    next: u64,
    /// Where reserved addresses of modules begin, those of run-time code apart.
    modules: FxHashMap<(u64, bool), u64>,
    next_module: u64,
    next_wide: u64,
}

impl Space {
    /// Of a process.
    pub(super) fn of_process() -> Space {
        Space::from(RESERVED)
    }

    /// Of the kernel.
    pub(super) fn of_kernel() -> Space {
        Space::from(RESERVED_KERNEL)
    }

    fn from(base: u64) -> Space {
        Space {
            places: FxHashMap::default(),
            reserved: FxHashMap::default(),
            cache: FxHashMap::default(),
            base,
            next: base + SPACING,
            modules: FxHashMap::default(),
            next_module: base + MODULE_BYTES,
            next_wide: base + WIDE_START,
        }
    }

    /// Addresses that are remembered.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The address of a frame that has one.
    #[inline]
    pub(super) fn known(&self, frame: FrameId) -> Option<u64> {
        self.cache.get(&frame).copied()
    }

    /// What an address that was given out means.
    pub(super) fn get(&self, address: u64) -> Option<&Place> {
        self.places.get(&address)
    }

    /// Gives a frame an address: `natural`, if it can have that. Without room it is not remembered.
    pub(super) fn give(
        &mut self,
        frame: FrameId,
        code: Code,
        natural: Option<u64>,
        room: bool,
    ) -> u64 {
        let room = room && self.places.len() < MAX_PLACES;
        let taken = |natural: &u64| {
            let place = self.places.get(natural);
            place.is_some_and(|place| place.code != code)
        };
        let address = match natural.filter(|natural| !taken(natural)) {
            Some(natural) if room || self.places.contains_key(&natural) => natural,
            Some(natural) => return natural,
            None => match self.reserved.get(&code) {
                Some(&address) => address,
                None if room => {
                    let address = self.reserve(&code);
                    self.reserved.insert(code.clone(), address);
                    address
                }
                None => return CROWD,
            },
        };
        let fresh = || Place {
            code,
            settled: None,
            is_start: false,
        };
        self.places.entry(address).or_insert_with(fresh);
        self.cache.insert(frame, address);
        address
    }

    fn reserve(&mut self, code: &Code) -> u64 {
        if let Some(address) = self.reserve_beside(code)
            && !self.places.contains_key(&address)
        {
            return address;
        }
        let address = self.next;
        self.next += SPACING;
        address
    }

    /// Among the others of its module.
    fn reserve_beside(&mut self, code: &Code) -> Option<u64> {
        let module = code.module.as_ref()?;
        let is_wide = code.address >= MODULE_BYTES;
        let (next, bytes, end) = match is_wide {
            false => (&mut self.next_module, MODULE_BYTES, WIDE_START),
            true => (&mut self.next_wide, WIDE_BYTES, RESERVED_BYTES),
        };
        if code.address >= bytes {
            return None;
        }
        let begin = match self.modules.get(&(module.uid, is_wide)) {
            Some(&begin) => begin,
            None if *next < self.base + end => {
                let begin = *next;
                *next += bytes;
                self.modules.insert((module.uid, is_wide), begin);
                begin
            }
            None => return None,
        };
        Some(begin + code.address)
    }

    /// Gives out the address at which a function begins, which no frame has: it means this function
    /// from now on. Whether there was room.
    pub(super) fn begin(
        &mut self,
        address: u64,
        code: Code,
        described: &Described<'_>,
        texts: &mut Texts,
    ) -> bool {
        if self.places.len() >= MAX_PLACES {
            return false;
        }
        if is_reserved(address) {
            self.reserved.insert(code.clone(), address);
        }
        let place = Place {
            code,
            settled: Some(Arc::new(Settled::new(described, texts))),
            is_start: true,
        };
        self.places.insert(address, place);
        true
    }

    /// Ids mean something else from now on, and those of `oldest` nothing any more: what is known of
    /// places only there is kept, unless there are too many already.
    pub(super) fn settle(
        &mut self,
        oldest: Option<&Generation>,
        previous: &Generation,
        texts: &mut Texts,
    ) {
        self.cache.clear();
        let crowded = self.places.len() > MAX_PLACES / 2;
        let Some(oldest) = oldest else {
            return;
        };
        self.places.retain(|_, place| {
            if place.is_start {
                place.settle_line(oldest, texts);
                return !crowded;
            }
            match previous.meaning(&place.code) {
                Meaning::Known(_) => return true,
                Meaning::Open | Meaning::Unnamed if place.settled.is_none() => {
                    place.settle(oldest, texts);
                    return true;
                }
                _ => {}
            }
            if crowded {
                return false;
            }
            place.settle(oldest, texts);
            place.settled.is_some()
        });
        let places = &self.places;
        self.reserved
            .retain(|_, address| places.contains_key(address));
    }
}

impl Place {
    fn settle(&mut self, tables: &Generation, texts: &mut Texts) {
        let described = match tables.meaning(&self.code) {
            Meaning::Known(described) => Some(described),
            // A module's functions are known longer than that one of its places had no name.
            _ if self.settled.is_none() => tables.covering(&self.code),
            _ => None,
        };
        if let Some(described) = described {
            self.settled = Some(Arc::new(Settled::new(&described, texts)));
        }
    }

    /// Of where a function begins the line is what may have become known later.
    fn settle_line(&mut self, tables: &Generation, texts: &mut Texts) {
        let Some(settled) = self.settled.clone() else {
            return;
        };
        let own = match tables.meaning(&self.code) {
            Meaning::Known(described) => described.own,
            _ => None,
        };
        let covering = || tables.covering(&self.code)?.own;
        if settled.own.is_none()
            && let Some(own) = own.or_else(covering)
        {
            let described = Described {
                own: Some(own),
                ..settled.describe()
            };
            self.settled = Some(Arc::new(Settled::new(&described, texts)));
        }
    }
}
