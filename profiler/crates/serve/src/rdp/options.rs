//! What a server is told: whom to serve, how, and what that may cost.
//!
//! What does not belong here: what it asks of whoever runs the session (`front`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::admission::{Admission, Refusal};
use crate::front::Replay;
use crate::tls::{TlsError, TlsOptions};

/// How a server serves.
#[derive(Clone, Debug)]
pub struct RdpOptions {
    /// Who may connect.
    pub admission: Admission,
    /// What clients on other machines must show before anything else.
    pub token: Option<String>,
    /// Keys, if it is to be encrypted.
    pub tls: Option<TlsOptions>,
    /// Functions that are traced for clients which name none; without any, frames are inferred from samples.
    pub functions: Vec<String>,
    /// Arguments and results may be told, to those who own the process (root: all).
    pub values: bool,
    /// A capture is shown, not what happens now.
    pub replay: Option<Replay>,
    /// What clients may cost.
    pub limits: RdpLimits,
}

/// What clients may cost.
#[derive(Clone, Debug)]
pub struct RdpLimits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a packet that comes.
    pub packet_bytes: usize,
    /// Bytes that wait for a client to read them; when there are more, frames are missed, and that is its end.
    pub output_bytes: usize,
    /// The same for all connections together: when there are more, it is the end of who has most.
    pub all_output_bytes: usize,
    /// TraceActors of a connection that are attached.
    pub actors: usize,
    /// Patterns of functions of a connection.
    pub patterns: usize,
    /// Events of a capture that is there at once, which are kept for those who come.
    pub kept_events: usize,
    /// The highest frequency that clients can ask for.
    pub frequency_hz: u64,
    /// How long an answer is waited for until it is an error.
    pub patience: Duration,
    /// How long a client may read nothing although something waits for it.
    pub stall: Duration,
}

impl Default for RdpLimits {
    fn default() -> RdpLimits {
        RdpLimits {
            connections: 64,
            packet_bytes: 1 << 20,
            output_bytes: 64 << 20,
            all_output_bytes: 256 << 20,
            actors: 4096,
            patterns: 1024,
            kept_events: 8 << 20,
            frequency_hz: 1000,
            patience: Duration::from_secs(30),
            stall: Duration::from_secs(30),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdpPeer {
    /// Its address.
    pub address: SocketAddr,
    /// Who owns it, if it is on this machine.
    pub uid: Option<u32>,
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum RdpError {
    /// Others could reach the address.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The address can't be had.
    #[error("failed to listen for clients of the remote debugging protocol on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The socket that was given is none of TCP.
    #[error(
        "the socket that was given for clients of the remote debugging protocol can't be used: {0}"
    )]
    Given(io::Error),
    /// Nothing can be encrypted.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no thread to be had.
    #[error("failed to start the thread that serves clients of the remote debugging protocol: {0}")]
    Thread(io::Error),
}
