//! Who may talk to a server: on loopback, by the owner of the peer's socket.
//!
//! The two addresses of an accepted connection -> admitted, or a [`Refusal`] that says what to do.
//! Any process of a machine can connect to its loopback addresses, so an address says nothing about
//! who it is; the kernel knows who owns the socket at the other end.
//!
//! Source: proc_pid_net(5), `/proc/net/tcp` and `tcp6`. Only the network namespace of the calling
//! thread is looked at, which is the one that its loopback connections come from.
//!
//! What does not belong here: what a peer may do once it is admitted.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A socket can be missed while the kernel's table changes: it is looked for again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);

/// Lines of the kernel's table that are read at most.
const MAX_LINES: usize = 4 << 20;

/// Whom a server admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Users whose processes on this machine are admitted.
    users: Vec<u32>,
    /// Other machines are admitted too, and with them everybody.
    remote: bool,
}

/// What nobody can guess, in hexadecimal, of so many bytes; none if the kernel has no random numbers.
pub fn unguessable<const BYTES: usize>() -> Option<String> {
    let mut bytes = [0; BYTES];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    let is_whole = filled.is_ok_and(|count| count == BYTES);
    is_whole.then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Why a peer is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is on another machine, or came by an address that others can reach.
    #[error("{0} is no loopback address; --allow-remote admits other addresses")]
    Remote(SocketAddr),
    /// Its user is not among those admitted.
    #[error("{peer} belongs to user {uid}; --allow-user {uid} admits that user")]
    User {
        /// The peer.
        peer: SocketAddr,
        /// Owner of its socket.
        uid: u32,
    },
    /// The same of one that came by a socket of this machine.
    #[error("a client belongs to user {uid}; --allow-user {uid} admits that user")]
    Local {
        /// Its user.
        uid: u32,
    },
    /// The kernel does not say whose it is, because it is closed already or in another network
    /// namespace.
    #[error("{0} has no socket whose owner could be asked for: it has closed already")]
    Gone(SocketAddr),
    /// The kernel's table could not be read.
    #[error("failed to look up the owner of {peer}: {source}")]
    Table {
        /// The peer.
        peer: SocketAddr,
        /// What went wrong.
        source: io::Error,
    },
}

impl Admission {
    /// Root, the user who runs this, and `more`.
    pub fn new(more: impl IntoIterator<Item = u32>) -> Admission {
        let mut users = vec![0, rustix::process::getuid().as_raw()];
        users.extend(more);
        users.sort_unstable();
        users.dedup();
        Admission {
            users,
            remote: false,
        }
    }

    /// Only these users, not even root.
    pub fn only(users: impl IntoIterator<Item = u32>) -> Admission {
        Admission {
            users: users.into_iter().collect(),
            remote: false,
        }
    }

    /// Whether peers that do not come over loopback are admitted.
    pub fn allow_remote(mut self, allow: bool) -> Admission {
        self.remote = allow;
        self
    }

    /// Whether a server may listen at `address` at all.
    pub fn may_listen(&self, address: SocketAddr) -> Result<(), Refusal> {
        match is_loopback(address.ip()) || self.remote {
            true => Ok(()),
            false => Err(Refusal::Remote(address)),
        }
    }

    /// Whether a user's processes are admitted.
    pub fn admit_user(&self, uid: u32) -> Result<(), Refusal> {
        match self.users.contains(&uid) {
            true => Ok(()),
            false => Err(Refusal::Local { uid }),
        }
    }

    /// Whether the peer of a connection that was accepted at `local` is admitted; the owner of its
    /// socket, if it is on this machine.
    pub fn admit(&self, local: SocketAddr, peer: SocketAddr) -> Result<Option<u32>, Refusal> {
        if !is_loopback(peer.ip()) {
            return match self.remote {
                true => Ok(None),
                false => Err(Refusal::Remote(peer)),
            };
        }
        let failed = |source| Refusal::Table { peer, source };
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match owner(peer, local).map_err(failed)? {
                Some(uid) if self.users.contains(&uid) => return Ok(Some(uid)),
                Some(uid) => return Err(Refusal::User { peer, uid }),
                None => {}
            }
        }
        Err(Refusal::Gone(peer))
    }
}

/// Compares all of a token, so that the time says nothing about where they differ.
#[cfg(any(feature = "http", feature = "rdp"))]
pub(crate) fn is_same_token(shown: &str, token: &str) -> bool {
    let pairs = shown.bytes().zip(token.bytes());
    let differs = pairs.fold(0, |differs, (one, two)| differs | (one ^ two));
    shown.len() == token.len() && differs == 0
}

fn is_loopback(address: IpAddr) -> bool {
    plain(address).is_loopback()
}

/// An IPv4 address that is written as one of IPv6 is the one of IPv4.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Owner of the socket that has address `its` and is connected to `ours`.
fn owner(its: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    Ok(socket(its, ours)?.map(|socket| socket.uid))
}

/// How many bytes its process has not read of what came for the socket that has address `its` and is connected to
/// `ours`; none if it is not on this machine.
#[cfg(feature = "bytefrog")]
pub(crate) fn unread_bytes(its: SocketAddr, ours: SocketAddr) -> Option<u64> {
    Some(socket(its, ours).ok()??.unread)
}

fn socket(its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let file = match File::open(path) {
            Ok(file) => file,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let found = find(BufReader::with_capacity(64 << 10, file), its, ours)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn find(table: impl BufRead, its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    for line in table.lines().skip(1).take(MAX_LINES) {
        if let Some(socket) = Socket::parse(&line?)
            && socket.local == (plain(its.ip()), its.port())
            && socket.remote == (plain(ours.ip()), ours.port())
            && socket.has_owner()
        {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    /// Bytes that came and were not read.
    unread: u64,
    uid: u32,
    inode: u64,
}

impl Socket {
    /// A socket that its process has closed stays in the table for a while, with no inode and
    /// user 0: that must not pass for root's.
    fn has_owner(&self) -> bool {
        self.inode != 0
    }

    /// `sl local remote state queues timer retransmits uid timeout inode ...`
    fn parse(line: &str) -> Option<Socket> {
        let mut fields = line.split_ascii_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        let (_, unread) = fields.nth(1)?.split_once(':')?;
        let unread = u64::from_str_radix(unread, 16).ok()?;
        let uid = fields.nth(2)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Socket {
            local,
            remote,
            unread,
            uid,
            inode,
        })
    }
}

/// `0100007F:223D`: words of the address as the machine stores them, port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = std::array::from_fn(|at| words[at / 4][at % 4]);
            plain(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(address).ok()?;
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Some((listener.accept().unwrap().0, ours))
    }

    fn admit(admission: &Admission, accepted: &TcpStream) -> Result<Option<u32>, Refusal> {
        admission.admit(
            accepted.local_addr().unwrap(),
            accepted.peer_addr().unwrap(),
        )
    }

    #[test]
    fn our_own_processes_are_admitted_and_others_are_not() {
        let me = rustix::process::getuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Some((accepted, _ours)) = connected(address) else {
                assert_ne!(address, "127.0.0.1:0");
                continue;
            };
            assert_eq!(admit(&Admission::new([]), &accepted).unwrap(), Some(me));
            let others = Admission::only([me + 1]);
            match admit(&others, &accepted) {
                Err(Refusal::User { uid, .. }) => assert_eq!(uid, me),
                other => panic!("{other:?}"),
            }
            // Who opens the server to other machines does not open it to this one's users.
            let remote = others.allow_remote(true);
            assert!(admit(&remote, &accepted).is_err());
        }
    }

    #[test]
    fn a_peer_that_has_closed_is_not_taken_for_root() {
        let (accepted, ours) = connected("127.0.0.1:0").unwrap();
        drop(ours);
        match admit(&Admission::new([]), &accepted) {
            Err(Refusal::Gone(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_machines_need_permission() {
        let admission = Admission::new([]);
        let (local, peer) = (
            "192.0.2.1:8765".parse().unwrap(),
            "192.0.2.2:4000".parse().unwrap(),
        );
        assert!(matches!(
            admission.admit(local, peer),
            Err(Refusal::Remote(_))
        ));
        assert!(admission.may_listen(local).is_err());
        assert!(admission.may_listen("[::]:1".parse().unwrap()).is_err());
        assert!(admission.may_listen("127.0.0.2:1".parse().unwrap()).is_ok());
        let remote = admission.allow_remote(true);
        assert!(matches!(remote.admit(local, peer), Ok(None)));
        assert!(remote.may_listen(local).is_ok());
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(is_same_token("abc", "abc"));
        for shown in ["", "ab", "abcd", "abd"] {
            assert!(!is_same_token(shown, "abc"), "{shown}");
        }
    }

    #[test]
    fn reads_the_tables_of_the_kernel() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |uid, inode| {
            format!(
                "{head}   1: 0100007F:D431 0100007F:223D 01 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0000000000000000 20 4 30 10 -1\n"
            )
        };
        let (its, ours) = (
            "127.0.0.1:54321".parse().unwrap(),
            "127.0.0.1:8765".parse().unwrap(),
        );
        let found = |text: &str, its, ours| {
            let socket = find(text.as_bytes(), its, ours).unwrap();
            socket.map(|socket| socket.uid)
        };
        assert_eq!(found(&line(1000, 77), its, ours), Some(1000));
        assert_eq!(found(&line(1000, 77), ours, its), None);
        assert_eq!(found(&line(0, 0), its, ours), None);
        let six = format!(
            "{head}   1: 0000000000000000FFFF00000100007F:D431 0000000000000000FFFF00000100007F:223D 01 0:0 00:0 0  7        0 9 1\n"
        );
        assert_eq!(found(&six, its, ours), Some(7));
        for damaged in ["", "x", head, "a\n 1: zz:1 0:1 01", "a\n 1: é0007F:D431 x"] {
            assert_eq!(found(damaged, its, ours), None, "{damaged}");
        }
    }
}
