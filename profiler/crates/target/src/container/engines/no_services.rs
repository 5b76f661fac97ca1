//! Engines are not asked over gRPC: built without the feature `engines`. What their files say is known all the
//! same.

use std::collections::HashMap;
use std::path::Path;

use super::Facts;
use super::sockets::Sockets;
use crate::container::Engine;

/// Asks nobody.
pub(super) fn ask(
    _: &mut Sockets,
    socket: &Path,
    _: Option<Engine>,
    _: &[&str],
) -> HashMap<String, Facts> {
    log::debug!(
        "{} is not asked: built without the feature 'engines'",
        socket.display()
    );
    HashMap::new()
}
