//! What tests said that they could not check, and whether that was declared in `tests/declared-skips.txt`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Says what was skipped. Gives how much of it is not declared.
pub(super) fn report(root: &Path, log: &Path) -> io::Result<usize> {
    let skips = match fs::read_to_string(log) {
        Ok(text) => parse_skips(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    if skips.is_empty() {
        println!("\nno test was skipped");
        return Ok(0);
    }
    let declared = parse_declared(&fs::read_to_string(root.join("tests/declared-skips.txt"))?);
    let mut undeclared = 0;
    println!("\n{} skipped:", skips.len());
    for (test, reason) in &skips {
        let known = is_declared(&declared, test);
        undeclared += usize::from(!known);
        println!(
            "  {test}: {reason}{}",
            if known { " (declared)" } else { "" }
        );
    }
    Ok(undeclared)
}

/// Whether a test is declared by its name, or by its module's: `module::*`.
fn is_declared(declared: &BTreeMap<String, String>, test: &str) -> bool {
    declared.contains_key(test)
        || test
            .split_once("::")
            .is_some_and(|(module, _)| declared.contains_key(&format!("{module}::*")))
}

/// Lines `test<TAB>reason` or `test: reason`.
fn parse_skips(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('\t').or_else(|| line.split_once(": ")))
        .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        .collect()
}

/// Lines `test: reason`; `#` begins a comment.
fn parse_declared(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_and_declarations() {
        let skips =
            parse_skips("e2e_a::b\tneeds root\nbroken line\ne2e_a::b\tneeds root\nc: d: e\n");
        assert_eq!(skips.len(), 2);
        assert_eq!(skips["c"], "d: e");
        let declared = parse_declared("# comment: x\n\ne2e_a::b: no hardware PMU\n");
        assert_eq!(declared.len(), 1);
        assert!(is_declared(&declared, "e2e_a::b"));
        assert!(!is_declared(&declared, "e2e_a::c"));
        let declared = parse_declared("a_conformance::*: a command runs them\n");
        assert!(is_declared(&declared, "a_conformance::b"));
        assert!(!is_declared(&declared, "conformance::b"));
        assert!(!is_declared(&declared, "a_conformance"));
    }
}
