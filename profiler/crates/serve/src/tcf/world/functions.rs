//! Functions by where they lie: names for addresses that were never sampled.
//!
//! Functions of tables -> those that cover a frame address of a module. Where two overlap the later
//! one counts, since run-time code takes the place of older code. One whose length is not known covers its first
//! byte, unless another one does. What does not belong here: names of frames (`generation`).

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use profiler_model::*;

/// Functions of modules by address.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By module and start: the end, and which.
    ranges: FxHashMap<ModuleId, BTreeMap<u64, (u64, FunctionId)>>,
}

impl Functions {
    /// Adds one, if it is known where it lies.
    pub(super) fn add(&mut self, id: FunctionId, function: &Function) {
        let (Some(module), Some(start)) = (function.module, function.start) else {
            return;
        };
        let size = function.size.unwrap_or(0);
        let end = start.saturating_add(size.max(1));
        if end <= start {
            return;
        }
        let ranges = self.ranges.entry(module).or_default();
        if size == 0 {
            let known = ranges.range(..=start).next_back();
            if known.is_none_or(|(_, &(end, _))| end <= start) {
                ranges.insert(start, (end, id));
            }
            return;
        }
        while let Some((&covered, _)) = ranges.range(start..end).next() {
            ranges.remove(&covered);
        }
        ranges.insert(start, (end, id));
    }

    /// The one that covers a frame address.
    pub(super) fn find(&self, module: ModuleId, address: u64) -> Option<FunctionId> {
        let (_, &(end, id)) = self.ranges.get(&module)?.range(..=address).next_back()?;
        (address < end).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_that_overlap_counts() {
        let mut functions = Functions::default();
        let module = ModuleId::from_index(0);
        let mut add = |index, start, size| {
            let function = Function {
                name: StringId::from_index(0),
                linkage_name: None,
                module: Some(module),
                file: None,
                line: 0,
                start: Some(start),
                size,
            };
            functions.add(FunctionId::from_index(index), &function);
        };
        add(0, 0x100, Some(0x10));
        add(1, 0x110, Some(0x10));
        add(2, 0x108, Some(0x10));
        add(3, 0x200, None);
        add(6, 0x110, None);
        add(4, u64::MAX, Some(1));
        add(5, u64::MAX - 8, Some(u64::MAX));
        let find = |address| functions.find(module, address).map(|id| id.index());
        assert_eq!(find(0xff), None);
        assert_eq!(find(0x107), Some(0));
        assert_eq!(find(0x108), Some(2));
        assert_eq!(find(0x117), Some(2));
        assert_eq!(find(0x118), None, "what was there before is gone");
        assert_eq!(find(0x200), Some(3), "its first byte is known");
        assert_eq!(find(0x201), None);
        assert_eq!(find(u64::MAX - 1), Some(5));
        assert_eq!(find(u64::MAX), None);
        assert_eq!(functions.find(ModuleId::from_index(1), 0x108), None);
    }
}
