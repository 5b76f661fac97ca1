//! Fuzzing of imports: files of other tools -> a recording that is whole, or an error.
//!
//! Input: a fuzzer's bytes, of which the first says what kind of file the rest is; output: how many samples came of it, a broken
//! promise is a panic. What does not belong here: what a right file means (`formats::import`).

use profiler_model::{Batch, Epoch, Tables, Timestamp};
use profiler_report::import::profiles::{Kind, import as import_file};

use crate::canonical;
use crate::perf_file::perf_data;

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
