//! A strict receiver of Bytefrog's messages, for tests of whatever sends them.
//!
//! [`Checker`] takes an agent's messages, of any number of data connections and the control
//! connection, and panics where a collector would give up or show nonsense:
//!
//! - a sequence id twice, or one that never comes;
//! - an exit that is not that of the innermost open method of its thread;
//! - a method, exception or thread that is used and never named (names may come late);
//! - a number of a thread that another thread gets while calls are open;
//! - a data break that is not ahead of the data, does not grow, or that no marker precedes;
//! - bytes that are no messages of a data connection.
//!
//! [`Run`] is what remains at the end: counts and trees by name. Times are the messages' milliseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use profiler_wire::bytefrog::{AgentMessage, Channel};

/// A place in the tree of calls: its parent and its method; 0 is the root.
type Node = u32;

/// Takes messages and panics at what must not be.
#[derive(Debug, Default)]
pub struct Checker {
    next: u32,
    /// What came before its turn.
    early: BTreeMap<u32, AgentMessage<'static>>,
    breaks: Vec<u32>,
    broken: usize,
    stacks: BTreeMap<u16, Vec<(u32, Node)>>,
    nodes: HashMap<(Node, u32), Node>,
    tree: Vec<(Node, u32, u64)>,
    names: BTreeMap<u16, Vec<String>>,
    methods: BTreeMap<u32, String>,
    exceptions: BTreeMap<u32, String>,
    used_methods: BTreeSet<u32>,
    used_exceptions: BTreeSet<u32>,
    run: Run,
}

/// What came, in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Entries by signature.
    pub entries: BTreeMap<String, u64>,
    /// Exits by signature, and the lines that they had.
    pub exits: BTreeMap<String, BTreeMap<u16, u64>>,
    /// Exits by an exception, by signature and exception.
    pub bubbles: BTreeMap<(String, String), u64>,
    /// Exceptions thrown, by signature, exception and line.
    pub throws: BTreeMap<(String, String, u16), u64>,
    /// Markers in their order: time in milliseconds, key, value.
    pub markers: Vec<(u32, String, String)>,
    /// All names of each thread in their order.
    pub threads: BTreeMap<u16, Vec<String>>,
    /// Entries by chain of callers, outermost first, joined by `;`.
    pub chains: BTreeMap<String, u64>,
    /// Signatures of methods that are open at the end, by thread, outermost first.
    pub open: BTreeMap<u16, Vec<String>>,
    /// Messages with a sequence id.
    pub sequenced: u64,
    /// Data breaks that took effect.
    pub breaks: u64,
}

impl Checker {
    /// A checker that expects a run from its beginning.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// A checker that expects `next` as first sequence id.
    pub fn starting_at(next: u32) -> Checker {
        Checker {
            next,
            ..Checker::default()
        }
    }

    /// Takes bytes of a data connection: whole messages.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match AgentMessage::decode(bytes) {
                Ok(Some((message, len))) => {
                    bytes = &bytes[len..];
                    self.data(message.into_owned());
                }
                Ok(None) => panic!("{} bytes of an unfinished message", bytes.len()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Takes a message of a data connection. Those of several may be mixed in any way.
    pub fn data(&mut self, message: AgentMessage<'static>) {
        assert_eq!(
            message.channel(),
            Channel::Data,
            "on a data connection: {message:?}"
        );
        match message.sequence() {
            None => self.name(message),
            Some(sequence) if sequence == self.next => {
                self.take(message);
                while let Some(message) = self.early.remove(&self.next) {
                    self.take(message);
                }
            }
            Some(sequence) => {
                let ahead = sequence.wrapping_sub(self.next);
                assert!(
                    ahead < 1 << 31,
                    "sequence id {sequence} came twice: {message:?}"
                );
                let double = self.early.insert(sequence, message);
                assert_eq!(double, None, "sequence id {sequence} came twice");
            }
        }
    }

    /// Takes a message of the control connection; only data breaks matter here.
    pub fn control(&mut self, message: &AgentMessage<'_>) {
        if let AgentMessage::DataBreak { sequence } = *message {
            self.data_break(sequence);
        }
    }

    /// Takes a data break.
    pub fn data_break(&mut self, sequence: u32) {
        let ahead = |of: u32| (1..1 << 31).contains(&sequence.wrapping_sub(of));
        assert!(
            ahead(self.next),
            "a data break at {sequence}, where {} is next, kills a collector",
            self.next
        );
        if let Some(&last) = self.breaks.last() {
            assert!(
                ahead(last),
                "a data break at {sequence} after one at {last}"
            );
        }
        self.breaks.push(sequence);
    }

    /// Ends the run.
    pub fn finish(mut self) -> Run {
        if let Some((sequence, _)) = self.early.first_key_value() {
            panic!("{} never came, but {sequence} did", self.next);
        }
        for thread in self.stacks.keys() {
            assert!(
                self.names.contains_key(thread),
                "thread {thread} has no name"
            );
        }
        for method in &self.used_methods {
            assert!(
                self.methods.contains_key(method),
                "method {method} has no name"
            );
        }
        for exception in &self.used_exceptions {
            let named = self.exceptions.contains_key(exception);
            assert!(named, "exception {exception} has no name");
        }
        let named = |method: u32| self.methods.get(&method).cloned().unwrap_or_default();
        let mut chains: Vec<String> = vec![String::new()];
        for &(parent, method, count) in &self.tree {
            let parent = &chains[parent as usize];
            let chain = match parent.is_empty() {
                true => named(method),
                false => format!("{parent};{}", named(method)),
            };
            *self.run.chains.entry(chain.clone()).or_default() += count;
            *self.run.entries.entry(named(method)).or_default() += count;
            chains.push(chain);
        }
        for (&thread, stack) in self.stacks.iter().filter(|(_, stack)| !stack.is_empty()) {
            let open = stack.iter().map(|&(method, _)| named(method));
            self.run.open.insert(thread, open.collect());
        }
        self.run.exits = rename(self.run.exits, |method| named(number(&method)));
        self.run.bubbles = rename(self.run.bubbles, |(method, exception)| {
            (
                named(number(&method)),
                self.exceptions[&number(&exception)].clone(),
            )
        });
        self.run.throws = rename(self.run.throws, |(method, exception, line)| {
            let exception = self.exceptions[&number(&exception)].clone();
            (named(number(&method)), exception, line)
        });
        self.run.threads = self.names;
        self.run
    }

    fn name(&mut self, message: AgentMessage<'static>) {
        match message {
            AgentMessage::MapThreadName { thread, name, .. } => {
                let names = self.names.entry(thread).or_default();
                if let Some((before, now)) = names.last().and_then(|last| both(last, &name))
                    && before != now
                {
                    let open = self.stacks.get(&thread).map_or(0, Vec::len);
                    assert_eq!(
                        open, 0,
                        "thread {thread}, {before}, becomes {now} in a call"
                    );
                }
                names.push(name.into_owned());
            }
            AgentMessage::MapMethodSignature { method, signature } => {
                assert_ne!(method, 0, "methods are numbered from 1");
                let double = self.methods.insert(method, signature.into_owned());
                assert_eq!(double, None, "method {method} is named twice");
            }
            AgentMessage::MapException { exception, name } => {
                assert_ne!(exception, 0, "exceptions are numbered from 1");
                let double = self.exceptions.insert(exception, name.into_owned());
                assert_eq!(double, None, "exception {exception} is named twice");
            }
            message => panic!("a message without sequence id: {message:?}"),
        }
    }

    /// Takes the message whose turn it is.
    fn take(&mut self, message: AgentMessage<'static>) {
        if self.breaks.get(self.broken) == Some(&self.next.wrapping_add(1)) {
            let is_marker = matches!(message, AgentMessage::Marker { .. });
            assert!(is_marker, "no marker before the data break but {message:?}");
        }
        if self.breaks.get(self.broken) == Some(&self.next) {
            self.broken += 1;
            self.run.breaks += 1;
            self.stacks.values_mut().for_each(Vec::clear);
        }
        self.next = self.next.wrapping_add(1);
        self.run.sequenced += 1;
        match message {
            AgentMessage::MethodEntry { method, thread, .. } => self.enter(thread, method),
            AgentMessage::MethodExit {
                method,
                thread,
                line,
                ..
            } => {
                self.leave(thread, method);
                let lines = self.run.exits.entry(method.to_string()).or_default();
                *lines.entry(line).or_default() += 1;
            }
            AgentMessage::ExceptionBubble {
                method,
                exception,
                thread,
                ..
            } => {
                self.leave(thread, method);
                self.used_exceptions.insert(exception);
                let key = (method.to_string(), exception.to_string());
                *self.run.bubbles.entry(key).or_default() += 1;
            }
            AgentMessage::Exception {
                method,
                exception,
                line,
                thread,
                ..
            } => {
                let innermost = self.stacks.entry(thread).or_default().last();
                let open = innermost.map(|&(open, _)| open);
                assert_eq!(open, Some(method), "a method threw on thread {thread}");
                self.used_exceptions.insert(exception);
                let key = (method.to_string(), exception.to_string(), line);
                *self.run.throws.entry(key).or_default() += 1;
            }
            AgentMessage::Marker {
                at_ms, key, value, ..
            } => {
                let marker = (at_ms, key.into_owned(), value.into_owned());
                self.run.markers.push(marker);
            }
            message => panic!("a message with a sequence id: {message:?}"),
        }
    }

    fn enter(&mut self, thread: u16, method: u32) {
        self.used_methods.insert(method);
        let stack = self.stacks.entry(thread).or_default();
        let parent = stack.last().map_or(0, |&(_, node)| node);
        let node = *self.nodes.entry((parent, method)).or_insert_with(|| {
            self.tree.push((parent, method, 0));
            self.tree.len() as Node
        });
        self.tree[node as usize - 1].2 += 1;
        stack.push((method, node));
    }

    fn leave(&mut self, thread: u16, method: u32) {
        let next = self.next.wrapping_sub(1);
        let left = self.stacks.entry(thread).or_default().pop();
        let left = left.map(|(method, _)| method);
        assert_eq!(left, Some(method), "left on thread {thread} at {next}");
    }
}

impl Run {
    /// Entries of all methods.
    pub fn total(&self) -> u64 {
        self.entries.values().sum()
    }

    /// Values of the markers with a key.
    pub fn marked<'r>(&'r self, key: &'r str) -> impl Iterator<Item = &'r str> {
        let markers = self
            .markers
            .iter()
            .filter(move |(_, found, _)| found == key);
        markers.map(|(_, _, value)| &**value)
    }
}

/// What two names of a number say of the thread's process, if both do: `web [100/101]`. What it runs in
/// (`web [100/101 in shop]`) can become known later.
fn both<'n>(before: &'n str, now: &'n str) -> Option<(&'n str, &'n str)> {
    let owner = |name: &'n str| {
        let owner = name.strip_suffix(']')?.rsplit_once(" [")?.1;
        Some(owner.split_once(" in ").map_or(owner, |parts| parts.0))
    };
    Some((owner(before)?, owner(now)?))
}

fn number(text: &str) -> u32 {
    match text.parse() {
        Ok(number) => number,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// The same values under other keys; those of equal keys are added.
fn rename<K: Ord, V: Sum>(map: BTreeMap<K, V>, name: impl Fn(K) -> K) -> BTreeMap<K, V> {
    let mut renamed = BTreeMap::new();
    for (key, value) in map {
        V::add(renamed.entry(name(key)).or_default(), value);
    }
    renamed
}

trait Sum: Default {
    fn add(&mut self, more: Self);
}

impl Sum for u64 {
    fn add(&mut self, more: u64) {
        *self += more;
    }
}

impl Sum for BTreeMap<u16, u64> {
    fn add(&mut self, more: Self) {
        for (line, count) in more {
            *self.entry(line).or_default() += count;
        }
    }
}
