//! Stacks as a tree, for formats in which a stack is a node that names its caller.
//!
//! Items, root first -> the number of the node at which that path ends; nodes are numbered from 0 on, callers before what
//! they call. What does not belong here: what an item is (the formats).

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A node: its caller's number, and what it is.
pub(super) type Node<T> = (Option<u32>, T);

/// Paths that share their beginnings.
pub(super) struct Tree<T> {
    nodes: Vec<Node<T>>,
    numbers: FxHashMap<Node<T>, u32>,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Tree {
            nodes: Vec::new(),
            numbers: FxHashMap::default(),
        }
    }
}

impl<T: Copy + Eq + Hash> Tree<T> {
    /// The node of `item` below another one.
    pub(super) fn child(&mut self, parent: Option<u32>, item: T) -> u32 {
        let node = (parent, item);
        let next = self.nodes.len() as u32;
        let number = *self.numbers.entry(node).or_insert(next);
        if number == next {
            self.nodes.push(node);
        }
        number
    }

    /// The node of a path, root first; none of an empty one.
    pub(super) fn path(&mut self, items: impl IntoIterator<Item = T>) -> Option<u32> {
        let mut node = None;
        for item in items {
            node = Some(self.child(node, item));
        }
        node
    }

    /// All nodes, in the order of their numbers.
    pub(super) fn nodes(&self) -> &[Node<T>] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_shared() {
        let mut tree = Tree::default();
        assert_eq!(tree.path(['a', 'b']), Some(1));
        assert_eq!(tree.path(['a', 'c']), Some(2));
        assert_eq!(tree.path(['b', 'a']), Some(4));
        assert_eq!(tree.path(['a', 'b']), Some(1));
        assert_eq!(tree.path([]), None);
        let nodes = [
            (None, 'a'),
            (Some(0), 'b'),
            (Some(0), 'c'),
            (None, 'b'),
            (Some(3), 'a'),
        ];
        assert_eq!(tree.nodes(), nodes);
    }
}
