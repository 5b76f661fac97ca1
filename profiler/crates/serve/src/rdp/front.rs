//! The server as a front.
//!
//! What does not belong here: what it does (`network`, `agent`), how its thread is spoken to (`handle`).

use profiler_report::view::quantity;

use super::agent::Agent;
use super::network;
use super::options::{RdpError, RdpOptions};
use crate::front::Front;
use crate::handle::{Handle, Lines, Names, Summary};
use crate::listening::Listening;
use crate::tls;

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdpSummary {
    /// Connections that were opened.
    pub connections: u64,
    /// Those that were not admitted, or were too many.
    pub refused: u64,
    /// Those that were ended because their client did not read.
    pub laggards: u64,
    /// Requests that were answered.
    pub requests: u64,
}

/// Listens, and serves from a thread of its own.
pub fn start(at: &Listening, options: RdpOptions) -> Result<Box<dyn Front>, RdpError> {
    let address = at.address().map_err(RdpError::Given)?;
    options.admission.may_listen(address)?;
    let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
    let failed = |source| RdpError::Listen { address, source };
    let listener = at.listen().map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let names = Names {
        thread: "rdp",
        protocol: "the remote debugging protocol",
        welcome: format!(
            "listening for clients of Firefox's remote debugging protocol on {address}"
        ),
    };
    let serve =
        move |lines: Lines<RdpSummary>| network::run(listener, tls, Agent::new(options), lines);
    let handle = Handle::start(names, network::ADMITTING, serve).map_err(RdpError::Thread)?;
    Ok(Box::new(handle))
}

impl Summary for RdpSummary {
    fn text(&self) -> String {
        let mut text = format!(
            "served {}: {} answered",
            quantity::plural(self.connections, "connection"),
            quantity::plural(self.requests, "request"),
        );
        for (count, what) in [
            (self.refused, "turned away"),
            (self.laggards, "cut off because they did not read"),
        ] {
            if count > 0 {
                text += &format!(", {} {what}", quantity::count(count));
            }
        }
        text
    }
}
