//! Where samples and waits are: a function, or what is known in its place.
//!
//! A stack of a session that runs -> a [`Place`]; [`Tables`] -> what it is called by now. Names come later than
//! the samples that lie in them, so a frame without one is looked at again with each frame that is drawn. What does
//! not belong here: sums (`window`).

use crate::derive::{DisplayFrame, Functions, frame_lines};
use profiler_model::*;

/// Where samples and waits are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// A function.
    Function(FunctionId),
    /// Code that no function is known of, yet.
    Code(FrameId),
    /// There is no stack.
    NoStack,
    /// There was no room for one more.
    Others,
}

impl Place {
    /// Of a frame.
    pub(super) fn of(frame: Option<&DisplayFrame<'_>>, functions: &Functions) -> Place {
        match frame {
            Some(frame) => match frame.function {
                Some(id) => Place::Function(functions.same(id)),
                None => Place::Code(frame.frame),
            },
            None => Place::NoStack,
        }
    }

    /// As it is known by now.
    pub(super) fn named(self, tables: &Tables, functions: &Functions) -> Place {
        match self {
            Place::Function(id) => Place::Function(functions.same(id)),
            Place::Code(frame) => Place::of(frame_lines(tables, frame).next().as_ref(), functions),
            Place::NoStack | Place::Others => self,
        }
    }

    /// What it is called, and the path of its module.
    pub(super) fn texts(self, tables: &Tables, functions: &Functions) -> (String, String) {
        let path = |module: Option<ModuleId>| {
            let module = module.and_then(|id| tables.modules.get(id));
            module.map_or_else(String::new, |module| tables.string(module.path).to_owned())
        };
        match self {
            Place::Function(id) => {
                let function = tables.functions.get(id);
                let module = function.and_then(|function| function.module);
                (functions.name(tables, id).into_owned(), path(module))
            }
            Place::Code(frame) => {
                let module = tables.frames.get(frame).and_then(|frame| frame.module);
                (tables.frame_location(frame), path(module))
            }
            Place::NoStack => ("[no stack]".to_owned(), String::new()),
            Place::Others => ("[others]".to_owned(), String::new()),
        }
    }
}
