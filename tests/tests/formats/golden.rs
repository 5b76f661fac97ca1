//! Texts and exports against the files that are kept of them, below `tests/golden`.
//!
//! A file's path and what is made today -> it passes if they are equal byte for byte; `UPDATE_GOLDEN=1` writes the
//! files anew. Read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

/// Where these files lie.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Whether they are written anew.
pub(crate) fn update() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// Compares with the file `name` (`report/whole.txt`).
#[track_caller]
pub(crate) fn check(name: &str, actual: &(impl AsRef<[u8]> + ?Sized)) {
    let (path, actual) = (folder().join(name), actual.as_ref());
    if update() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; run with UPDATE_GOLDEN=1", path.display());
    });
    let text = String::from_utf8_lossy(actual);
    let expected_text = String::from_utf8_lossy(&expected);
    let mut lines = expected_text.lines().zip(text.lines());
    let differs = lines.find(|(expected, actual)| expected != actual);
    assert!(
        expected == actual,
        "{name} differs; first: {differs:?}; see it with UPDATE_GOLDEN=1 and git diff"
    );
}

/// [`check`], and no line is wider than a screen of `width`. Prose folds and names are cut; only what identifies
/// code may stand out.
#[track_caller]
pub(crate) fn check_on_screen(name: &str, width: Option<usize>, actual: &str) {
    check(name, actual);
    let Some(width) = width else {
        return;
    };
    for line in actual.lines().filter(|line| !line.contains("build id")) {
        let used = line.chars().count();
        assert!(used <= width, "{name}: wider than {width}: {line}");
    }
}
