//! Places that threw: a method and a line of it -> a frame of the running epoch.
//!
//! An agent tells no address. In its place stands what tells one place from another: which name of the
//! method, the method, the line. So the same place is the same frame in all epochs.

use profiler_model::*;
use rustc_hash::FxHashMap;

/// Places that threw.
#[derive(Debug, Default)]
pub(super) struct Throwers {
    /// Of this epoch, by what stands for the address.
    frames: FxHashMap<u64, FrameId>,
    /// Definitions that must not come before those of the functions in them.
    pub(super) waiting: Vec<Definition>,
}

impl Throwers {
    /// The frame of a place, and whether it is new in this epoch.
    pub(super) fn frame(&mut self, method: u32, name: u16, line: Line) -> (FrameId, bool) {
        let address = u64::from(name) << 48 | u64::from(method) << 16 | u64::from(line.line);
        if let Some(&id) = self.frames.get(&address) {
            return (id, false);
        }
        let id = FrameId::from_index(self.frames.len());
        self.frames.insert(address, id);
        let frame = Frame {
            kind: FrameKind::Interpreted,
            module: None,
            address,
        };
        self.waiting.push(Definition::Frame(id, frame));
        let symbol = Symbol::Lines(Box::new([line]));
        self.waiting.push(Definition::Symbol(id, symbol));
        (id, true)
    }

    /// Bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<(u64, FrameId)>()
            + self.waiting.capacity() * size_of::<Definition>()
    }

    /// Ids start anew.
    pub(super) fn begin_epoch(&mut self) {
        self.frames.clear();
    }
}
