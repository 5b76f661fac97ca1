//! What an agent is told: whom to serve, how, and what that may cost.
//!
//! What does not belong here: what it asks of whoever runs the session (`front`).

use std::net::SocketAddr;
use std::time::Duration;

use crate::admission::Admission;
use crate::front::Replay;
use crate::tls::TlsOptions;

/// How an agent serves.
#[derive(Clone, Debug)]
pub struct TcfOptions {
    /// Who runs it, as clients are told.
    pub user: String,
    /// Who may connect.
    pub admission: Admission,
    /// Clients may stop, continue and end processes that they own (root: all).
    pub control: bool,
    /// Clients may read environments.
    pub environment: bool,
    /// Channels are encrypted.
    pub tls: Option<TlsOptions>,
    /// A capture is shown, not what happens now.
    pub replay: Option<Replay>,
    /// What clients may cost.
    pub limits: Limits,
}

/// What clients may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Channels at a time.
    pub channels: usize,
    /// Bytes of a message that comes.
    pub message_bytes: usize,
    /// Bytes that wait for a client to read them; more end its channel.
    pub output_bytes: usize,
    /// Bytes that are kept for all channels: messages that are not whole, commands whose answers are
    /// looked for, what waits to be read. If there are more, those who have most are closed.
    pub channel_bytes: usize,
    /// Commands of a channel whose answers are still looked for.
    pub pending: usize,
    /// Configurations of a channel.
    pub configurations: usize,
    /// Bytes of all samples that wait to be read, of all clients.
    pub profile_bytes: usize,
    /// The highest frequency that clients can ask for.
    pub frequency_hz: u64,
    /// How long a client may take to say Hello.
    pub greeting: Duration,
    /// How long a name is looked for before the answer is that there is none.
    pub patience: Duration,
    /// How long what is known of a process that has ended is kept.
    pub afterlife: Duration,
    /// How long a client may read nothing although something waits for it.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            channels: 256,
            message_bytes: 4 << 20,
            output_bytes: 16 << 20,
            channel_bytes: 256 << 20,
            pending: 4096,
            configurations: 16_384,
            profile_bytes: 256 << 20,
            frequency_hz: 1000,
            greeting: Duration::from_secs(10),
            patience: Duration::from_secs(3),
            afterlife: Duration::from_secs(60),
            stall: Duration::from_secs(30),
        }
    }
}

/// The other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Who owns it, if it is on this machine.
    pub uid: Option<u32>,
}
