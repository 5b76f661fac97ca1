//! Frames of processes: where an address is, and what it is called.
//!
//! Addresses in the memory of processes, inside of an instruction -> frames of the epoch, whose symbols
//! follow.
//!
//! What does not belong here: stacks (`stacks`), frames of the kernel (`kernel_names`) and of interpreters.

use std::sync::Arc;

use profiler_common::sample::LEFT_OUT;

use super::epoch::Epoch;
use super::mapping::CodeRange;
use super::modules::Modules;
use super::naming::{Naming, kind_of};
use super::process::ProcessState;
use super::symbolize::{Answer, FunctionInfo};
use profiler_model::{FrameId, FrameKind, ModuleKind, UnknownReason};

/// What the frame is called that stands for frames in the middle of a stack. Not how many: that would tell
/// stacks apart that are alike.
const LEFT_OUT_NAME: &str = "[frames left out]";

/// What frames are made with.
#[derive(Debug)]
pub(super) struct Frames<'a> {
    /// The files behind mappings.
    pub(super) modules: &'a mut Modules,
    /// Where names are asked for.
    pub(super) naming: &'a mut Naming,
    /// Where frames are announced.
    pub(super) epoch: &'a mut Epoch,
}

impl Frames<'_> {
    /// The frame at an address; `leaf`: a thread was just there.
    pub(super) fn frame(&mut self, process: &ProcessState, address: u64, leaf: bool) -> FrameId {
        if let Some(range) = process.mappings.find(address) {
            return self.frame_in(process, range, address, leaf);
        }
        let (frame, new) = self.epoch.tables.frame(FrameKind::Native, None, address);
        if new {
            let answer = Answer::Unknown(UnknownReason::NoMapping);
            self.epoch.define(frame, None, &answer);
        }
        frame
    }

    /// What stands for the middle of a stack that was too deep.
    pub(super) fn left_out(&mut self) -> FrameId {
        let (frame, new) = self.epoch.tables.frame(FrameKind::Native, None, LEFT_OUT);
        if new {
            let function = FunctionInfo {
                name: LEFT_OUT_NAME.into(),
                linkage_name: None,
                file: None,
                line: 0,
                start: None,
                size: None,
            };
            let answer = Answer::Lines([(Arc::new(function), 0)].into());
            self.epoch.define(frame, None, &answer);
        }
        frame
    }

    fn frame_in(
        &mut self,
        process: &ProcessState,
        range: &CodeRange,
        address: u64,
        leaf: bool,
    ) -> FrameId {
        let module = &range.module;
        let at = match module.kind {
            ModuleKind::Jit | ModuleKind::Unknown => address,
            _ => range.frame_address(address),
        };
        let tables = &mut self.epoch.tables;
        let (frame, new) = tables.frame(kind_of(module), Some(module), at);
        if new {
            let modules = &mut *self.modules;
            let file = || modules.file_behind(process.pid, range, || process.root.clone());
            self.naming
                .name(module, (frame, at), leaf, self.epoch, file);
        }
        frame
    }
}
