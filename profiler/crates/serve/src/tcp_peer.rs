//! The two addresses of a TCP connection of this machine -> the socket at its other end: whose it is, and what was not read.
//!
//! The kernel is asked for that one socket by its addresses (sock_diag), which takes microseconds however many there
//! are. Where it can't be asked so, its table of all sockets is read, which takes as long as that is large: milliseconds
//! also on a small machine that is idle, since empty rows count.
//!
//! Only the network namespace of the calling thread is looked at, which is the one that its loopback connections come
//! from. Sizes are bytes.
//!
//! Source: sock_diag(7), `include/uapi/linux/inet_diag.h`; proc_pid_net(5), `/proc/net/tcp` and `tcp6`.
//!
//! What does not belong here: who is admitted (`admission`).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Lines of the kernel's table that are read at most.
const MAX_LINES: usize = 4 << 20;

/// A socket of this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    state: u8,
    /// Bytes that came and were not read.
    pub(crate) unread: u64,
    /// Its owner.
    pub(crate) uid: u32,
    inode: u64,
}

/// The socket that has address `its` and is connected to `ours`; none if it is not on this machine, or closed.
pub(crate) fn find(its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    let socket = match ask(its, ours) {
        Ok(Some(socket)) => Some(socket),
        // That there is none can also mean that this kernel knows nobody who could say. Our own end is there.
        Ok(None) if matches!(ask(ours, its), Ok(Some(_))) => None,
        Ok(None) | Err(_) => read_tables(its, ours)?,
    };
    Ok(socket.filter(|socket| socket.is_at_the_end(its, ours)))
}

/// An IPv4 address that is written as one of IPv6 is the one of IPv4.
fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

impl Socket {
    /// A socket that its process has closed stays in the table for a while, with no inode and
    /// user 0: that must not pass for root's.
    fn has_owner(&self) -> bool {
        self.inode != 0
    }

    /// Whether it is, or was, connected: who only tries to has the same addresses, but no connection.
    fn was_connected(&self) -> bool {
        !matches!(self.state, SYN_SENT | SYN_RECEIVED)
    }

    fn is_at_the_end(&self, its: SocketAddr, ours: SocketAddr) -> bool {
        let joins = self.local == plain(its) && self.remote == plain(ours);
        joins && self.was_connected() && self.has_owner()
    }
}

/// Asks the kernel for the socket that has address `its` and is connected to `ours`.
fn ask(its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    let socket = net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    net::send(
        &socket,
        &question(plain(its), plain(ours)),
        SendFlags::empty(),
    )?;
    let mut bytes = [0; 1024];
    // The answer is there when the question was taken.
    let (_, length) = net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
    answer(bytes.get(..length).unwrap_or(&bytes))
}

const HEADER: usize = 16;
const NOT_A_DUMP: u16 = 1;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TCP: u8 = 6;
/// The loopback interface of any network namespace: what comes from this machine comes over it, also from sockets that
/// are bound to it.
const LOOPBACK: u32 = 1;
/// States of a connection that is only asked for.
const SYN_SENT: u8 = 2;
const SYN_RECEIVED: u8 = 3;

/// A header of netlink, then `inet_diag_req_v2`.
fn question(its: (IpAddr, u16), ours: (IpAddr, u16)) -> Vec<u8> {
    const LENGTH: u32 = HEADER as u32 + 56;
    let family = match its.0 {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    };
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NOT_A_DUMP.to_ne_bytes());
    // Number of the question, and who asks: nothing else is asked here.
    bytes.extend([0; 8]);
    // Nothing beyond the answer itself; in any state.
    bytes.extend([family, TCP, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(its.1.to_be_bytes());
    bytes.extend(ours.1.to_be_bytes());
    for (address, _) in [its, ours] {
        let octets = match address {
            IpAddr::V4(address) => {
                let [a, b, c, d] = address.octets();
                [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
            }
            IpAddr::V6(address) => address.octets(),
        };
        bytes.extend(octets);
    }
    bytes.extend(LOOPBACK.to_ne_bytes());
    // With any cookie.
    bytes.extend([0xff; 8]);
    bytes
}

/// A header of netlink, then `inet_diag_msg`, or what is wrong.
fn answer(bytes: &[u8]) -> io::Result<Option<Socket>> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let kind = bytes
        .get(4..)
        .and_then(<[u8]>::first_chunk)
        .ok_or_else(short)?;
    let body = bytes.get(HEADER..).ok_or_else(short)?;
    match u16::from_ne_bytes(*kind) {
        SOCK_DIAG_BY_FAMILY => Socket::of_answer(body).map(Some).ok_or_else(short),
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(*body.first_chunk().ok_or_else(short)?);
            match code.checked_neg() {
                Some(code) if code == Errno::NOENT.raw_os_error() => Ok(None),
                code => Err(io::Error::from_raw_os_error(code.unwrap_or_default())),
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Socket {
    /// `family, state, timer, retransmits; ports, addresses, interface, cookie; expires, unread, unsent, uid, inode`
    fn of_answer(bytes: &[u8]) -> Option<Socket> {
        let &[family, state, ..] = bytes else {
            return None;
        };
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let port = |at: usize| -> Option<u16> {
            Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            match (family, octets) {
                (AF_INET, [a, b, c, d, ..]) => Some(Ipv4Addr::new(a, b, c, d).into()),
                (AF_INET6, octets) => Some(IpAddr::V6(octets.into()).to_canonical()),
                _ => None,
            }
        };
        Some(Socket {
            local: (address(8)?, port(4)?),
            remote: (address(24)?, port(6)?),
            state,
            unread: word(56)?.into(),
            uid: word(64)?,
            inode: word(68)?.into(),
        })
    }
}

fn read_tables(its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let file = match File::open(path) {
            Ok(file) => file,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let found = find_line(BufReader::with_capacity(64 << 10, file), its, ours)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn find_line(table: impl BufRead, its: SocketAddr, ours: SocketAddr) -> io::Result<Option<Socket>> {
    for line in table.lines().skip(1).take(MAX_LINES) {
        if let Some(socket) = Socket::of_line(&line?)
            && socket.is_at_the_end(its, ours)
        {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

impl Socket {
    /// `sl local remote state queues timer retransmits uid timeout inode ...`
    fn of_line(line: &str) -> Option<Socket> {
        let mut fields = line.split_ascii_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        let (_, unread) = fields.next()?.split_once(':')?;
        let unread = u64::from_str_radix(unread, 16).ok()?;
        let uid = fields.nth(2)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Socket {
            local,
            remote,
            state,
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
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both ends of a connection: accepted, and connected.
    pub(crate) fn connected(address: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(address).ok()?;
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Some((listener.accept().unwrap().0, ours))
    }

    #[test]
    fn the_kernel_answers_as_its_tables_do() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Some((mut accepted, peer)) = connected(address) else {
                assert_ne!(address, "127.0.0.1:0");
                continue;
            };
            accepted.write_all(b"unread").unwrap();
            let (its, ours) = (peer.local_addr().unwrap(), peer.peer_addr().unwrap());
            let read = read_tables(its, ours).unwrap().unwrap();
            assert_eq!(read.unread, 6);
            assert_eq!(read.uid, rustix::process::getuid().as_raw());
            assert_eq!(ask(its, ours).unwrap().as_ref(), Some(&read), "{address}");
            assert_eq!(find(its, ours).unwrap(), Some(read));
            drop(peer);
            assert_eq!(find(its, ours).unwrap(), None, "{address}");
        }
    }

    #[test]
    fn who_listens_is_not_who_is_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (its, ours) = (
            listener.local_addr().unwrap(),
            "127.0.0.1:9".parse().unwrap(),
        );
        assert_eq!(find(its, ours).unwrap(), None);
    }

    #[test]
    fn damaged_answers_are_errors() {
        let mut whole = question(
            plain("127.0.0.1:1".parse().unwrap()),
            plain("127.0.0.1:2".parse().unwrap()),
        );
        whole.resize(HEADER + 72, 0);
        assert!(matches!(answer(&whole), Ok(Some(_))));
        for length in 0..whole.len() {
            assert!(answer(&whole[..length]).is_err(), "{length}");
        }
        let error = |code: i32| {
            let mut bytes = [0; HEADER + 4];
            bytes[4] = 2;
            bytes[HEADER..].copy_from_slice(&code.to_ne_bytes());
            answer(&bytes)
        };
        assert_eq!(error(-Errno::NOENT.raw_os_error()).unwrap(), None);
        for code in [-Errno::PERM.raw_os_error(), 0, 1, i32::MIN] {
            assert!(error(code).is_err(), "{code}");
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
            let socket = find_line(text.as_bytes(), its, ours).unwrap();
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
