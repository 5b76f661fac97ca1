//! What functions ask of each other's control flow, each followed once.
//!
//! A function -> its [`Flow`] without what only its own probes need (instructions, places that are
//! jumped to). Whether a function may have a return probe depends on those that it calls and jumps on
//! to, so that a whole library is asked for many times over.
//!
//! What does not belong here: following code (`walk`), what follows from it (`safety`,
//! `return_address`).

use std::{collections::HashMap, rc::Rc};

use rustc_hash::FxBuildHasher;

use super::{CodeSource, Flow, recover};
use crate::Function;

/// Most outlines that are kept.
const MAX_KEPT: usize = 1 << 16;

/// Outlines of the functions of one object.
pub struct Outlines<'a> {
    source: &'a dyn CodeSource,
    /// By address and length.
    known: HashMap<(u64, u64), Rc<Flow>, FxBuildHasher>,
}

impl<'a> Outlines<'a> {
    /// For the functions of one object.
    pub fn of(source: &'a dyn CodeSource) -> Outlines<'a> {
        Outlines {
            source,
            known: HashMap::default(),
        }
    }

    /// The outline of a function.
    pub fn get(&mut self, function: &Function) -> Rc<Flow> {
        if let Some(known) = self.known.get(&(function.address, function.size)) {
            return Rc::clone(known);
        }
        self.add(function, &recover(self.source, function))
    }

    /// Takes over the control flow of a function that was followed already.
    pub fn add(&mut self, function: &Function, flow: &Flow) -> Rc<Flow> {
        let outline = Rc::new(Flow {
            instructions: Vec::new(),
            targets: Vec::new(),
            exits: flow.exits.clone(),
            self_jumps: flow.self_jumps.clone(),
            calls: flow.calls.clone(),
            runs_on: flow.runs_on.clone(),
            ..*flow
        });
        if self.known.len() >= MAX_KEPT {
            self.known.clear();
        }
        self.known
            .insert((function.address, function.size), Rc::clone(&outline));
        outline
    }
}
