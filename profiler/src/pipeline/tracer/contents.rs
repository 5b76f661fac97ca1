//! What object files hold, read here if only root can change them, else by a process that has nothing to lose.
//!
//! A file and what is asked for -> [`Contents`]: what is chosen in it, and later the plans of that. Files of others are
//! not parsed here: questions and answers are JSON (`resolve::Questions`), and what was read stays with who read it
//! until it is planned. Answers are believed as little as the files; a file without one is not traced.
//!
//! What does not belong here: what is planned of an object (`planned`), what becomes of it (`plans`).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::filter::PathFilter;
use super::planned::{Judged, Planned, exits, plan};
use profiler_object::{Function, Object};
use profiler_resolve::objects::{TargetObject, read_object};
use profiler_resolve::{Answering, Questions};
use profiler_trace::Exits;
use profiler_trace::cost::CostTable;
use profiler_trace::pattern::{Choice, Seen, Selection};
use profiler_trace::place::{PlaceOptions, ProbeAt, Returns};
use profiler_trace::safety::ProcessSafety;

/// How long a question may take: more for large files.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes that are read in a second, at the least.
const SLOWEST: u64 = 16 << 20;
/// No file is waited for longer.
const MAX_PATIENCE: Duration = Duration::from_secs(120);
/// Objects that stay with who read them until they are planned.
const MAX_HELD: usize = 64;

const NONSENSE: &str = "reading it gave nonsense";

/// A file that was read, and what is chosen in it.
pub(super) struct Contents {
    /// What it says of the processes that map it.
    pub(super) judged: Judged,
    /// What is chosen.
    pub(super) choice: Choice,
    /// What the patterns found.
    pub(super) seen: Seen,
    held: Held,
}

/// Where its object is.
enum Held {
    Here(Box<Object>),
    /// With the process. Names of what was chosen, if a filter wants them.
    Apart(Names),
}

/// Names of what is chosen, in the order of the choice.
#[derive(Default, Serialize, Deserialize)]
struct Names {
    functions: Vec<Box<str>>,
    markers: Vec<Box<str>>,
}

/// What is asked for, as it is told to the process.
#[derive(Clone, Serialize, Deserialize)]
struct Wanted {
    path: Box<str>,
    aliases: Vec<Box<str>>,
    is_main: bool,
    include: Vec<String>,
    exclude: Vec<String>,
    sources: Vec<String>,
    at: ProbeAt,
    returns: Returns,
    costs: CostTable,
    arguments: Option<usize>,
    names: bool,
}

#[derive(Serialize, Deserialize)]
enum Question {
    /// What is chosen, of processes of which this is known?
    Choose(ProcessSafety),
    /// How is what was chosen to be traced?
    Plan(Choice, ProcessSafety),
    /// How are the exits of these seen now?
    Exits(Vec<Function>, ProcessSafety),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Unreadable(String),
    Chosen(Box<(Judged, Choice, Seen, Names)>),
    Planned(Planned),
    Exits(Vec<Option<Exits>>),
}

/// Reads object files.
#[derive(Debug)]
pub(super) struct Reader(Questions);

impl Reader {
    pub(super) fn new() -> Reader {
        Reader(Questions::new(answering))
    }

    /// Reads a file, with its debug file if it is `wanted`, and chooses in it what is asked for.
    pub(super) fn read(
        &mut self,
        asked: &Asked,
        target: &TargetObject,
        wanted: bool,
        before: &ProcessSafety,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Contents, String> {
        let debug = target.debug.as_deref().filter(|_| wanted);
        let (judged, choice, seen, held) = match target.owner {
            None => {
                let object = target.read(debug).map_err(|error| error.to_string())?;
                let selection = &asked.request.selection;
                let (judged, choice, seen) = choose(selection, &object, target.is_main, before);
                (judged, choice, seen, Held::Here(Box::new(object)))
            }
            Some(owner) => {
                let question = Question::Choose(before.clone());
                match self.ask(owner, asked, target, debug, question, given_up)? {
                    Answer::Chosen(all) => {
                        let (judged, choice, seen, names) = *all;
                        (judged, choice, seen, Held::Apart(names))
                    }
                    other => return Err(other.why()),
                }
            }
        };
        Ok(Contents {
            judged,
            choice,
            seen,
            held,
        })
    }

    /// Plans what is chosen in a file, until it is `given_up`.
    pub(super) fn plan(
        &mut self,
        asked: &Asked,
        target: &TargetObject,
        contents: &Contents,
        safety: &ProcessSafety,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Planned, String> {
        let choice = &contents.choice;
        match (&contents.held, target.owner) {
            (Held::Here(object), _) => {
                let (options, arguments) = (asked.place_options(), asked.request.arguments);
                Ok(plan(options, arguments, object, choice, safety, given_up))
            }
            (Held::Apart(_), owner) => {
                let question = Question::Plan(choice.clone(), safety.clone());
                let debug = target.debug.as_deref();
                let owner = owner.unwrap_or(u32::MAX);
                match self.ask(owner, asked, target, debug, question, given_up)? {
                    Answer::Planned(planned) if planned.is_sound() => Ok(planned),
                    other => Err(other.why()),
                }
            }
        }
    }

    /// How the exits of functions of a file are seen now that this is known of its processes; none: not at all.
    pub(super) fn exits(
        &mut self,
        asked: &Asked,
        target: &TargetObject,
        functions: Vec<Function>,
        safety: &ProcessSafety,
    ) -> Result<Vec<Option<Exits>>, String> {
        let debug = target.debug.as_deref();
        let Some(owner) = target.owner else {
            let object = target.read(debug).map_err(|error| error.to_string())?;
            return Ok(exits(asked.place_options(), &object, &functions, safety));
        };
        let count = functions.len();
        let question = Question::Exits(functions, safety.clone());
        match self.ask(owner, asked, target, debug, question, &|| false)? {
            Answer::Exits(exits) if exits.len() == count => Ok(exits),
            other => Err(other.why()),
        }
    }

    fn ask(
        &mut self,
        owner: u32,
        asked: &Asked,
        target: &TargetObject,
        debug: Option<&File>,
        question: Question,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Answer, String> {
        let files: Vec<BorrowedFd<'_>> = std::iter::once(&*target.file)
            .chain(debug)
            .map(AsFd::as_fd)
            .collect();
        let stats = files.iter().filter_map(|file| rustix::fs::fstat(file).ok());
        let bytes = stats.fold(0_u64, |sum, stat| {
            sum.saturating_add(stat.st_size.cast_unsigned())
        });
        let patience = PATIENCE + Duration::from_secs(bytes / SLOWEST);
        let patience = patience.min(MAX_PATIENCE);
        let question = serde_json::to_vec(&(Wanted::of(asked, target), question))
            .map_err(|error| error.to_string())?;
        let answer = self.0.ask(owner, &question, &files, patience, given_up)?;
        serde_json::from_slice(&answer).map_err(|_| NONSENSE.to_owned())
    }
}

impl Answer {
    /// Why there is no other answer.
    fn why(self) -> String {
        match self {
            Answer::Unreadable(why) => why,
            _ => NONSENSE.to_owned(),
        }
    }
}

impl Contents {
    /// Takes out of what is chosen what a filter does not admit. Says whether that was all of it.
    pub(super) fn sift(&mut self, target: &TargetObject, filter: Option<&PathFilter>) -> bool {
        let Some(filter) = filter else { return false };
        let choice = &mut self.choice;
        let was_empty = choice.is_empty();
        match &self.held {
            Held::Here(object) => {
                let admits = |of: &[Function], index: usize| {
                    let function = of.get(index);
                    function.is_some_and(|function| filter.admits(target, &function.name))
                };
                let (functions, markers) = (object.functions(), object.markers());
                choice.functions.retain(|&index| admits(functions, index));
                choice.markers.retain(|&index| admits(markers, index));
            }
            Held::Apart(names) => {
                let sift = |indices: &mut Vec<usize>, names: &[Box<str>]| {
                    let mut names = names.iter();
                    indices.retain(|_| {
                        let name = names.next();
                        name.is_some_and(|name| filter.admits(target, name))
                    });
                };
                sift(&mut choice.functions, &names.functions);
                sift(&mut choice.markers, &names.markers);
            }
        }
        !was_empty && choice.is_empty()
    }
}

impl Wanted {
    fn of(asked: &Asked, target: &TargetObject) -> Wanted {
        fn texts<T: ToString>(all: &[T]) -> Vec<String> {
            all.iter().map(ToString::to_string).collect()
        }
        let selection = &asked.request.selection;
        Wanted {
            path: target.path.clone(),
            aliases: target.aliases.clone(),
            is_main: target.is_main,
            include: texts(&selection.include),
            exclude: texts(&selection.exclude),
            sources: texts(&selection.sources),
            at: asked.request.at,
            returns: asked.request.returns,
            costs: asked.costs.clone(),
            arguments: asked.request.arguments,
            names: asked.request.filter.is_some(),
        }
    }

    /// The patterns, as they were parsed before.
    fn selection(&self) -> Option<Selection> {
        fn parsed<T: std::str::FromStr>(texts: &[String]) -> Option<Vec<T>> {
            texts.iter().map(|text| text.parse().ok()).collect()
        }
        Some(Selection {
            include: parsed(&self.include)?,
            exclude: parsed(&self.exclude)?,
            sources: parsed(&self.sources)?,
        })
    }

    fn options(&self) -> PlaceOptions<'_> {
        PlaceOptions {
            at: self.at,
            returns: self.returns,
            costs: &self.costs,
        }
    }
}

fn choose(
    selection: &Selection,
    object: &Object,
    is_main: bool,
    before: &ProcessSafety,
) -> (Judged, Choice, Seen) {
    let judged = Judged::of(object, before);
    let choice = selection.select(object, is_main);
    let seen = Seen::of(selection, object, is_main, &choice);
    (judged, choice, seen)
}

/// Objects that were read and are still to be planned, by device and number of their files.
type Objects = FxHashMap<(u64, u64), Object>;

/// Answers the questions of a [`Reader`], in the process that reads files of others.
pub fn answering() -> Answering {
    let mut objects = Objects::default();
    Box::new(move |question, files| {
        let (wanted, question) = serde_json::from_slice(question).ok()?;
        let mut files = files.into_iter().map(File::from);
        let (file, debug) = (files.next()?, files.next());
        let answer = answer(&mut objects, &wanted, question, &file, debug.as_ref())?;
        serde_json::to_vec(&answer).ok()
    })
}

fn answer(
    objects: &mut Objects,
    wanted: &Wanted,
    question: Question,
    file: &File,
    debug: Option<&File>,
) -> Option<Answer> {
    let stat = rustix::fs::fstat(file).ok()?;
    let id = (stat.st_dev, stat.st_ino);
    // What was chosen by its index is planned in what was read then.
    let object = match objects.remove(&id) {
        Some(object) => Ok(object),
        None => read_object(file, debug, &wanted.path, &wanted.aliases),
    };
    let object = match object {
        Ok(object) => object,
        Err(error) => return Some(Answer::Unreadable(error.to_string())),
    };
    Some(match question {
        Question::Choose(before) => {
            let selection = wanted.selection()?;
            let (judged, choice, seen) = choose(&selection, &object, wanted.is_main, &before);
            let mut names = Names::default();
            if wanted.names {
                let named = |of: &[Function], indices: &[usize]| {
                    let of = indices.iter().filter_map(|&index| of.get(index));
                    of.map(|function| function.name.clone()).collect()
                };
                names.functions = named(object.functions(), &choice.functions);
                names.markers = named(object.markers(), &choice.markers);
            }
            if objects.len() < MAX_HELD {
                objects.insert(id, object);
            }
            Answer::Chosen(Box::new((judged, choice, seen, names)))
        }
        Question::Plan(choice, safety) => {
            let (options, arguments) = (wanted.options(), wanted.arguments);
            let planned = plan(options, arguments, &object, &choice, &safety, &|| false);
            Answer::Planned(planned)
        }
        Question::Exits(functions, safety) => {
            Answer::Exits(exits(wanted.options(), &object, &functions, &safety))
        }
    })
}

#[cfg(test)]
mod tests;
