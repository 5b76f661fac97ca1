//! Call trees: stacks merged from the outermost frame on.
//!
//! Input: weighted pairs of stacks; output: a tree whose nodes know their own and their total
//! weight (unit of the samples' source) and sample count. What an aggregate over functions,
//! modules or edges needs is one walk over it: a group met again deeper on the same path
//! (recursion) is counted once. Names and layout do not belong here.

use rustc_hash::FxHashMap;

use super::Functions;
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// How finely places in code are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Granularity {
    /// By function.
    #[default]
    Function,
    /// By function and source line.
    Line,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The root: all samples.
    All,
    /// Processes of one name.
    Process(StringId),
    /// A function, in all its forms (and at one line, if lines are told apart).
    Function {
        /// The module it is in.
        module: Option<ModuleId>,
        /// The one that stands for it: see [`Functions`].
        function: FunctionId,
        /// Source file and line, by [`Granularity::Line`] and if known.
        line: Option<(Option<StringId>, u32)>,
    },
    /// An address without a name.
    Address(FrameId),
    /// Samples without any frame.
    NoStack,
    /// The thread waited there: below what it waited in, never above anything.
    Wait(WaitState),
}

/// Index of a place in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlaceId(u32);

impl PlaceId {
    /// As an index, dense from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a tree knows of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceInfo {
    /// What it is.
    pub place: Place,
    /// Kind of code.
    pub kind: FrameKind,
    /// Whether it was inlined wherever it was met.
    pub inlined: bool,
}

impl PlaceInfo {
    /// Whether this is code, and not a process, a wait or the root.
    pub fn is_code(&self) -> bool {
        !matches!(self.place, Place::All | Place::Process(_) | Place::Wait(_))
    }

    /// The module of the code.
    pub fn module(&self, tables: &Tables) -> Option<ModuleId> {
        match self.place {
            Place::Function { module, .. } => module,
            Place::Address(frame) => tables.frames.get(frame)?.module,
            _ => None,
        }
    }
}

/// A place reached on one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Index of the caller's node; the root is its own parent.
    pub parent: usize,
    /// The place that was reached.
    pub place: PlaceId,
    /// Samples that ended here.
    pub self_count: u64,
    /// Their weight.
    pub self_weight: u64,
    /// Samples that ended here or below.
    pub count: u64,
    /// Their weight.
    pub weight: u64,
    /// Weight of the waits that a program began here: see [`Sums::own_wait`].
    pub own_wait: u64,
    /// Weight of all waits here or below.
    pub wait: u64,
    /// Indexes of the callees' nodes, heaviest first.
    pub children: Vec<usize>,
}

/// A step of a walk over the tree, by node index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Before the node's children.
    Enter(usize),
    /// After them.
    Leave(usize),
}

/// Samples and weight of a group of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Samples that ended in the group.
    pub self_count: u64,
    /// Their weight.
    pub self_weight: u64,
    /// Samples with the group anywhere in their stacks.
    pub count: u64,
    /// Their weight.
    pub weight: u64,
    /// Weight of the waits that began in the group: its code is the innermost of the program, or,
    /// where there is nothing but kernel code, the innermost outside of the scheduler.
    pub own_wait: u64,
    /// Weight of the waits with the group anywhere in their stacks.
    pub wait: u64,
}

/// Stacks to merge into a tree.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Name of the process, if the tree is to be split by it.
    pub process: Option<StringId>,
    /// Kernel stack.
    pub kernel: Option<StackId>,
    /// User stack.
    pub user: Option<StackId>,
    /// Samples.
    pub count: u64,
    /// Weight.
    pub weight: u64,
    /// Why the thread waited; none: it ran.
    pub wait: Option<WaitState>,
}

/// Merged stacks. Node 0 is the root; parents come before their children.
#[derive(Clone, Debug)]
pub struct CallTree {
    places: Vec<PlaceInfo>,
    nodes: Vec<Node>,
}

impl CallTree {
    /// Merges stacks.
    pub fn build(
        tables: &Tables,
        functions: &Functions,
        granularity: Granularity,
        paths: impl IntoIterator<Item = Path>,
    ) -> CallTree {
        let mut builder = Builder::new(tables, functions, granularity);
        for path in paths {
            builder.add(&path);
        }
        builder.finish()
    }

    /// The nodes; a node's index is its place in this slice.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The root.
    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// All places, in the order of their ids.
    pub fn places(&self) -> impl Iterator<Item = (PlaceId, &PlaceInfo)> {
        (0..).map(PlaceId).zip(&self.places)
    }

    /// How many places there are.
    pub fn place_count(&self) -> usize {
        self.places.len()
    }

    /// A place of this tree.
    pub fn place(&self, id: PlaceId) -> &PlaceInfo {
        &self.places[id.index()]
    }

    /// Visits all nodes, depth first.
    pub fn walk(&self, mut visit: impl FnMut(Visit)) {
        let mut pending = vec![Visit::Enter(0)];
        while let Some(step) = pending.pop() {
            visit(step);
            if let Visit::Enter(index) = step {
                pending.push(Visit::Leave(index));
                let children = self.nodes[index].children.iter();
                pending.extend(children.rev().map(|&child| Visit::Enter(child)));
            }
        }
    }

    /// Sums over groups of places: `group` gives a dense group number below `groups`.
    pub fn sums(&self, groups: usize, group: impl Fn(PlaceId) -> Option<usize>) -> Vec<Sums> {
        let mut sums = vec![Sums::default(); groups];
        let mut on_path = vec![0u32; groups];
        self.walk(|step| match step {
            Visit::Enter(index) => {
                let node = &self.nodes[index];
                if let Some(group) = group(node.place) {
                    let sum = &mut sums[group];
                    sum.self_count += node.self_count;
                    sum.self_weight = sum.self_weight.saturating_add(node.self_weight);
                    sum.own_wait = sum.own_wait.saturating_add(node.own_wait);
                    if on_path[group] == 0 {
                        sum.count += node.count;
                        sum.weight = sum.weight.saturating_add(node.weight);
                        sum.wait = sum.wait.saturating_add(node.wait);
                    }
                    on_path[group] += 1;
                }
            }
            Visit::Leave(index) => {
                if let Some(group) = group(self.nodes[index].place) {
                    on_path[group] -= 1;
                }
            }
        });
        sums
    }

    /// Who calls `place` and what it calls, heaviest first. A sample counts once per edge, however
    /// often the edge is in its stack. A caller that is no code means that `place` was outermost.
    pub fn edges(&self, place: PlaceId) -> (Vec<Edge>, Vec<Edge>) {
        let (mut callers, mut callees) = (Edges::default(), Edges::default());
        self.walk(|step| {
            let (index, entered) = match step {
                Visit::Enter(index) => (index, true),
                Visit::Leave(index) => (index, false),
            };
            let node = &self.nodes[index];
            if index == 0 {
                return;
            }
            let parent = self.nodes[node.parent].place;
            if node.place == place {
                callers.step(parent, node, entered);
            }
            if parent == place {
                callees.step(node.place, node, entered);
            }
        });
        (callers.finish(), callees.finish())
    }
}

/// One side of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The function on the other side.
    pub place: PlaceId,
    /// Samples with this edge.
    pub count: u64,
    /// Their weight.
    pub weight: u64,
}

#[derive(Default)]
struct Edges(FxHashMap<PlaceId, (u32, Edge)>);

impl Edges {
    fn step(&mut self, place: PlaceId, node: &Node, entered: bool) {
        let none = Edge {
            place,
            count: 0,
            weight: 0,
        };
        let (on_path, edge) = self.0.entry(place).or_insert((0, none));
        if entered {
            if *on_path == 0 {
                edge.count += node.count;
                edge.weight = edge.weight.saturating_add(node.weight);
            }
            *on_path += 1;
        } else {
            *on_path -= 1;
        }
    }

    fn finish(self) -> Vec<Edge> {
        let mut edges: Vec<Edge> = self.0.into_values().map(|(_, edge)| edge).collect();
        edges.order_by_key(|edge| (std::cmp::Reverse(edge.weight), edge.place));
        edges
    }
}

struct Builder<'a> {
    tables: &'a Tables,
    functions: &'a Functions,
    granularity: Granularity,
    tree: CallTree,
    place_ids: FxHashMap<Place, PlaceId>,
    child_ids: FxHashMap<(u32, PlaceId), u32>,
    /// The node of a caller's stack on top of another node.
    stack_nodes: FxHashMap<(u32, StackId), u32>,
    /// Places of a frame, outermost first.
    frame_places: Vec<Option<Box<[PlaceId]>>>,
    pending: Vec<(StackId, FrameId)>,
}

impl<'a> Builder<'a> {
    fn new(tables: &'a Tables, functions: &'a Functions, granularity: Granularity) -> Builder<'a> {
        let mut builder = Builder {
            tables,
            functions,
            granularity,
            tree: CallTree {
                places: Vec::new(),
                nodes: Vec::new(),
            },
            place_ids: FxHashMap::default(),
            child_ids: FxHashMap::default(),
            stack_nodes: FxHashMap::default(),
            frame_places: vec![None; tables.frames.len()],
            pending: Vec::new(),
        };
        let root = builder.place(Place::All, FrameKind::Native, false);
        builder.tree.nodes.push(Node {
            parent: 0,
            place: root,
            self_count: 0,
            self_weight: 0,
            count: 0,
            weight: 0,
            own_wait: 0,
            wait: 0,
            children: Vec::new(),
        });
        builder
    }

    fn add(&mut self, path: &Path) {
        let mut node = 0;
        if let Some(name) = path.process {
            let place = self.place(Place::Process(name), FrameKind::Native, false);
            node = self.child(node, place);
        }
        let base = node;
        node = self.push_stack(node, path.user);
        let user = node;
        node = self.push_stack(node, path.kernel);
        if node == base {
            let place = self.place(Place::NoStack, FrameKind::Native, false);
            node = self.child(node, place);
        }
        if let Some(state) = path.wait {
            let began = match user == base {
                true => self.outside_scheduler(base, node),
                false => user,
            };
            let own = &mut self.tree.nodes[began].own_wait;
            *own = own.saturating_add(path.weight);
            let place = self.place(Place::Wait(state), FrameKind::Native, false);
            node = self.child(node, place);
            let wait = &mut self.tree.nodes[node].wait;
            *wait = wait.saturating_add(path.weight);
        }
        let node = &mut self.tree.nodes[node];
        node.self_count += path.count;
        node.self_weight = node.self_weight.saturating_add(path.weight);
    }

    /// The innermost node above `base` that is no part of the scheduler: it is where each wait ends
    /// up, and says nothing. `node` itself if there is no other.
    fn outside_scheduler(&self, base: usize, node: usize) -> usize {
        let mut outside = node;
        while outside != base {
            let place = self.tree.place(self.tree.nodes[outside].place).place;
            let is_scheduler = match place {
                Place::Function { function, .. } => (self.tables.functions.get(function))
                    .is_some_and(|f| super::waits::is_scheduler(self.tables.string(f.name))),
                _ => false,
            };
            if !is_scheduler {
                return outside;
            }
            outside = self.tree.nodes[outside].parent;
        }
        node
    }

    /// Walks down from `base` along a stack; gives the leaf's node.
    fn push_stack(&mut self, base: usize, stack: Option<StackId>) -> usize {
        let mut node = base;
        let mut next = stack;
        self.pending.clear();
        while let Some(id) = next {
            if let Some(&known) = self.stack_nodes.get(&(base as u32, id)) {
                node = known as usize;
                break;
            }
            let Some(stack) = self.tables.stacks.get(id) else {
                break;
            };
            self.pending.push((id, stack.frame));
            next = stack.parent;
        }
        while let Some((id, frame)) = self.pending.pop() {
            let places = self.take_places(frame);
            for &place in &places {
                node = self.child(node, place);
            }
            if let Some(slot) = self.frame_places.get_mut(frame.index()) {
                *slot = Some(places);
            }
            // A leaf's is asked for once in each kind of samples: there are too many to be kept for that.
            if !self.pending.is_empty() {
                self.stack_nodes.insert((base as u32, id), node as u32);
            }
        }
        node
    }

    fn take_places(&mut self, frame: FrameId) -> Box<[PlaceId]> {
        let known = self.frame_places.get_mut(frame.index());
        match known.and_then(Option::take) {
            Some(places) => places,
            None => self.places_of(frame),
        }
    }

    fn places_of(&mut self, frame: FrameId) -> Box<[PlaceId]> {
        let tables = self.tables;
        let kind = (tables.frames.get(frame)).map_or(FrameKind::Native, |frame| frame.kind);
        let frame_module = tables.frames.get(frame).and_then(|frame| frame.module);
        let lines = tables.lines(frame);
        if lines.is_empty() {
            return [self.place(Place::Address(frame), kind, false)].into();
        }
        let place_of = |line: &Line| match tables.functions.get(line.function) {
            Some(function) => Place::Function {
                module: function.module.or(frame_module),
                function: self.functions.same(line.function),
                line: (self.granularity == Granularity::Line && line.line != 0)
                    .then_some((function.file, line.line)),
            },
            None => Place::Address(frame),
        };
        let places: Vec<Place> = lines.iter().rev().map(place_of).collect();
        (places.into_iter().enumerate())
            .map(|(depth, place)| self.place(place, kind, depth > 0))
            .collect()
    }

    fn place(&mut self, place: Place, kind: FrameKind, inlined: bool) -> PlaceId {
        let places = &mut self.tree.places;
        let id = *self.place_ids.entry(place).or_insert_with(|| {
            places.push(PlaceInfo {
                place,
                kind,
                inlined,
            });
            PlaceId(places.len() as u32 - 1)
        });
        self.tree.places[id.index()].inlined &= inlined;
        id
    }

    fn child(&mut self, parent: usize, place: PlaceId) -> usize {
        let nodes = &mut self.tree.nodes;
        let known = self.child_ids.entry((parent as u32, place));
        let node = *known.or_insert_with(|| {
            nodes.push(Node {
                parent,
                place,
                self_count: 0,
                self_weight: 0,
                count: 0,
                weight: 0,
                own_wait: 0,
                wait: 0,
                children: Vec::new(),
            });
            (nodes.len() - 1) as u32
        });
        node as usize
    }

    fn finish(self) -> CallTree {
        // What was needed to find nodes takes more than they do.
        let Builder {
            mut tree,
            child_ids,
            stack_nodes,
            ..
        } = self;
        drop((child_ids, stack_nodes));
        let mut callees = vec![0_u32; tree.nodes.len()];
        for node in tree.nodes.iter().skip(1) {
            if let Some(callees) = callees.get_mut(node.parent) {
                *callees += 1;
            }
        }
        for (node, &callees) in tree.nodes.iter_mut().zip(&callees) {
            node.children.reserve_exact(callees as usize);
        }
        drop(callees);
        for index in (0..tree.nodes.len()).rev() {
            let node = &mut tree.nodes[index];
            node.count += node.self_count;
            node.weight = node.weight.saturating_add(node.self_weight);
            let (parent, count, weight) = (node.parent, node.count, node.weight);
            let wait = node.wait;
            if index != 0 {
                let parent = &mut tree.nodes[parent];
                parent.count += count;
                parent.weight = parent.weight.saturating_add(weight);
                parent.wait = parent.wait.saturating_add(wait);
                parent.children.push(index);
            }
        }
        let weights: Vec<u64> = tree.nodes.iter().map(|node| node.weight).collect();
        for node in &mut tree.nodes {
            (node.children).order_by_key(|&child| (std::cmp::Reverse(weights[child]), child));
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables whose functions are `a`, `b`, ...; stacks are given outermost first.
    struct Fixture(Tables);

    impl Fixture {
        fn stack(&mut self, frames: &str) -> Option<StackId> {
            let mut parent = None;
            for letter in frames.bytes() {
                let name = self.0.intern_string(&char::from(letter).to_string()).0;
                let function = Function {
                    name,
                    linkage_name: None,
                    module: None,
                    file: None,
                    line: 0,
                    start: None,
                    size: None,
                };
                let function = self.0.functions.intern(function).0;
                let frame = Frame {
                    kind: FrameKind::Native,
                    module: None,
                    address: letter.into(),
                };
                let frame = self.0.frames.intern(frame).0;
                let line = Line { function, line: 0 };
                self.0.set_symbol(frame, Symbol::Lines([line].into()));
                parent = Some(self.0.stacks.intern(Stack { parent, frame }).0);
            }
            parent
        }
    }

    fn build(stacks: &[(&str, &str, u64)]) -> (Tables, CallTree) {
        let mut fixture = Fixture(Tables::default());
        let mut paths = Vec::new();
        for &(user, kernel, weight) in stacks {
            paths.push(Path {
                process: None,
                user: fixture.stack(user),
                kernel: fixture.stack(kernel),
                count: 1,
                weight,
                wait: None,
            });
        }
        let tree = CallTree::build(
            &fixture.0,
            &Functions::of(&fixture.0),
            Granularity::Function,
            paths,
        );
        (fixture.0, tree)
    }

    fn sums(tables: &Tables, tree: &CallTree, name: &str) -> Sums {
        let all = tree.sums(tree.place_count(), |place| Some(place.index()));
        all[find(tables, tree, name).index()]
    }

    fn find(tables: &Tables, tree: &CallTree, wanted: &str) -> PlaceId {
        let named = |info: &PlaceInfo| match info.place {
            Place::Function { function, .. } => {
                tables.string(tables.functions.get(function).unwrap().name) == wanted
            }
            _ => false,
        };
        tree.places().find(|(_, info)| named(info)).unwrap().0
    }

    #[test]
    fn recursion_is_counted_once() {
        let (tables, tree) = build(&[("abb", "", 10), ("abab", "", 5), ("a", "", 1)]);
        assert_eq!(tree.root().weight, 16);
        let b = sums(&tables, &tree, "b");
        assert_eq!((b.self_weight, b.weight, b.count), (15, 15, 2));
        let a = sums(&tables, &tree, "a");
        assert_eq!((a.self_weight, a.weight), (1, 16));
    }

    #[test]
    fn waits_are_leaves_and_belong_to_the_program() {
        let mut fixture = Fixture(Tables::default());
        let mut paths = Vec::new();
        for (user, kernel, weight, wait) in [
            ("ab", "", 5, None),
            ("ab", "kl", 100, Some(WaitState::Sleeping)),
            ("ab", "kl", 30, Some(WaitState::Disk)),
            ("", "kl", 7, Some(WaitState::Disk)),
            ("", "", 2, Some(WaitState::Preempted)),
        ] {
            paths.push(Path {
                process: None,
                user: fixture.stack(user),
                kernel: fixture.stack(kernel),
                count: 1,
                weight,
                wait,
            });
        }
        let tree = CallTree::build(
            &fixture.0,
            &Functions::of(&fixture.0),
            Granularity::Function,
            paths,
        );
        let tables = fixture.0;
        let b = sums(&tables, &tree, "b");
        assert_eq!((b.self_weight, b.own_wait), (5, 130));
        assert_eq!((b.weight, b.wait), (135, 130));
        let l = sums(&tables, &tree, "l");
        assert_eq!((l.self_weight, l.own_wait, l.wait), (0, 7, 137));
        assert_eq!((tree.root().weight, tree.root().wait), (144, 139));
        let leaves: Vec<_> = (tree.nodes().iter())
            .filter_map(|node| match tree.place(node.place).place {
                Place::Wait(state) => Some((state, node.self_weight)),
                _ => None,
            })
            .collect();
        let sleeping = (WaitState::Sleeping, 100);
        let disks = [(WaitState::Disk, 30), (WaitState::Disk, 7)];
        assert_eq!(leaves[..3], [sleeping, disks[0], disks[1]]);
        assert_eq!(leaves[3], (WaitState::Preempted, 2));
        // What waited without a stack is in a row as well: together they are all there is.
        let all = tree.sums(tree.place_count(), |place| {
            tree.place(place).is_code().then_some(place.index())
        });
        let nowhere = tree.places().find(|(_, info)| info.place == Place::NoStack);
        assert_eq!(all[nowhere.unwrap().0.index()].own_wait, 2);
        let own = all.iter().map(|sums| sums.self_weight + sums.own_wait);
        assert_eq!(own.sum::<u64>(), tree.root().weight);
    }

    #[test]
    fn kernel_frames_lie_on_top() {
        let (tables, tree) = build(&[("ab", "kl", 10), ("", "k", 2), ("", "", 3)]);
        let k = find(&tables, &tree, "k");
        let (callers, callees) = tree.edges(k);
        let shown: Vec<(Place, u64)> = callers
            .iter()
            .map(|edge| (tree.place(edge.place).place, edge.weight))
            .collect();
        assert_eq!(shown[0].1, 10);
        assert_eq!(shown[1], (Place::All, 2));
        assert_eq!(callees.len(), 1);
        assert_eq!(sums(&tables, &tree, "l").self_weight, 10);
        let without = tree.places().find(|(_, i)| i.place == Place::NoStack);
        assert!(without.is_some());
        assert_eq!(tree.root().weight, 15);
    }

    #[test]
    fn an_edge_counts_once_per_sample() {
        let (tables, tree) = build(&[("ababab", "", 7)]);
        let (callers, callees) = tree.edges(find(&tables, &tree, "b"));
        assert_eq!((callers.len(), callers[0].weight), (1, 7));
        assert_eq!((callees.len(), callees[0].weight), (1, 7));
    }

    #[test]
    fn children_are_sorted_and_parents_come_first() {
        let (_, tree) = build(&[("ab", "", 1), ("ac", "", 9), ("ad", "", 4)]);
        let a = &tree.nodes()[tree.root().children[0]];
        let weights: Vec<u64> = (a.children.iter())
            .map(|&child| tree.nodes()[child].weight)
            .collect();
        assert_eq!(weights, [9, 4, 1]);
        for (index, node) in tree.nodes().iter().enumerate().skip(1) {
            assert!(node.parent < index);
        }
    }
}
