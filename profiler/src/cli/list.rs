//! `list`: what can be traced, in which processes, and which containers there are.
//!
//! Targets and patterns -> objects, what the patterns choose of them, and a table.

mod containers;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand};

use crate::error::{FAILED, Failure};
use crate::pipeline::{COSTS, renounce};
use profiler_model::Pid;
use profiler_object::Object;
use profiler_report::view::list::{
    ListOptions, Listed, ListedProcess, State, write_functions, write_markers, write_processes,
};
use profiler_report::view::pager::Output;
use profiler_report::view::term::{self, Paint};
use profiler_resolve::objects::{Finder, TargetObject, processes};
use profiler_trace::cost::CostTable;
use profiler_trace::pattern::{Choice, Coverage, Pattern, Seen, Selection, SourcePattern};
use profiler_trace::place::{PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Function, Refusal};

use super::{Common, values};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler list functions -p 1234 'libc:mal*'
  profiler list functions 'app:handle_*' 'libc:/^(open|read)$/' -- ./app
  profiler list functions --object ./app --trace-source 'net/*.c'
  profiler list usdt -p 1234
  profiler list containers 'web*'
  profiler list processes")]
pub(super) struct ListArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Functions: where each probe would sit, what it costs, or why there can be none
    Functions(FunctionsArgs),
    /// Markers that authors left for tracers (USDT)
    Usdt(UsdtArgs),
    /// Containers and pods that can be recorded: name, id, engine, image, processes
    Containers(containers::ContainersArgs),
    /// Processes that can be recorded
    Processes(ProcessesArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
PATTERN is [OBJECT:]FUNCTION. OBJECT is main (the executable), a file name with or without its \
version (libc, libc.so.6), or a path; FUNCTION a glob over the whole name, with or without \
parameters and template arguments, or a /REGEX/ over a part of it; of several functions of one name \
as a report tells them apart: 'work (net.c)', 'work (0x1240)'. A single colon separates, '::' \
belongs to a name; a backslash takes the meaning of the character behind it away.
Without a pattern: all functions of the executable, or of the objects named by --object.")]
struct FunctionsArgs {
    /// What to list: libc:malloc, 'app:ns::*', '/^handle_/'
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    /// But not these
    #[arg(long, value_name = "PATTERN")]
    no_trace: Vec<String>,
    /// Only what was written in these files: net.c, 'net/*.c', '/src/app/*'
    #[arg(long, value_name = "GLOB")]
    trace_source: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
struct UsdtArgs {
    /// What to list: PROVIDER:NAME, globs in both
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
struct ProcessesArgs {
    /// Only these: a part of the name or of the command
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    #[command(flatten)]
    look: LookArgs,
}

/// Of what.
#[derive(Debug, Args)]
struct TargetArgs {
    /// Of what these processes have mapped
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = values::id)]
    pid: Vec<u32>,
    /// Of these files; with -p, as that process sees them
    #[arg(long, value_name = "FILE")]
    object: Vec<PathBuf>,
    /// Folders with separate debug files
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/debug", value_parser = values::debug_folder())]
    debug_dir: Vec<PathBuf>,
    /// Of what this command will load; it is not run
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "object"])]
    command: Vec<OsString>,
}

/// How.
#[derive(Debug, Args)]
struct LookArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Don't page on a terminal
    #[arg(long)]
    no_pager: bool,
}

/// Lists; the status says whether anything was found.
pub(super) fn list(args: ListArgs, common: &Common) -> Result<u8, Failure> {
    match args.what {
        What::Functions(args) => functions(args, common),
        What::Usdt(args) => markers(args, common),
        What::Containers(args) => containers::containers(&args, common),
        What::Processes(args) => list_processes(&args, common),
    }
}

fn functions(args: FunctionsArgs, common: &Common) -> Result<u8, Failure> {
    let objects = args.target.objects()?;
    let mut include = parse::<Pattern>(&args.patterns)?;
    let sources = parse::<SourcePattern>(&args.trace_source)?;
    if include.is_empty() && sources.is_empty() {
        let of_object = args.target.object.is_empty();
        let all = if of_object { "main:*" } else { "*" };
        include = parse(&[all.to_owned()])?;
    }
    if include.iter().any(Pattern::is_marker) {
        return Err(Failure::usage("markers are listed by: profiler list usdt"));
    }
    let selection = Selection {
        include,
        exclude: parse(&args.no_trace)?,
        sources,
    };
    let costs = CostTable::load(Path::new(COSTS)).unwrap_or_else(CostTable::assumed);
    let mut pids = args.target.pid.iter();
    let makes_code = pids.any(|&pid| profiler_resolve::makes_code(Pid(pid)));
    // All is open: whatever is wrong with a file meets a process that may do nothing.
    renounce(&[]);
    // Files alone say nothing of what else runs where they do.
    let safety = match args.target.object.is_empty() {
        true => safety_of(&objects, makes_code),
        false => ProcessSafety::unknown(),
    };
    let mut rows = Vec::new();
    let missing = search(&objects, &selection, |object, is_main, choice| {
        let chosen = choice.functions.iter();
        let chosen = chosen.filter_map(|&index| object.functions().get(index));
        let chosen: Vec<&Function> = chosen.collect();
        let states = placements(object, &chosen, &costs, &safety);
        let name = file_name(object.path());
        // Functions of one name are told apart by their files.
        let named = || !args.target.object.is_empty() && share_names(&chosen);
        let debug_info = selection.reads_debug_info(object, is_main) || named();
        for (&function, state) in chosen.iter().zip(states) {
            let mut function = function.clone();
            let mut inlined_at = 0;
            if debug_info {
                inlined_at = object.inlined_at(&function);
                function.source = object.source_of(&function).map(Into::into);
            }
            rows.push(Listed {
                object: name.into(),
                name: function.name.clone(),
                function: Some(function),
                inlined_at,
                state,
            });
        }
        let nowhere = |name_of: &str, state| Listed {
            object: name.into(),
            name: name_of.into(),
            function: None,
            inlined_at: 0,
            state,
        };
        let inlined = choice.inlined.iter();
        rows.extend(inlined.map(|name| nowhere(name, State::Refused(Refusal::NoCode))));
        let chosen_at_load = choice.chosen_at_load.iter();
        rows.extend(chosen_at_load.map(|name| nowhere(name, State::ChosenAtLoad)));
    })?;
    show(&rows, &missing, &args.look, common, write_functions)
}

/// Whether several functions have one name.
fn share_names(functions: &[&Function]) -> bool {
    let mut names: Vec<&str> = functions.iter().map(|function| &*function.name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

fn markers(args: UsdtArgs, common: &Common) -> Result<u8, Failure> {
    let objects = args.target.objects()?;
    renounce(&[]);
    let mut patterns = args.patterns;
    let all = patterns.is_empty();
    if all {
        patterns.push("*:*".to_owned());
    }
    let with_prefix = |text: &String| match text.contains("usdt:") {
        true => text.clone(),
        false => format!("usdt:{text}"),
    };
    let patterns: Vec<String> = patterns.iter().map(with_prefix).collect();
    let selection = Selection {
        include: parse(&patterns)?,
        ..Selection::default()
    };
    let mut rows = Vec::new();
    let mut missing = search(&objects, &selection, |object, _, choice| {
        let chosen = choice.markers.iter();
        let chosen = chosen.filter_map(|&index| object.markers().get(index));
        rows.extend(chosen.map(|marker| Listed {
            object: file_name(object.path()).into(),
            name: marker.name.clone(),
            function: Some(marker.clone()),
            inlined_at: 0,
            state: State::Found,
        }));
    })?;
    if all {
        // That there are none is said by their count.
        missing.clear();
    }
    show(&rows, &missing, &args.look, common, write_markers)
}

fn list_processes(args: &ProcessesArgs, common: &Common) -> Result<u8, Failure> {
    let own = std::process::id();
    let wanted = |process: &ListedProcess| {
        let text = args.text.as_deref().unwrap_or_default();
        process.pid != own && (process.name.contains(text) || process.command.contains(text))
    };
    let found: Vec<ListedProcess> = processes()
        .into_iter()
        .map(|process| ListedProcess {
            pid: process.pid.0,
            uid: process.uid,
            name: process.name,
            command: process.command.or(process.executable).unwrap_or_default(),
        })
        .filter(wanted)
        .collect();
    let mut out = Output::open(!args.look.json && !args.look.no_pager);
    write_processes(&found, args.look.options(common), &mut out)?;
    out.close()?;
    Ok(if found.is_empty() { FAILED } else { 0 })
}

/// What may be done to processes that map these objects; `makes_code`: and make code while they run.
fn safety_of(objects: &[TargetObject], makes_code: bool) -> ProcessSafety {
    let mut safety = ProcessSafety::of([], makes_code);
    for target in objects {
        match Object::read(&target.file, None, &target.path) {
            Ok(object) => {
                safety.add(&object);
            }
            // What can't be read can't be vouched for.
            Err(_) => return ProcessSafety::unknown(),
        }
    }
    safety
}

/// What tracing each of an object's functions means, as `record` would do it.
fn placements(
    object: &Object,
    functions: &[&Function],
    costs: &CostTable,
    safety: &ProcessSafety,
) -> Vec<State> {
    let options = PlaceOptions {
        at: ProbeAt::Cheapest,
        returns: Returns::Auto,
        costs,
    };
    let mut placer = Placer::new(object, options, safety);
    functions
        .iter()
        .map(|function| match placer.plan(function) {
            Ok(plan) => State::Placed {
                entry_ns: costs.entry_ns(plan.entry.kind),
                plan: Box::new(plan),
            },
            Err(refusal) => State::Refused(refusal),
        })
        .collect()
}

/// Reads the objects that may be meant and hands on what is chosen of each; says what is missing.
fn search(
    objects: &[TargetObject],
    selection: &Selection,
    mut found: impl FnMut(&Object, bool, &Choice),
) -> Result<Vec<String>, Failure> {
    // An object whose file has another name may still be meant by its name for the dynamic linker.
    let by_path = |pattern: &Pattern| {
        let mut objects = objects.iter();
        objects.any(|object| pattern.may_cover(&object.path, object.is_main))
    };
    let by_path = selection.include.iter().all(by_path);
    let mut coverage = Coverage::new(selection);
    for target in objects {
        if by_path && !selection.may_cover(&target.path, target.is_main) {
            coverage.skip(&target.path);
            continue;
        }
        let object = match target.read(target.debug.as_deref()) {
            Ok(object) => object,
            Err(error) if objects.len() == 1 => return Err(error.into()),
            Err(error) => {
                say!("profiler: {error}");
                coverage.skip(&target.path);
                continue;
            }
        };
        let choice = selection.select(&object, target.is_main);
        coverage.add(Seen::of(selection, &object, target.is_main, &choice));
        found(&object, target.is_main, &choice);
    }
    let complaints = coverage.complaints();
    Ok(complaints.iter().map(ToString::to_string).collect())
}

fn show(
    rows: &[Listed],
    missing: &[String],
    look: &LookArgs,
    common: &Common,
    write: impl Fn(&[Listed], &[String], ListOptions, &mut dyn io::Write) -> io::Result<()>,
) -> Result<u8, Failure> {
    let mut out = Output::open(!look.json && !look.no_pager);
    write(rows, missing, look.options(common), &mut out)?;
    out.close()?;
    for missing in missing {
        say!("profiler: {missing}");
    }
    Ok(if rows.is_empty() { FAILED } else { 0 })
}

impl TargetArgs {
    /// The objects that are meant, each file once.
    fn objects(&self) -> Result<Vec<TargetObject>, Failure> {
        let mut finder = Finder::new(self.debug_dir.clone());
        let mut objects: Vec<TargetObject> = Vec::new();
        let mut add = |more: Vec<TargetObject>| {
            for object in more {
                if !objects.iter().any(|known| known.id == object.id) {
                    objects.push(object);
                }
            }
        };
        let pids = self.pid.iter().map(|&pid| Pid(pid));
        if let Some(program) = self.command.first() {
            add(finder.objects_of_command(Path::new(program))?);
        } else if !self.object.is_empty() {
            let pids: Vec<Option<Pid>> = match self.pid.is_empty() {
                true => vec![None],
                false => pids.map(Some).collect(),
            };
            for pid in pids {
                for path in &self.object {
                    add(vec![finder.object_at(path, pid)?]);
                }
            }
        } else if self.pid.is_empty() {
            return Err(Failure::usage(
                "say of what: -p PID, --object FILE, or a command behind --",
            ));
        } else {
            for pid in pids {
                add(finder.objects_of(pid)?);
            }
        }
        Ok(objects)
    }
}

impl LookArgs {
    fn options(&self, common: &Common) -> ListOptions {
        ListOptions {
            json: self.json,
            width: io::stdout()
                .is_terminal()
                .then(|| term::width(io::stdout()))
                .flatten(),
            paint: Paint::new(common.color.resolve(io::stdout())),
        }
    }
}

fn parse<T: FromStr<Err: ToString>>(texts: &[String]) -> Result<Vec<T>, Failure> {
    let parsed = texts.iter().map(|text| text.parse::<T>());
    let parsed: Result<Vec<T>, T::Err> = parsed.collect();
    parsed.map_err(|error| Failure::usage(error.to_string()))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
