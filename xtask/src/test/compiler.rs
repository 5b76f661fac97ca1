//! The compiler, as cargo calls it for tests.
//!
//! The command line of a compiler -> the same, but a crate's own tests are not optimised: they run once, and
//! optimising them was nine tenths of what building all tests took (docs/building.md). Profiles of cargo can't say that, since a crate and its
//! tests are one package there: what tests are linked with is the release's.
//!
//! What does not belong here: what is built for tests (`build`).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Set for cargo, which calls this program as its compiler then: what the user has between cargo and compiler, if anything.
const OUTER: &str = "XTASK_COMPILES_FOR";
/// Tests that walk millions of frames in code of their own: optimising it a little takes less than that saves.
const WALKS: &str = "unwinding";
/// By which cargo is told of a program between it and its compiler.
const WRAPPER: &str = "RUSTC_WRAPPER";

/// Has this cargo call the compiler by way of this program.
pub(super) fn wrap(cargo: &mut Command) -> io::Result<()> {
    let outer = env::var_os(WRAPPER).unwrap_or_default();
    cargo.env(OUTER, outer).env(WRAPPER, env::current_exe()?);
    Ok(())
}

/// Becomes the compiler, if this program is called in its place; then it comes back only if that can't be run.
pub(crate) fn run_if_called_for() -> Option<ExitCode> {
    let outer = env::var_os(OUTER)?;
    let mut words = command_line(outer, env::args_os().skip(1)).into_iter();
    let compiler = words.next().unwrap_or_default();
    let error = Command::new(&compiler).args(words).env_remove(OUTER).exec();
    eprintln!("error: failed to run {}: {error}", compiler.display());
    Some(ExitCode::FAILURE)
}

fn command_line(outer: OsString, called: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let outer = Some(outer).filter(|outer| !outer.is_empty());
    let mut words: Vec<OsString> = outer.into_iter().chain(called).collect();
    if words.iter().any(|word| word == "--test") {
        let mut pairs = words.windows(2);
        let level = match pairs.any(|pair| pair[0] == "--crate-name" && pair[1] == WALKS) {
            true => "-Copt-level=1",
            false => "-Copt-level=0",
        };
        // Of an option that is given twice the last one counts.
        let last = [level, "-Ccodegen-units=16"];
        words.extend(last.map(OsString::from));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(outer: &str, called: &str) -> String {
        let called = called.split(' ').map(OsString::from);
        let words = command_line(outer.into(), called);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn tests_alone_are_not_optimised() {
        let library = "rustc --crate-type lib -C opt-level=3 a.rs";
        assert_eq!(compiled("", library), library);
        let tests = "rustc --test -C opt-level=3 a.rs";
        let last = "-Copt-level=0 -Ccodegen-units=16";
        assert_eq!(compiled("", tests), format!("{tests} {last}"));
        assert_eq!(compiled("cache", tests), format!("cache {tests} {last}"));
        let walks = "rustc --crate-name unwinding --test a.rs";
        let last = "-Copt-level=1 -Ccodegen-units=16";
        assert_eq!(compiled("", walks), format!("{walks} {last}"));
    }
}
