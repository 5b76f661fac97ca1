//! Stacks: addresses to frames, and a cache in front of it.
//!
//! The bytes of a stack -> [`StackId`]. A stack that was seen before under the same mappings costs
//! one hash and one lookup. Callers are looked up one byte before their return address, so that a
//! call that ends a function is not taken for the next one.
//!
//! What does not belong here: process events (`events`), names of files (`names`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use bytes::Bytes;
use profiler_common::sample::EXACT_ADDRESS;
use rustix::fs::MemfdFlags;

use super::Resolver;
use super::files::{MappedFile, TargetFile};
use super::kernel::{Kernel, KernelFiles};
use super::mapping::{CodeModule, CodeRange, next_uid};
use super::symbolize::{Answer, FunctionInfo};
use super::unwinding::CodeFile;
use profiler_model::{FrameId, FrameKind, ModuleKind, Pid, StackEnd, StackId, Tid, UnknownReason};
use profiler_object::elf::read_up_to;

/// Most stacks that are remembered.
const MAX_STACKS: usize = 100_000;
/// Longest vDSO.
const MAX_VDSO_BYTES: u64 = 1 << 20;
/// Most kernel addresses that wait for that.
const MAX_KERNEL_WAITING: usize = 10_000;
/// The kernel's mappings have no generation; those of processes start at 1.
const KERNEL: u64 = 0;

/// Where the kernel puts the page that probed calls return to, unless something else is there: the
/// last one of a process's memory (x86-64).
const UPROBES_PAGE: u64 = 0x7fff_ffff_e000;
/// The part of it that calls return to; behind it are instructions that are executed out of line.
const TRAMPOLINE_BYTES: u64 = 128;

/// What a stack's bytes mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    stack: StackId,
    /// The walk had left the code of the process; the stack ends before that.
    cut: bool,
}

impl Found {
    /// The stack, and why it ended: `end` unless the walk left the code before.
    pub(super) fn outcome(self, end: StackEnd, wreck: StackEnd) -> (Option<StackId>, StackEnd) {
        (Some(self.stack), if self.cut { wreck } else { end })
    }
}

impl Resolver {
    /// The stack with the real return addresses where the kernel has put its trampoline, because a
    /// traced function is to be caught when it returns. One that is not known is left out, as is an
    /// instruction executed out of line.
    pub(super) fn with_real_returns(&self, pid: Pid, tid: Tid, bytes: Bytes) -> Bytes {
        if !self.calls.is_used() {
            return bytes;
        }
        let Some(process) = self.processes.get(pid) else {
            return bytes;
        };
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
        let mut returns = self.calls.pending_returns(tid).into_iter();
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

    /// The user stack of a sample, and why it ended: `end` unless the walk left the code before.
    ///
    /// Code built without frame pointers uses the register for something else, and a walk that
    /// meets it goes on with whatever that points to. A caller that is in no mapping of the process
    /// is such a wreck, by whatever means it was found: the stack is cut before it. A leaf is where
    /// the thread really was.
    pub(super) fn user_stack(
        &mut self,
        pid: Pid,
        bytes: &Bytes,
        end: StackEnd,
    ) -> (Option<StackId>, StackEnd) {
        match self.find_user_stack(pid, bytes) {
            Some(found) => found.outcome(end, self.unwinding.end_of_wreck()),
            None => (None, end),
        }
    }

    fn find_user_stack(&mut self, pid: Pid, bytes: &Bytes) -> Option<Found> {
        if bytes.len() < 8 {
            return None;
        }
        let generation = self.processes.get(pid)?.mappings.generation();
        self.announce_mappings(pid, generation);
        let key = self.stack_key(generation, bytes);
        if let Some(found) = self.known_stack(key) {
            return Some(found);
        }
        let (frames, addresses, cut) = self.native_frames(pid, bytes);
        self.addresses = addresses;
        let mut stack = None;
        for &frame in frames.iter().rev() {
            stack = Some(self.epoch.stack(stack, frame));
        }
        Some(self.keep_stack(key, stack?, cut))
    }

    /// What a stack is remembered by.
    pub(super) fn stack_key(&self, generation: u64, bytes: &Bytes) -> (u64, u64) {
        (generation, hash(bytes, self.seed))
    }

    /// A stack that was seen before.
    pub(super) fn known_stack(&mut self, key: (u64, u64)) -> Option<Found> {
        let found = self.stacks.get(&key).copied();
        self.counters.stacks_known += u64::from(found.is_some());
        found
    }

    /// Remembers a stack.
    pub(super) fn keep_stack(&mut self, key: (u64, u64), stack: StackId, cut: bool) -> Found {
        let found = Found { stack, cut };
        self.remember(key, found);
        found
    }

    /// The frames of a user stack, leaf first, with their addresses, and whether the walk had left the
    /// code before its end.
    pub(super) fn native_frames(
        &mut self,
        pid: Pid,
        bytes: &Bytes,
    ) -> (Vec<FrameId>, Vec<u64>, bool) {
        let mut addresses = self.user_addresses(bytes);
        let mut cut = false;
        let Some(process) = self.processes.get(pid) else {
            addresses.clear();
            return (Vec::new(), addresses, cut);
        };
        let mappings = process.mappings.clone();
        let mapped = |address: &u64| mappings.find(*address).is_some();
        if addresses.first().is_some_and(mapped)
            && let Some(wreck) = addresses.iter().position(|at| !mapped(at))
        {
            addresses.truncate(wreck);
            cut = true;
        }
        let mut frames = Vec::with_capacity(addresses.len());
        for (depth, &address) in addresses.iter().enumerate() {
            let frame = match mappings.find(address) {
                Some(range) => self.user_frame(pid, range, address, depth == 0),
                None => {
                    let (frame, new) = self.epoch.frame(FrameKind::Native, None, address);
                    if new {
                        self.define(frame, None, &Answer::Unknown(UnknownReason::NoMapping));
                    }
                    frame
                }
            };
            frames.push(frame);
        }
        (frames, addresses, cut)
    }

    /// Announces the mappings of a process with its first stack of an epoch, and when they have
    /// changed: a stack that is known from a process with the same mappings does not meet them.
    pub(super) fn announce_mappings(&mut self, pid: Pid, generation: u64) {
        let now = Some((self.epoch.number, generation));
        let Some(process) = self.processes.get_mut(pid) else {
            return;
        };
        if std::mem::replace(&mut process.mapped, now) == now {
            return;
        }
        let mappings = process.mappings.clone();
        if let Some(process) = self.processes.announce(pid, &mut self.epoch) {
            for range in mappings.ranges() {
                self.epoch.mapping(process, range);
            }
        }
    }

    /// The kernel stack of a sample.
    pub(super) fn kernel_stack(&mut self, bytes: &Bytes) -> Option<StackId> {
        if bytes.len() < 8 {
            return None;
        }
        let key = (KERNEL, hash(bytes, self.seed));
        if let Some(found) = self.stacks.get(&key) {
            self.counters.stacks_known += 1;
            return Some(found.stack);
        }
        let addresses = self.kernel_addresses(bytes);
        let mut stack = None;
        for &address in addresses.iter().rev() {
            let frame = self.kernel_frame(address);
            stack = Some(self.epoch.stack(stack, frame));
        }
        self.addresses = addresses;
        self.remember(
            key,
            Found {
                stack: stack?,
                cut: false,
            },
        );
        stack
    }

    /// Addresses inside the instructions that a kernel stack speaks of, leaf first.
    fn kernel_addresses(&mut self, bytes: &Bytes) -> Vec<u64> {
        let mut addresses = self.words(bytes);
        for caller in addresses.iter_mut().skip(1) {
            *caller = caller.saturating_sub(1);
        }
        addresses
    }

    /// The same of a user stack, where a caller may be no return address: it was interrupted.
    fn user_addresses(&mut self, bytes: &Bytes) -> Vec<u64> {
        let mut addresses = self.words(bytes);
        for (depth, address) in addresses.iter_mut().enumerate() {
            *address = match *address & EXACT_ADDRESS {
                0 if depth > 0 => address.saturating_sub(1),
                _ => *address & !EXACT_ADDRESS,
            };
        }
        addresses
    }

    fn words(&mut self, bytes: &Bytes) -> Vec<u64> {
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        let words = bytes.as_chunks::<8>().0.iter();
        addresses.extend(words.map(|word| u64::from_ne_bytes(*word)));
        addresses
    }

    fn remember(&mut self, key: (u64, u64), found: Found) {
        self.counters.stacks_new += 1;
        if self.stacks.len() >= MAX_STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(key, found);
    }

    pub(super) fn user_frame(
        &mut self,
        pid: Pid,
        range: &CodeRange,
        address: u64,
        leaf: bool,
    ) -> FrameId {
        let module = &range.module;
        let at = match module.kind {
            ModuleKind::Jit | ModuleKind::Unknown => address,
            _ => range.frame_address(address),
        };
        let (frame, new) = self.epoch.frame(kind_of(module), Some(module), at);
        if new {
            self.name(pid, range, frame, at, leaf);
        }
        frame
    }

    /// Says what a new frame of this epoch means, or asks.
    fn name(&mut self, pid: Pid, range: &CodeRange, frame: FrameId, at: u64, leaf: bool) {
        let module = &range.module;
        if let Some(known) = self.names.get(module.uid, at) {
            self.define(frame, Some(module), &known.answer);
            if let Some((start, bytes)) = &known.code {
                self.epoch.code(module, *start, bytes);
            }
            return;
        }
        if self.names.is_waiting(module.uid, at) {
            return;
        }
        let file = match module.kind {
            ModuleKind::Jit => None,
            ModuleKind::Vdso => self.vdso.as_ref().map(|(_, file)| file.clone()),
            // What is open by now must be what the module is said to be.
            _ => self
                .file_of(pid, range)
                .filter(|file| file.print.name == module.copy),
        };
        let reason = match module.kind {
            ModuleKind::Jit => None,
            ModuleKind::Unknown => Some(UnknownReason::NoSymbol),
            _ => match &file {
                None => Some(UnknownReason::NoFile),
                Some(file) if file.elf.is_none() => Some(UnknownReason::BadFile),
                Some(_) => None,
            },
        };
        let wants_code = leaf && self.keep_code;
        let reason = match reason {
            None if self.names.want(module, at, wants_code, file) => return,
            None => UnknownReason::GaveUp,
            Some(reason) => reason,
        };
        self.define(frame, Some(module), &Answer::Unknown(reason));
    }

    /// The file behind a mapping, opened again if it was closed.
    fn file_of(&mut self, pid: Pid, range: &CodeRange) -> Option<Arc<TargetFile>> {
        if let Some(file) = range
            .module
            .key
            .as_ref()
            .and_then(|key| self.files.get(key))
        {
            return Some(file);
        }
        let mapped = MappedFile {
            pid,
            range: range.mapped,
            path: &range.module.path,
            identity: range.identity,
            root: self
                .processes
                .get(pid)
                .and_then(|process| process.root.as_ref())
                .or(self.host.as_ref()),
        };
        self.files.open(&mapped).ok()
    }

    /// Waits for the kernel's symbols, the first time: they take some 50 ms to read if none were kept.
    pub(super) fn await_kernel(&mut self) {
        let loaded = self
            .kernel_loading
            .as_ref()
            .and_then(|loading| loading.recv().ok());
        let kernel = match loaded {
            Some(kernel) => kernel,
            None => Kernel::load(&KernelFiles::default()),
        };
        self.kernel_is(kernel);
    }

    /// Sees to it that what the kernel told of an address when it was asked last is known.
    pub(super) fn know_kernel(&mut self, address: u64) {
        if !self.kernel_known {
            self.await_kernel();
        }
        if !self.kernel.knows(address) {
            let mut kernel = Kernel::load(&KernelFiles::default());
            kernel.keep_modules_of(&self.kernel);
            self.kernel_loaded = Instant::now();
            self.kernel_is(kernel);
        }
    }

    /// Takes a new table of the kernel's symbols.
    pub(super) fn kernel_is(&mut self, kernel: Kernel) {
        self.kernel = kernel;
        self.kernel_loading = None;
        if !std::mem::replace(&mut self.kernel_known, true) && self.kernel.is_restricted() {
            log::warn!(
                "the kernel hides its addresses: kernel functions will have no names; \
                 run as root or grant CAP_SYSLOG, with kernel.kptr_restrict at 1 or 0"
            );
        }
    }

    pub(super) fn kernel_frame(&mut self, address: u64) -> FrameId {
        self.know_kernel(address);
        let place = self.kernel.place(address);
        let module = place.module.as_deref();
        let (frame, new) = self.epoch.frame(FrameKind::Kernel, module, place.address);
        if !new {
            return frame;
        }
        if module.is_none()
            && !self.kernel.is_restricted()
            && self.kernel_waiting.len() < MAX_KERNEL_WAITING
        {
            // A module or BPF program that was loaded meanwhile: answered after a reload.
            self.kernel_waiting.insert(address, Instant::now());
            return frame;
        }
        let answer = kernel_answer(&self.kernel, address);
        self.define(frame, module, &answer);
        frame
    }

    /// Reads the kernel's symbols again, on a thread of its own and not too often.
    pub(super) fn reload_kernel(&mut self) {
        if self.kernel_loading.is_none() && self.kernel_loaded.elapsed() >= self.kernel_interval {
            self.load_kernel(Kernel::load);
        }
    }

    /// Begins to read the kernel's symbols.
    pub(super) fn load_kernel(&mut self, load: fn(&KernelFiles) -> Kernel) {
        let (done, loading) = channel();
        let thread = std::thread::Builder::new().name("symbols-kernel".to_owned());
        let started = thread.spawn(move || {
            // Nobody waits any more if this fails.
            let _ = done.send(load(&KernelFiles::default()));
        });
        if started.is_ok() {
            self.kernel_loaded = Instant::now();
            self.kernel_loading = Some(loading);
        }
    }
}

/// What a kernel address means.
pub(super) fn kernel_answer(kernel: &Kernel, address: u64) -> Answer {
    match kernel.symbol(address) {
        Some(symbol) => {
            let function = FunctionInfo {
                name: symbol.name.into(),
                linkage_name: None,
                file: None,
                start: Some(symbol.start),
                size: symbol.size,
            };
            Answer::Lines([(Arc::new(function), 0)].into())
        }
        None => Answer::Unknown(UnknownReason::NoSymbol),
    }
}

/// What kind of frames a module has.
pub(super) fn kind_of(module: &CodeModule) -> FrameKind {
    match module.kind {
        ModuleKind::Jit => FrameKind::Jit,
        ModuleKind::Kernel | ModuleKind::KernelModule => FrameKind::Kernel,
        _ => FrameKind::Native,
    }
}

/// The vDSO as it is in this process: the same in all processes of this architecture.
pub(super) fn own_vdso() -> Option<(Arc<CodeModule>, Arc<TargetFile>)> {
    let own = super::proc_fs::mappings(Pid(std::process::id()));
    let mapping = own.iter().find(|mapping| &*mapping.path == b"[vdso]")?;
    let memory = std::fs::File::open("/proc/self/mem").ok()?;
    let mut bytes = vec![0; mapping.len.min(MAX_VDSO_BYTES) as usize];
    let got = read_up_to(&memory, &mut bytes, mapping.start).ok()?;
    let copy: OwnedFd = rustix::fs::memfd_create("vdso", MemfdFlags::CLOEXEC).ok()?;
    let copy = std::fs::File::from(copy);
    std::os::unix::fs::FileExt::write_all_at(&copy, &bytes[..got], 0).ok()?;
    let stat = rustix::fs::fstat(&copy).ok()?;
    let mut file = TargetFile::new(copy, &stat, "[vdso]", None);
    file.trusted = true;
    let elf = file.elf.clone()?;
    let module = CodeModule {
        uid: next_uid(),
        kind: ModuleKind::Vdso,
        path: "[vdso]".into(),
        build_id: elf.build_id.clone(),
        bias: elf.bias(0),
        copy: None,
        key: None,
        elf: Some(elf),
        jit: None,
        code: Some(CodeFile::new("[vdso]")),
    };
    Some((Arc::new(module), Arc::new(file)))
}

/// Hash of a stack's bytes. Two independent lanes of folded multiplication keep up with memory.
fn hash(bytes: &Bytes, seed: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ (wide >> 64) as u64
    };
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd6e8_feb8_6659_fd93;
    let (mut left, mut right) = (seed ^ A, seed.rotate_left(32) ^ bytes.len() as u64);
    let (pairs, rest) = bytes.as_chunks::<16>();
    for pair in pairs {
        let (first, second) = pair.split_at(8);
        left = fold(left ^ word(first), A);
        right = fold(right ^ word(second), B);
    }
    left = fold(left ^ word(rest), A);
    fold(left ^ B, right ^ A)
}

/// Up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_each_byte_and_the_order() {
        let bytes = |addresses: &[u64]| -> Bytes {
            addresses
                .iter()
                .flat_map(|address| address.to_ne_bytes())
                .collect()
        };
        let mut seen = std::collections::HashSet::new();
        let base: Vec<u64> = (0..9).map(|index| 0x5555_0000 + index * 0x10).collect();
        assert!(seen.insert(hash(&bytes(&base), 1)));
        assert!(seen.insert(hash(&bytes(&base), 2)));
        for index in 0..base.len() {
            assert!(seen.insert(hash(&bytes(&base[..index]), 1)));
            for bit in 0..64 {
                let mut changed = base.clone();
                changed[index] ^= 1 << bit;
                assert!(seen.insert(hash(&bytes(&changed), 1)));
            }
        }
        let mut swapped = base.clone();
        swapped.swap(0, 2);
        assert!(seen.insert(hash(&bytes(&swapped), 1)));
    }
}
