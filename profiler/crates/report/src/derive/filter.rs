//! Which samples and calls are meant: the one selection of reports and exports.
//!
//! Flags -> whether any frame of a stack is of a function, and of a module, that is asked for. Each stack is looked at once. What does
//! not belong here: whose samples are meant (`target`), calls (`call_filter`).

use rustc_hash::FxHashMap;

use super::{Functions, Pattern, Target, frame_lines};
use profiler_model::*;

/// Which samples count. An empty list admits all; entries of one list are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whose.
    pub target: Target,
    /// Paths of modules, of which one must be in the stack.
    pub modules: Vec<String>,
    /// Names of functions, of which one must be in the stack.
    pub functions: Vec<String>,
    /// Not the profiler that recorded.
    pub no_self: bool,
}

impl Filter {
    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        self.target.is_all()
            && self.modules.is_empty()
            && self.functions.is_empty()
            && !self.no_self
    }
}

/// The kernel's and the user's part of a stack.
type Pair = (Option<StackId>, Option<StackId>);

/// Which stacks have a frame of what is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct InStack {
    modules: StackFilter,
    functions: StackFilter,
}

impl InStack {
    pub(crate) fn new(filter: &Filter) -> InStack {
        let stack_filter = |texts: &[String]| StackFilter {
            patterns: texts.iter().map(|text| Pattern::new(text)).collect(),
            known: FxHashMap::default(),
        };
        InStack {
            modules: stack_filter(&filter.modules),
            functions: stack_filter(&filter.functions),
        }
    }

    /// Whether nothing is asked for.
    pub(crate) fn admits_all(&self) -> bool {
        self.modules.patterns.is_empty() && self.functions.patterns.is_empty()
    }

    pub(crate) fn admits(&mut self, tables: &Tables, names: &Functions, stack: Pair) -> bool {
        self.modules.admits(tables, stack, |frame, pattern| {
            has_module(tables, frame, pattern)
        }) && self.functions.admits(tables, stack, |frame, pattern| {
            has_function(tables, names, frame, pattern)
        })
    }
}

#[derive(Clone, Debug, Default)]
struct StackFilter {
    patterns: Vec<Pattern>,
    known: FxHashMap<StackId, bool>,
}

impl StackFilter {
    fn admits(
        &mut self,
        tables: &Tables,
        (kernel, user): Pair,
        has: impl Fn(FrameId, &Pattern) -> bool,
    ) -> bool {
        self.patterns.is_empty()
            || self.any_frame(tables, user, &has)
            || self.any_frame(tables, kernel, &has)
    }

    fn any_frame(
        &mut self,
        tables: &Tables,
        stack: Option<StackId>,
        has: &impl Fn(FrameId, &Pattern) -> bool,
    ) -> bool {
        let mut below = Vec::new();
        let mut next = stack;
        let mut found = false;
        while let Some(id) = next {
            if let Some(&known) = self.known.get(&id) {
                found = known;
                break;
            }
            let Some(stack) = tables.stacks.get(id) else {
                break;
            };
            below.push(id);
            if (self.patterns.iter()).any(|pattern| has(stack.frame, pattern)) {
                found = true;
                break;
            }
            next = stack.parent;
        }
        self.known.extend(below.into_iter().map(|id| (id, found)));
        found
    }
}

fn has_function(tables: &Tables, names: &Functions, frame: FrameId, pattern: &Pattern) -> bool {
    frame_lines(tables, frame).any(|line| {
        let told_apart = |id| pattern.matches(&names.name(tables, id));
        pattern.matches(&line.name) || line.function.is_some_and(told_apart)
    })
}

fn has_module(tables: &Tables, frame: FrameId, pattern: &Pattern) -> bool {
    let module = tables.frames.get(frame).and_then(|frame| frame.module);
    let module = module.and_then(|id| tables.modules.get(id));
    let path = module.map_or("[unknown]", |module| tables.string(module.path));
    pattern.matches(path) || pattern.matches(short_name(path))
}

/// The last part of a path.
pub(crate) fn short_name(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => name,
        _ => path,
    }
}
