//! Reads pieces of the memory of processes, in a process that may do that and nothing else.
//!
//! An open `/proc/PID/pagemap`, a thread of it, an address and a length -> bytes, as far as their pages are there. What is not
//! there is not read: it may have to come from a server that does not answer, and who waits for it in the kernel keeps the
//! process's map of its memory locked. The process itself could map nothing meanwhile, and whoever attaches a probe to any
//! file that it has mapped would hold up all forks of the machine. For the same reason it is read by process_vm_readv(2) and
//! not out of `/proc/PID/mem`: should a page go just now, the call gives the lock back before it waits, at first. The
//! open file also tells whether that memory is still the same program's. Source: pagemap of the kernel's documentation,
//! mm/gup.c and mm/filemap.c of Linux 6.18.
//!
//! What does not belong here: how long an answer may take, and whose memory is read (`memory`).

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::serve::{each, say};
use super::wire::{self, Frame, Reader};
use profiler_model::Tid;

/// Bytes of pagemap for a page.
const ENTRY: u64 = 8;
/// In memory, or in swap.
const IS_THERE: u64 = 0b11 << 62;

/// Answers a question.
pub(super) fn answer(
    socket: BorrowedFd<'_>,
    mut reader: Reader<'_>,
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let pages = fds.into_iter().next().ok_or_else(wire::nonsense)?.into();
    let (len, tid) = (reader.u32()? as usize, Tid(reader.u32()?));
    let bytes = piece(&pages, tid, reader.u64()?, len);
    let mut frame = Frame::new(wire::BYTES);
    frame.u8(bytes.is_some().into());
    frame.all(&bytes.unwrap_or_default());
    say(socket, &frame.finish())
}

/// The same on a thread of this process, which has what rights that has.
pub(super) fn on_thread(socket: OwnedFd) {
    let _ = each(socket.as_fd(), wire::READ, answer);
}

/// What is at an address, as far as it reaches without a gap; none if this process may not read it.
fn piece(pages: &File, tid: Tid, address: u64, len: usize) -> Option<Vec<u8>> {
    let len = there(pages, address, len.min(wire::MAX_PIECE)).unwrap_or(0);
    let mut bytes = vec![0; len];
    match read(tid, address, &mut bytes) {
        Ok(got) => bytes.truncate(got),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        Err(_) => bytes.clear(),
    }
    // Of a program that is no more there are no pages. It is looked at behind the read, since what runs now in its place
    // was read then.
    if there(pages, address, 1).is_err() {
        bytes.clear();
    }
    Some(bytes)
}

/// How many of so many bytes at an address are in pages that are there.
fn there(pages: &File, address: u64, len: usize) -> io::Result<usize> {
    let page = rustix::param::page_size() as u64;
    let first = address / page;
    let last = address.saturating_add(len as u64).saturating_sub(1) / page;
    let count = last.saturating_sub(first) + 1;
    let place = first * ENTRY;
    let mut entries = vec![0; (count * ENTRY) as usize];
    let got = pages.read_at(&mut entries, place)?;
    if got == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let entries = entries[..got].as_chunks().0.iter();
    let there = entries.take_while(|&&entry| u64::from_ne_bytes(entry) & IS_THERE != 0);
    let end = (first + there.count() as u64).saturating_mul(page);
    Ok(len.min(usize::try_from(end.saturating_sub(address)).unwrap_or(len)))
}

#[allow(unsafe_code)]
fn read(tid: Tid, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let len = bytes.len();
    let local = [IoSliceMut::new(bytes)];
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: the kernel writes into `bytes` alone, which are as long as it is told; an `IoSliceMut` is an `iovec`. The
    // other address is one of another process.
    let got = unsafe {
        libc::process_vm_readv(
            tid.0.cast_signed(),
            local.as_ptr().cast(),
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn bytes(pages: &File, tid: Tid, address: u64, len: usize) -> Vec<u8> {
        piece(pages, tid, address, len).unwrap()
    }

    fn end_of_stack(pid: &str) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let (_, end) = stack.split_once(' ').unwrap().0.split_once('-').unwrap();
        u64::from_str_radix(end, 16).unwrap()
    }

    #[test]
    #[allow(unsafe_code)]
    fn memory_is_that_of_the_program_that_it_was_opened_of() {
        let own = File::open("/proc/self/pagemap").unwrap();
        let tid = Tid(std::process::id());
        let there = [7_u8; 16];
        let address = there.as_ptr() as u64;
        assert_eq!(bytes(&own, tid, address, 16), there);
        assert_eq!(bytes(&own, tid, 16, 16), [0_u8; 0]);
        // Nobody has touched it.
        let none = rustix::mm::MapFlags::PRIVATE;
        let rights = rustix::mm::ProtFlags::READ;
        let at = std::ptr::null_mut();
        // SAFETY: it is mapped anew, and never used.
        let empty = unsafe { rustix::mm::mmap_anonymous(at, 4096, rights, none) }.unwrap();
        assert_eq!(bytes(&own, tid, empty as u64, 16), [0_u8; 0]);
        // Up to where there is nothing.
        let end = end_of_stack("self");
        assert_eq!(bytes(&own, tid, end - 64, 4096).len(), 64);

        // A shell that becomes something else.
        let mut shell = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (pid, tid) = (shell.id(), Tid(shell.id()));
        // Waiting, when all of it is in place.
        let is = |name: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(&format!("({name}) S ")))
        };
        while !is("sh") {
            std::thread::yield_now();
        }
        let memory = File::open(format!("/proc/{pid}/pagemap")).unwrap();
        let place = end_of_stack(&pid.to_string()) - 64;
        assert_eq!(bytes(&memory, tid, place, 64).len(), 64);
        drop(shell.stdin.take());
        while !is("sleep") {
            std::thread::yield_now();
        }
        let place = end_of_stack(&pid.to_string()) - 64;
        assert_eq!(bytes(&memory, tid, place, 64), b"");
        let again = File::open(format!("/proc/{pid}/pagemap")).unwrap();
        assert_eq!(bytes(&again, tid, place, 64).len(), 64);
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
