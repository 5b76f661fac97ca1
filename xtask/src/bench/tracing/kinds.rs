//! Of which kind functions are: the instruction that they begin with, and the one that their entry's
//! probe would sit on, since both decide what a traced call costs.
//!
//! Object files -> `profiler list functions` -> shares of all functions that can be traced, each
//! counted once, whatever it is called.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::super::Bench;
use super::super::table::Table;

/// In the order of their costs: as `list functions` names them, and the commonest of those that are
/// stepped over.
const KINDS: [&str; 9] = [
    "nop of 5 bytes",
    "push",
    "jump",
    "conditional jump",
    "call",
    "nop",
    "endbr64",
    STEPPED,
    "no probe",
];
const STEPPED: &str = "stepped";
/// Of [`KINDS`], those that the kernel emulates.
const EMULATED: usize = 6;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[derive(Serialize, Default)]
struct Shares {
    object: String,
    functions: u64,
    /// By the first instruction.
    first: BTreeMap<&'static str, u64>,
    /// By the instruction that is probed.
    probed: BTreeMap<&'static str, u64>,
    /// How exits would be seen if the process allows no return probes of its own accord.
    exits: BTreeMap<String, u64>,
}

/// Counts and prints.
pub(super) fn run(bench: &Bench) -> io::Result<()> {
    let mut all = Vec::new();
    for object in objects() {
        eprintln!("functions of {}", object.display());
        all.push(shares(bench, &object)?);
    }
    bench.keep("tracing-kinds.json", &all)?;
    print(&all);
    Ok(())
}

/// Those of the objects that are installed.
fn objects() -> Vec<PathBuf> {
    let libraries = "/lib/x86_64-linux-gnu";
    let mut objects: Vec<PathBuf> = ["libc.so.6", "libstdc++.so.6"]
        .iter()
        .flat_map(|name| [Path::new(libraries), Path::new("/usr/lib64")].map(|dir| dir.join(name)))
        .collect();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    objects.extend(versions.flatten().map(|it| it.path().join("bin/postgres")));
    objects.retain(|object| object.is_file());
    objects
}

fn shares(bench: &Bench, object: &Path) -> io::Result<Shares> {
    let mut command = Command::new(&bench.profiler);
    command.args(["list", "functions", "--json", "--object"]);
    let output = command.arg(object).arg("*").output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {said}")));
    }
    let listed: Value = serde_json::from_slice(&output.stdout)?;
    let file = File::open(object)?;
    let mut shares = Shares {
        object: object.display().to_string(),
        ..Shares::default()
    };
    for function in listed["functions"].as_array().into_iter().flatten() {
        // Without code of its own there is nothing to count.
        let Some(start) = function["offset"].as_u64() else {
            continue;
        };
        shares.functions += 1;
        let probe = &function["probe"];
        let probed = probe["instruction"].as_str();
        let probed = kind(&file, probe["offset"].as_u64().unwrap_or(start), probed)?;
        let first = match probe["offset"].as_u64() {
            Some(at) if at != start => kind(&file, start, Some(STEPPED))?,
            _ => probed,
        };
        *shares.first.entry(first).or_default() += 1;
        *shares.probed.entry(probed).or_default() += 1;
        let exits = function["exits"]["kind"].as_str().unwrap_or("no probe");
        *shares.exits.entry(exits.to_owned()).or_default() += 1;
    }
    Ok(shares)
}

/// The kind of an instruction that `profiler` calls `name`. Where it has looked for a cheaper one
/// and found it, the first is one that is stepped over, or a short no-operation.
fn kind(file: &File, offset: u64, name: Option<&str>) -> io::Result<&'static str> {
    let Some(name) = name else {
        return Ok("no probe");
    };
    let mut bytes = [0; 4];
    if name == STEPPED {
        file.read_exact_at(&mut bytes, offset)?;
        match bytes {
            ENDBR64 => return Ok("endbr64"),
            [0x90, ..] | [0x66, 0x90, ..] => return Ok("nop"),
            _ => {}
        }
    }
    KINDS
        .into_iter()
        .find(|kind| *kind == name)
        .ok_or_else(|| io::Error::other(format!("'{name}' is no kind of instruction")))
}

fn print(all: &[Shares]) {
    let mut head = vec!["object", "functions", "instruction", "emulated"];
    head.extend(KINDS);
    let mut table = Table::new(&head);
    let percent = |part: u64, shares: &Shares| {
        format!(
            "{:.1} %",
            part as f64 * 100.0 / shares.functions.max(1) as f64
        )
    };
    for shares in all {
        for (which, counts) in [("first", &shares.first), ("probed", &shares.probed)] {
            let of = |kind: &&str| counts.get(*kind).copied().unwrap_or(0);
            let mut row = vec![
                shares.object.clone(),
                shares.functions.to_string(),
                which.to_owned(),
                percent(KINDS[..EMULATED].iter().map(of).sum(), shares),
            ];
            row.extend(KINDS.iter().map(|kind| percent(of(kind), shares)));
            table.row(row);
        }
    }
    table.print("Functions by the instruction that they begin with, and that is probed");

    let mut table = Table::new(&[
        "object",
        "return probe",
        "instructions",
        "entries only",
        "no probe",
    ]);
    for shares in all {
        let of = |kind: &str| percent(shares.exits.get(kind).copied().unwrap_or(0), shares);
        table.row(vec![
            shares.object.clone(),
            of("return probe"),
            of("instructions"),
            of("none"),
            of("no probe"),
        ]);
    }
    table.print("Functions by how their exits are seen");
}
