//! Sockets that systemd has opened for us: descriptors and their names in the environment -> sockets that listen.
//!
//! A service of a socket unit is started at its first client, without a privilege to open its port, and none of its clients
//! is lost while it starts. Source: sd_listen_fds(3). What does not belong here: who is admitted at them.

use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::values;
use crate::error::Failure;
use profiler_serve::listening::Listening;

/// What is written in place of an address.
pub(super) const SYSTEMD: &str = "systemd";
/// The first of the descriptors.
const FIRST: RawFd = 3;
/// So many sockets are enough.
const MANY: usize = 16;

/// The sockets, each with its name, until somebody takes it.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    waiting: Vec<(String, OwnedFd)>,
    taken: usize,
}

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Given {
    /// By TCP.
    Tcp(Listening),
    /// On this machine alone.
    Unix(Arc<UnixListener>),
}

impl Sockets {
    /// Those that this process was given. To be called once, while it has opened nothing that listens.
    pub(super) fn take() -> Result<Sockets, Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
        // Those of a parent are not meant for us.
        let is_ours = number("LISTEN_PID") == Some(std::process::id() as usize);
        let count = number("LISTEN_FDS").filter(|_| is_ours).unwrap_or(0);
        if count > MANY {
            let text = format!("LISTEN_FDS names {count} sockets: more than {MANY} are not taken");
            return Err(Failure::usage(text));
        }
        let names = variable("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = Vec::new();
        for descriptor in FIRST..FIRST + count as RawFd {
            let name = names.next().unwrap_or_default().to_owned();
            sockets.push((name, listening(descriptor)?));
        }
        Ok(Sockets {
            waiting: sockets,
            taken: 0,
        })
    }

    /// The socket of this name; one that is alone may have any.
    pub(super) fn named(&mut self, flag: &str) -> Result<Given, Failure> {
        let name = flag.trim_start_matches("--");
        let named = self.waiting.iter().position(|(known, _)| known == name);
        let alone = (self.waiting.len() == 1 && self.taken == 0).then_some(0);
        let Some(at) = named.or(alone) else {
            let text = match (self.waiting.is_empty(), self.taken) {
                (true, 0) => format!(
                    "{flag} {SYSTEMD}: no sockets were passed; start the service by its socket unit"
                ),
                _ => format!(
                    "{flag} {SYSTEMD}: none of the sockets that were passed is called '{name}'; \
                     FileDescriptorName={name} in its socket unit names it"
                ),
            };
            return Err(Failure::usage(text));
        };
        let (_, socket) = self.waiting.remove(at);
        self.taken += 1;
        let unusable = |error| {
            Failure::failed(format!(
                "{flag} {SYSTEMD}: the socket is not usable: {error}"
            ))
        };
        match sockopt::socket_domain(&socket).map_err(unusable)? {
            AddressFamily::INET | AddressFamily::INET6 => {
                let listener = Arc::new(TcpListener::from(socket));
                Ok(Given::Tcp(Listening::By(listener)))
            }
            AddressFamily::UNIX => Ok(Given::Unix(Arc::new(UnixListener::from(socket)))),
            _ => {
                let text = format!("{flag} {SYSTEMD}: the socket is neither of TCP nor of Unix");
                Err(Failure::usage(text))
            }
        }
    }

    /// Says which of them nobody has taken: their clients would wait for ever.
    pub(super) fn tell_left(&self) {
        for (name, _) in &self.waiting {
            log::warn!("a socket called '{name}' was passed, and nothing is served by it");
        }
    }

    /// Where clients connect by TCP: an address, or [`SYSTEMD`] for the socket of this name.
    pub(super) fn address(
        &mut self,
        flag: &str,
        address: &str,
        port: u16,
    ) -> Result<Listening, Failure> {
        if address != SYSTEMD {
            return Ok(values::address(flag, address, port)?.into());
        }
        match self.named(flag)? {
            Given::Tcp(listening) => Ok(listening),
            Given::Unix(_) => {
                let text =
                    format!("{flag} {SYSTEMD}: clients connect by TCP, and the socket is of Unix");
                Err(Failure::usage(text))
            }
        }
    }
}

/// A descriptor that was passed, if it is a stream socket that listens.
#[allow(unsafe_code)]
fn listening(descriptor: RawFd) -> Result<OwnedFd, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "LISTEN_FDS names descriptor {descriptor}, which is no stream socket that listens"
        ))
    };
    // SAFETY: that it is open is asked before anything else is done with it.
    let is_open = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0;
    if !is_open {
        return Err(wrong());
    }
    // SAFETY: it is open, and LISTEN_PID names this process: who has started it has handed it over. Nothing here listens yet,
    // so that one which does is none of ours.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let listens = sockopt::socket_acceptconn(&socket) == Ok(true)
        && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    if !listens {
        // It is closed by nobody here whose it may be.
        std::mem::forget(socket);
        return Err(wrong());
    }
    // Programs that we start have no use for it.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| Failure::failed(format!("descriptor {descriptor}: {error}")))?;
    Ok(socket)
}
