//! The values of a BPF array, mapped: user space writes them without a system call each.
//!
//! A map of 8-byte words (or of values that are made of such) with BPF_F_MMAPABLE -> words that are
//! read and written atomically, because programs read them at the same time. What the words mean is
//! not known here.

#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

/// A mapped array.
pub(super) struct Words {
    fd: OwnedFd,
    base: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and is only accessed atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the `len` words of a map, which is kept open.
    pub(super) fn map(fd: OwnedFd, len: usize) -> io::Result<Words> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<AtomicU64>());
        let base = base.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Words { fd, base, len })
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
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len * 8) };
    }
}
