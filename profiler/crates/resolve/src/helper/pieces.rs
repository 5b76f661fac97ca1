//! Reads pieces of the memory of processes, in a process that may do that and nothing else.
//!
//! An open `/proc/PID/mem`, a thread of it, an address and a length -> bytes. They are read by process_vm_readv(2), and not
//! out of the open file: where a page has to be waited for (a file that was mapped of a server that does not answer), a
//! read of the file waits with the process's map of its memory locked. The process itself could map nothing meanwhile,
//! and whoever registers a probe in any file that it has mapped would hold up all forks of the machine. The call
//! gives the lock back before it waits. The file tells whether that memory is still the same program's.
//!
//! What does not belong here: how long an answer may take, and whose memory is read (`memory`).

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::serve::{each, say};
use super::wire::{self, Frame, Reader};
use profiler_model::Tid;

/// No process has anything there, so reading it waits for nothing.
const NOWHERE: u64 = i64::MAX as u64 & !0xfff;

/// Answers a question.
pub(super) fn answer(
    socket: BorrowedFd<'_>,
    mut reader: Reader<'_>,
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let memory = fds.into_iter().next().ok_or_else(wire::nonsense)?.into();
    let (len, tid) = (reader.u32()? as usize, Tid(reader.u32()?));
    let mut frame = Frame::new(wire::BYTES);
    frame.all(&piece(&memory, tid, reader.u64()?, len));
    say(socket, &frame.finish())
}

/// The same on a thread of this process, which has what rights that has.
pub(super) fn on_thread(socket: OwnedFd) {
    let _ = each(socket.as_fd(), wire::READ, answer);
}

/// What is at an address, as far as it reaches without a gap.
fn piece(memory: &File, tid: Tid, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.min(wire::MAX_PIECE)];
    let got = read(tid, address, &mut bytes).unwrap_or(0);
    bytes.truncate(got);
    // Of a program that is no more, the file has nothing: where something is out of reach, it still runs. It is looked
    // at behind the read, since what runs now in its place was read then.
    match memory.read_at(&mut [0], NOWHERE) {
        Err(_) => bytes,
        Ok(_) => Vec::new(),
    }
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

    #[test]
    fn memory_is_that_of_the_program_that_it_was_opened_of() {
        let own = File::open("/proc/self/mem").unwrap();
        let tid = Tid(std::process::id());
        let there = [7_u8; 16];
        let address = there.as_ptr() as u64;
        assert_eq!(piece(&own, tid, address, 16), there);
        assert_eq!(piece(&own, tid, 16, 16), [0_u8; 0]);
        // Up to where there is nothing.
        let stack = std::fs::read_to_string("/proc/self/maps").unwrap();
        let stack = stack.lines().find(|line| line.ends_with("[stack]"));
        let (_, end) = stack
            .unwrap()
            .split_once(' ')
            .unwrap()
            .0
            .split_once('-')
            .unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        assert_eq!(piece(&own, tid, end - 64, 4096).len(), 64);

        // A shell that becomes something else.
        let mut shell = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (pid, tid) = (shell.id(), Tid(shell.id()));
        let start = || {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            u64::from_str_radix(maps.split_once('-').unwrap().0, 16).unwrap()
        };
        let is = |name: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim() == name)
        };
        while !is("sh") {
            std::thread::yield_now();
        }
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        assert_eq!(piece(&memory, tid, start(), 4), b"\x7fELF");
        drop(shell.stdin.take());
        while !is("sleep") {
            std::thread::yield_now();
        }
        assert_eq!(piece(&memory, tid, start(), 4), b"");
        let again = File::open(format!("/proc/{pid}/mem")).unwrap();
        assert_eq!(piece(&again, tid, start(), 4), b"\x7fELF");
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
