//! Stacks as clients get them: stacks of the tables -> lists of addresses, each list once.
//!
//! Of all samples, few have a stack that was not seen before: what a pair of stacks came to is
//! remembered, so that a sample costs a lookup, and no memory. A list lives as long as a buffer uses it
//! or it is remembered. What does not belong here: counts (`buffer`), where a frame is (`world`).

use std::mem::size_of;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::surroundings::Surroundings;
use crate::tcf::world::ContextKey;
use profiler_model::*;

/// A list of addresses, leaf first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ListId(u32);

/// What determines a list, while ids mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// In whose memory the frames are to be.
    pub(super) process: ContextKey,
    /// The kernel's frames, if they are wanted.
    pub(super) kernel: Option<StackId>,
    /// Then the user's.
    pub(super) user: Option<StackId>,
    /// Most frames.
    pub(super) frames: usize,
}

/// Lists of addresses, each kept once, and the stacks that came to them.
#[derive(Debug)]
pub(super) struct Stacks {
    lists: Vec<List>,
    free: Vec<ListId>,
    ids: FxHashMap<Arc<[u64]>, ListId>,
    /// None: it has no frames at all.
    remembered: FxHashMap<Shape, Option<ListId>>,
    remembered_bytes: usize,
    max_remembered_bytes: usize,
    /// How often tables had begun anew when they were looked at.
    turns: u64,
    frames: Vec<FrameId>,
    addresses: Vec<u64>,
}

#[derive(Debug)]
struct List {
    addresses: Arc<[u64]>,
    /// How many use it: buffers, and what is remembered.
    users: u32,
}

impl Stacks {
    /// Remembers so many bytes at most.
    pub(super) fn new(max_remembered_bytes: usize) -> Stacks {
        Stacks {
            lists: Vec::new(),
            free: Vec::new(),
            ids: FxHashMap::default(),
            remembered: FxHashMap::default(),
            remembered_bytes: 0,
            max_remembered_bytes,
            turns: 0,
            frames: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// The list of a shape; none if that has no frames. It stays until the next call, or for as long as
    /// somebody [uses](Stacks::acquire) it.
    pub(super) fn list(&mut self, shape: Shape, world: &mut impl Surroundings) -> Option<ListId> {
        if self.turns != world.turns() {
            self.turns = world.turns();
            self.forget();
        }
        if let Some(&known) = self.remembered.get(&shape) {
            return known;
        }
        if self.remembered_bytes > self.max_remembered_bytes {
            self.forget();
        }
        self.frames.clear();
        let tables = world.tables();
        self.frames.extend(
            tables
                .frames_of_both(shape.kernel, shape.user)
                .take(shape.frames),
        );
        self.addresses.clear();
        for &frame in &self.frames {
            self.addresses.push(world.address_of(shape.process, frame));
        }
        let list = match self.addresses.is_empty() {
            true => None,
            false => Some(self.intern()),
        };
        self.remembered_bytes += size_of::<(Shape, Option<ListId>)>();
        if let Some(list) = list {
            self.acquire(list);
            self.remembered_bytes += self.bytes(list);
        }
        self.remembered.insert(shape, list);
        list
    }

    /// The addresses of a list, leaf first.
    pub(super) fn addresses(&self, list: ListId) -> &[u64] {
        self.lists
            .get(list.0 as usize)
            .map_or(&[], |list| &list.addresses)
    }

    /// Memory of a list.
    pub(super) fn bytes(&self, list: ListId) -> usize {
        let own = size_of::<List>() + size_of::<(Arc<[u64]>, ListId)>() + 2 * size_of::<usize>();
        own + size_of_val(self.addresses(list))
    }

    /// One more uses a list.
    pub(super) fn acquire(&mut self, list: ListId) {
        if let Some(list) = self.lists.get_mut(list.0 as usize) {
            list.users += 1;
        }
    }

    /// One less does.
    pub(super) fn release(&mut self, list: ListId) {
        let Some(slot) = self.lists.get_mut(list.0 as usize) else {
            return;
        };
        slot.users -= 1;
        if slot.users == 0 {
            let addresses = std::mem::take(&mut slot.addresses);
            self.ids.remove(&addresses);
            self.free.push(list);
        }
    }

    /// How many lists there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Remembers nothing any more.
    pub(super) fn forget(&mut self) {
        for list in std::mem::take(&mut self.remembered).into_values().flatten() {
            self.release(list);
        }
        self.remembered_bytes = 0;
    }

    /// The list with these addresses. Nobody uses a new one yet.
    fn intern(&mut self) -> ListId {
        if let Some(&id) = self.ids.get(self.addresses.as_slice()) {
            return id;
        }
        let addresses: Arc<[u64]> = self.addresses.as_slice().into();
        let list = List {
            addresses: addresses.clone(),
            users: 0,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.lists[id.0 as usize] = list;
                id
            }
            None => {
                self.lists.push(list);
                // Far fewer than 2^32 lists fit into the limit of memory.
                ListId((self.lists.len() - 1) as u32)
            }
        };
        self.ids.insert(addresses, id);
        id
    }
}
