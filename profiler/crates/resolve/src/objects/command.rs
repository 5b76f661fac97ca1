//! What a command will load: its program and libraries, found as the dynamic linker finds them.
//!
//! A program's name -> the ELF file that will run (of a script, the one behind `#!`), its
//! interpreter, and all libraries that these need, in the order of loading. The environment is this
//! process's, which the command inherits. Source: ld.so(8), execve(2).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use profiler_model::text::TextSet;
use rustc_hash::FxHashSet;

use super::loader_cache::LoaderCache;
use super::{FileId, Finder, MAX_OBJECTS, ObjectsError, TargetObject};
use profiler_object::dynamic::Dynamic;
use profiler_object::elf::{Elf, read_up_to};

/// How many scripts may run scripts: the kernel's limit is 5.
const MAX_SCRIPTS: usize = 5;
/// Longest first line of a script.
const MAX_LINE_BYTES: usize = 4096;
/// Most bytes of the dynamic linker's cache.
const MAX_CACHE_BYTES: u64 = 64 << 20;
/// Where the dynamic linker looks last; the first is what `$LIB` stands for.
const LIBRARY_FOLDERS: [&str; 6] = [
    if cfg!(target_arch = "x86_64") {
        "/lib/x86_64-linux-gnu"
    } else {
        "/lib/aarch64-linux-gnu"
    },
    if cfg!(target_arch = "x86_64") {
        "/usr/lib/x86_64-linux-gnu"
    } else {
        "/usr/lib/aarch64-linux-gnu"
    },
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

impl Finder {
    /// The objects that a command loads before its first instruction: the executable first. Of a
    /// script, those of what runs it.
    pub fn objects_of_command(
        &mut self,
        program: &Path,
    ) -> Result<Vec<TargetObject>, ObjectsError> {
        let mut main = self.program(program)?;
        main.is_main = true;
        let mut objects = vec![main];
        let mut loader = Loader::new();
        let elf = headers(&objects[0])?;
        if let Some(interpreter) = elf.interpreter(&objects[0].file) {
            let found = self.object_at(Path::new(&interpreter), None)?;
            loader.loaded.insert(found.id);
            objects.push(found);
        }
        loader.add(&objects[0], &elf, None);
        while let Some(wanted) = loader.wanted.pop_front() {
            if objects.len() >= MAX_OBJECTS {
                log::warn!(
                    "{} needs more than {MAX_OBJECTS} libraries",
                    program.display()
                );
                break;
            }
            let Some(path) = loader.find(&wanted) else {
                log::warn!("{} needs {}, which is not found", wanted.by, wanted.name);
                continue;
            };
            match self.object_at(&path, None) {
                Ok(object) if loader.loaded.insert(object.id) => {
                    let elf = headers(&object)?;
                    loader.add(&object, &elf, Some(&wanted));
                    objects.push(object);
                }
                Ok(_) => {}
                Err(error) => log::warn!("{} needs {}: {error}", wanted.by, wanted.name),
            }
        }
        if let Some(host) = &self.search.host {
            self.find_aliases(&mut objects, host, 0);
        }
        Ok(objects)
    }

    /// The ELF file that runs when `program` is called.
    fn program(&mut self, program: &Path) -> Result<TargetObject, ObjectsError> {
        let mut path = in_path(program)?;
        for _ in 0..=MAX_SCRIPTS {
            let Some(next) = script_interpreter(&path)? else {
                return self.object_at(&path, None);
            };
            path = in_path(&next)?;
        }
        Err(ObjectsError::NotProgram(path.to_string_lossy().into()))
    }
}

/// A library that an object needs.
struct Wanted {
    name: String,
    /// Which object needs it.
    by: Box<str>,
    /// Folders to look in before and after those of the environment.
    first: Vec<String>,
    then: Vec<String>,
    only_own_paths: bool,
}

struct Loader {
    wanted: VecDeque<Wanted>,
    /// Names that were looked for.
    asked: TextSet<String>,
    loaded: FxHashSet<FileId>,
    environment: Vec<String>,
    cache: LoaderCache,
}

impl Loader {
    fn new() -> Loader {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let environment = variable("LD_LIBRARY_PATH");
        let preloaded = variable("LD_PRELOAD");
        let preloaded = preloaded.split([' ', ':']).filter(|name| !name.is_empty());
        let mut bytes = Vec::new();
        if let Ok(cache) = File::open("/etc/ld.so.cache") {
            let _ = cache.take(MAX_CACHE_BYTES).read_to_end(&mut bytes);
        }
        Loader {
            wanted: preloaded
                .map(|name| Wanted {
                    name: name.to_owned(),
                    by: "LD_PRELOAD".into(),
                    first: Vec::new(),
                    then: Vec::new(),
                    only_own_paths: false,
                })
                .collect(),
            asked: TextSet::default(),
            loaded: FxHashSet::default(),
            environment: environment.split([':', ';']).map(str::to_owned).collect(),
            cache: LoaderCache::parse(&bytes),
        }
    }

    /// Asks for what an object needs. `by`: what it was itself needed for.
    fn add(&mut self, object: &TargetObject, elf: &Elf, by: Option<&Wanted>) {
        self.loaded.insert(object.id);
        let dynamic = Dynamic::read(elf, &object.file);
        self.asked.extend(dynamic.soname);
        let origin = Path::new(&*object.path).parent();
        let origin = origin.map_or(String::new(), |path| path.to_string_lossy().into_owned());
        let folders = |text: Option<&String>| -> Vec<String> {
            let parts = text.into_iter().flat_map(|text| text.split(':'));
            parts.map(|part| expand(part, &origin)).collect()
        };
        let (first, then) = match &dynamic.runpath {
            // With the newer kind, the older one does not count.
            Some(_) => (Vec::new(), folders(dynamic.runpath.as_ref())),
            None => {
                let mut first = folders(dynamic.rpath.as_ref());
                first.extend(by.iter().flat_map(|by| by.first.iter().cloned()));
                (first, Vec::new())
            }
        };
        for name in dynamic.needed {
            if self.asked.insert(name.clone()) {
                self.wanted.push_back(Wanted {
                    name: expand(&name, &origin),
                    by: object.path.clone(),
                    first: first.clone(),
                    then: then.clone(),
                    only_own_paths: dynamic.only_own_paths,
                });
            }
        }
    }

    fn find(&self, wanted: &Wanted) -> Option<PathBuf> {
        if wanted.name.contains('/') {
            return Some(PathBuf::from(&wanted.name));
        }
        let environment = self.environment.iter().filter(|folder| !folder.is_empty());
        let mut own = wanted.first.iter().chain(environment).chain(&wanted.then);
        if let Some(path) = own.find_map(|folder| in_folder(folder, &wanted.name)) {
            return Some(path);
        }
        if wanted.only_own_paths {
            return None;
        }
        if let Some(path) = self.cache.path(&wanted.name) {
            let path = Path::new(path);
            let folder = path.parent().and_then(Path::to_str);
            let found = folder.and_then(|folder| in_folder(folder, &wanted.name));
            return found.or_else(|| Some(path.to_owned()));
        }
        let mut folders = LIBRARY_FOLDERS.iter();
        folders.find_map(|folder| in_folder(folder, &wanted.name))
    }
}

/// A library in a folder, or the variant for this processor in a folder below.
fn in_folder(folder: &str, name: &str) -> Option<PathBuf> {
    let folder = Path::new(folder);
    let variants = processor_levels().iter().map(|level| {
        let variants = folder.join("glibc-hwcaps").join(level);
        variants.join(name)
    });
    variants
        .chain([folder.join(name)])
        .find(|path| is_library(path))
}

/// The dynamic linker passes over libraries of other machines.
fn is_library(path: &Path) -> bool {
    let Ok((file, _)) = super::open_trusted(path) else {
        return false;
    };
    Elf::read(&file).is_ok_and(|elf| elf.wide == cfg!(target_pointer_width = "64"))
}

/// Names of the levels of processors that this one is, best first.
fn processor_levels() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    {
        let v4 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let v3 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe");
        let v2 = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt");
        let levels = &["x86-64-v4", "x86-64-v3", "x86-64-v2"];
        match (v2, v3, v4) {
            (true, true, true) => levels,
            (true, true, false) => &levels[1..],
            (true, false, _) => &levels[2..],
            (false, ..) => &[],
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    &[]
}

/// `$ORIGIN`, `$LIB` and `$PLATFORM` replaced.
fn expand(text: &str, origin: &str) -> String {
    let lib = LIBRARY_FOLDERS[0].trim_start_matches('/');
    let mut expanded = text.to_owned();
    for (name, value) in [
        ("ORIGIN", origin),
        ("LIB", lib),
        ("PLATFORM", std::env::consts::ARCH),
    ] {
        expanded = expanded.replace(&format!("${{{name}}}"), value);
        expanded = expanded.replace(&format!("${name}"), value);
    }
    expanded
}

/// The program that a name stands for.
fn in_path(program: &Path) -> Result<PathBuf, ObjectsError> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Ok(program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let executable = |path: &PathBuf| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
    };
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(executable);
    found.ok_or_else(|| ObjectsError::NoProgram(program.to_string_lossy().into()))
}

/// What runs a script; none if `path` is no script. `env` runs what it is told to.
fn script_interpreter(path: &Path) -> Result<Option<PathBuf>, ObjectsError> {
    let shown = || path.to_string_lossy();
    let (file, _) = super::open_trusted(path).map_err(|error| ObjectsError::Open {
        path: shown().into(),
        why: error.to_string().into(),
    })?;
    let mut head = vec![0; MAX_LINE_BYTES];
    let got = read_up_to(&file, &mut head, 0).unwrap_or(0);
    let head = &head[..got];
    if head.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    let line = head
        .strip_prefix(b"#!")
        .and_then(|rest| rest.split(|&byte| byte == b'\n').next())
        .ok_or_else(|| ObjectsError::NotProgram(shown().into()))?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let interpreter = words
        .next()
        .ok_or_else(|| ObjectsError::NotProgram(shown().into()))?;
    if interpreter.ends_with(b"/env") {
        let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        if let Some(program) = program {
            return Ok(Some(Path::new(OsStr::from_bytes(program)).to_owned()));
        }
    }
    Ok(Some(Path::new(OsStr::from_bytes(interpreter)).to_owned()))
}

fn headers(object: &TargetObject) -> Result<Elf, ObjectsError> {
    Elf::read(&object.file).map_err(|error| ObjectsError::Open {
        path: object.path.clone(),
        why: error.to_string().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_replaced() {
        assert_eq!(expand("$ORIGIN/../lib", "/a/bin"), "/a/bin/../lib");
        assert_eq!(expand("${ORIGIN}", "/a"), "/a");
        assert_eq!(expand("/plain", "/a"), "/plain");
    }

    #[test]
    fn scripts_lead_to_what_runs_them() {
        let folder = std::env::temp_dir().join(format!("profiler-script-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = folder.join("script");
        for (line, expected) in [
            ("#!/bin/sh -e\n", "/bin/sh"),
            ("#! /usr/bin/env sh\n", "sh"),
            ("#!/usr/bin/env -S A=1 sh -e\n", "sh"),
        ] {
            std::fs::write(&script, line).unwrap();
            let found = script_interpreter(&script).unwrap();
            assert_eq!(found, Some(expected.into()), "{line}");
            let objects = Finder::default().objects_of_command(&script).unwrap();
            let shell = std::fs::canonicalize("/bin/sh").unwrap();
            assert_eq!(&*objects[0].path, shell.to_str().unwrap());
        }
        std::fs::write(&script, "echo\n").unwrap();
        assert!(script_interpreter(&script).is_err());
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        let endless = Finder::default().objects_of_command(&script).unwrap_err();
        assert!(matches!(endless, ObjectsError::NotProgram(_)), "{endless}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
