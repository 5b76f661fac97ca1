//! Programs that run copies of other programs' code: valgrind, user-mode emulators.
//!
//! The path of a file that a process maps -> whether it is one. A translator reads code where it lies, the
//! breakpoints of probes included, and ends what it runs where it comes to one. They are known by name:
//! nothing else tells them apart before they read.
//!
//! What does not belong here: what follows from it.

use std::ffi::OsStr;
use std::path::Path;

/// Whether the file of this path runs copies of code.
pub fn is_one(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    // One program for each of its tools: /usr/libexec/valgrind/memcheck-amd64-linux.
    let valgrind = folder.ends_with("/valgrind") && name.ends_with("-linux");
    let emulator = name == "qemu-x86_64" || name == "qemu-x86_64-static";
    let injected = name == "libdynamorio.so" || name == "pinbin";
    valgrind || emulator || injected
}

/// Whether a command of this name starts one.
pub fn starts_one(command: &Path) -> bool {
    let name = command.file_name().and_then(OsStr::to_str);
    let launcher = matches!(name, Some("valgrind" | "valgrind.bin" | "drrun" | "pin"));
    launcher || command.to_str().is_some_and(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translators_are_known_by_their_files() {
        for path in [
            "/usr/libexec/valgrind/memcheck-amd64-linux",
            "/opt/valgrind/lib/valgrind/none-amd64-linux",
            "/usr/bin/qemu-x86_64-static",
            "/opt/dr/lib64/release/libdynamorio.so",
        ] {
            assert!(is_one(path), "{path}");
        }
        for path in [
            "/usr/bin/valgrind",
            "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so",
            "/usr/bin/qemu-system-x86_64",
            "/usr/lib/memcheck-amd64-linux",
            "",
        ] {
            assert!(!is_one(path), "{path}");
        }
        for command in ["valgrind", "/usr/bin/valgrind", "qemu-x86_64"] {
            assert!(starts_one(Path::new(command)), "{command}");
        }
        assert!(!starts_one(Path::new("/opt/valgrind/run")));
    }
}
