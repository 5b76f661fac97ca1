//! The list of protocols that a session can be served by: the one place, outside of its folder and the command
//! line, that knows the name of one.
//!
//! How each is to be served -> a [`Front`] that serves. What does not belong here: what a front is (`front`), many
//! of them at one session (`hub`).

use std::net::SocketAddr;

use crate::front::{Front, Replay};
use crate::machine::Machine;
use crate::tcf::{Server, TcfError, TcfOptions};

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
