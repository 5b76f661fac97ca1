//! What engines say over gRPC, behind the feature `engines`.
//!
//! A socket, and who is thought to listen there -> facts by the containers' ids. What does not belong here:
//! files, and Docker's language (`docker`), which need no more than what is there anyway.

mod containerd;
mod cri;
mod grpc;

use std::collections::HashMap;
use std::path::Path;

use super::Facts;
use super::sockets::Sockets;
use crate::container::Engine;

/// Asks about containers. None: whoever it is may speak Kubernetes' language.
pub(super) fn ask(
    sockets: &mut Sockets,
    socket: &Path,
    engine: Option<Engine>,
    ids: &[&str],
) -> HashMap<String, Facts> {
    match engine {
        Some(Engine::Containerd) => containerd::ask(sockets, socket, ids),
        engine => cri::ask(sockets, socket, engine.unwrap_or(Engine::Oci)),
    }
}
