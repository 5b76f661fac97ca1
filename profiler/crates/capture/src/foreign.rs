//! What a file that is no capture looks like, by its first bytes, for the error that says so.

/// Beginnings, and what begins so.
const BEGINNINGS: [(&[u8], &str); 22] = [
    (b"PERFILE2", "perf.data (perf record); read it with perf"),
    (b"2ELIFREP", "perf.data of a big-endian machine"),
    (
        b"\x7fELF",
        "an ELF program or library; to record it: profiler record -- PROGRAM",
    ),
    (b"\x1f\x8b", "gzip data (perhaps a pprof profile)"),
    (b"\x28\xb5\x2f\xfd", "zstd data; unpack it first"),
    (b"\xfd7zXZ", "xz data; unpack it first"),
    (b"BZh", "bzip2 data; unpack it first"),
    (b"PK\x03\x04", "a zip archive"),
    (b"<svg", "an SVG image (perhaps a flame graph)"),
    (b"<?xml", "XML (perhaps a flame graph)"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<!doctype", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"{", "JSON"),
    (b"[", "JSON"),
    (b"#!", "a script"),
    (b"go 1.", "a Go execution trace"),
    (b"FLR\0", "a Java Flight Recorder file"),
    (b"\x89PNG", "an image"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF document"),
    (b"\x0a", "a protocol buffer (perhaps Perfetto or pprof)"),
];

/// What a file beginning with these bytes is, in words.
pub(super) fn looks_like(head: &[u8]) -> &'static str {
    if let Some((_, name)) = BEGINNINGS.iter().find(|(start, _)| head.starts_with(start)) {
        return name;
    }
    let plain = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if head.iter().all(|&byte| byte == 0) {
        "nothing but zero bytes"
    } else if head.iter().all(plain) {
        "text (perhaps folded stacks or a script)"
    } else {
        "data of an unknown kind"
    }
}
