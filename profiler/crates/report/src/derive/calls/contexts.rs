//! The tree of traced calls: one node for each chain of traced callers.
//!
//! Input: calls with their context, from the outermost in; output: counts and times per context.
//! Bounded: what is beyond the limits of nodes and depth is folded into the innermost node that
//! there is, and counted as folded.

use rustc_hash::FxHashMap;

use profiler_model::FunctionId;

/// The node that everything hangs on.
pub const ROOT: usize = 0;
/// The node of calls whose callers are not in the recording.
pub const UNKNOWN_CALLERS: usize = 1;

/// Calls of one function in one chain of traced callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The function; none for the root and for unknown callers.
    pub function: Option<FunctionId>,
    /// The caller's node; none for the root.
    pub parent: Option<usize>,
    /// Calls that ended.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// Their time without that of the traced calls directly in them.
    pub self_ns: u64,
    /// Calls below that have no nodes of their own.
    pub folded: u64,
    recursive: bool,
    depth: usize,
}

impl Context {
    /// Whether a caller is the same function, so that its time is in that one's.
    pub fn is_recursive(&self) -> bool {
        self.recursive
    }
}

/// The tree.
#[derive(Clone, Debug)]
pub(super) struct Contexts {
    nodes: Vec<Context>,
    children: FxHashMap<(usize, FunctionId), usize>,
    max_nodes: usize,
    max_depth: usize,
}

/// Where a call is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) node: usize,
    /// The node is not its own: it is that of an outer call.
    pub(super) folded: bool,
}

impl Position {
    pub(super) const ROOT: Position = Position {
        node: ROOT,
        folded: false,
    };
    pub(super) const UNKNOWN: Position = Position {
        node: UNKNOWN_CALLERS,
        folded: false,
    };
}

impl Contexts {
    pub(super) fn new(max_nodes: usize, max_depth: usize) -> Contexts {
        let unknown = Context {
            parent: Some(ROOT),
            depth: 1,
            ..Context::default()
        };
        Contexts {
            nodes: vec![Context::default(), unknown],
            children: FxHashMap::default(),
            max_nodes,
            max_depth,
        }
    }

    pub(super) fn nodes(&self) -> &[Context] {
        &self.nodes
    }

    /// Where a call of `function` from `caller` belongs.
    pub(super) fn position(&mut self, caller: Position, function: FunctionId) -> Position {
        let folded = Position {
            folded: true,
            ..caller
        };
        if caller.folded {
            return folded;
        }
        if let Some(&node) = self.children.get(&(caller.node, function)) {
            return Position {
                node,
                folded: false,
            };
        }
        let depth = self.nodes[caller.node].depth + 1;
        if self.nodes.len() >= self.max_nodes || depth > self.max_depth {
            return folded;
        }
        let node = self.nodes.len();
        self.nodes.push(Context {
            function: Some(function),
            parent: Some(caller.node),
            recursive: self.is_within(caller.node, function),
            depth,
            ..Context::default()
        });
        self.children.insert((caller.node, function), node);
        Position {
            node,
            folded: false,
        }
    }

    /// Whether a node or one of its callers is of `function`.
    pub(super) fn is_within(&self, node: usize, function: FunctionId) -> bool {
        let mut next = Some(node);
        while let Some(node) = next {
            if self.nodes[node].function == Some(function) {
                return true;
            }
            next = self.nodes[node].parent;
        }
        false
    }

    pub(super) fn is_recursive(&self, node: usize) -> bool {
        self.nodes[node].recursive
    }

    /// Counts a call that ended.
    pub(super) fn add(&mut self, at: Position, total_ns: u64, self_ns: u64) {
        let node = &mut self.nodes[at.node];
        if at.folded {
            node.folded += 1;
            return;
        }
        node.calls += 1;
        node.total_ns = node.total_ns.saturating_add(total_ns);
        node.self_ns = node.self_ns.saturating_add(self_ns);
    }

    /// Calls that have no node of their own.
    pub(super) fn folded(&self) -> u64 {
        self.nodes.iter().map(|node| node.folded).sum()
    }
}
