//! The server as a front: it listens, and serves from a thread of its own.
//!
//! What does not belong here: what it does (`network`, `agent`), how its thread is spoken to (`handle`).

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use profiler_report::view::quantity;

use super::agent::Agent;
use super::network::{self, Listener};
use super::options::{HttpAddress, HttpError, HttpOptions};
use crate::front::Front;
use crate::handle::{Handle, Lines, Names, Summary};
use crate::machine::Machine;
use crate::tls;

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpSummary {
    /// Connections that were opened.
    pub connections: u64,
    /// Those that were not admitted, or were too many.
    pub refused: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Sessions that were started.
    pub sessions: u64,
}

/// Listens (port 0: any), and serves from a thread of its own.
pub fn start(
    address: HttpAddress,
    options: HttpOptions,
    machine: Box<dyn Machine>,
) -> Result<Box<dyn Front>, HttpError> {
    let failed = |address: &dyn std::fmt::Display| {
        let address = address.to_string();
        move |source| HttpError::Listen { address, source }
    };
    let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
    let scheme = match tls {
        Some(_) => "https",
        None => "http",
    };
    let (listener, shown) = match &address {
        HttpAddress::Tcp(at) => {
            let address = at.address().map_err(failed(&"the socket that was given"))?;
            options.admission.may_listen(address)?;
            let listen = || {
                let listener = at.listen()?;
                let bound = listener.local_addr()?;
                io::Result::Ok((Listener::Tcp(listener), format!("{scheme}://{bound}/")))
            };
            listen().map_err(failed(&address))?
        }
        HttpAddress::By(listener) => {
            let given = || {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                io::Result::Ok(Listener::Unix(listener, None))
            };
            let name = "the socket that was given";
            (given().map_err(failed(&name))?, name.to_owned())
        }
        HttpAddress::Unix(path) => {
            let listener = listen_at(path).map_err(failed(&path.display()))?;
            (
                Listener::Unix(listener, Some(path.clone())),
                path.display().to_string(),
            )
        }
    };
    let names = Names {
        thread: "http",
        protocol: "HTTP",
        welcome: format!("listening for clients of HTTP on {shown}"),
    };
    let serve = move |lines: Lines<HttpSummary>| {
        let agent = Agent::new(options, machine);
        network::run(listener, tls, agent, lines)
    };
    let handle = Handle::start(names, network::ADMITTING, serve).map_err(HttpError::Thread)?;
    Ok(Box::new(handle))
}

/// A socket for its owner alone. One that nobody listens at any more is replaced.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let is_left_behind = is_socket
        && UnixStream::connect(path).is_err_and(|it| it.kind() == io::ErrorKind::ConnectionRefused);
    if is_left_behind {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Until then the kernel's own limits hold: nobody is answered who is not admitted.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Summary for HttpSummary {
    fn text(&self) -> String {
        let mut text = format!(
            "served {} of HTTP: {} answered, {}",
            quantity::plural(self.connections, "connection"),
            quantity::plural(self.requests, "request"),
            quantity::plural(self.sessions, "session"),
        );
        if self.refused > 0 {
            text += &format!(", {} turned away", quantity::count(self.refused));
        }
        text
    }
}

#[cfg(test)]
#[path = "front_tests.rs"]
mod tests;
