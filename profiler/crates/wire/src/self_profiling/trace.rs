//! A ProfilerTrace: stacks of frames -> tables in which each thing is once -> JSON.
//!
//! `{resources:[string], frames:[{name,resourceId?,line?,column?}], stacks:[{parentId?,frameId}],
//! samples:[{timestamp,stackId?}]}`. What is not known is left out. Parents come before children. Samples may have any
//! ids of their own for stacks until the trace is written. Timestamps are nanoseconds here, milliseconds there. What
//! does not belong here: when samples are taken, whose frames are withheld.

use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;

/// A frame. Lines and columns begin with 1, and are those where its function is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// Name of its function; empty if it has none.
    pub name: &'a str,
    /// What it is defined in.
    pub resource: Option<&'a str>,
    /// The line.
    pub line: Option<u32>,
    /// The column.
    pub column: Option<u32>,
}

/// A stack of a [`Trace`]: its innermost frame's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// Samples and what they are of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trace {
    resources: Elements<Box<str>>,
    frames: Elements<FrameElement>,
    stacks: Elements<StackElement>,
    samples: Vec<SampleElement>,
}

/// The trace of one thread among several, and whose it is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadTrace {
    /// Its process.
    pub pid: u32,
    /// That one's name.
    pub process: Box<str>,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub thread: Box<str>,
    /// The effective one, in milliseconds.
    pub sample_interval: f64,
    /// The trace ends where its buffer was full.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub buffer_full: bool,
    /// The trace.
    pub trace: Trace,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameElement {
    name: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
struct StackElement {
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<u32>,
    frame_id: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SampleElement {
    timestamp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack_id: Option<u32>,
}

/// Nanoseconds as a DOMHighResTimeStamp.
pub fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Trace {
    /// The stack of these frames, outermost first; none that are withheld. No frames: no stack.
    pub fn stack<'f>(&mut self, frames: impl IntoIterator<Item = Frame<'f>>) -> Option<StackId> {
        let mut parent_id = None;
        for frame in frames {
            let resource_id = frame
                .resource
                .map(|resource| self.resources.id(resource.into()));
            let frame_id = self.frames.id(FrameElement {
                name: frame.name.into(),
                resource_id,
                line: frame.line,
                column: frame.column,
            });
            parent_id = Some(self.stacks.id(StackElement {
                parent_id,
                frame_id,
            }));
        }
        parent_id.map(StackId)
    }

    /// Adds a sample, at so many nanoseconds since the time origin.
    pub fn sample(&mut self, since_origin_ns: u64, stack: Option<StackId>) {
        self.samples.push(SampleElement {
            timestamp: milliseconds(since_origin_ns),
            stack_id: stack.map(|StackId(id)| id),
        });
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }
}

/// A list in which each element is once, by what it is made of.
#[derive(Clone, Debug)]
struct Elements<T> {
    list: Vec<T>,
    /// Hashed with a key: names and resources are others' texts.
    ids: HashMap<T, u32>,
}

impl<T> Default for Elements<T> {
    fn default() -> Elements<T> {
        Elements {
            list: Vec::new(),
            ids: HashMap::default(),
        }
    }
}

impl<T: Clone + Eq + Hash> Elements<T> {
    /// The element ID of an item.
    fn id(&mut self, item: T) -> u32 {
        if let Some(id) = self.ids.get(&item) {
            return *id;
        }
        let id = self.list.len() as u32;
        self.list.push(item.clone());
        self.ids.insert(item, id);
        id
    }
}

impl<T: Serialize> Serialize for Elements<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frame(name: &str) -> Frame<'_> {
        Frame {
            name,
            resource: None,
            line: None,
            column: None,
        }
    }

    #[test]
    fn each_thing_is_there_once_and_parents_come_first() {
        let mut trace = Trace::default();
        let main = Frame {
            resource: Some("/a.c"),
            line: Some(3),
            column: Some(1),
            ..frame("main")
        };
        let deep = trace.stack([main, frame("f"), frame("g")]);
        trace.sample(0, trace.stacks.list.first().map(|_| StackId(0)));
        trace.sample(1_500_000, deep);
        trace.sample(2_500_000, None);
        let again = trace.stack([main, frame("f")]);
        trace.sample(10_000_001, again);
        let other = trace.stack([Frame { line: None, ..main }]);
        trace.sample(11_000_000, other);
        let expected = json!({
            "resources": ["/a.c"],
            "frames": [
                { "name": "main", "resourceId": 0, "line": 3, "column": 1 },
                { "name": "f" },
                { "name": "g" },
                { "name": "main", "resourceId": 0, "column": 1 },
            ],
            "stacks": [
                { "frameId": 0 },
                { "parentId": 0, "frameId": 1 },
                { "parentId": 1, "frameId": 2 },
                { "frameId": 3 },
            ],
            "samples": [
                { "timestamp": 0.0, "stackId": 0 },
                { "timestamp": 1.5, "stackId": 2 },
                { "timestamp": 2.5 },
                { "timestamp": 10.000001, "stackId": 1 },
                { "timestamp": 11.0, "stackId": 3 },
            ],
        });
        assert_eq!(serde_json::to_value(&trace).unwrap(), expected);
        assert_eq!(trace.samples(), 5);
    }

    #[test]
    fn without_frames_there_is_no_stack() {
        let mut trace = Trace::default();
        assert_eq!(trace.stack([]), None);
        let empty = json!({ "resources": [], "frames": [], "stacks": [], "samples": [] });
        assert_eq!(serde_json::to_value(&trace).unwrap(), empty);
    }

    #[test]
    fn recursion_is_a_stack_of_its_own_depth() {
        let mut trace = Trace::default();
        let once = trace.stack([frame("f")]);
        let twice = trace.stack([frame("f"), frame("f")]);
        assert_eq!((once, twice), (Some(StackId(0)), Some(StackId(1))));
        assert_eq!((trace.frames.list.len(), trace.stacks.list.len()), (1, 2));
    }
}
