//! Where a server listens: an address, or a socket that whoever starts it has opened already.
//!
//! What does not belong here: who may open which (`admission`), where such sockets come from (the command line).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Connections that wait to be accepted. A client that finds no room there believes that it is connected, and hears nothing
/// for seconds.
const BACKLOG: i32 = 4096;

/// Where a server listens by TCP.
#[derive(Clone, Debug)]
pub enum Listening {
    /// At this address (port 0: any).
    At(SocketAddr),
    /// By this socket, which listens already.
    By(Arc<TcpListener>),
}

impl From<SocketAddr> for Listening {
    fn from(address: SocketAddr) -> Listening {
        Listening::At(address)
    }
}

impl Listening {
    /// The address that clients are to connect to, as far as it is known.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Listening::At(address) => Ok(*address),
            Listening::By(listener) => listener.local_addr(),
        }
    }

    /// Begins to listen, without ever waiting.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        let listener = match self {
            Listening::At(address) => {
                let listener = TcpListener::bind(address)?;
                rustix::net::listen(&listener, BACKLOG)?;
                listener
            }
            Listening::By(listener) => listener.try_clone()?,
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}
