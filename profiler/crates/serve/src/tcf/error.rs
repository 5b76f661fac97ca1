//! Why an agent can't serve.

use std::io;
use std::net::SocketAddr;

use crate::admission::Refusal;
use crate::tls::TlsError;

/// What kept an agent from serving.
#[derive(Debug, thiserror::Error)]
pub enum TcfError {
    /// Not at this address.
    #[error("failed to listen for TCF clients at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: io::Error,
    },
    /// Not at an address that others can reach.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The socket that was given is none of TCP.
    #[error("the socket that was given for clients of TCF can't be used: {0}")]
    Given(io::Error),
    /// Nothing can be encrypted.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are no more threads, or descriptors for what wakes them.
    #[error(
        "failed to start a thread to serve from: {0}; raise the limit on threads or on open files (ulimit -u, -n)"
    )]
    Thread(io::Error),
}
