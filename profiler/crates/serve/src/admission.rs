//! Who may talk to a server: on loopback, by the owner of the peer's socket.
//!
//! An accepted connection -> admitted, or a [`Refusal`] that says what to do.
//! Any process of a machine can connect to its loopback addresses, so an address says nothing about
//! who it is; the kernel knows who owns the socket at the other end.
//!
//! What does not belong here: how the kernel is asked for it (`tcp_peer`), what a peer may do once it is admitted.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{getpeername, getsockname};
#[cfg(feature = "fronts")]
use tokio::task::spawn_blocking;

use crate::tcp_peer::{self, Socket};

/// A socket can be missed while the kernel's table of them changes: it is looked for again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);

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

    /// Whether the peer of an accepted connection is admitted; the owner of its socket, if it is on this machine.
    pub fn admit(&self, connection: impl AsFd, peer: SocketAddr) -> Result<Option<u32>, Refusal> {
        if !is_loopback(peer.ip()) {
            return match self.remote {
                true => Ok(None),
                false => Err(Refusal::Remote(peer)),
            };
        }
        let failed = |source| Refusal::Table { peer, source };
        let connection = connection.as_fd();
        let local = getsockname(connection).map_err(io::Error::from);
        let local = local.and_then(|local| Ok(SocketAddr::try_from(local)?));
        let local = local.map_err(failed)?;
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let found = tcp_peer::find(peer, local).map_err(failed)?;
            // Once a connection was reset, whoever comes next may have its port, and be found in place of who was
            // there. While ours is open nobody else can.
            if getpeername(connection).is_err() {
                break;
            }
            match found {
                Some(Socket { uid, .. }) if self.users.contains(&uid) => return Ok(Some(uid)),
                Some(Socket { uid, .. }) => return Err(Refusal::User { peer, uid }),
                None => {}
            }
        }
        Err(Refusal::Gone(peer))
    }

    /// The same for who runs futures: it may read tables of the kernel, and wait.
    #[cfg(feature = "fronts")]
    pub(crate) async fn admit_aside(
        &self,
        connection: impl AsFd,
        peer: SocketAddr,
    ) -> io::Result<Result<Option<u32>, Refusal>> {
        let (admission, connection) = (self.clone(), connection.as_fd().try_clone_to_owned()?);
        Ok(spawn_blocking(move || admission.admit(connection, peer)).await?)
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
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

    use super::*;
    use crate::tcp_peer::tests::connected;

    fn admit(admission: &Admission, accepted: &TcpStream) -> Result<Option<u32>, Refusal> {
        admission.admit(accepted, accepted.peer_addr().unwrap())
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
    fn who_has_the_port_of_one_that_was_reset_is_not_taken_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Of 127.0.0.1 another test may take the port meanwhile.
        let [.., third, fourth] = std::process::id().to_be_bytes();
        let own = SocketAddr::from(([127, 77, third, fourth], 0));
        let first = TcpStream::from(connect_from(own, address));
        let port = first.local_addr().unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, port);
        // Closing resets the connection, and the port is free at once.
        sockopt::set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
        drop(first);
        let second = connect_from(port, address);
        match Admission::new([]).admit(&accepted, peer) {
            Err(Refusal::Gone(_)) => {}
            other => panic!("{other:?}"),
        }
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, port);
        let me = rustix::process::getuid().as_raw();
        let admitted = Admission::new([]).admit(&accepted, peer).unwrap();
        assert_eq!(admitted, Some(me));
        drop(second);
    }

    fn connect_from(port: SocketAddr, to: SocketAddr) -> OwnedFd {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &port).unwrap();
        connect(&socket, &to).unwrap();
        socket
    }

    #[test]
    #[allow(unsafe_code)]
    fn who_is_bound_to_the_interface_is_found_as_well() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let name = c"lo".to_bytes_with_nul();
        // SAFETY: the kernel reads so many bytes of `name`, which lives as long as the call.
        let bound = unsafe {
            libc::setsockopt(
                ours.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                name.as_ptr().cast(),
                name.len() as libc::socklen_t,
            )
        };
        if bound != 0 {
            eprintln!("who_is_bound_to_the_interface_is_found_as_well skipped: not allowed");
            return;
        }
        connect(&ours, &listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let me = rustix::process::getuid().as_raw();
        assert_eq!(admit(&Admission::new([]), &accepted).unwrap(), Some(me));
    }

    #[test]
    fn other_machines_need_permission() {
        let admission = Admission::new([]);
        let local = "192.0.2.1:8765".parse().unwrap();
        let peer = "192.0.2.2:4000".parse().unwrap();
        let (accepted, _ours) = connected("127.0.0.1:0").unwrap();
        assert!(matches!(
            admission.admit(&accepted, peer),
            Err(Refusal::Remote(_))
        ));
        assert!(admission.may_listen(local).is_err());
        assert!(admission.may_listen("[::]:1".parse().unwrap()).is_err());
        assert!(admission.may_listen("127.0.0.2:1".parse().unwrap()).is_ok());
        let remote = admission.allow_remote(true);
        assert!(matches!(remote.admit(&accepted, peer), Ok(None)));
        assert!(remote.may_listen(local).is_ok());
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(is_same_token("abc", "abc"));
        for shown in ["", "ab", "abcd", "abd"] {
            assert!(!is_same_token(shown, "abc"), "{shown}");
        }
    }
}
