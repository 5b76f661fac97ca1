//! Fuzzing of what is read of a target's ELF files: headers, build id, sections, debug information.
//!
//! Input: a fuzzer's bytes as a file with symbols, for a capture whose module has the build id that
//! the file claims; output: none. The way in is the public one, `symbolize_offline`.
//!
//! The resolver contains panics of the symbolizer's libraries: such a file is lost, the recording
//! is not. That is allowed here too; a panic in our own sources is not (see [`contain_panics`]).

use std::panic::PanicHookInfo;
use std::path::Path;
use std::sync::Once;

use profiler_model::{BuildId, Frame, FrameKind, Module, ModuleKind, Tables};
use profiler_resolve::{OfflineOptions, symbolize_offline};

/// Head of the build id's note: lengths of name and id, kind, name.
const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
const BUILD_ID_BYTES: usize = 20;
/// Addresses asked for: those of the smallest files, and what overflows.
const ADDRESSES: [u64; 8] = [0, 1, 0x1000, 0x1004, 0x1010, 0x1030, 1 << 40, u64::MAX];

/// Reads bytes as an ELF file. The first two bytes are one of the addresses that names are asked
/// for.
pub fn elf(data: &[u8]) {
    let [low, high, file @ ..] = data else {
        return;
    };
    contain_panics();
    let path = std::env::temp_dir().join(format!("fuzz-elf-{}", std::process::id()));
    if std::fs::write(&path, file).is_err() {
        return;
    }
    let address = u64::from(u16::from_le_bytes([*low, *high]));
    let tables = asking(build_id(file), address);
    let frames = tables.frames.len();
    let options = OfflineOptions {
        search: vec![path],
        debug_dirs: Vec::new(),
        debuginfod: None,
        inlines: true,
    };
    let found = symbolize_offline(&tables, &options);
    assert!(found.len() <= frames);
    for (frame, symbols) in found {
        assert!(tables.frames.get(frame).is_some());
        assert!(!symbols.is_empty(), "a name without a function");
    }
}

/// Removes the file that [`elf`] leaves.
pub fn remove_elf_file() {
    let name = format!("fuzz-elf-{}", std::process::id());
    let _ = std::fs::remove_file(Path::new(&std::env::temp_dir()).join(name));
}

pub(super) fn asking(build_id: BuildId, address: u64) -> Tables {
    let mut tables = Tables::default();
    let path = tables.intern_string("/nowhere/file").0;
    let module = tables.modules.intern(Module {
        kind: ModuleKind::File,
        path,
        build_id: Some(build_id),
        address_bias: 0,
    });
    for address in ADDRESSES.into_iter().chain([address]) {
        tables.frames.intern(Frame {
            kind: FrameKind::Native,
            module: Some(module.0),
            address,
        });
    }
    tables
}

/// The first that looks like one, wherever it lies.
pub(super) fn build_id(file: &[u8]) -> BuildId {
    let at = file.windows(NOTE.len()).position(|bytes| bytes == NOTE);
    let id = at.and_then(|at| file.get(at + NOTE.len()..)?.get(..BUILD_ID_BYTES));
    BuildId(id.unwrap_or(&[0; BUILD_ID_BYTES]).into())
}

/// libFuzzer's hook ends the process at any panic. This one leaves alone those of libraries, which
/// the resolver catches.
pub(super) fn contain_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let fatal = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            let file = panic.location().map_or("", |location| location.file());
            if !file.contains("/registry/src/") && !file.starts_with("/rustc/") {
                fatal(panic);
            }
        }));
    });
}
