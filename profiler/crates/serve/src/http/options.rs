//! What the server is told: whom to serve, how, and what that may cost.
//!
//! What does not belong here: who may profile whom (`policy`).

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::policy::Policy;
use crate::admission::{Admission, Refusal};
use crate::front::Replay;
use crate::listening::Listening;
use crate::tls::{TlsError, TlsOptions};

/// Where clients connect.
#[derive(Clone, Debug)]
pub enum HttpAddress {
    /// By TCP.
    Tcp(Listening),
    /// By a socket of this machine, which is made for its owner alone.
    Unix(PathBuf),
    /// By one that listens already; who may connect to it is its maker's to say, and then ours.
    By(Arc<UnixListener>),
}

/// How a server serves.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Who may connect.
    pub admission: Admission,
    /// Who may profile whom, and what is withheld.
    pub policy: Policy,
    /// Origins whose pages may ask: `https://example.org`.
    pub origins: Vec<String>,
    /// What clients must show besides, as a bearer token or as the password of Basic.
    pub token: Option<String>,
    /// Keys, if connections by TCP are to be encrypted.
    pub tls: Option<TlsOptions>,
    /// A capture is shown, not what happens now.
    pub replay: Option<Replay>,
    /// What clients may cost.
    pub limits: HttpLimits,
}

/// What clients may cost.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Sessions at a time, of all clients.
    pub sessions: usize,
    /// Samples of a thread that a session may ask for.
    pub buffer: u32,
    /// Samples of all sessions together.
    pub samples: usize,
    /// Threads of a session.
    pub threads: usize,
    /// Events of a capture that is there at once, which are kept for those who come.
    pub kept_events: usize,
    /// The highest frequency that sessions can make the session sample at.
    pub frequency_hz: u64,
    /// How long an answer is waited for until it is an error.
    pub patience: Duration,
    /// How long names are waited for when a session is stopped.
    pub names: Duration,
    /// How long a client may neither send nor read anything.
    pub stall: Duration,
    /// How long a session lives that is for whoever listens to it, when nobody does.
    pub grace: Duration,
    /// How long a session lives that nobody asks for.
    pub idle: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: 512,
            body_bytes: 64 << 10,
            sessions: 256,
            buffer: 1 << 20,
            samples: 4 << 20,
            threads: 4096,
            kept_events: 8 << 20,
            frequency_hz: 5000,
            patience: Duration::from_secs(10),
            names: Duration::from_secs(5),
            stall: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            idle: Duration::from_secs(3600),
        }
    }
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Others could reach the address.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The address can't be had.
    #[error("failed to listen for clients of HTTP on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nothing can be encrypted.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no thread to be had.
    #[error("failed to start the thread that serves clients of HTTP: {0}")]
    Thread(io::Error),
}
