//! The values of a BPF array, mapped: user space writes them without a system call each.
//!
//! A map of 8-byte words (or of values that are made of such) with BPF_F_MMAPABLE -> words that are
//! read and written atomically, because programs read them at the same time. What the words mean is
//! not known here.

#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::sys::Mapping;

/// A mapped array.
pub(super) struct Words {
    fd: OwnedFd,
    mapping: Mapping,
    len: usize,
}

impl Words {
    /// Maps the `len` words of a map, which is kept open.
    pub(super) fn map(fd: OwnedFd, len: usize) -> io::Result<Words> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::new(fd.as_fd(), len * 8, access, libc::MAP_SHARED)?;
        Ok(Words { fd, mapping, len })
    }

    /// Writes words from `first` on. What is beyond the array is not written.
    pub(super) fn write(&self, first: usize, words: impl IntoIterator<Item = u64>) {
        let room = self.all().get(first..).unwrap_or_default();
        for (to, word) in room.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Writes a word after all that was written before.
    pub(super) fn publish(&self, index: usize, word: u64) {
        if let Some(to) = self.all().get(index) {
            to.store(word, Ordering::Release);
        }
    }

    /// The word at `index`; 0 beyond the array.
    pub(super) fn read(&self, index: usize) -> u64 {
        self.all()
            .get(index)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words, and lives as long as `self`; whoever else accesses it
        // does so a word at a time.
        unsafe {
            std::slice::from_raw_parts(self.mapping.base().as_ptr().cast::<AtomicU64>(), self.len)
        }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
