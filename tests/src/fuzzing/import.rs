//! Fuzzing of imports: files of other tools -> a recording that is whole, or an error.
//!
//! Input: a fuzzer's bytes, of which the first says what kind of file the rest is; output: how many samples came of it, a broken
//! promise is a panic. What does not belong here: what a right file means (`formats::import`).

use profiler_model::{Batch, Epoch, Tables, Timestamp};
use profiler_report::import::profiles::{Kind, import as import_file};

use crate::canonical;

/// Reads a file of a kind, or of whichever its beginning says.
pub fn import(data: &[u8]) -> u64 {
    let Some((kind, file)) = data.split_first() else {
        return 0;
    };
    let kind = Kind::ALL.get(usize::from(*kind)).copied();
    let (mut tables, mut epoch, mut last) = (Tables::default(), Epoch::default(), Timestamp(0));
    let mut samples = 0;
    let none = |_: &str, _: &profiler_model::BuildId, _| 0;
    let imported = import_file(&mut &file[..], kind, "file", &none, &mut |batch: Batch| {
        for definition in batch.definitions {
            let defined = epoch.define(&mut tables, definition);
            assert_eq!(defined, Ok(()));
        }
        for event in batch.events {
            let event = epoch.event(event);
            assert!(event.is_ok(), "{event:?}");
            if let Ok(event) = event {
                assert!(event.at() >= last);
                last = event.at();
                samples += u64::from(matches!(event, profiler_model::Event::Sample(_)));
            }
        }
        Ok(())
    });
    if let Ok(imported) = imported {
        assert_eq!(imported.samples, samples);
    }
    samples
}

/// Our own exports, and a perf.data.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let (tables, events) = canonical::session();
    let mut seeds = Vec::new();
    for (kind, number) in Kind::ALL.into_iter().zip(0_u8..) {
        let mut seed = vec![number];
        match super::exported(kind.name(), &tables, &events) {
            Some(file) => seed.extend(file),
            None => seed.extend(perf_data()),
        }
        seeds.push(seed);
    }
    seeds
}

/// A record of perf.
fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut record = kind.to_le_bytes().to_vec();
    record.extend(misc.to_le_bytes());
    record.extend((body.len() as u16 + 8).to_le_bytes());
    record.extend(body);
    record
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A file as `perf record -g` writes it: two events with ids, a process that forks, and samples of both, out of order within
/// a round. What it says is in `formats::import`.
pub fn perf_data() -> Vec<u8> {
    // IP, TID, TIME, CALLCHAIN, CPU, PERIOD, IDENTIFIER.
    let sample_type = 0x1_01a7;
    let attr = |kind: u32, config: u64| {
        let mut attr = kind.to_le_bytes().to_vec();
        attr.extend(128_u32.to_le_bytes());
        attr.extend(words(&[config, 4000, sample_type, 0, 1 << 10 | 1 << 18]));
        attr.resize(128, 0);
        attr
    };
    let text = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len() / 8 * 8 + 8, 0);
        bytes
    };
    // What other records end with: TID, TIME, CPU, IDENTIFIER.
    let trailer = |at: u64| words(&[0, at, 0, 7]);
    let comm = |pid: u32, tid: u32, name: &str, at: u64| {
        let ids = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        record(3, 1 << 13, &[ids, text(name), trailer(at)].concat())
    };
    let mmap = |pid: u32, [start, len, offset]: [u64; 3], path: &str, at: u64| {
        let ids = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
        let build_id = [&[20, 0, 0, 0][..], &[0xab; 20]].concat();
        let rest = [
            words(&[start, len, offset]),
            build_id,
            words(&[5]),
            text(path),
        ]
        .concat();
        record(10, 1 << 14 | 2, &[ids, rest, trailer(at)].concat())
    };
    let sample = |id: u64, pid: u32, at: u64, chain: &[u64]| {
        let ids = u64::from(pid) | u64::from(pid) << 32;
        let head = [id, chain[1], ids, at, 1, 250, chain.len() as u64];
        record(9, 2, &[words(&head), words(chain)].concat())
    };
    let user = -512_i64 as u64;
    let kernel = -128_i64 as u64;
    let base = 0xffff_ffff_9000_0000;
    let data = [
        mmap(
            u32::MAX,
            [base, 1 << 24, base],
            "[kernel.kallsyms]_stext",
            0,
        ),
        comm(10, 10, "parent", 1000),
        mmap(10, [0x40_0000, 0x1000, 0x2000], "/bin/parent", 1001),
        record(
            7,
            0,
            &[words(&[11 | 10 << 32, 11 | 10 << 32, 1002]), trailer(1002)].concat(),
        ),
        sample(
            7,
            10,
            2000,
            &[kernel, base + 0x123, user, 0x40_0010, 0x40_0021],
        ),
        record(68, 0, &[]),
        sample(8, 11, 1900, &[user, 0x40_0010, 0x40_0031]),
        comm(11, 11, "child", 2500),
        mmap(11, [0x50_0000, 0x1000, 0], "/bin/child", 2501),
        sample(7, 11, 2600, &[user, 0x50_0004]),
        record(2, 0, &[words(&[7, 5]), trailer(2700)].concat()),
        record(68, 0, &[]),
    ]
    .concat();
    let attrs = [attr(1, 0), attr(0, 0)];
    let ids_at = 104_u64;
    let attrs_at = ids_at + 16;
    let data_at = attrs_at + 2 * 144;
    let features_at = data_at + data.len() as u64;
    let host = [&8_u32.to_le_bytes()[..], b"machine\0"].concat();
    let mut file = b"PERFILE2".to_vec();
    file.extend(words(&[
        104,
        144,
        attrs_at,
        288,
        data_at,
        data.len() as u64,
        0,
        0,
    ]));
    file.extend(words(&[1 << 3, 0, 0, 0]));
    file.extend(words(&[7, 8]));
    for (index, attr) in attrs.iter().enumerate() {
        file.extend(attr);
        file.extend(words(&[ids_at + 8 * index as u64, 8]));
    }
    file.extend(data);
    file.extend(words(&[features_at + 16, host.len() as u64]));
    file.extend(host);
    file
}
