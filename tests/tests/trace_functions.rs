//! What the tracer knows of object files, against what binutils say of them.
//!
//! Judges: nm (symbols), readelf (markers), c++filt (names). Objects: system libraries and fixtures
//! that are compiled here.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::Command;

use profiler::trace::Function;
use profiler::trace::object::Object;

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const LIBSTDCXX: &str = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .env("LC_ALL", "C")
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn object(path: &str) -> Object {
    Object::read(&File::open(path).unwrap(), None, path).unwrap()
}

/// Name, address, size (0: not said) of the functions that nm shows, cold parts apart.
fn functions_of_nm(path: &str, dynamic: bool) -> BTreeSet<(String, u64, u64)> {
    // --special-syms has no influence on functions; the type column comes from sysv format.
    let mut arguments = vec!["--format=sysv", "--defined-only"];
    if dynamic {
        arguments.push("--dynamic");
    }
    arguments.push(path);
    let mut functions = BTreeSet::new();
    for line in output("nm", &arguments).lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, address, _, kind, size, ..] = fields[..] else {
            continue;
        };
        if kind != "FUNC" {
            continue;
        }
        let name = name.split('@').next().unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        functions.insert((name.to_owned(), number(address), number(size)));
    }
    functions
}

fn raw_names(function: &Function) -> impl Iterator<Item = &str> {
    let first = function.linkage_name.as_ref().unwrap_or(&function.name);
    std::iter::once(first)
        .chain(&function.aliases)
        .map(|name| &**name)
}

#[test]
fn functions_of_libc_are_those_of_nm() {
    for path in [LIBC, LIBSTDCXX] {
        let object = object(path);
        let ours: BTreeSet<(String, u64)> = (object.functions().iter())
            .flat_map(|f| raw_names(f).map(|name| (name.to_owned(), f.address)))
            .collect();
        let judged = functions_of_nm(path, true);
        let theirs: BTreeSet<(String, u64)> = judged.iter().map(|f| (f.0.clone(), f.1)).collect();
        assert!(theirs.len() > 1000, "{path}: {}", theirs.len());
        assert_eq!(ours, theirs, "{path}");
        let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, address, size) in &judged {
            let known = sizes.entry(*address).or_default();
            *known = (*known).max(*size);
        }
        for function in object.functions() {
            let size = sizes[&function.address];
            assert!(size == 0 || size == function.size, "{function:?}");
            assert!(function.size > 0, "{function:?}");
        }
    }
}
