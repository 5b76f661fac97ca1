//! Fuzzing of links to debug files: `.gnu_debuglink`, `.gnu_debugaltlink`, files by build id, and what these files hold.
//!
//! Input: a fuzzer's bytes as an object file and the file that all of its links lead to; output: none. The way in is the
//! public one, `symbolize_offline`.

use std::path::PathBuf;

use profiler_resolve::{OfflineOptions, symbolize_offline};

use super::elf::{asking, build_id, contain_panics};

/// What links of the seeds are called.
pub(super) const LINKED: &str = "d.debug";

/// Reads bytes as an object file and another one, both with their lengths: two bytes for the first one's, in units of
/// 16 bytes.
pub fn links(data: &[u8]) {
    let [low, high, files @ ..] = data else {
        return;
    };
    contain_panics();
    let length = usize::from(u16::from_le_bytes([*low, *high])) * 16;
    let (main, linked) = files.split_at(length.min(files.len()));
    let folder = folder();
    let id = build_id(main);
    let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2.min(hex.len()));
    let by_id = folder.join("debug/.build-id").join(first);
    if std::fs::create_dir_all(&by_id).is_err() {
        return;
    }
    let file = folder.join("main");
    for (path, bytes) in [
        (file.clone(), main),
        (folder.join(LINKED), linked),
        (by_id.join(format!("{rest}.debug")), linked),
    ] {
        if std::fs::write(path, bytes).is_err() {
            return;
        }
    }
    let tables = asking(id, 0x1000);
    let options = OfflineOptions {
        search: vec![file],
        debug_dirs: vec![folder.join("debug")],
        debuginfod: None,
        inlines: true,
    };
    let found = symbolize_offline(&tables, &options);
    assert!(
        found
            .iter()
            .all(|(frame, symbols)| { tables.frames.get(*frame).is_some() && !symbols.is_empty() })
    );
    // Those of other inputs must not be found.
    let _ = std::fs::remove_dir_all(&folder);
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("fuzz-links-{}", std::process::id()))
}
