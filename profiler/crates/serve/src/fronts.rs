//! The list of protocols that a session can be served by: the one place, outside of its folder and the command
//! line, that knows the name of one.
//!
//! How each is to be served -> a [`Front`] that serves. What does not belong here: what a front is (`front`), many
//! of them at one session (`hub`).

use crate::front::{Front, Replay};
#[cfg(feature = "http")]
use crate::http::{self, HttpAddress, HttpError, HttpOptions};
#[cfg(any(feature = "rdp", feature = "tcf"))]
use crate::listening::Listening;
use crate::machine::Machine;
#[cfg(feature = "rdp")]
use crate::rdp::{self, RdpError, RdpOptions};
#[cfg(feature = "tcf")]
use crate::tcf::{Server, TcfError, TcfOptions};

/// The protocols: how each is served.
#[derive(Clone, Debug)]
pub enum FrontOptions {
    /// Sampling sessions over HTTP.
    #[cfg(feature = "http")]
    Http {
        /// Where clients connect.
        address: HttpAddress,
        /// How they are served. Whether a capture is shown is filled in.
        options: HttpOptions,
    },
    /// Firefox's remote debugging protocol.
    #[cfg(feature = "rdp")]
    Rdp {
        /// Where clients connect.
        address: Listening,
        /// How they are served. Whether a capture is shown is filled in.
        options: RdpOptions,
    },
    /// TCF.
    #[cfg(feature = "tcf")]
    Tcf {
        /// Where clients connect.
        address: Listening,
        /// How they are served. Whether a capture is shown is filled in.
        options: TcfOptions,
    },
}

/// Why a front can't serve.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// HTTP.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Firefox's remote debugging protocol.
    #[cfg(feature = "rdp")]
    #[error(transparent)]
    Rdp(#[from] RdpError),
    /// TCF.
    #[cfg(feature = "tcf")]
    #[error(transparent)]
    Tcf(#[from] TcfError),
}

impl FrontOptions {
    /// Begins to serve what happens now, or a capture, of a machine that can be asked.
    pub fn start(
        self,
        replay: Option<Replay>,
        #[cfg_attr(not(any(feature = "http", feature = "tcf")), allow(unused_variables))]
        machine: Box<dyn Machine>,
    ) -> Result<Box<dyn Front>, FrontError> {
        match self {
            #[cfg(feature = "http")]
            FrontOptions::Http { address, options } => {
                let options = HttpOptions { replay, ..options };
                Ok(http::start(address, options, machine)?)
            }
            #[cfg(feature = "rdp")]
            FrontOptions::Rdp { address, options } => {
                let options = RdpOptions { replay, ..options };
                Ok(rdp::start(&address, options)?)
            }
            #[cfg(feature = "tcf")]
            FrontOptions::Tcf { address, options } => {
                let options = TcfOptions { replay, ..options };
                Ok(Box::new(Server::start(address, options, machine)?))
            }
        }
    }
}
