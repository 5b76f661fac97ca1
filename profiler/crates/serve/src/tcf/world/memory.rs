//! What is mapped into one process: as mmap(2) leaves it.
//!
//! Mappings with the time they were made -> ranges by address. A later one takes the place of what it
//! overlaps, in whatever order they are told. Only executable memory is told of. What does not belong
//! here: which addresses clients get (`places`).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Mapped;
use super::code::{Code, CodeModule};
use profiler_model::*;

/// Most mappings of a process; beyond, the older half is forgotten.
const MAX_MAPPINGS: usize = 8192;

/// A piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The module's frame address at `start`.
    pub(super) offset: u64,
    pub(super) at: Timestamp,
    pub(super) module: Arc<CodeModule>,
}

impl Range {
    /// Without what lies before `start`.
    fn from(&self, start: u64) -> Range {
        Range {
            start,
            offset: self.offset.wrapping_add(start - self.start),
            ..self.clone()
        }
    }

    /// Without what lies at `end` and behind.
    fn until(&self, end: u64) -> Range {
        Range {
            end,
            ..self.clone()
        }
    }
}

/// The executable mappings of one process.
#[derive(Debug, Default)]
pub(super) struct Memory {
    ranges: BTreeMap<u64, Range>,
    /// Starts by module; empty if that is to be made anew.
    by_module: FxHashMap<u64, Vec<u64>>,
    /// When the program was started.
    executed: Timestamp,
}

impl Memory {
    /// How many mappings there are.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a mapping.
    pub(super) fn insert(&mut self, new: Range) {
        if new.start >= new.end || new.at < self.executed {
            return;
        }
        let first = match self.ranges.range(..=new.start).next_back() {
            Some((&start, range)) if range.end > new.start => start,
            _ => new.start,
        };
        let overlapped: Vec<Range> = self
            .ranges
            .range(first..new.end)
            .map(|(_, range)| range.clone())
            .collect();
        let mut pieces = Vec::new();
        let mut rest = Some(new.clone());
        for old in overlapped {
            if old.at > new.at {
                // What is known of this piece is newer.
                if let Some(piece) = rest.take() {
                    if piece.start < old.start {
                        pieces.push(piece.until(old.start));
                    }
                    rest = (old.end < piece.end).then(|| piece.from(piece.start.max(old.end)));
                }
                continue;
            }
            self.ranges.remove(&old.start);
            if old.start < new.start {
                pieces.push(old.until(new.start));
            }
            if old.end > new.end {
                pieces.push(old.from(new.end));
            }
        }
        pieces.extend(rest);
        for piece in pieces {
            self.ranges.insert(piece.start, piece);
        }
        self.by_module.clear();
        if self.ranges.len() > MAX_MAPPINGS {
            self.shrink();
        }
    }

    fn shrink(&mut self) {
        let mut ages: Vec<(Timestamp, u64)> = self
            .ranges
            .values()
            .map(|range| (range.at, range.start))
            .collect();
        ages.sort_unstable();
        for (_, start) in &ages[..ages.len() / 2] {
            self.ranges.remove(start);
        }
    }

    /// The program was replaced: what had been mapped before is gone.
    pub(super) fn execute(&mut self, at: Timestamp) {
        self.executed = self.executed.max(at);
        let executed = self.executed;
        self.ranges.retain(|_, range| range.at >= executed);
        self.by_module.clear();
    }

    /// The mapping that an address is in.
    pub(super) fn find(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then_some(range)
    }

    /// What code is at an address.
    pub(super) fn code_at(&self, address: u64) -> Option<Code> {
        let range = self.find(address)?;
        let (kind, address) = match range.module.kind {
            ModuleKind::Jit => (FrameKind::Jit, address),
            ModuleKind::Unknown => (FrameKind::Native, address),
            _ => {
                let offset = range.offset.wrapping_add(address - range.start);
                (FrameKind::Native, offset)
            }
        };
        Some(Code {
            kind,
            module: Some(range.module.clone()),
            address,
        })
    }

    /// Where code is. A file that is mapped twice: at the lower address.
    pub(super) fn address_of(&mut self, code: &Code) -> Option<u64> {
        let address = code.address;
        let Some(module) = &code.module else {
            return self.find(address).is_none().then_some(address);
        };
        match module.kind {
            ModuleKind::Jit | ModuleKind::Unknown => {
                let range = self.find(address)?;
                (range.module.uid == module.uid).then_some(address)
            }
            ModuleKind::File | ModuleKind::Vdso => {
                if self.by_module.is_empty() {
                    for range in self.ranges.values() {
                        let starts = self.by_module.entry(range.module.uid).or_default();
                        starts.push(range.start);
                    }
                }
                self.by_module.get(&module.uid)?.iter().find_map(|start| {
                    let range = self.ranges.get(start)?;
                    let distance = address.checked_sub(range.offset)?;
                    (distance < range.end - range.start).then(|| range.start + distance)
                })
            }
            ModuleKind::Kernel | ModuleKind::KernelModule | ModuleKind::Interpreted => None,
        }
    }

    /// All mappings, ordered by address.
    pub(super) fn list(&self) -> Vec<Mapped> {
        let ranges = self.ranges.values();
        let mapped = ranges.map(|range| Mapped {
            start: range.start,
            end: range.end,
            offset: match range.module.kind {
                ModuleKind::File => range.offset,
                _ => 0,
            },
            path: range.module.path.to_string(),
        });
        mapped.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::code::Modules;
    use super::*;

    fn range(start: u64, end: u64, offset: u64, at: u64, module: &Arc<CodeModule>) -> Range {
        Range {
            start,
            end,
            offset,
            at: Timestamp(at),
            module: module.clone(),
        }
    }

    fn modules() -> (Arc<CodeModule>, Arc<CodeModule>) {
        let mut modules = Modules::default();
        let module = Module {
            kind: ModuleKind::File,
            path: StringId::from_index(0),
            build_id: None,
            address_bias: 0,
        };
        (modules.intern(&module, "a"), modules.intern(&module, "b"))
    }

    fn shape(memory: &Memory) -> Vec<(u64, u64, u64, String)> {
        let list = memory.list().into_iter();
        list.map(|mapped| (mapped.start, mapped.end, mapped.offset, mapped.path))
            .collect()
    }

    #[test]
    fn a_later_mapping_takes_the_place_in_whatever_order_they_are_told() {
        let (a, b) = modules();
        let told = [
            range(0x1000, 0x9000, 0x100, 1, &a),
            range(0x3000, 0x5000, 0, 2, &b),
            range(0x8000, 0xa000, 0x10, 3, &b),
        ];
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for order in orders {
            let mut memory = Memory::default();
            for index in order {
                memory.insert(told[index].clone());
            }
            assert_eq!(
                shape(&memory),
                [
                    (0x1000, 0x3000, 0x100, "a".into()),
                    (0x3000, 0x5000, 0, "b".into()),
                    (0x5000, 0x8000, 0x4100, "a".into()),
                    (0x8000, 0xa000, 0x10, "b".into()),
                ],
                "{order:?}"
            );
            assert_eq!(memory.find(0x5000).unwrap().module.uid, a.uid);
            assert!(memory.find(0xfff).is_none() && memory.find(0xa000).is_none());
        }
    }

    #[test]
    fn a_new_program_has_none_of_the_old_mappings() {
        let (a, b) = modules();
        let mut memory = Memory::default();
        memory.insert(range(0x1000, 0x2000, 0, 1, &a));
        memory.insert(range(0x5000, 0x6000, 0, 8, &b));
        memory.execute(Timestamp(5));
        memory.insert(range(0x3000, 0x4000, 0, 4, &a));
        assert_eq!(shape(&memory), [(0x5000, 0x6000, 0, "b".into())]);
    }

    #[test]
    fn mappings_are_bounded_and_the_latest_stay() {
        let (a, _) = modules();
        let mut memory = Memory::default();
        for index in 0..3 * MAX_MAPPINGS as u64 {
            memory.insert(range(index * 16, index * 16 + 8, 0, index, &a));
            assert!(memory.len() <= MAX_MAPPINGS);
        }
        assert!(memory.find((3 * MAX_MAPPINGS as u64 - 1) * 16).is_some());
    }

    #[test]
    fn edges_of_the_address_space_do_not_overflow() {
        let (a, _) = modules();
        let mut memory = Memory::default();
        memory.insert(range(u64::MAX - 0x1000, u64::MAX, u64::MAX - 5, 1, &a));
        memory.insert(range(u64::MAX - 0x800, u64::MAX - 0x700, 0, 2, &a));
        memory.insert(range(9, 9, 0, 3, &a));
        assert_eq!(memory.len(), 3);
        let code = memory.code_at(u64::MAX - 1).unwrap();
        assert_eq!(code.address, (u64::MAX - 5).wrapping_add(0xfff));
        assert!(memory.code_at(u64::MAX).is_none());
        let at = memory.address_of(&Code {
            address: u64::MAX - 4,
            ..code
        });
        assert_eq!(at, Some(u64::MAX - 0x1000 + 1));
    }
}
