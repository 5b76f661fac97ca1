//! What fuzzers begin with: inputs that the decoders accept, made anew each time.
//!
//! Input: a target's name; output: byte strings in that target's form (see the functions of
//! [`super`]). They are few and small: a fuzzer is faster with small inputs, and finds its own way
//! from there.

use std::io;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use profiler::capture::{CreateOptions, Writer};
use profiler::model::raw::{Comm, RawBody, RawEvent, RawSample, RawStack};
use profiler::model::{
    Batch, Code, Cpu, Definition, EpochId, Pid, StackEnd, StringId, Tid, Timestamp,
};

use super::decode::encoded;
use super::unframed;
use crate::arbitrary::{Random, recording};
use crate::canonical;

/// Code with a line table, an inlined function and a call.
const SOURCE: &str =
    "static inline __attribute__((always_inline)) int twice(int x) { return 2 * x; }
int leaf(int x) { return twice(x) + 1; }
int root(int x) { return leaf(x) * twice(leaf(x + 3)); }
";

/// Writes the seeds of a target into a folder.
pub fn write_seeds(target: &str, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (index, seed) in seeds(target)?.into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index}")), seed)?;
    }
    Ok(())
}

/// Inputs of a target that are right.
pub fn seeds(target: &str) -> io::Result<Vec<Vec<u8>>> {
    match target {
        "capture" => captures(),
        "records" => Ok(records()),
        "side_band" => Ok(side_bands()),
        "elf" => elf_files(),
        _ => Err(io::Error::other(format!("no fuzz target '{target}'"))),
    }
}

fn captures() -> io::Result<Vec<Vec<u8>>> {
    let mut recordings: Vec<_> = (0..6).map(|seed| recording(seed, 2, 8)).collect();
    recordings.push(canonical_batches());
    let mut seeds = Vec::new();
    for batches in recordings {
        let file = capture_file(&batches)?;
        seeds.push(unframed(&file));
        seeds.push([&[1], file.as_slice()].concat());
    }
    Ok(seeds)
}

/// The capture file of a recording.
pub fn capture_file(batches: &[Batch]) -> io::Result<Vec<u8>> {
    let path = std::env::temp_dir().join(format!(
        "fuzz-seed-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let options = CreateOptions {
        overwrite: true,
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).map_err(io::Error::other)?;
    for batch in batches {
        writer.write(batch).map_err(io::Error::other)?;
    }
    writer.finish().map_err(io::Error::other)?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    Ok(bytes)
}

/// The canonical session with its definitions announced, in one epoch.
fn canonical_batches() -> Vec<Batch> {
    let (tables, events) = canonical::session();
    let mut definitions = vec![Definition::Session(tables.session.clone())];
    let strings = (0..).map(StringId::from_index);
    let strings = strings.map(|id| (id, tables.string(id)));
    // Behind the last, a text is none or another's.
    let strings = strings.take_while(|&(id, text)| tables.find_string(text) == Some(id));
    definitions.extend(strings.map(|(id, text)| Definition::String(id, text.into())));
    definitions.extend(
        tables
            .sources
            .iter()
            .map(|(id, it)| Definition::Source(id, it.clone())),
    );
    definitions.extend(
        tables
            .processes()
            .map(|(id, it)| Definition::Process(id, it.clone())),
    );
    definitions.extend(
        tables
            .threads()
            .map(|(id, it)| Definition::Thread(id, it.clone())),
    );
    definitions.extend(
        tables
            .modules
            .iter()
            .map(|(id, it)| Definition::Module(id, it.clone())),
    );
    definitions.extend(
        tables
            .mappings
            .iter()
            .map(|(id, it)| Definition::Mapping(id, it.clone())),
    );
    definitions.extend(
        tables
            .functions
            .iter()
            .map(|(id, it)| Definition::Function(id, it.clone())),
    );
    definitions.extend(
        tables
            .frames
            .iter()
            .map(|(id, it)| Definition::Frame(id, *it)),
    );
    definitions.extend(
        tables
            .stacks
            .iter()
            .map(|(id, it)| Definition::Stack(id, *it)),
    );
    let symbols = tables.frames.iter();
    let symbols = symbols.filter_map(|(id, _)| Some((id, tables.symbol(id)?.clone())));
    definitions.extend(symbols.map(|(id, symbol)| Definition::Symbol(id, symbol)));
    let mut traced: Vec<_> = tables.all_traced().collect();
    traced.sort_unstable_by_key(|(id, _)| *id);
    definitions.extend(
        traced
            .iter()
            .map(|(id, it)| Definition::Traced(*id, (*it).clone())),
    );
    let code = tables.code().map(|(module, address, bytes)| Code {
        module,
        address,
        bytes: bytes.clone(),
    });
    definitions.extend(code.map(Definition::Code));
    vec![Batch {
        definitions,
        events,
        ..Batch::default()
    }]
}

fn records() -> Vec<Vec<u8>> {
    let mut random = Random(1);
    let mut seeds = Vec::new();
    let mut row = vec![0];
    for frames in [0, 1, 7, 127] {
        let mut stack = |end| RawStack {
            bytes: (0..frames)
                .flat_map(|_| random.any().to_ne_bytes())
                .collect::<Vec<u8>>()
                .into(),
            end,
        };
        let sample = RawSample {
            pid: Pid(10),
            tid: Tid(11),
            comm: Comm::from_bytes(b"worker"),
            cgroup: 77,
            weight: 10_101_010,
            source: 2,
            kernel: stack(StackEnd::Complete),
            user: if frames == 1 {
                RawStack {
                    bytes: Bytes::new(),
                    end: StackEnd::NoStack,
                }
            } else {
                stack(StackEnd::Truncated)
            },
        };
        let event = RawEvent {
            at: Timestamp(1_000),
            cpu: Cpu(3),
            body: RawBody::Sample(Box::new(sample.clone())),
        };
        let record = encoded(&event, &sample);
        row.extend((record.len() as u16).to_le_bytes());
        row.extend(&record);
        seeds.push([&[1], record.as_slice()].concat());
    }
    seeds.push(row);
    seeds
}

fn side_bands() -> Vec<Vec<u8>> {
    let ids = [20u32, 10, 20, 11];
    let ids = ids.map(u32::to_ne_bytes).concat();
    let fork = [ids.as_slice(), &5u64.to_ne_bytes()].concat();
    let comm = [&ids[..8], b"worker\0\0"].concat();
    let lost = [7u64, 3].map(u64::to_ne_bytes).concat();
    let mut mmap = ids[..8].to_vec();
    mmap.extend([0x5000u64, 0x2000, 0x1000].map(u64::to_ne_bytes).concat());
    let mut by_id = mmap.clone();
    by_id.extend([20, 0, 0, 0]);
    by_id.extend([0xab; 20]);
    mmap.extend([8u32, 1].map(u32::to_ne_bytes).concat());
    mmap.extend([99u64, 1].map(u64::to_ne_bytes).concat());
    for body in [&mut mmap, &mut by_id] {
        body.extend([5u32, 2].map(u32::to_ne_bytes).concat());
        body.extend(b"/usr/bin/worker\0");
    }
    let kinds: [(u32, u16, Vec<u8>); 8] = [
        (7, 0, fork.clone()),
        (3, 1 << 13, comm.clone()),
        (3, 0, comm),
        (10, 0, mmap),
        (10, 1 << 14, by_id),
        (2, 0, lost.clone()),
        (4, 0, fork),
        (11, 0, lost),
    ];
    let each: Vec<Vec<u8>> = (1u64..)
        .zip(kinds)
        .map(|(at, (kind, misc, body))| {
            let mut record = kind.to_ne_bytes().to_vec();
            record.extend(misc.to_ne_bytes());
            record.extend((body.len() as u16 + 16).to_ne_bytes());
            record.extend(body);
            record.extend(at.to_ne_bytes());
            record
        })
        .collect();
    let all = [&[4], each.concat().as_slice()].concat();
    let single = each
        .into_iter()
        .map(|record| [&[4], record.as_slice()].concat());
    single.chain([all]).collect()
}

/// Shared objects from the C compiler: with debug information, plain and packed, and without.
fn elf_files() -> io::Result<Vec<Vec<u8>>> {
    let stem = std::env::temp_dir().join(format!("fuzz-elf-seed-{}", std::process::id()));
    let (source, object) = (stem.with_extension("c"), stem.with_extension("so"));
    std::fs::write(&source, SOURCE)?;
    let mut seeds = Vec::new();
    for flags in [
        &["-g"][..],
        &["-g", "-gz=zlib", "-gdwarf-4"],
        &["-g", "-fdebug-types-section", "-m32"],
        &["-s"],
    ] {
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-nostdlib", "-fno-ident"])
            .args(["-Wl,--build-id=sha1", "-Wl,-z,noseparate-code"])
            .args(flags)
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .stderr(std::process::Stdio::null())
            .status()?;
        if !built.success() {
            // Not every compiler has every option; the first is one that all have.
            continue;
        }
        let file = std::fs::read(&object)?;
        std::fs::remove_file(&object)?;
        // An address in the code of `leaf`, where the linker puts it.
        seeds.push([&0x1000u16.to_le_bytes(), file.as_slice()].concat());
    }
    std::fs::remove_file(&source)?;
    if seeds.is_empty() {
        return Err(io::Error::other("cc can't build a shared object"));
    }
    Ok(seeds)
}
