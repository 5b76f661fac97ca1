//! Locator: what this agent is. It knows no other one.
//!
//! Its Hello is said when a channel opens (`agent`).

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::Request;
use crate::admission::unguessable;
use crate::tcf::reply::{Answer, Outcome, Reply};
use profiler_wire::tcf::Code;

/// Bytes of an agent's id.
const ID_BYTES: usize = 16;

/// What clients are told.
pub(in crate::tcf) struct Locator {
    id: String,
    user: String,
    transport: &'static str,
    address: Option<SocketAddr>,
}

impl Locator {
    /// Of an agent that is like no other, and that this user runs.
    pub(in crate::tcf) fn new(transport: &'static str, user: String) -> Locator {
        Locator {
            // Without random numbers there is one agent less that can be told from others.
            id: unguessable::<ID_BYTES>().unwrap_or_default(),
            user,
            transport,
            address: None,
        }
    }

    /// Where it can be connected to.
    pub(in crate::tcf) fn listens(&mut self, address: SocketAddr) {
        self.address = Some(address);
    }

    /// Carries out a command.
    pub(in crate::tcf) fn call(&self, request: Request<'_>) -> Answer {
        match request.command {
            "sync" => Reply::ok().done(),
            "getAgentID" => Reply::ok().json(&self.id).done(),
            "getPeers" => Reply::ok().json(&[self.peer(request.peer.address)]).done(),
            "redirect" => Reply::error(Code::UnknownPeer, "this agent knows no other peer").done(),
            _ => Ok(Outcome::Unknown),
        }
    }

    /// What it is, in attributes of a peer.
    fn peer(&self, client: SocketAddr) -> Map<String, Value> {
        let system = rustix::system::uname();
        let system = format!(
            "{} {}",
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy()
        );
        let mut peer = Map::new();
        let mut set = |name: &str, value: String| peer.insert(name.to_owned(), json!(value));
        set("AgentID", self.id.clone());
        set("Name", "profiler".to_owned());
        set("OSName", system);
        set("TransportName", self.transport.to_owned());
        set("UserName", self.user.clone());
        let Some(address) = self.address else {
            set("ID", self.id.clone());
            return peer;
        };
        let host = match (address.ip().is_unspecified(), client.ip().to_canonical()) {
            (false, _) => address.ip().to_string(),
            // It can be reached where the client is.
            (true, ip) if ip.is_loopback() => ip.to_string(),
            (true, _) => rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        let port = address.port().to_string();
        set("ID", format!("{}:{host}:{port}", self.transport));
        set("Host", host);
        set("Port", port);
        peer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::tcf::agent::ChannelId;
    use crate::tcf::arguments::Arguments;
    use crate::tcf::options::Peer;

    #[test]
    fn each_answer_begins_with_a_field_for_an_error() {
        let locator = Locator::new("TCP", "root".to_owned());
        for (command, fields) in [
            ("sync", 1),
            ("getAgentID", 2),
            ("getPeers", 2),
            ("redirect", 1),
        ] {
            let peer = Peer {
                address: ([127, 0, 0, 1], 1).into(),
                uid: None,
            };
            let answer = locator.call(Request {
                channel: ChannelId(1),
                peer,
                command,
                arguments: Arguments::new(&[]),
                last_try: false,
                now: Instant::now(),
            });
            let Ok(Outcome::Done(reply)) = answer else {
                panic!("{answer:?} is no answer");
            };
            assert_eq!(reply.fields.len(), fields, "{command}");
            assert_eq!(reply.fields[0].is_empty(), command != "redirect");
        }
    }
}
