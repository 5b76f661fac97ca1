//! Questions from outside: what is mapped into a process, and what is at places of its memory or of
//! the kernel.
//!
//! Addresses -> definitions of mappings and frames in the current epoch, whose symbols follow as those
//! of samples do. Addresses are inside of instructions, as those of [`profiler_model::Frame`] are: of a
//! caller, the return address less 1. What does not belong here: who asks, and who waits.

use std::sync::Arc;

use super::Resolver;
use super::symbolize::Answer;
use profiler_model::{FrameKind, Pid, Timestamp, UnknownReason};

/// Most addresses of one question; the rest is left out.
const MAX_ADDRESSES: usize = 4096;

impl Resolver {
    /// Announces a process that started then, its mappings, and frames at addresses of its memory;
    /// those of one that has ended as long as it is known. Whether it is.
    pub fn ask_process(&mut self, pid: Pid, started: Timestamp, addresses: &[u64]) -> bool {
        let known = |process: &&super::process::ProcessState| process.started == started;
        let Some(process) = self.processes.get(pid).filter(known) else {
            return false;
        };
        let mappings = Arc::clone(&process.mappings);
        self.processes.announce(pid, &mut self.epoch);
        self.announce_mappings(pid, mappings.generation());
        for &address in addresses.iter().take(MAX_ADDRESSES) {
            match mappings.find(address) {
                Some(range) => {
                    self.user_frame(pid, range, address, false);
                }
                None => {
                    let (frame, new) = self.epoch.frame(FrameKind::Native, None, address);
                    if new {
                        self.define(frame, None, &Answer::Unknown(UnknownReason::NoMapping));
                    }
                }
            }
        }
        true
    }

    /// Announces frames of the kernel's image, by their distance from `_stext`.
    pub fn ask_kernel(&mut self, offsets: &[u64]) {
        if !self.kernel_known {
            self.await_kernel();
        }
        for &offset in offsets.iter().take(MAX_ADDRESSES) {
            match self.kernel.address_of(offset) {
                Some(address) => {
                    self.kernel_frame(address);
                }
                None => {
                    let image = self.kernel.image();
                    let (frame, new) = self.epoch.frame(FrameKind::Kernel, Some(&image), offset);
                    if new {
                        let answer = Answer::Unknown(UnknownReason::NoSymbol);
                        self.define(frame, Some(&image), &answer);
                    }
                }
            }
        }
    }
}
