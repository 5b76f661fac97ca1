//! Sockets to an HQ: addresses, connecting until one answers, data connections with their hello.
//!
//! What does not belong here: the control connection's messages, what is sent.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::error::{AgentError, shown};
use profiler_model::text::parse_port;
use profiler_wire::bytefrog::{AgentMessage, DEFAULT_PORT, HqMessage};

/// Time between two tries.
const RETRY: Duration = Duration::from_secs(1);
/// What one try may take.
const TRY: Duration = Duration::from_secs(10);
/// What HQ may take to accept a data connection. It takes half a second to refuse one.
const DATA_REPLY: Duration = Duration::from_secs(10);
/// A peer that is silent for so long is asked whether it lives.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;
/// What is sent on control and not acknowledged for so long was sent to a machine that is gone.
const CONTROL_TIMEOUT_MS: u32 = 30_000;

/// Host and port of `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT` or a bare IPv6 address.
pub(super) fn parse_address(address: &str) -> Result<(String, u16), AgentError> {
    let bad = || AgentError::Address(address.to_owned());
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
        let port = match rest {
            "" => None,
            _ => Some(rest.strip_prefix(':').ok_or_else(bad)?),
        };
        (host, port)
    } else {
        match address.split_once(':') {
            // More than one colon: all of it is an address.
            Some((_, port)) if port.contains(':') && is_ipv6(address) => (address, None),
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        }
    };
    let port = match port {
        Some(port) => parse_port(port).filter(|&port| port > 0),
        None => Some(DEFAULT_PORT),
    };
    match port {
        Some(port) if is_ipv6(host) || is_name(host) => Ok((host.to_owned(), port)),
        _ => Err(bad()),
    }
}

/// Whether a host is an address of IPv6, perhaps with the interface that it is reached by.
fn is_ipv6(host: &str) -> bool {
    let address = host.split_once('%').map_or(host, |(address, _)| address);
    address.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Whether a host can be a name: `http://hq` is none.
fn is_name(host: &str) -> bool {
    let is_foreign = |character: char| "/\\:@?#[]".contains(character);
    !host.is_empty()
        && !host.contains(|c: char| c.is_whitespace() || c.is_control() || is_foreign(c))
}

/// An address as it can be given: `[::1]:8765`.
fn shown_address((host, port): &(String, u16)) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Connects, and tries again each second until `patience` is over; without one for ever.
pub(super) async fn connect(
    address: &(String, u16),
    patience: Option<Duration>,
) -> Result<TcpStream, AgentError> {
    let (host, port) = address;
    let shown = shown_address(address);
    let began = Instant::now();
    let end = patience.and_then(|patience| began.checked_add(patience));
    let mut said = String::new();
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let patience_now = left.map_or(TRY, |left| left.clamp(RETRY, TRY));
        let tried = Instant::now();
        let error = match timeout(patience_now, TcpStream::connect((host.as_str(), *port))).await {
            Ok(Ok(stream)) if is_itself(&stream) => io::ErrorKind::ConnectionRefused.into(),
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::Error::from(io::ErrorKind::TimedOut),
        };
        let reason = error.to_string();
        if end.is_some_and(|end| Instant::now() >= end) {
            return Err(AgentError::Unreachable {
                address: shown,
                seconds: began.elapsed().as_secs(),
                reason,
            });
        }
        if reason != said {
            log::warn!("no HQ at {shown} yet ({reason}); trying again each second");
            said = reason;
        }
        // The last try is at the very end: who waits for so long is told of no less.
        let next = tried + RETRY;
        tokio::time::sleep_until(end.map_or(next, |end| next.min(end))).await;
    }
}

/// A port of this machine that nobody listens on can be connected to itself by chance.
fn is_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Makes a connection notice a peer that is gone, and send at once.
pub(super) fn prepare(stream: &TcpStream, is_control: bool) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    if is_control {
        // Not for data: an HQ that lives and does not read is waited for.
        sockopt::set_tcp_user_timeout(stream, CONTROL_TIMEOUT_MS)?;
    }
    Ok(())
}

/// Opens data connection `number` of a run: connected, greeted and accepted.
pub(super) async fn open_data(
    peer: std::net::SocketAddr,
    run: u8,
    number: usize,
) -> Result<TcpStream, AgentError> {
    let name = || data_name(number);
    let silent = |_| AgentError::Silent {
        awaited: "reply to the hello of a data connection",
        seconds: DATA_REPLY.as_secs(),
    };
    let greeted = async {
        let mut stream = TcpStream::connect(peer).await?;
        prepare(&stream, false)?;
        // At once: HQ serves few connections that have not said what they are.
        let mut hello = Vec::new();
        AgentMessage::DataHello { run }.encode(&mut hello);
        stream.write_all(&hello).await?;
        Ok(stream)
    };
    let mut stream = timeout(DATA_REPLY, greeted)
        .await
        .map_err(silent)?
        .map_err(|error: io::Error| AgentError::broken(name(), &error))?;
    let reply = timeout(DATA_REPLY, read_reply(&mut stream, number));
    reply.await.map_err(silent)??;
    Ok(stream)
}

/// Reads the answer to a data hello, and nothing behind it.
async fn read_reply(stream: &mut TcpStream, number: usize) -> Result<(), AgentError> {
    let mut bytes = Vec::new();
    loop {
        let byte = stream.read_u8().await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => AgentError::closed(data_name(number)),
            _ => AgentError::broken(data_name(number), &error),
        })?;
        bytes.push(byte);
        return match HqMessage::decode(&bytes) {
            Ok(None) if bytes.len() <= 3 + usize::from(u16::MAX) => continue,
            Ok(Some((HqMessage::DataHelloReply, _))) => Ok(()),
            Ok(Some((HqMessage::Error(text), _))) => Err(AgentError::DataRefused {
                number,
                text: shown(&text),
            }),
            Ok(_) => Err(AgentError::Protocol {
                connection: data_name(number),
                reason: "it is no reply to a data hello".to_owned(),
            }),
            Err(error) => Err(AgentError::Protocol {
                connection: data_name(number),
                reason: error.to_string(),
            }),
        };
    }
}

/// How a data connection is called.
pub(super) fn data_name(number: usize) -> String {
    format!("data connection {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, host: &str, port: u16) {
        assert_eq!(parse_address(address), Ok((host.to_owned(), port)));
    }

    #[test]
    fn addresses() {
        check("hq", "hq", 8765);
        check("hq.example:99", "hq.example", 99);
        check("127.0.0.1:1", "127.0.0.1", 1);
        check("::1", "::1", 8765);
        check("[::1]", "::1", 8765);
        check("[fe80::1]:70", "fe80::1", 70);
        check("[fe80::1%eth0]:70", "fe80::1%eth0", 70);
    }

    #[test]
    fn addresses_are_shown_as_they_can_be_given() {
        for address in ["hq:8765", "127.0.0.1:1", "[::1]:11888", "[fe80::1%eth0]:70"] {
            assert_eq!(shown_address(&parse_address(address).unwrap()), address);
        }
    }

    #[test]
    fn what_is_none() {
        for address in [
            "",
            ":",
            ":80",
            "hq:",
            "hq:0",
            "hq:x",
            "hq:+80",
            "hq:-80",
            "hq:",
            "[::1]:+80",
            "hq:70000",
            "[::1",
            "[]:1",
            "[::1]x",
            "h q",
            "http://localhost:8765",
            "http://localhost",
            "http://[::1]:8765",
            "tcp:hq:8765",
            "hq/run",
            "hq:8765:1",
            "user@hq",
            "[hq/x]:1",
        ] {
            let error = Err(AgentError::Address(address.to_owned()));
            assert_eq!(parse_address(address), error, "{address}");
        }
    }

    #[tokio::test]
    async fn connecting_ends() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let address = ("127.0.0.1".to_owned(), port);
        let error = connect(&address, Some(Duration::from_millis(10))).await;
        let Err(AgentError::Unreachable { reason, .. }) = error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("refused"), "{reason}");
    }

    #[tokio::test]
    async fn connecting_is_tried_for_as_long_as_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let address = ("127.0.0.1".to_owned(), port);
        let patience = Duration::from_millis(1200);
        let began = Instant::now();
        let error = connect(&address, Some(patience)).await;
        assert!(began.elapsed() >= patience);
        assert!(matches!(
            error,
            Err(AgentError::Unreachable { seconds: 1, .. })
        ));
    }
}
