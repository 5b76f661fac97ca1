//! Executable mappings of a process, and the modules behind them.
//!
//! Mappings are kept as mmap(2) leaves them: a new one replaces what it overlaps, in part or as a
//! whole. A fork shares its parent's until one of the two changes (`Arc`, copied on write). Each
//! content has a generation number of its own, which is what stack caches are keyed by: equal
//! numbers mean equal mappings, in whatever process.
//!
//! What does not belong here: when mappings change (`process`), and opening their files (`files`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::files::FileKey;
use super::unwinding::CodeFile;
use profiler_model::raw::{FileIdentity, RawMmap};
use profiler_model::{BuildId, ModuleKind, Timestamp};
use profiler_object::elf::Elf;

/// Most mappings kept of one process: as many as the kernel side can search.
const MAX_MAPPINGS: usize = profiler_common::unwind::MAX_MAPPINGS as usize;
/// Of these, so many that were mapped first stay whatever comes: the program and its libraries, which most stacks go
/// through.
const MAX_FIRST: usize = MAX_MAPPINGS / 4;
/// So many are forgotten at once: each time looks at all.
const FORGOTTEN: usize = MAX_MAPPINGS / 16;

/// Something that code lives in, for as long as a process maps it.
#[derive(Debug)]
pub(super) struct CodeModule {
    /// Unique in a recording, whatever the epoch.
    pub(super) uid: u64,
    /// What it is.
    pub(super) kind: ModuleKind,
    /// Path as its processes see it.
    pub(super) path: Box<str>,
    /// Build id, if known.
    pub(super) build_id: Option<BuildId>,
    /// See [`profiler_model::Module::address_bias`].
    pub(super) bias: u64,
    /// What tells it from the file of that path and build id that was met first.
    pub(super) copy: Option<u32>,
    /// The file, if it is one.
    pub(super) key: Option<FileKey>,
    /// Its headers, if they could be read.
    pub(super) elf: Option<Elf>,
    /// Of run-time code: the process that made it.
    pub(super) jit: Option<Arc<super::jit::JitProcess>>,
    /// Of run-time code that was announced where other code had been: the module of what was there first, and how often
    /// that has happened.
    pub(super) first: Option<(Arc<CodeModule>, usize)>,
    /// What says how its stacks are walked, if it is an ELF file.
    pub(super) code: Option<Arc<CodeFile>>,
}

impl CodeModule {
    /// The frame address where the file is mapped: the offset in it, but for segments whose virtual addresses differ from
    /// it by something else than those of the first one with code.
    pub(super) fn frame_address_of(&self, mmap: &RawMmap) -> u64 {
        let (start, offset, len) = (mmap.start, mmap.file_offset, mmap.len);
        let elf = self.elf.as_ref();
        let bias = elf.map_or(self.bias, |elf| elf.bias_of_mapping(start, offset, len));
        offset.wrapping_add(bias).wrapping_sub(self.bias)
    }

    /// This module, or the one that it continues.
    pub(super) fn first(&self) -> &CodeModule {
        self.first.as_ref().map_or(self, |(first, _)| first)
    }

    /// How often other code was announced where this is.
    fn times(&self) -> usize {
        self.first.as_ref().map_or(0, |&(_, times)| times)
    }
}

/// A number that no module had before.
pub(super) fn next_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A piece of executable memory.
#[derive(Clone, Debug)]
pub(super) struct CodeRange {
    /// First address.
    pub(super) start: u64,
    /// First address behind it.
    pub(super) end: u64,
    /// The module's frame address at `start`.
    pub(super) offset: u64,
    /// Start and end as they were mapped, by which /proc may still know the mapping.
    pub(super) mapped: (u64, u64),
    /// When it was mapped.
    pub(super) at: Timestamp,
    /// What is mapped.
    pub(super) module: Arc<CodeModule>,
    /// What the kernel said of the file.
    pub(super) identity: FileIdentity,
}

impl CodeRange {
    /// The frame address of an address in this range.
    pub(super) fn frame_address(&self, address: u64) -> u64 {
        (address - self.start).wrapping_add(self.offset)
    }

    /// What lies between two addresses in this range.
    fn part(&self, start: u64, end: u64) -> CodeRange {
        CodeRange {
            start,
            end,
            offset: self.frame_address(start),
            ..self.clone()
        }
    }

    /// The file's own address (ELF virtual address) of the first byte.
    pub(super) fn own_address(&self) -> u64 {
        self.offset.wrapping_add(self.module.bias)
    }

    /// The same of an address in this range.
    pub(super) fn own_address_of(&self, address: u64) -> u64 {
        (address - self.start).wrapping_add(self.own_address())
    }
}

/// The executable mappings of a process, ordered by address.
#[derive(Clone, Debug)]
pub(super) struct Mappings {
    ranges: Vec<CodeRange>,
    generation: u64,
}

impl Default for Mappings {
    fn default() -> Self {
        Mappings {
            ranges: Vec::new(),
            generation: next_generation(),
        }
    }
}

fn next_generation() -> u64 {
    // 0 is the kernel's.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Mappings {
    /// Number of this content.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The range that an address is in.
    pub(super) fn find(&self, address: u64) -> Option<&CodeRange> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        let range = &self.ranges[behind.checked_sub(1)?];
        (address < range.end).then_some(range)
    }

    /// All ranges, ordered by address.
    pub(super) fn ranges(&self) -> &[CodeRange] {
        &self.ranges
    }

    /// Whether the same code is mapped at the same places.
    pub(super) fn is_like(&self, other: &Mappings) -> bool {
        let shape = |range: &CodeRange| (range.start, range.end, range.offset, range.module.uid);
        self.ranges
            .iter()
            .map(shape)
            .eq(other.ranges.iter().map(shape))
    }

    /// Adds a mapping in place of all that it overlaps.
    pub(super) fn insert(&mut self, new: CodeRange) {
        if new.start >= new.end {
            return;
        }
        let first = self.ranges.partition_point(|range| range.end <= new.start);
        let behind = self.ranges.partition_point(|range| range.start < new.end);
        if let [same] = &self.ranges[first..behind]
            && same.start <= new.start
            && same.end >= new.end
            && same.module.uid == new.module.uid
            && same.frame_address(new.start) == new.offset
        {
            // Known already. Runtimes change the protection of parts of their code all the time.
            return;
        }
        if new.module.jit.is_some() && new.module.first.is_none() {
            let kept = self.ranges[first..behind].iter();
            let kept = kept.filter(|range| range.module.first().uid == new.module.uid);
            let kept: Vec<(u64, u64)> = kept.map(|range| (range.start, range.end)).collect();
            // What was announced anew there stays so.
            let mut at = new.start;
            for (start, end) in kept.into_iter().chain([(new.end, new.end)]) {
                if at < start {
                    self.put(new.part(at, start));
                }
                at = at.max(end);
            }
            return;
        }
        self.put(new);
    }

    /// Other code was announced at these addresses, where code of this module had been: what is there from now on is
    /// of the module that `again` gives, which is told how often that has happened there before.
    pub(super) fn renew(
        &mut self,
        module: &CodeModule,
        (start, end): (u64, u64),
        at: Timestamp,
        again: impl FnOnce(usize) -> Arc<CodeModule>,
    ) {
        // In whole ranges if there are many: more names are asked for again than need be.
        let (start, end) = match self.ranges.len() > MAX_MAPPINGS / 2 {
            true => (0, u64::MAX),
            false => (start, end),
        };
        let met = self.ranges.iter();
        let met = met.filter(|range| range.start < end && start < range.end);
        let met = met.filter(|range| range.module.first().uid == module.uid);
        let met: Vec<CodeRange> = met.cloned().collect();
        let Some(times) = met.iter().map(|range| range.module.times()).max() else {
            return;
        };
        let again = again(times);
        for range in met {
            self.put(CodeRange {
                at,
                module: again.clone(),
                ..range.part(start.max(range.start), end.min(range.end))
            });
        }
    }

    /// Takes over what was announced anew, of a reading of before.
    pub(super) fn renew_like(&mut self, before: &Mappings) {
        let renewed = before.ranges.iter();
        for range in renewed.filter(|range| range.module.first.is_some()) {
            let of_it = |now: &&CodeRange| now.module.uid == range.module.first().uid;
            let now = self.ranges.iter().filter(of_it);
            let now: Vec<(u64, u64)> = now.map(|now| (now.start, now.end)).collect();
            for (start, end) in now {
                let start = start.max(range.start);
                let end = end.min(range.end);
                if start < end {
                    self.put(range.part(start, end));
                }
            }
        }
    }

    fn put(&mut self, new: CodeRange) {
        let first = self.ranges.partition_point(|range| range.end <= new.start);
        let behind = self.ranges.partition_point(|range| range.start < new.end);
        self.generation = next_generation();
        let mut pieces = Vec::with_capacity(3);
        if let Some(left) = self.ranges[first..behind].first()
            && left.start < new.start
        {
            pieces.push(left.part(left.start, new.start));
        }
        let right = match self.ranges[first..behind].last() {
            Some(right) if right.end > new.end => Some(right.part(new.end, right.end)),
            _ => None,
        };
        pieces.push(new);
        pieces.extend(right);
        self.ranges.splice(first..behind, pieces);
        if self.ranges.len() > MAX_MAPPINGS {
            self.forget();
        }
    }

    /// Makes room in a process that maps without end: behind the first ones, the oldest are the least likely to be met
    /// again.
    fn forget(&mut self) {
        let ages = self.ranges.iter().map(|range| (range.at, range.start));
        let mut ages: Vec<(Timestamp, u64)> = ages.collect();
        ages.sort_unstable();
        let (Some(&first), Some(&behind)) = (ages.get(MAX_FIRST), ages.get(MAX_FIRST + FORGOTTEN))
        else {
            return;
        };
        self.ranges.retain(|range| {
            let age = (range.at, range.start);
            age < first || age >= behind
        });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::jit::JitProcess;
    use profiler_model::Pid;
    use profiler_object::elf::Segment;

    pub(crate) fn module(path: &str) -> Arc<CodeModule> {
        Arc::new(CodeModule {
            uid: next_uid(),
            kind: ModuleKind::File,
            path: path.into(),
            build_id: None,
            bias: 0,
            copy: None,
            key: None,
            elf: None,
            jit: None,
            first: None,
            code: None,
        })
    }

    pub(crate) fn range(start: u64, end: u64, offset: u64, module: &Arc<CodeModule>) -> CodeRange {
        CodeRange {
            start,
            end,
            offset,
            mapped: (start, end),
            at: Timestamp(start),
            module: module.clone(),
            identity: FileIdentity::default(),
        }
    }

    fn shape(mappings: &Mappings) -> Vec<(u64, u64, u64, &str)> {
        let ranges = mappings.ranges().iter();
        ranges
            .map(|range| (range.start, range.end, range.offset, &*range.module.path))
            .collect()
    }

    #[test]
    fn a_new_mapping_replaces_what_it_overlaps() {
        let (a, b) = (module("a"), module("b"));
        let mut mappings = Mappings::default();
        mappings.insert(range(0x1000, 0x9000, 0x100, &a));
        mappings.insert(range(0x3000, 0x5000, 0, &b));
        assert_eq!(
            shape(&mappings),
            [
                (0x1000, 0x3000, 0x100, "a"),
                (0x3000, 0x5000, 0, "b"),
                (0x5000, 0x9000, 0x4100, "a"),
            ]
        );
        mappings.insert(range(0x2000, 0xa000, 0, &b));
        assert_eq!(
            shape(&mappings),
            [(0x1000, 0x2000, 0x100, "a"), (0x2000, 0xa000, 0, "b")]
        );
        assert_eq!(mappings.find(0x1fff).unwrap().frame_address(0x1fff), 0x10ff);
        assert!(mappings.find(0xfff).is_none() && mappings.find(0xa000).is_none());
    }

    #[test]
    fn code_that_is_announced_anew_is_of_another_module() {
        let jit = |path: &str, first: Option<(Arc<CodeModule>, usize)>| {
            let mut made = module(path);
            let own = Arc::get_mut(&mut made).unwrap();
            own.kind = ModuleKind::Jit;
            own.jit = Some(Arc::new(JitProcess {
                pid: Pid(1),
                namespace_pid: Pid(1),
                uid: None,
                root: None,
                dump: OnceLock::new(),
            }));
            own.first = first;
            made
        };
        let first = jit("0", None);
        let again = |times: usize| jit(&(times + 1).to_string(), Some((first.clone(), times + 1)));
        let mut mappings = Mappings::default();
        mappings.insert(range(0x1000, 0x9000, 0x1000, &first));
        mappings.insert(range(0x9000, 0xa000, 0, &module("file")));
        let at = Timestamp(7);
        mappings.renew(&first, (0x2000, 0x3000), at, again);
        mappings.renew(&first, (0x2800, 0x3800), at, again);
        // None of it is there, and some.
        mappings.renew(&first, (0xa000, 0xb000), at, again);
        mappings.renew(&first, (0x8000, 0xa000), at, again);
        let expected = [
            (0x1000, 0x2000, 0x1000, "0"),
            (0x2000, 0x2800, 0x2000, "1"),
            (0x2800, 0x3000, 0x2800, "2"),
            (0x3000, 0x3800, 0x3000, "2"),
            (0x3800, 0x8000, 0x3800, "0"),
            (0x8000, 0x9000, 0x8000, "1"),
            (0x9000, 0xa000, 0, "file"),
        ];
        assert_eq!(shape(&mappings), expected);
        // The same memory once more, and a reading of what is mapped.
        let generation = mappings.generation();
        mappings.insert(range(0x1000, 0x9000, 0x1000, &first));
        assert_eq!(
            (shape(&mappings), mappings.generation()),
            (expected.to_vec(), generation)
        );
        let mut read = Mappings::default();
        read.insert(range(0x1000, 0x9000, 0x1000, &first));
        read.insert(range(0x9000, 0xa000, 0, &module("file")));
        read.renew_like(&mappings);
        assert_eq!(shape(&read), expected);
        // More of it than before.
        mappings.insert(range(0x0, 0xb000, 0x0, &first));
        let mut expected = expected.to_vec();
        expected.insert(0, (0x0, 0x1000, 0x0, "0"));
        expected[7] = (0x9000, 0xb000, 0x9000, "0");
        assert_eq!(shape(&mappings), expected);
    }

    #[test]
    fn a_file_may_say_that_its_addresses_are_any() {
        let mut file = module("a");
        let mut elf = Elf::default();
        elf.segments = [Segment {
            offset: 0x1000,
            address: u64::MAX - 0xfff,
            len: 0x4000,
            executable: true,
        }]
        .into();
        let changed = Arc::get_mut(&mut file).unwrap();
        (changed.bias, changed.elf) = (elf.code_bias(), Some(elf));
        let range = range(0x10_0000, 0x10_4000, 0x1000, &file);
        assert_eq!(range.own_address(), u64::MAX - 0xfff);
        assert_eq!(range.own_address_of(0x10_0fff), u64::MAX);
        assert_eq!(range.own_address_of(0x10_1000), 0);
        assert_eq!(range.own_address_of(0x10_3fff), 0x2fff);
    }

    #[test]
    fn the_generation_changes_with_the_content_only() {
        let a = module("a");
        let mut mappings = Mappings::default();
        mappings.insert(range(0x1000, 0x2000, 0, &a));
        let child = mappings.clone();
        let before = mappings.generation();
        mappings.insert(range(0x1000, 0x2000, 0, &a));
        mappings.insert(range(0x1800, 0x1900, 0x800, &a));
        assert_eq!(mappings.generation(), before);
        assert_eq!(mappings.ranges().len(), 1);
        mappings.insert(range(0x1000, 0x2000, 0x1000, &a));
        assert_ne!(mappings.generation(), before);
        assert_eq!(child.generation(), before);
    }

    #[test]
    fn mappings_are_bounded() {
        let a = module("a");
        let mut mappings = Mappings::default();
        let at = |index: u64| range(index * 0x2000, index * 0x2000 + 0x1000, 0, &a);
        for index in 0..3 * MAX_MAPPINGS as u64 {
            mappings.insert(at(index));
            assert!(mappings.ranges().len() <= MAX_MAPPINGS);
        }
        // The first ones and the last ones are there, each of them.
        let last = MAX_MAPPINGS - MAX_FIRST - FORGOTTEN;
        let first = 0..MAX_FIRST as u64;
        let last = 3 * MAX_MAPPINGS as u64 - last as u64..3 * MAX_MAPPINGS as u64;
        for index in first.chain(last) {
            let found = mappings.find(at(index).start);
            assert_eq!(found.map(|range| range.start), Some(at(index).start));
        }
    }
}
