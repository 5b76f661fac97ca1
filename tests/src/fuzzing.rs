//! What fuzzers call: one function per decoder, which must return whatever the bytes are.
//!
//! The fuzz targets of tests/fuzz and the bounded mutation tests of the normal test run share
//! these. Besides not to panic, a decoder has to keep its promises: those are asserted here.
//! [`capture`] is the reader of captures and what is made of them, [`records`] and [`side_band`]
//! are the decoder of the kernel's bytes, [`calls`] is that of traced calls and what pairs them,
//! [`elf`] is what is read of a target's files for names, [`links`] of what these lead to, [`containers`] of what says which
//! container a process is in, [`object`] and [`signature`] for tracing,
//! [`bytefrog_agent`] and [`bytefrog_hq`] are what the two sides of that protocol say, [`tcf_frames`]
//! and [`tcf`] what clients of a TCF agent do, [`rdp`] what those of the remote debugging protocol do,
//! [`import`] is what other tools recorded, [`http`] those of sessions over HTTP, [`unwind`](unwind()) is what files say of their frames.

mod answers;
mod bytefrog;
mod calls;
mod containers;
mod decode;
mod elf;
mod http;
mod import;
mod links;
mod object;
mod rdp;
mod seeds;
mod signature;
mod tcf;
pub mod unwind;

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{CallEdge, Event, Sink, Tables};
use profiler_report::export::{self, Settings};
use profiler_report::view::info::write_info;
use profiler_report::view::report::{self, Collector, Format, Recording, ReportOptions};

use crate::arbitrary::Random;

pub use answers::answers;
pub use bytefrog::{bytefrog_agent, bytefrog_hq};
pub use calls::calls;
pub use containers::containers;
pub use decode::{records, side_band};
pub use elf::{elf, remove_elf_file};
pub use http::http;
pub use import::import;
pub use links::links;
pub use object::object;
pub use rdp::rdp;
pub use seeds::{capture_file, seeds, write_seeds};
pub use signature::signature;
pub use tcf::{tcf, tcf_frames};
pub use unwind::unwind;

/// Reads bytes as a capture. If the first is odd, the rest is a capture file as it is; if even,
/// it is a row of blocks (kind, epoch, length in two bytes, payload) which get right headers
/// and checksums, so that what is behind the checksums is reached.
pub fn capture(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    if mode % 2 == 1 {
        read_capture(rest);
    } else {
        read_capture(&framed(rest));
    }
}

/// Bytes for [`capture`] of a capture file: its blocks, unpacked.
pub fn unframed(file: &[u8]) -> Vec<u8> {
    let mut blocks = vec![0];
    let mut at = 32;
    while file.get(at..at + 4) == Some(b"\xb1PCB") {
        let (head, rest) = file[at..].split_at(64);
        let stored = &rest[..u32_at(head, 24)];
        let payload = match head[5] {
            1 => zstd::bulk::decompress(stored, u32_at(head, 28)).unwrap_or_default(),
            _ => stored.to_vec(),
        };
        let payload = &payload[..payload.len().min(0xffff)];
        blocks.extend([head[4], head[16]]);
        blocks.extend((payload.len() as u16).to_le_bytes());
        blocks.extend(payload);
        at += 64 + stored.len();
    }
    blocks
}

fn read_capture(bytes: &[u8]) {
    let Some((_file, path)) = in_memory(bytes) else {
        return;
    };
    let Ok(mut reader) = Reader::open(&path) else {
        return;
    };
    let Ok(tables) = reader.load_tables() else {
        return;
    };
    let mut delivered = 0u64;
    let stats = reader.replay(&tables, TimeRange::ALL, &mut |event, tables| {
        check_event(event, tables);
        delivered += 1;
        Ok(())
    });
    assert_eq!(stats.map(|stats| stats.events).ok(), Some(delivered));
    let damage = reader.damage().to_vec();
    assert!(damage.iter().all(|d| d.offset <= bytes.len() as u64));
    let again = reader.summary();
    assert_eq!(
        again.map(|summary| summary.events.values().sum()).ok(),
        Some(delivered),
        "a second replay differs"
    );
    assert_eq!(
        reader.damage(),
        damage,
        "a second replay finds other damage"
    );
    show(&mut reader, &tables);
}

/// Everything that is made of a capture: all formats, the report, the summary.
fn show(reader: &mut Reader, tables: &Tables) {
    let open = |format| export::open(&Settings::new(format), Box::new(io::sink()));
    let mut sinks: Vec<_> = export::formats().iter().map(open).collect();
    let mut collector = Collector::default();
    let mut all: Vec<&mut dyn Sink> = vec![&mut collector];
    all.extend(sinks.iter_mut().map(|sink| sink.as_mut() as &mut dyn Sink));
    // A format may refuse what it can't say.
    let _ = replay_into(reader, tables, TimeRange::ALL, &mut all);
    let recording = Recording {
        tables,
        collected: &collector,
    };
    for format in [Format::Text, Format::Json] {
        for annotate in [None, Some("main".to_owned())] {
            let options = ReportOptions {
                min_percent: 0.0,
                callers_of: annotate.clone(),
                annotate,
                format,
                ..ReportOptions::default()
            };
            let _ = report::run(&recording, &options, &mut io::sink());
        }
        let info = write_info(reader, format == Format::Json, &mut io::sink());
        assert!(info.is_ok(), "a capture that was read has no summary");
    }
}

/// A recording in a format, if there is one of that name.
fn exported(format: &str, tables: &Tables, events: &[Event]) -> Option<Vec<u8>> {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let mut sink = export::open(
        &Settings::new(export::by_name(format).ok()?),
        Box::new(Kept(bytes.clone())),
    );
    for event in events {
        sink.event(event, tables).ok()?;
    }
    sink.finish(tables).ok()?;
    drop(sink);
    Some(std::mem::take(&mut *bytes.lock().ok()?))
}

/// An output in memory.
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Ok(mut kept) = self.0.lock() {
            kept.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Changes bytes a few times, all but the first `keep`: sets, flips, removes, repeats.
pub fn mutate(random: &mut Random, keep: usize, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(8) {
        if bytes.len() <= keep {
            return;
        }
        let at = keep + random.below(bytes.len() - keep);
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.number() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => drop(bytes.drain(at..end)),
            _ => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

/// All that an event refers to is there.
fn check_event(event: &Event, tables: &Tables) {
    match event {
        Event::Sample(sample) => {
            assert!(tables.thread(sample.thread).is_some());
            assert!(tables.sources.get(sample.source).is_some());
            for stack in [sample.kernel, sample.user].into_iter().flatten() {
                assert!(tables.frames_of(Some(stack)).next().is_some());
            }
        }
        Event::Call(call) => {
            assert!(tables.thread(call.thread).is_some());
            assert!(tables.functions.get(call.function).is_some());
            if let CallEdge::Enter(Some(values)) = &call.edge {
                assert!(values.len() <= 64);
            }
        }
        Event::Throw(throw) => {
            assert!(tables.thread(throw.thread).is_some());
            let thrower = throw.thrower.map(|frame| tables.frames.get(frame));
            assert_ne!(thrower, Some(None));
        }
        Event::Waits(waits) => assert!(tables.thread(waits.thread).is_some()),
        Event::CallCount(count) => assert!(tables.functions.get(count.function).is_some()),
        Event::Gap(gap) => {
            let function = gap.function.map(|function| tables.functions.get(function));
            assert_ne!(function, Some(None));
            let process = gap.process.map(|process| tables.process(process));
            assert_ne!(process, Some(None));
        }
        Event::Process(_) | Event::Mark(_) | Event::Clock(_) | Event::Lost(_) => {}
    }
}

/// A file that is nowhere on disk.
fn in_memory(bytes: &[u8]) -> Option<(std::fs::File, PathBuf)> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("capture", flags).ok()?);
    file.write_all(bytes).ok()?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    Some((file, path))
}

/// A capture made by the words of docs/formats/capture.md.
pub fn framed(mut rest: &[u8]) -> Vec<u8> {
    let id = 0x1234_5678u32.to_le_bytes();
    let mut file = b"\x8fPROFCAP\x01\0\0\0".to_vec();
    file.extend(id);
    file.resize(28, 0);
    file.extend(crc32(&file).to_le_bytes());
    let mut sequence = 0u32;
    while let [kind, epoch, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (payload, behind) = more.split_at(length);
        rest = behind;
        let mut head = b"\xb1PCB".to_vec();
        head.extend([*kind, 0, 1, 0]);
        head.extend(id);
        head.extend(sequence.to_le_bytes());
        head.extend([*epoch, 0, 0, 0]);
        head.extend(0u32.to_le_bytes());
        head.extend((length as u32).to_le_bytes());
        head.extend((length as u32).to_le_bytes());
        head.extend(0u64.to_le_bytes());
        head.extend(u64::MAX.to_le_bytes());
        head.extend([0; 8]);
        head.extend(crc32(payload).to_le_bytes());
        head.extend(crc32(&head).to_le_bytes());
        file.extend(head);
        file.extend(payload);
        sequence += 1;
    }
    file
}

/// CRC-32 (IEEE), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
        })
    })
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field) as usize
}
