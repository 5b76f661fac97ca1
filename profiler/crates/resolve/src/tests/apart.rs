//! The process that reads symbols: its walls, and files that were made to break it.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::process::Command;

use super::*;
use crate::helper::{Answering, Client, Death, Limits, Number, Questions, serve_names};
use crate::loaded::LoadError;
use crate::material::Material;
use crate::symbolize::Told;

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
    let lost = "files of its owner take too much time";
    assert_eq!(ask(1, b" file", PATIENCE, false), Err(lost));
    assert_eq!(ask(2, b" file", PATIENCE, false), Ok(b"1 file".to_vec()));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(super) fn material(path: &Path, lines: bool) -> Material {
    let (file, stat) = files::open_trusted(path).unwrap();
    let target = TargetFile::new(file, &stat, path.to_str().unwrap(), None, true);
    Material::gather(&target, &settings(), lines, u64::MAX).unwrap()
}

/// Those of files that need no others.
pub(super) fn settings() -> Settings {
    Settings {
        search: Search {
            debug_dirs: Vec::new(),
            debuginfod: None,
            host: None,
        },
        inlines: true,
        large_bytes: u64::MAX,
        patience: Duration::from_secs(60),
        unpacked: None,
    }
}

fn name(client: &mut Client, number: Number, address: u64) -> Result<String, Death> {
    let found = client.find(number, &[(address, false)], 0, soon())?;
    match &found[0].0 {
        Answer::Lines(lines) => Ok(lines[0].0.name.to_string()),
        other => panic!("{other:?}"),
    }
}

/// An honest program gets its names, whatever was there before.
fn works(client: &mut Client, dir: &TempDir) {
    let program = build(dir, "honest", &[]);
    let inner = address_of(&program, "inner");
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
    let address = address_of(&bomb, &mangled);
    let mut client = Client::with_process(LIMITS);
    let (number, _) = client
        .load(material(&bomb, false), soon())
        .unwrap()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(1);
    match client.find(number, &[(address, false)], 0, until) {
        Err(death) => assert!(
            matches!(death, Death::TooSlow | Death::TooLarge),
            "{death:?}"
        ),
        // Known by its mangled name.
        Ok(found) => assert!(format!("{found:?}").len() < 64 << 10),
    }
    works(&mut client, &dir);
}

/// A program whose debug information consists of these sections.
fn with_debug_info(dir: &TempDir, sections: &[(&str, &[u8])]) -> PathBuf {
    build(dir, "plain", &["-g0"]);
    let objcopy = |arguments: &[String]| {
        let status = Command::new("objcopy")
            .args(arguments)
            .current_dir(&dir.0)
            .status();
        assert!(status.unwrap().success());
    };
    let mut add = Vec::new();
    for (name, bytes) in sections {
        fs::write(dir.path(name), bytes).unwrap();
        add.push(format!("--add-section=.debug_{name}={name}"));
    }
    add.push("plain".to_owned());
    objcopy(&add);
    objcopy(&["--compress-debug-sections=zlib", "plain", "bomb"].map(str::to_owned));
    dir.path("bomb")
}

#[test]
fn units_without_end_cost_their_file_alone() {
    let dir = TempDir::new("units");
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    let info = unit.repeat(1_000_000);
    // One kind of entry: a unit without attributes or children.
    let abbrev = [1, 0x11, 0, 0, 0, 0];
    let bomb = with_debug_info(&dir, &[("info", &info), ("abbrev", &abbrev)]);
    assert!(bomb.metadata().unwrap().len() < 1 << 20, "packed");
    let inner = address_of(&bomb, "inner");
    let mut client = Client::with_process(LIMITS);
    works(&mut client, &dir);
    let loaded = client.load(material(&bomb, true), soon());
    let death = loaded.and_then(|loaded| name(&mut client, loaded.unwrap().0, inner));
    assert_eq!(death, Err(Death::TooLarge));
    works(&mut client, &dir);
}

/// Kinds of entries.
const ABBREV: [u8; 58] = [
    1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0,
    0, // the unit: low_pc, high_pc, stmt_list
    2, 0x24, 0, 0, 0, // a type without anything
    3, 0x2e, 0, 0x03, 0x08, 0x11, 0x01, 0x12, 0x0b, 0, 0, // a function: name, low_pc, high_pc
    4, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0, // one with others in it
    5, 0x1d, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, // an inlined one: low_pc, high_pc
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// One unit, of all addresses.
fn unit(entries: &[u8]) -> Vec<u8> {
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    unit.extend(of_all(&[1]));
    unit.extend(0_u32.to_le_bytes());
    unit.extend(entries);
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    info
}

/// An entry with all addresses.
fn of_all(code: &[u8]) -> Vec<u8> {
    [code, &0_u64.to_le_bytes(), &(1_u64 << 40).to_le_bytes()].concat()
}

/// So many functions of a byte.
fn functions(count: u64) -> Vec<u8> {
    let mut entries = Vec::new();
    for address in 0..count {
        entries.extend([3, b'f', 0]);
        entries.extend(address.to_le_bytes());
        entries.push(1);
    }
    entries
}

/// One unit that holds all there is to read, whatever is asked: entries that say nothing, functions, functions in
/// functions, lines.
#[test]
fn one_unit_without_end_costs_its_file_alone() {
    const PATIENCE: Duration = Duration::from_secs(5);
    const BYTES: usize = 48 << 20;
    let mut nested = of_all(&[4, b'f', 0]);
    nested.extend(of_all(&[5]).repeat(BYTES / 17));
    // Version 4, one directory and file; each byte behind that is a row.
    let program = [
        1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, b'f', 0, 0, 0, 0, 0,
    ];
    let mut lines = (BYTES as u32).to_le_bytes().to_vec();
    lines.extend([4, 0]);
    lines.extend((program.len() as u32).to_le_bytes());
    lines.extend(&program);
    lines.resize(BYTES + 4, 0x20);
    for (what, entries, lines) in [
        ("empty", vec![2; BYTES], Vec::new()),
        ("functions", functions(BYTES as u64 / 12), Vec::new()),
        ("nested", nested, Vec::new()),
        ("lines", of_all(&[4, b'f', 0]), lines),
    ] {
        let dir = TempDir::new(&format!("unit-{what}"));
        let info = unit(&entries);
        let mut sections = vec![("info", &*info), ("abbrev", &ABBREV)];
        if !lines.is_empty() {
            sections.push(("line", &lines));
        }
        let bomb = with_debug_info(&dir, &sections);
        let inner = address_of(&bomb, "inner");
        let mut client = Client::with_process(Limits::default());
        works(&mut client, &dir);
        let began = Instant::now();
        let loaded = client.load(material(&bomb, true), began + PATIENCE);
        // Names, or none: what counts is that there is an end.
        let _found = loaded.and_then(|loaded| {
            let asked = [(inner, false)];
            client.find(loaded.unwrap().0, &asked, 0, began + PATIENCE)
        });
        let took = began.elapsed();
        assert!(took < PATIENCE * 2, "{what}: {took:?}");
        works(&mut client, &dir);
    }
}

/// While one user's files are read, those of others have their names: on one thread theirs, which are larger, would come
/// behind all of them.
#[test]
fn one_users_files_hold_nobody_elses_up() {
    const SLOW: usize = 6;
    let dir = TempDir::new("users");
    let (bomb, honest) = slow_and_honest(&dir);
    let inner = offset_of(&bomb, "inner");
    let mut symbolizer = Symbolizer::start(settings()).unwrap();
    let mut ask = |path: &Path, owner| ask_for(&mut symbolizer, path, owner, inner);
    let slow: Vec<u64> = (0..SLOW).map(|_| ask(&bomb, Some(1001))).collect();
    ask(&honest, None);
    ask(&honest, Some(1002));
    let mut order = Vec::new();
    while order.len() < SLOW + 2 {
        match symbolizer.wait(Duration::from_secs(60)) {
            Some(Told::Names(replies)) => order.extend(replies.iter().map(|reply| reply.module)),
            told => panic!("{order:?}, {told:?}"),
        }
    }
    assert_eq!(order.last(), slow.iter().max(), "{order:?}");
}

/// A program that takes long to be read, and one that does not, though it is larger. Both have `inner` at one place.
fn slow_and_honest(dir: &TempDir) -> (std::path::PathBuf, std::path::PathBuf) {
    let entries = unit(&functions(4_000_000));
    let bomb = with_debug_info(dir, &[("info", &entries), ("abbrev", &ABBREV)]);
    let honest = build(dir, "honest", &[]);
    std::fs::write(dir.path("more"), vec![0; 16 << 20]).unwrap();
    let padded = Command::new("objcopy")
        .args(["--add-section=more=more", "honest"])
        .current_dir(&dir.0)
        .status();
    assert!(padded.unwrap().success());
    assert!(honest.metadata().unwrap().len() > bomb.metadata().unwrap().len());
    assert_eq!(offset_of(&honest, "inner"), offset_of(&bomb, "inner"));
    (bomb, honest)
}

/// Asks about a file of a user; the module that answers will have.
fn ask_for(symbolizer: &mut Symbolizer, path: &Path, owner: Option<u32>, offset: u64) -> u64 {
    let (file, stat) = files::open_trusted(path).unwrap();
    let mut file = TargetFile::new(file, &stat, path.to_str().unwrap(), None, true);
    file.owner = owner;
    let module = mapping::tests::module(path.to_str().unwrap());
    let uid = module.uid;
    let asked = symbolizer.ask(crate::symbolize::Request {
        module,
        file: Some(Arc::new(file)),
        addresses: vec![(offset, false)],
    });
    asked.unwrap();
    uid
}

/// However many users have files that take long, one more has names as soon as the first of these is read.
#[test]
fn many_users_files_hold_nobody_elses_up() {
    const USERS: u32 = 6;
    let dir = TempDir::new("many-users");
    let (bomb, honest) = slow_and_honest(&dir);
    let inner = offset_of(&bomb, "inner");
    let mut symbolizer = Symbolizer::start(settings()).unwrap();
    for user in (0..USERS).chain(0..USERS) {
        ask_for(&mut symbolizer, &bomb, Some(1001 + user), inner);
    }
    let newcomer = ask_for(&mut symbolizer, &honest, Some(2000), inner);
    let mut order = Vec::new();
    while !order.contains(&newcomer) {
        match symbolizer.wait(Duration::from_secs(120)) {
            Some(Told::Names(replies)) => order.extend(replies.iter().map(|reply| reply.module)),
            told => panic!("{order:?}, {told:?}"),
        }
    }
    // Those that were read then, and what came into their place meanwhile.
    assert!(order.len() <= 1 + 2 * crate::turns::READERS, "{order:?}");
}

#[test]
fn what_goes_into_files_is_charged_to_their_user_and_has_an_end() {
    let dir = TempDir::new("charged");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    let mut symbolizer = Symbolizer::start(settings()).unwrap();
    let mut line_of = |charge: u64, owner: u32| {
        symbolizer
            .work()
            .charge(Some(owner), Duration::from_secs(charge));
        ask_for(&mut symbolizer, &program, Some(owner), inner);
        let Some(Told::Names(replies)) = symbolizer.wait(Duration::from_secs(60)) else {
            panic!("no answer");
        };
        let line = match &replies[0].answer {
            Answer::Lines(lines) => Some((lines[0].0.name.to_string(), lines[0].1)),
            _ => None,
        };
        (line, symbolizer.work().so_far(owner))
    };
    let (with_line, without) = (Some(("inner".into(), 1)), Some(("inner".into(), 0)));
    let (line, cost) = line_of(0, 7);
    assert_eq!(line, with_line);
    assert!(
        cost > Duration::ZERO,
        "what was read in vain is not all that is charged"
    );
    assert_eq!(line_of(31, 7).0, without);
    assert_eq!(line_of(31, 7).0, None);
    assert_eq!(line_of(0, 8).0, with_line);
}

#[test]
fn who_is_killed_did_not_need_too_much() {
    let dir = TempDir::new("killed");
    let mut client = Client::with_process(LIMITS);
    works(&mut client, &dir);
    let program = dir.path("honest");
    let (number, _) = client
        .load(material(&program, true), soon())
        .unwrap()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(client.pid().unwrap().cast_signed());
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
    assert_eq!(name(&mut client, number, 0), Err(Death::Killed));
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
fn packed_symbols_are_read_behind_the_walls() {
    let dir = TempDir::new("debugdata-apart");
    let program = build(&dir, "program", &[]);
    let inner = address_of(&program, "inner");
    // A window of 256 MiB: more than is given for it.
    for (xz, symbols) in [("xz mini", true), ("xz --lzma2=dict=256MiB mini", false)] {
        let copy = dir.path("packed");
        fs::copy(&program, &copy).unwrap();
        if !debug_info::pack_symbols(&dir, "packed", xz) {
            return;
        }
        fs::remove_file(dir.path("mini.xz")).unwrap();
        let mut client = Client::with_process(LIMITS);
        let loaded = client.load(material(&copy, true), soon()).unwrap();
        let (number, _) = loaded.unwrap();
        let found = name(&mut client, number, inner);
        assert_eq!(found == Ok("inner".to_owned()), symbols, "{xz}: {found:?}");
    }
}

#[test]
fn what_does_not_begin_is_not_waited_for() {
    const MOMENT: Duration = Duration::from_millis(250);
    let read = |client: &mut Client| {
        let memory = File::open("/proc/self/pagemap").unwrap();
        let there = [7_u8; 16];
        let memory = (memory.as_fd(), Tid(std::process::id()));
        let read = client.read(memory, there.as_ptr() as u64, 16, soon());
        read.map(|bytes| bytes.unwrap() == there)
    };

    // It is waited for once, and not with each question.
    let mut never = Client::that_reads_after("exec sleep infinity");
    let began = Instant::now();
    assert_eq!(never.start_meanwhile(), Err(Death::NotStarted));
    assert!(began.elapsed() >= MOMENT);
    let (began, pid) = (Instant::now(), never.pid());
    for _ in 0..100 {
        assert_eq!(never.start_meanwhile(), Err(Death::NotStarted));
    }
    assert!(began.elapsed() < MOMENT, "{:?}", began.elapsed());
    assert!(pid.is_some() && never.pid() == pid, "it may still begin");

    // What begins later answers then.
    let mut late = Client::that_reads_after("sleep 1");
    assert_eq!(late.start_meanwhile(), Err(Death::NotStarted));
    let pid = late.pid();
    while late.start_meanwhile().is_err() {
        assert_eq!(late.pid(), pid);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(read(&mut late), Ok(true));
    assert_eq!(late.pid(), pid);

    // After one that has ended there is a pause, but for who can wait.
    let mut ends = Client::that_reads_after("exit 1");
    assert_eq!(ends.start_meanwhile(), Err(Death::NotStarted));
    assert_eq!(ends.starts(), 1);
    assert_eq!(ends.start_meanwhile(), Err(Death::NotStarted));
    assert_eq!(ends.starts(), 1);
    assert_eq!(ends.start(), Err(Death::NotStarted));
    assert_eq!(ends.starts(), 2);
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
    let memory = File::open("/proc/self/pagemap").unwrap();
    let mut client = Client::with_process_that_reads();
    let there = [7_u8; 16];
    let own = Tid(std::process::id());
    let read =
        |client: &mut Client, address| client.read((memory.as_fd(), own), address, 16, soon());
    assert_eq!(
        read(&mut client, there.as_ptr() as u64).unwrap().unwrap(),
        there
    );
    // It may say something just now.
    let death = (0..50).find_map(|_| {
        let until = Instant::now() + Duration::from_millis(200);
        client.read((silent.as_fd(), own), 0, 1 << 20, until).err()
    });
    assert_eq!(death, Some(Death::TooSlow));
    assert_eq!(
        read(&mut client, there.as_ptr() as u64).unwrap().unwrap(),
        there
    );
    assert_eq!(read(&mut client, 16).unwrap().unwrap(), [0_u8; 0]);
}
