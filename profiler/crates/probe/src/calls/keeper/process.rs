//! What the process does that holds links of probes: it takes them, closes them on threads when it is
//! told to, and ends when it is told nothing more and all is closed.
//!
//! Standard input, a socket of packets -> answers to the profiler. It has no privileges, and waits for
//! nothing but packets: its threads do. Signals don't end it (but SIGKILL, after which the kernel closes
//! what it holds, one link after the other).
//!
//! What does not belong here: the other end (`super`).

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use rustix::process::{Resource, Rlimit};

use super::{ASK, HOLD, MAX_FDS, MAX_NUMBERS, NAME, RELEASE, bytes_of, numbers};
use crate::calls::closer::Closer;
use crate::privileges::{CapabilitySet, reduce};
use crate::sys;
use profiler_target::background::{close_inherited, go_as_others, go_by};

/// Does all of it; returns the exit status.
pub fn keep() -> u8 {
    go_as_others();
    // Before anything can end it, and before it has anything.
    if sys::block_signals()
        .and_then(|_| close_inherited())
        .is_err()
    {
        return 1;
    }
    go_by(NAME);
    // It can do without, and failing is no reason not to hold probes.
    let _ = reduce(CapabilitySet::empty());
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = rustix::process::setrlimit(Resource::Nofile, most);
    let stdin = io::stdin();
    serve(stdin.as_fd(), &Closer::default());
    0
}

/// Does what it is told until nobody tells it anything, then closes what is left.
fn serve(socket: BorrowedFd<'_>, closer: &Closer) {
    let mut held: HashMap<u64, Vec<OwnedFd>> = HashMap::new();
    while let Ok(packet) = receive(socket) {
        let Some((&what, rest)) = packet.numbers.split_first() else {
            break;
        };
        match (what, rest) {
            (HOLD, &[link]) => {
                held.entry(link).or_default().extend(packet.fds);
                answer(socket, &[link, u64::from(packet.is_whole)]);
            }
            (RELEASE, links) => {
                let links = links.iter();
                closer.close(links.filter_map(|link| held.remove_entry(link)));
            }
            (ASK, &[question]) => {
                let mut said = vec![question];
                said.extend(closer.closing().into_iter().take(MAX_NUMBERS));
                answer(socket, &said);
            }
            _ => {}
        }
    }
    closer.close(held);
    closer.wait(None);
}

struct Packet {
    numbers: Vec<u64>,
    fds: Vec<OwnedFd>,
    /// All descriptors that were sent have come.
    is_whole: bool,
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Packet> {
    let mut bytes = [0; 8 * (MAX_NUMBERS + 1)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags)
    })?;
    let messages = ancillary.drain();
    let fds = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(Packet {
        fds: fds.flatten().collect(),
        numbers: numbers(&bytes[..received.bytes]),
        is_whole: !received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Who does not read any more is gone, which shows at the next packet.
fn answer(socket: BorrowedFd<'_>, numbers: &[u64]) {
    let bytes = bytes_of(numbers);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::io::retry_on_intr(|| rustix::net::send(socket, &bytes, flags));
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use super::super::{Keeper, Process};
    use super::*;

    /// A keeper whose process is a thread here.
    fn keeper() -> (Keeper, std::thread::JoinHandle<()>) {
        let kind = rustix::net::SocketType::SEQPACKET;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let family = rustix::net::AddressFamily::UNIX;
        let (ours, its) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        let serving = std::thread::spawn(move || serve(its.as_fd(), &Closer::default()));
        let mut keeper = Keeper::start();
        keeper.process = Some(Process {
            socket: ours,
            child: None,
            is_late: false,
        });
        (keeper, serving)
    }

    fn link(readers: &mut Vec<std::fs::File>, fds: usize) -> Vec<OwnedFd> {
        let pipe = |_| {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::ioctl_fionbio(&reader, true).unwrap();
            readers.push(reader.into());
            writer
        };
        (0..fds).map(pipe).collect()
    }

    fn is_open(mut reader: &std::fs::File) -> bool {
        reader.read(&mut [0]).is_err()
    }

    #[test]
    fn what_is_held_stays_open_until_it_is_released_or_nobody_is_there() {
        let (mut keeper, serving) = keeper();
        let mut readers = Vec::new();
        // More descriptors than a packet takes.
        keeper.hold(7, link(&mut readers, MAX_FDS + 50)).unwrap();
        keeper.hold(8, link(&mut readers, 1)).unwrap();
        assert!(readers.iter().all(is_open));
        keeper.release([7]);
        let until = Instant::now() + super::super::PATIENCE;
        assert_eq!(keeper.wait(until), Some(Vec::new()));
        let (first, rest) = readers.split_at(MAX_FDS + 50);
        assert!(!first.iter().any(is_open));
        assert!(rest.iter().all(is_open));
        assert!(keeper.process.is_some());
        drop(keeper);
        serving.join().unwrap();
        assert!(!readers.iter().any(is_open));
    }

    #[test]
    fn when_the_process_is_gone_links_are_held_here() {
        let (mut keeper, serving) = keeper();
        let mut readers = Vec::new();
        keeper.hold(1, link(&mut readers, 2)).unwrap();
        // It ends at a packet of nothing, as at the end of the socket.
        let process = keeper.process.as_ref().unwrap();
        super::super::send(process.socket.as_fd(), &[], &[]).unwrap();
        serving.join().unwrap();
        assert!(!readers.iter().any(is_open));
        keeper.hold(2, link(&mut readers, 2)).unwrap();
        assert!(keeper.process.is_none());
        assert!(readers[2..].iter().all(is_open));
        keeper.release([1, 2]);
        assert_eq!(keeper.wait(Instant::now()), Some(Vec::new()));
        assert!(!readers.iter().any(is_open));
    }
}
