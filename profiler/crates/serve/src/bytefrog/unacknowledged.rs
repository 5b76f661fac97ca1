//! Whether the peer's system has all that was written to a socket.
//!
//! What does not belong here: waiting for it.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::ioctl::{Getter, ioctl};

/// Bytes that the peer's system has not acknowledged (SIOCOUTQ, which is TIOCOUTQ by its number).
pub(super) fn unacknowledged_bytes(socket: impl AsFd) -> rustix::io::Result<u64> {
    // SAFETY: TIOCOUTQ writes one int to its argument and nothing else; `Getter` gives it room for
    // exactly that.
    let bytes = unsafe {
        let request = Getter::<{ libc::TIOCOUTQ as _ }, libc::c_int>::new();
        ioctl(socket, request)?
    };
    Ok(u64::try_from(bytes).unwrap_or(0))
}
