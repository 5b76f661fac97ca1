//! `profiler list`: what could be traced, where its probes would sit, and what each call would pay.
//!
//! Input: functions and markers with what was planned for them, processes; output: a table or one
//! JSON object. Addresses are ELF virtual addresses, costs nanoseconds per call. Names are a target's
//! own: nothing in them reaches a terminal as a command.
//!
//! What does not belong here: choosing and planning (`trace`).

mod containers;

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use super::quantity;
use super::table::{Align, Cell, Table};
use super::term::{Paint, Style};
use crate::derive::functions::Ends;
use profiler_trace::{
    Exits, Function, FunctionKind, InstructionKind, Language, NoExits, Plan, Refusal,
};

pub use containers::{ListedContainer, write_containers};

/// A function or marker of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// File name of the object.
    pub object: Box<str>,
    /// Readable name.
    pub name: Box<str>,
    /// Where it is; none if it has no code.
    pub function: Option<Function>,
    /// At how many places it was inlined besides; 0 if not known.
    pub inlined_at: u32,
    /// What tracing it means.
    pub state: State,
}

/// What is known of tracing a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was planned.
    Found,
    /// Where its probes would sit.
    Placed {
        /// The plan.
        plan: Box<Plan>,
        /// What a call would pay if only entries were seen.
        entry_ns: u32,
    },
    /// It can't be traced.
    Refused(Refusal),
    /// It is one of several implementations, chosen when the object is loaded.
    ChosenAtLoad,
}

impl State {
    fn is_traceable(&self) -> bool {
        matches!(self, State::Found | State::Placed { .. })
    }
}

/// A process that can be a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its id.
    pub pid: u32,
    /// User id, where it can be seen.
    pub uid: Option<u32>,
    /// Its name.
    pub name: Box<str>,
    /// Its command line, or its executable.
    pub command: Box<str>,
}

/// How a list is written.
#[derive(Clone, Copy, Debug)]
pub struct ListOptions {
    /// As JSON.
    pub json: bool,
    /// Columns to cut names to; none for a pipe.
    pub width: Option<usize>,
    /// How text is coloured.
    pub paint: Paint,
}

/// Writes functions. `missing`: what was asked for and is not there.
pub fn write_functions(
    listed: &[Listed],
    missing: &[String],
    options: ListOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let untraceable = listed.iter().filter(|row| !row.state.is_traceable());
    let untraceable = untraceable.count() as u64;
    if options.json {
        let functions: Vec<Value> = listed.iter().map(function_json).collect();
        return write_json(
            json!({
                "functions": functions,
                "count": listed.len(),
                "not_traceable": untraceable,
                "missing": missing,
            }),
            out,
        );
    }
    let planned = listed
        .iter()
        .any(|row| matches!(row.state, State::Placed { .. }));
    if !listed.is_empty() {
        match planned {
            true => placed_table(listed).write(out, options.width, options.paint)?,
            false => found_table(listed).write(out, options.width, options.paint)?,
        }
        writeln!(out)?;
    }
    let count = quantity::plural(listed.len() as u64, "function");
    write!(out, "{count}")?;
    match untraceable {
        0 => {}
        _ => write!(
            out,
            ", of which {} can't be traced",
            quantity::count(untraceable)
        )?,
    }
    if planned {
        let count = |which: fn(&Exits) -> bool| {
            let placed = listed.iter().filter(
                |row| matches!(&row.state, State::Placed { plan, .. } if which(&plan.exits)),
            );
            placed.count() as u64
        };
        let by_probes = count(|exits| matches!(exits, Exits::Uretprobe));
        let by_instructions = count(|exits| matches!(exits, Exits::Instructions(_)));
        let blind = count(|exits| matches!(exits, Exits::None(_)));
        write!(
            out,
            "; exits are seen of {} by return probes, of {} by the instructions that leave",
            quantity::count(by_probes),
            quantity::count(by_instructions),
        )?;
        if blind > 0 {
            write!(out, "; of {} only entries are seen", quantity::count(blind))?;
        }
    }
    writeln!(out)
}

/// Writes markers.
pub fn write_markers(
    listed: &[Listed],
    missing: &[String],
    options: ListOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    if options.json {
        let markers: Vec<Value> = listed.iter().map(function_json).collect();
        return write_json(
            json!({"markers": markers, "count": listed.len(), "missing": missing}),
            out,
        );
    }
    if !listed.is_empty() {
        let mut table = Table::new(&[
            ("object", Align::Minor),
            ("marker", Align::Left),
            ("address", Align::Right),
            ("arguments", Align::Left),
            ("", Align::Left),
        ]);
        for row in listed {
            let Some(function) = &row.function else {
                continue;
            };
            let FunctionKind::Marker {
                arguments,
                semaphore,
            } = &function.kind
            else {
                continue;
            };
            table.row([
                Cell::styled(&*row.object, Style::Dim),
                Cell::new(&*row.name),
                Cell::new(format!("{:x}", function.address)),
                Cell::new(&**arguments),
                Cell::styled(
                    semaphore.map_or("", |_| "is switched on by a counter"),
                    Style::Dim,
                ),
            ]);
        }
        table.write(out, options.width, options.paint)?;
        writeln!(out)?;
    }
    writeln!(out, "{}", quantity::plural(listed.len() as u64, "marker"))
}

/// Writes processes.
pub fn write_processes(
    processes: &[ListedProcess],
    options: ListOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    if options.json {
        let list = processes.iter();
        let list: Vec<Value> = list
            .map(|process| {
                json!({
                    "pid": process.pid,
                    "uid": process.uid,
                    "name": process.name,
                    "command": process.command,
                })
            })
            .collect();
        return write_json(json!({"processes": list, "count": processes.len()}), out);
    }
    let mut table = Table::new(&[
        ("pid", Align::Right),
        ("uid", Align::Right),
        ("name", Align::Left),
        ("command", Align::Minor),
    ]);
    for process in processes {
        table.row([
            Cell::new(process.pid.to_string()),
            Cell::new(process.uid.map_or("?".to_owned(), |uid| uid.to_string())),
            Cell::new(&*process.name),
            Cell::styled(&*process.command, Style::Dim),
        ]);
    }
    table.write(out, options.width, options.paint)?;
    let count = processes.len() as u64;
    let word = if count == 1 { "process" } else { "processes" };
    writeln!(out, "\n{} {word}", quantity::count(count))
}

/// Functions of which nothing is known but where they are.
fn found_table(listed: &[Listed]) -> Table {
    let mut table = Table::new(&[
        ("object", Align::Minor),
        ("function", Align::Left),
        ("address", Align::Right),
        ("bytes", Align::Right),
        ("", Align::Left),
    ]);
    for (row, name) in listed.iter().zip(told_apart(listed)) {
        let function = row.function.as_ref();
        table.row([
            Cell::styled(&*row.object, Style::Dim),
            Cell::new(name),
            Cell::new(function.map_or("-".to_owned(), |f| format!("{:x}", f.address))),
            Cell::new(function.map_or("-".to_owned(), |f| size(f.size))),
            note(row),
        ]);
    }
    table
}

fn placed_table(listed: &[Listed]) -> Table {
    let mut table = Table::new(&[
        ("object", Align::Minor),
        ("function", Align::Left),
        ("bytes", Align::Right),
        ("probe at", Align::Left),
        ("entry", Align::Right),
        ("call", Align::Right),
        ("exits", Align::Left),
        ("", Align::Left),
    ]);
    for (row, name) in listed.iter().zip(told_apart(listed)) {
        let function = row.function.as_ref();
        let bytes = function.map_or("-".to_owned(), |f| size(f.size));
        let mut cells = vec![
            Cell::styled(&*row.object, Style::Dim),
            Cell::new(name),
            Cell::new(bytes),
        ];
        match &row.state {
            State::Placed { plan, entry_ns } => {
                let distance = plan.entry.offset.wrapping_sub(plan.function.offset);
                let site = format!("+{distance} {}", instruction(plan.entry.kind));
                cells.extend([
                    Cell::new(site),
                    cost(*entry_ns),
                    cost(plan.cost_ns),
                    Cell::new(exits(&plan.exits)),
                ]);
            }
            _ => cells.extend(["-", "-", "-", "-"].map(Cell::new)),
        }
        cells.push(note(row));
        table.row(cells);
    }
    table
}

/// Names as reports show them, and as patterns take them: functions of one name in an object with the end of their file's
/// path, else with their address.
fn told_apart(listed: &[Listed]) -> Vec<String> {
    /// Functions of one name: how many, and how many of each file.
    #[derive(Default)]
    struct Same<'a> {
        count: usize,
        files: FxHashMap<&'a str, usize>,
    }
    let mut by_name: FxHashMap<(&str, &str), Same> = FxHashMap::default();
    for row in listed {
        let same = by_name.entry((&row.object, &row.name)).or_default();
        same.count += usize::from(row.function.is_some());
        let file = row.function.as_ref().and_then(|of| of.source.as_deref());
        if let Some(file) = file {
            *same.files.entry(file).or_default() += 1;
        }
    }
    let by_name: FxHashMap<_, _> = by_name
        .into_iter()
        .filter(|(_, same)| same.count > 1)
        .map(|(name, same)| {
            let ends = Ends::of(same.files.keys().copied());
            (name, (same.files, ends))
        })
        .collect();
    let name = |row: &Listed| {
        let same = by_name.get(&(&*row.object, &*row.name));
        let (Some(function), Some((files, ends))) = (&row.function, same) else {
            return row.name.to_string();
        };
        let own = function.source.as_deref();
        match own.filter(|own| files.get(own) == Some(&1)) {
            Some(own) => format!("{} ({})", row.name, ends.distinct(own)),
            None => format!("{} ({:#x})", row.name, function.address),
        }
    };
    listed.iter().map(name).collect()
}

/// What makes a function special.
fn note(row: &Listed) -> Cell {
    match &row.state {
        State::Refused(refusal) => Cell::styled(refused(*refusal), Style::Hot),
        State::ChosenAtLoad => Cell::styled(CHOSEN_AT_LOAD, Style::Hot),
        State::Placed { plan, .. } if !plan.self_jumps.is_empty() => Cell::styled(
            "each turn of its loop passes the entry, and pays for it",
            Style::Warm,
        ),
        State::Placed { plan, .. } if plan.no_return_probe.is_some() => {
            let why = plan.no_return_probe.unwrap_or_default();
            Cell::styled(format!("no return probe: {why}"), Style::Dim)
        }
        _ if row.inlined_at > 0 => {
            let places = quantity::plural(u64::from(row.inlined_at), "place");
            Cell::styled(
                format!("inlined at {places} too, unseen there"),
                Style::Warm,
            )
        }
        _ => Cell::new(""),
    }
}

const CHOSEN_AT_LOAD: &str = "chosen at load time from implementations with names of their own";

fn size(bytes: u64) -> String {
    match bytes {
        0 => "?".to_owned(),
        bytes => bytes.to_string(),
    }
}

fn cost(ns: u32) -> Cell {
    // Single-stepped instructions cost several microseconds.
    const SLOW_NS: u32 = 2_000;
    let style = if ns >= SLOW_NS {
        Style::Hot
    } else {
        Style::Plain
    };
    Cell::styled(quantity::duration(u64::from(ns)), style)
}

fn exits(exits: &Exits) -> String {
    match exits {
        Exits::Uretprobe => "return probe".to_owned(),
        Exits::Instructions(sites) if sites.is_empty() => "none: it never returns".to_owned(),
        Exits::Instructions(sites) => {
            format!(
                "{} it leaves by",
                quantity::plural(sites.len() as u64, "instruction")
            )
        }
        Exits::None(why) => format!("none: {}", no_exits(*why)),
    }
}

fn instruction(kind: InstructionKind) -> &'static str {
    match kind {
        InstructionKind::Nop5 => "nop of 5 bytes",
        InstructionKind::Nop => "nop",
        InstructionKind::Push => "push",
        InstructionKind::Jump => "jump",
        InstructionKind::ConditionalJump => "conditional jump",
        InstructionKind::Call => "call",
        InstructionKind::Stepped => "stepped",
    }
}

fn no_exits(why: NoExits) -> &'static str {
    match why {
        NoExits::Marker => "it is a marker",
        NoExits::NotWanted => "not wanted",
        NoExits::ComputedJump => "it jumps to computed places",
        NoExits::UnknownSize => "its length is not known",
        NoExits::UnknownStack => "its stack can't be followed",
        NoExits::ConditionalExit => "a conditional jump leaves it",
        NoExits::RunsOn => "it runs on into other code",
        NoExits::Forbidden => "the kernel allows no probe on one",
        NoExits::NotCode => "not all of it is code",
    }
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NoCode => "no code of its own: inlined at each use",
        Refusal::NotExecutable => "not in an executable part of the file",
        Refusal::NotCode => "its bytes are no instructions",
        Refusal::Forbidden => "the kernel allows no probe on its instructions",
        Refusal::Loop => "its loop can't be told from calls",
        Refusal::NoReturnProbe(why) => why,
        Refusal::RedZone => "a probe could write over what it keeps below its stack pointer",
    }
}

fn function_json(row: &Listed) -> Value {
    let mut value = Map::new();
    let mut set = |key: &str, field: Value| value.insert(key.to_owned(), field);
    set("object", json!(row.object));
    set("name", json!(row.name));
    if let Some(function) = &row.function {
        set("linkage_name", json!(function.linkage_name));
        set("aliases", json!(function.aliases));
        set("address", json!(function.address));
        set("offset", json!(function.offset));
        set("bytes", json!(function.size));
        set("source", json!(function.source));
        set("language", json!(language(function.language)));
        if let FunctionKind::Marker {
            arguments,
            semaphore,
        } = &function.kind
        {
            set("arguments", json!(arguments));
            set("semaphore_offset", json!(semaphore));
        }
    }
    if row.inlined_at > 0 {
        set("inlined_at", json!(row.inlined_at));
    }
    match &row.state {
        State::Found => {}
        State::Placed { plan, entry_ns } => {
            let exits = match &plan.exits {
                Exits::Uretprobe => json!({"kind": "return probe"}),
                Exits::Instructions(sites) => json!({
                    "kind": "instructions",
                    "sites": sites.iter().map(|site| json!({
                        "offset": site.offset,
                        "instruction": instruction(site.kind),
                    })).collect::<Vec<_>>(),
                }),
                Exits::None(why) => json!({"kind": "none", "why": no_exits(*why)}),
            };
            set(
                "probe",
                json!({
                    "offset": plan.entry.offset,
                    "instruction": instruction(plan.entry.kind),
                }),
            );
            if !plan.self_jumps.is_empty() {
                set(
                    "turns",
                    json!(
                        plan.self_jumps
                            .iter()
                            .map(|turn| json!({
                                "offset": turn.site.offset,
                                "instruction": instruction(turn.site.kind),
                            }))
                            .collect::<Vec<_>>()
                    ),
                );
            }
            set("entry_ns", json!(entry_ns));
            set("call_ns", json!(plan.cost_ns));
            set("exits", exits);
            if let Some(why) = plan.no_return_probe {
                set("no_return_probe", json!(why));
            }
        }
        State::Refused(refusal) => {
            set("refused", json!(refused(*refusal)));
        }
        State::ChosenAtLoad => {
            set("refused", json!(CHOSEN_AT_LOAD));
        }
    }
    Value::Object(value)
}

fn language(language: Language) -> &'static str {
    match language {
        Language::C => "C",
        Language::Cxx => "C++",
        Language::Rust => "Rust",
        Language::Go => "Go",
    }
}

fn write_json(value: Value, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_trace::Site;

    fn function(name: &str) -> Function {
        Function {
            name: name.into(),
            linkage_name: None,
            aliases: Vec::new(),
            offset: 0x1000,
            address: 0x40_1000,
            size: 32,
            source: None,
            line: 0,
            kind: FunctionKind::Function,
            language: Language::C,
        }
    }

    fn listed(name: &str, state: State) -> Listed {
        Listed {
            object: "app".into(),
            name: name.into(),
            function: matches!(state, State::Found | State::Placed { .. }).then(|| function(name)),
            inlined_at: 0,
            state,
        }
    }

    fn placed(name: &str, exits: Exits) -> Listed {
        let plan = Plan {
            function: function(name),
            entry: Site {
                offset: 0x1004,
                kind: InstructionKind::Push,
                tail: false,
                line: 0,
            },
            line: 0,
            no_return_probe: match exits {
                Exits::Instructions(_) => Some("it reads its return address"),
                _ => None,
            },
            exits,
            self_jumps: Vec::new(),
            cost_ns: 930,
            fetches: Vec::new(),
        };
        listed(
            name,
            State::Placed {
                plan: Box::new(plan),
                entry_ns: 500,
            },
        )
    }

    fn text(rows: &[Listed], json: bool) -> String {
        let options = ListOptions {
            json,
            width: None,
            paint: Paint::never(),
        };
        let mut out = Vec::new();
        write_functions(rows, &["gone".to_owned()], options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn found_functions() {
        let mut twice = listed("twice", State::Found);
        twice.inlined_at = 3;
        let rows = [
            listed("f", State::Found),
            twice,
            listed("inlined", State::Refused(Refusal::NoCode)),
        ];
        let expected = "\
object  function  address  bytes
app     f          401000     32
app     twice      401000     32  inlined at 3 places too, unseen there
app     inlined         -      -  no code of its own: inlined at each use

3 functions, of which 1 can't be traced
";
        assert_eq!(text(&rows, false), expected);
        assert_eq!(text(&[], false), "0 functions\n");
    }

    #[test]
    fn placed_functions() {
        let rows = [
            placed("f", Exits::Uretprobe),
            placed("g", Exits::None(NoExits::ComputedJump)),
            listed("memcpy", State::ChosenAtLoad),
        ];
        let expected = "\
object  function  bytes  probe at   entry    call  exits
app     f            32  +4 push   500 ns  930 ns  return probe
app     g            32  +4 push   500 ns  930 ns  none: it jumps to computed places
app     memcpy        -  -              -       -  -                                  \
chosen at load time from implementations with names of their own

3 functions, of which 1 can't be traced; exits are seen of 1 by return probes, of 0 by the instructions \
that leave; of 1 only entries are seen
";
        assert_eq!(text(&rows, false), expected);
    }

    #[test]
    fn functions_of_one_name_are_told_apart() {
        let at = |address: u64, source: &str| {
            let mut row = listed("work", State::Found);
            if let Some(function) = &mut row.function {
                function.address = address;
                function.source = (!source.is_empty()).then(|| source.into());
            }
            row
        };
        let inlined = listed("work", State::Refused(Refusal::NoCode));
        let elsewhere = Listed {
            object: "libx.so".into(),
            ..at(0x60, "")
        };
        let rows = [
            at(0x10, "/src/a.c"),
            at(0x20, "/src/b.c"),
            at(0x30, "/src/b.c"),
            at(0x40, ""),
            at(0x50, "/src/d/a.c"),
            inlined,
            elsewhere,
        ];
        let names = [
            "work (src/a.c)",
            "work (0x20)",
            "work (0x30)",
            "work (0x40)",
            "work (d/a.c)",
            "work",
            "work",
        ];
        assert_eq!(told_apart(&rows), names);
        let table = text(&rows, false);
        assert!(table.contains("app      work (0x30)"), "{table}");
        // JSON has all that tells them apart beside the name.
        let value: Value = serde_json::from_str(&text(&rows, true)).unwrap();
        assert_eq!(value["functions"][2]["name"], "work");
    }

    #[test]
    fn json_has_everything() {
        let site = Site {
            offset: 0x101f,
            kind: InstructionKind::Stepped,
            tail: false,
            line: 0,
        };
        let rows = [
            placed("f", Exits::Instructions(vec![site])),
            listed("memcpy", State::ChosenAtLoad),
        ];
        let value: Value = serde_json::from_str(&text(&rows, true)).unwrap();
        assert_eq!(value["count"], 2);
        assert_eq!(value["not_traceable"], 1);
        assert_eq!(value["missing"][0], "gone");
        let first = &value["functions"][0];
        assert_eq!(first["probe"]["offset"], 0x1004);
        assert_eq!(first["exits"]["sites"][0]["instruction"], "stepped");
        assert_eq!(
            (&first["entry_ns"], &first["call_ns"]),
            (&json!(500), &json!(930))
        );
        assert_eq!(first["no_return_probe"], "it reads its return address");
        assert!(value["functions"][1]["refused"].is_string());
    }
}
