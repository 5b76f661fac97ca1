//! Return addresses that the kernel has replaced, because traced functions are to be caught when they
//! return.
//!
//! The user stack of a sample -> the same with the real return addresses, as far as they are known.
//!
//! What does not belong here: which calls are open (`shadow`).

use bytes::Bytes;
use profiler_common::sample::EXACT_ADDRESS;

use super::Calls;
use crate::process::ProcessState;
use profiler_model::Tid;

/// Where the kernel puts the page that probed calls return to, unless something else is there: the
/// last one of a process's memory (x86-64).
const UPROBES_PAGE: u64 = 0x7fff_ffff_e000;
/// The part of it that calls return to; behind it are instructions that are executed out of line.
const TRAMPOLINE_BYTES: u64 = 128;

impl Calls {
    /// The stack with the real return addresses where the kernel has put its trampoline, because a
    /// traced function is to be caught when it returns. One that is not known is left out, as is an
    /// instruction executed out of line.
    pub(crate) fn with_real_returns(
        &self,
        process: &ProcessState,
        tid: Tid,
        bytes: Bytes,
    ) -> Bytes {
        if !self.is_used() {
            return bytes;
        }
        let words = || {
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_ne_bytes(*word))
        };
        let is_kernels = |address: u64| match process.mappings.find(address) {
            Some(range) => &*range.module.path == "[uprobes]",
            None => address & !0xfff == UPROBES_PAGE,
        };
        // Calls return to the beginning of the page.
        let is_trampoline = |address: u64| address & 0xfff == 0 && is_kernels(address);
        if !words().next().is_some_and(is_kernels) && !words().any(is_trampoline) {
            return bytes;
        }
        let mut returns = self.shadows.pending_returns(tid).into_iter();
        let mut real = Vec::with_capacity(bytes.len());
        for (depth, word) in words().enumerate() {
            let word = if depth == 0 && is_kernels(word) {
                if word & 0xfff >= TRAMPOLINE_BYTES {
                    continue;
                }
                returns.next().unwrap_or(0)
            } else if depth > 0 && is_trampoline(word) {
                returns.next().unwrap_or(0)
            } else {
                word
            };
            if word == 0 {
                continue;
            }
            // A caller in the place of the leaf is looked up inside of its call, too.
            let became_leaf = depth > 0 && real.is_empty() && word & EXACT_ADDRESS == 0;
            real.extend((word - u64::from(became_leaf)).to_ne_bytes());
        }
        real.into()
    }
}
