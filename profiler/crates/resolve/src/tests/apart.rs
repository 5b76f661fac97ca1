//! The process that reads symbols: its walls, and files that were made to break it.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::process::Command;

use super::*;
use crate::helper::{Answering, Client, Death, Limits, Number, Questions, serve_names};
use crate::loaded::LoadError;
use crate::material::Material;

/// Says to a run of these tests that it is the process, and how much memory it may have.
pub(crate) const VARIABLE: &str = "PROFILER_TEST_NAMES";

const LIMITS: Limits = Limits {
    memory: 128 << 20,
    resting: 64 << 20,
};

/// No test, but in the run that is the process.
#[test]
fn the_process() {
    if let Some(memory) = std::env::var_os(VARIABLE) {
        std::process::exit(serve_names(Some(&memory), answering()).into());
    }
}

/// Does what it is told.
fn answering() -> Answering {
    Box::new(|question, files| {
        match question {
            b"wait" => loop {
                std::hint::spin_loop();
            },
            b"grow" => {
                let all = (0..256).map(|_| vec![1_u8; 1 << 20]);
                assert_ne!(all.collect::<Vec<_>>().len(), 0);
            }
            b"panic" => panic!("as it was told"),
            b"nothing" => return None,
            _ => {}
        }
        let mut said = files.len().to_string().into_bytes();
        said.extend(question);
        Some(said)
    })
}

#[test]
fn questions_cost_nobody_but_who_made_the_file() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let mut questions = Questions::with_process(LIMITS);
    let file = File::open("/proc/self/exe").unwrap();
    let mut ask = |user, question: &[u8], patience, given_up| {
        questions.ask(user, question, &[file.as_fd()], patience, &|| given_up)
    };
    assert_eq!(ask(1, b" file", PATIENCE, false), Ok(b"1 file".to_vec()));
    let large = vec![b'a'; 300_000];
    let said = ask(1, &large, PATIENCE, false).unwrap();
    assert_eq!(said[1..], large);
    assert_eq!(ask(1, b"panic", PATIENCE, false), Err("reading it failed"));
    assert_eq!(
        ask(1, b"nothing", PATIENCE, false),
        Err("reading it failed")
    );
    let much = "reading it needed too much memory";
    assert_eq!(ask(1, b"grow", PATIENCE, false), Err(much));
    let long = "reading it took too long";
    assert_eq!(
        ask(1, b"wait", Duration::from_millis(200), false),
        Err(long)
    );
    let began = Instant::now();
    assert_eq!(ask(1, b"wait", PATIENCE, true), Err(long));
    assert!(began.elapsed() < PATIENCE / 2, "it was given up");
    assert_eq!(ask(1, b" file", PATIENCE, false), Ok(b"1 file".to_vec()));
    questions.charge(1, Duration::from_secs(60));
    let mut ask = |user, question: &[u8], patience, given_up| {
        questions.ask(user, question, &[file.as_fd()], patience, &|| given_up)
    };
    let lost = "too much time was lost over files of its owner";
    assert_eq!(ask(1, b" file", PATIENCE, false), Err(lost));
    assert_eq!(ask(2, b" file", PATIENCE, false), Ok(b"1 file".to_vec()));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn material(path: &Path, lines: bool) -> Material {
    let (file, stat) = files::open_trusted(path).unwrap();
    let target = TargetFile::new(file, &stat, path.to_str().unwrap(), None);
    let settings = Settings {
        search: Search {
            debug_dirs: Vec::new(),
            debuginfod: None,
            host: None,
        },
        inlines: true,
        large_bytes: u64::MAX,
        patience: Duration::from_secs(60),
    };
    Material::gather(&target, &settings, lines, u64::MAX).unwrap()
}

fn name(client: &mut Client, number: Number, offset: u64) -> Result<String, Death> {
    let found = client.find(number, &[(offset, false)], None, soon())?;
    match &found[0].0 {
        Answer::Lines(lines) => Ok(lines[0].0.name.to_string()),
        other => panic!("{other:?}"),
    }
}

/// An honest program gets its names, whatever was there before.
fn works(client: &mut Client, dir: &TempDir) {
    let program = build(dir, "honest", &[]);
    let inner = offset_of(&program, "inner");
    let (number, _) = client
        .load(material(&program, true), soon())
        .unwrap()
        .unwrap();
    assert_eq!(name(client, number, inner).unwrap(), "inner");
}

#[test]
fn it_has_nothing_but_its_descriptors() {
    let dir = TempDir::new("walls");
    let mut client = Client::with_process(LIMITS);
    works(&mut client, &dir);
    let folder = format!("/proc/{}", client.pid().unwrap());
    // A thread of the test's in this case, in others the only one there is.
    let mut threads = fs::read_dir(format!("{folder}/task")).unwrap();
    let status = threads.find_map(|thread| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        status
            .starts_with("Name:\tprofiler-names\n")
            .then_some(status)
    });
    let status = status.unwrap();
    let value = |name: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    let walls = client.walls().unwrap();
    assert!(walls.unprivileged && walls.memory, "{walls:?}");
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!(value("NoNewPrivs"), "1");
    if walls.calls {
        assert_eq!(value("Seccomp"), "2");
    }
    let limits = fs::read_to_string(format!("{folder}/limits")).unwrap();
    let data = limits
        .lines()
        .find(|line| line.starts_with("Max data size"));
    assert!(data.unwrap().contains(" 134217728 "), "{limits}");
    if walls.own_user {
        let own = rustix::process::geteuid().as_raw().to_string();
        assert!(value("Uid").split('\t').all(|user| user != own), "{status}");
    }
    if walls.own_root {
        let names = fs::read_dir(format!("{folder}/root")).unwrap();
        let numbers = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(
            numbers
                .inspect(|n| assert!(n.parse::<u32>().is_ok(), "{n}"))
                .count()
                > 1
        );
    }
}

#[test]
fn a_name_that_unfolds_without_end_costs_its_file_alone() {
    let dir = TempDir::new("unfolding");
    // Each part stands for two of those before it.
    let digits = |mut number: usize| {
        let mut text = String::new();
        loop {
            let digit = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 36];
            text.insert(0, digit.into());
            number /= 36;
            if number == 0 {
                return text;
            }
        }
    };
    let mut mangled = "_Z1f1AIiE".to_owned();
    for index in 0..40 {
        let last = digits(index);
        mangled += &format!("S_IS{last}_S{last}_E");
    }
    let source = format!(
        ".globl main\n.type main, @function\nmain:\n.globl {mangled}\n.type {mangled}, @function\n\
         {mangled}:\n nop\n ret\n.size {mangled}, 2\n"
    );
    fs::write(dir.path("bomb.s"), source).unwrap();
    let status = Command::new("gcc")
        .args(["-o", "bomb", "bomb.s"])
        .current_dir(&dir.0)
        .status();
    assert!(status.unwrap().success());
    let bomb = dir.path("bomb");
    let offset = offset_of(&bomb, &mangled);
    let mut client = Client::with_process(LIMITS);
    let (number, _) = client
        .load(material(&bomb, false), soon())
        .unwrap()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(1);
    match client.find(number, &[(offset, false)], None, until) {
        Err(death) => assert!(
            matches!(death, Death::TooSlow | Death::TooLarge),
            "{death:?}"
        ),
        // Known by its mangled name.
        Ok(found) => assert!(format!("{found:?}").len() < 64 << 10),
    }
    works(&mut client, &dir);
}

/// A program whose debug information consists of this.
fn with_debug_info(dir: &TempDir, info: &[u8]) -> PathBuf {
    build(dir, "plain", &["-g0"]);
    fs::write(dir.path("info"), info).unwrap();
    // One kind of entry: a unit without attributes or children.
    fs::write(dir.path("abbrev"), [1, 0x11, 0, 0, 0, 0]).unwrap();
    let objcopy = |arguments: &[&str]| {
        let status = Command::new("objcopy")
            .args(arguments)
            .current_dir(&dir.0)
            .status();
        assert!(status.unwrap().success());
    };
    let add = "--add-section";
    objcopy(&[
        add,
        ".debug_info=info",
        add,
        ".debug_abbrev=abbrev",
        "plain",
    ]);
    objcopy(&["--compress-debug-sections=zlib", "plain", "bomb"]);
    dir.path("bomb")
}

#[test]
fn units_without_end_cost_their_file_alone() {
    let dir = TempDir::new("units");
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    let bomb = with_debug_info(&dir, &unit.repeat(1_000_000));
    assert!(bomb.metadata().unwrap().len() < 1 << 20, "packed");
    let inner = offset_of(&bomb, "inner");
    let mut client = Client::with_process(LIMITS);
    works(&mut client, &dir);
    let loaded = client.load(material(&bomb, true), soon());
    let death = loaded.and_then(|loaded| name(&mut client, loaded.unwrap().0, inner));
    assert_eq!(death, Err(Death::TooLarge));
    works(&mut client, &dir);
}

#[test]
fn what_is_packed_beyond_measure_is_refused_though_there_are_symbols() {
    let dir = TempDir::new("debugdata");
    build(&dir, "plain", &[]);
    File::create(dir.path("zeros"))
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    let packed = Command::new("xz")
        .args(["-1", "zeros"])
        .current_dir(&dir.0)
        .status();
    let Ok(status) = packed else {
        crate::skip::skip("packed symbols", "xz is missing");
        return;
    };
    assert!(status.success());
    let status = Command::new("objcopy")
        .args(["--add-section", ".gnu_debugdata=zeros.xz", "plain", "bomb"])
        .current_dir(&dir.0)
        .status();
    assert!(status.unwrap().success());
    let mut client = Client::with_process(LIMITS);
    let loaded = client
        .load(material(&dir.path("bomb"), true), soon())
        .unwrap();
    assert_eq!(loaded, Err(LoadError::TooMuch));
    works(&mut client, &dir);
}

#[test]
fn what_never_answers_is_left_alone() {
    // Behind all that the kernel has said, who reads on waits until it says more.
    let silent = File::open("/dev/kmsg").and_then(|mut file| {
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    });
    let Ok(silent) = silent else {
        crate::skip::skip("a file that never answers", "needs root");
        return;
    };
    let memory = File::open("/proc/self/mem").unwrap();
    let mut client = Client::with_process(LIMITS);
    let there = [7_u8; 16];
    let read = |client: &mut Client, address| client.read(memory.as_fd(), address, 16, soon());
    assert_eq!(read(&mut client, there.as_ptr() as u64).unwrap(), there);
    // It may say something just now.
    let death = (0..50).find_map(|_| {
        let until = Instant::now() + Duration::from_millis(200);
        client.read(silent.as_fd(), 0, 1 << 20, until).err()
    });
    assert_eq!(death, Some(Death::TooSlow));
    assert_eq!(read(&mut client, there.as_ptr() as u64).unwrap(), there);
    assert_eq!(read(&mut client, 16).unwrap(), [0_u8; 0]);
}
