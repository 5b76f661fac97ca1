//! Why an agent can't serve.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::admission::Refusal;

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
    /// A file that TLS needs can't be read.
    #[error("failed to read {what} {}: {source}", path.display())]
    Read {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file that TLS needs is not what it should be.
    #[error("{what} {}: {reason}", path.display())]
    Pem {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There are no more threads, or descriptors for what wakes them.
    #[error(
        "failed to start a thread to serve from: {0}; raise the limit on threads or on open files (ulimit -u, -n)"
    )]
    Thread(io::Error),
}
