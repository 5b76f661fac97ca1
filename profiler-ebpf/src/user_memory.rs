//! Words of user memory of the current process.
//!
//! An address, which may lead anywhere -> the word there. What does not belong here: larger structures,
//! which their readers copy whole.

use core::{ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::helpers::{bpf_probe_read_user, generated};

/// The word at `address`; none if it can't be read.
#[inline(always)]
pub fn read_word(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}

/// The word at `address`; 0 if it can't be read. Without a branch, each of which the verifier follows
/// both ways.
#[inline(always)]
pub fn read_word_or_0(address: u64) -> u64 {
    let mut word = 0_u64;
    // SAFETY: the helper checks the address; on a fault it leaves zeros.
    unsafe {
        generated::bpf_probe_read_user(
            addr_of_mut!(word).cast(),
            size_of::<u64>() as u32,
            address as *const c_void,
        );
    }
    word
}
