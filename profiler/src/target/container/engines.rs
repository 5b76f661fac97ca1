//! What engines know of their containers: files first, then sockets.

use std::path::Path;

use super::{Container, Identity};

/// The engines of this machine. Asking them may take time: not for the thread of a session.
#[derive(Debug)]
pub struct Engines {}

impl Engines {
    /// Those whose files and sockets are below a root: `/`, but for tests.
    pub fn at(_root: &Path) -> Engines {
        Engines {}
    }

    /// What is known of a container. Bounded in time (a second at most if an engine does not answer).
    pub fn describe(&mut self, identity: &Identity) -> Container {
        Container::new(identity.clone())
    }
}
