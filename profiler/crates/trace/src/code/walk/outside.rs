//! Code outside a function that belongs to it: parts that were moved away, and where tables lead.
//!
//! An address outside -> a further part of the function, or not.
//!
//! What does not belong here: following the parts.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::{MAX_PARTS, Walk, linkage_name, near_target, number};
use crate::code::part::Part;
use crate::code::state::Table;
use crate::code::{CodeSource, MAX_BYTES, names};

/// Most instructions that are looked at to see whether code outside comes back.
const MAX_SURVEY: usize = 2_000;
/// Farthest that such code may lie apart.
const SURVEY_BYTES: u64 = 64 << 10;
/// Longest function that is looked at to see whether it returns.
const MAX_CALLEE: u64 = 512;
/// Longest table of a switch.
const MAX_TABLE: u64 = 1 << 16;
/// Most entries of a table whose length nothing tells.
const MAX_OPEN_TABLE: u64 = 1 << 10;

/// What code outside the function does.
#[derive(Default)]
struct Survey {
    start: u64,
    end: u64,
    comes_back: bool,
    leaves: bool,
}

impl Walk<'_> {
    /// Where the entries of a switch's table lead; nothing if that is no table of this function.
    pub(super) fn table(&mut self, table: Table, base: Option<u64>) -> Option<Vec<u64>> {
        if table.stride != u64::from(table.width) || (table.exact && table.max >= MAX_TABLE) {
            return None;
        }
        let last = if table.exact {
            table.max
        } else {
            table.max.min(MAX_OPEN_TABLE)
        };
        let mut targets = BTreeSet::new();
        for at in 0..=last {
            let address = table.address.wrapping_add(at * table.stride);
            let entry = number(self.source, address, usize::from(table.width));
            let target = match (entry, base) {
                (Some(entry), Some(base)) => {
                    Some(base.wrapping_add(i64::from(entry as u32 as i32) as u64))
                }
                (entry, None) => entry,
                (None, _) => None,
            };
            match target.filter(|&target| self.leads_into(target, table.exact)) {
                Some(target) => {
                    targets.insert(target);
                }
                None if table.exact => return None,
                None => break,
            }
        }
        (!targets.is_empty()).then(|| targets.into_iter().collect())
    }

    /// Takes code outside for a part of this function if it can't be anything else: a part that was
    /// moved away, code that comes back here or never leaves at all, or code that is entered with
    /// something on the stack.
    pub(super) fn adopt(&mut self, target: u64, height: Option<i64>, conditional: bool) -> bool {
        if self.parts.len() >= MAX_PARTS || self.source.plt(target).is_some() {
            return false;
        }
        let mut cold = self.cold.iter().copied();
        let cold = cold.find(|&(start, len)| target.wrapping_sub(start) < len);
        let (start, len) = match cold {
            Some(part) => part,
            None => {
                let extent = self.source.extent(target);
                let start = extent.map_or(target, |(start, _)| start);
                if self.starts_function(target) || self.starts_function(start) {
                    return false;
                }
                // Compilers call nobody under a condition, least of all in the middle.
                let middle = conditional && extent.is_some_and(|(start, _)| start != target);
                let survey = self.survey(target, extent);
                if !middle && !survey.comes_back && survey.leaves && height == Some(0) {
                    return false;
                }
                extent.unwrap_or((survey.start, survey.end - survey.start))
            }
        };
        let end = start.saturating_add(len);
        if len > MAX_BYTES
            || self
                .parts
                .iter()
                .any(|part| start < part.end() && end > part.start)
        {
            return false;
        }
        let Some(bytes) = self.source.code(start, len) else {
            return false;
        };
        self.parts.push(Part::decode(start, bytes));
        true
    }

    /// Parts that were moved away and to which no jump leads: landing places of exceptions.
    pub(super) fn cold_orphans(&mut self) -> bool {
        let only = self.cold.len() == 1;
        let mut found = false;
        for (start, len) in self.cold.clone() {
            if self.part(start).is_some() || len > MAX_BYTES || self.parts.len() >= MAX_PARTS {
                continue;
            }
            let Some(bytes) = self.source.code(start, len) else {
                continue;
            };
            let part = Part::decode(start, bytes);
            // Functions of one name share what was moved away from them.
            let mut jumps = part.instructions().iter().filter_map(near_target);
            if only || jumps.any(|target| self.part(target).is_some()) {
                self.parts.push(part);
                found = true;
            }
        }
        found
    }

    /// Whether a function, if it is a short one, can be seen never to return.
    pub(super) fn never_returns(&self, target: u64) -> bool {
        match self.source.extent(target) {
            Some((start, len)) if start == target && len <= MAX_CALLEE => {
                let survey = self.survey(target, Some((start, len)));
                !survey.leaves && !survey.comes_back
            }
            _ => false,
        }
    }

    fn call_never_returns(&self, instruction: &Instruction) -> bool {
        let Some(target) = near_target(instruction) else {
            return false;
        };
        let name = self.source.plt(target).or_else(|| {
            let function = self.source.function_at(target)?;
            (function.address == target).then(|| linkage_name(function))
        });
        name.is_some_and(names::never_returns)
    }

    fn leads_into(&mut self, target: u64, exact: bool) -> bool {
        if let Some(part) = self.part(target) {
            return part.instruction(target).is_some() && (exact || part.begins_at(target));
        }
        let cold = self
            .cold
            .iter()
            .any(|&(start, len)| target.wrapping_sub(start) < len);
        cold && exact && self.adopt(target, None, false)
    }

    /// Looks at code outside.
    fn survey(&self, target: u64, extent: Option<(u64, u64)>) -> Survey {
        let mut survey = Survey {
            start: target,
            end: target + 1,
            ..Survey::default()
        };
        let (first, len) =
            extent.unwrap_or((target.saturating_sub(SURVEY_BYTES), 2 * SURVEY_BYTES));
        let inside = |at: u64| at.wrapping_sub(first) < len;
        let mut seen = BTreeSet::new();
        let mut work = vec![target];
        while let Some(mut at) = work.pop() {
            // Code that runs up to its end has called someone who never returns.
            while seen.len() < MAX_SURVEY && inside(at) && seen.insert(at) {
                let Some(instruction) = single(self.source, at) else {
                    break;
                };
                survey.start = survey.start.min(at);
                survey.end = survey.end.max(instruction.next_ip());
                let flow = instruction.flow_control();
                if let Some(to) = near_target(&instruction)
                    && flow != FlowControl::Call
                {
                    if self.part(to).is_some() {
                        survey.comes_back |= to != self.start;
                        survey.leaves |= to == self.start;
                    } else if inside(to) && (extent.is_some() || !self.starts_function(to)) {
                        work.push(to);
                    } else {
                        survey.leaves = true;
                    }
                }
                survey.leaves |= matches!(flow, FlowControl::Return | FlowControl::IndirectBranch);
                at = instruction.next_ip();
                let falls = match flow {
                    FlowControl::Next
                    | FlowControl::ConditionalBranch
                    | FlowControl::IndirectCall => true,
                    FlowControl::Call => !self.call_never_returns(&instruction),
                    _ => false,
                };
                if !falls {
                    break;
                }
            }
        }
        survey.leaves |= seen.len() >= MAX_SURVEY;
        survey
    }

    fn starts_function(&self, address: u64) -> bool {
        let function = self.source.function_at(address);
        function.is_some_and(|function| function.address == address)
    }
}

/// One instruction anywhere in the object.
pub(crate) fn single(source: &dyn CodeSource, address: u64) -> Option<Instruction> {
    // Near the end of a segment there are fewer bytes than the longest instruction has.
    let bytes = (1..=15).rev().find_map(|len| source.code(address, len))?;
    let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    Some(decoded).filter(|instruction| !instruction.is_invalid())
}
