//! Live peers: a recording that goes on -> sockets, and what comes back from there.
//!
//! Protocols that serve are fronts ([`front`]) on a [`hub`]; [`FrontOptions`] is the list of them.
//!
//! What does not belong here: byte layouts (`wire`), files of other tools (`export`, `import`), what
//! is recorded (`pipeline`).

pub mod admission;
#[cfg(feature = "bytefrog")]
pub mod bytefrog;
#[cfg(feature = "fronts")]
pub mod front;
#[cfg(feature = "bytefrog")]
pub mod hq;
#[cfg(feature = "fronts")]
pub mod hub;
#[cfg(feature = "fronts")]
pub mod machine;
#[cfg(feature = "fronts")]
mod pace;
#[cfg(any(feature = "bytefrog", feature = "fronts"))]
mod queue;
#[cfg(feature = "tcf")]
pub mod tcf;
#[cfg(feature = "fronts")]
mod thin;

use std::net::SocketAddr;

use front::{Front, Replay};
use machine::Machine;
use tcf::{Server, TcfError, TcfOptions};

/// The protocols: how each is served.
#[derive(Clone, Debug)]
pub enum FrontOptions {
    /// TCF.
    Tcf {
        /// Where clients connect.
        address: SocketAddr,
        /// How they are served. Whether a capture is shown is filled in.
        options: TcfOptions,
    },
}

/// Why a front can't serve.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// TCF.
    #[error(transparent)]
    Tcf(#[from] TcfError),
}

impl FrontOptions {
    /// Begins to serve what happens now, or a capture, of a machine that can be asked.
    pub fn start(
        self,
        replay: Option<Replay>,
        machine: Box<dyn Machine>,
    ) -> Result<Box<dyn Front>, FrontError> {
        match self {
            FrontOptions::Tcf { address, options } => {
                let options = TcfOptions { replay, ..options };
                Ok(Box::new(Server::start(address, options, machine)?))
            }
        }
    }
}
