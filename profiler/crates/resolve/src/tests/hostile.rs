//! Files of targets that mean harm.

use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// A resolver, and what it told.
struct Bench {
    resolver: Box<Resolver>,
    reader: Reader,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            resolver: Resolver::new(options()).unwrap(),
            reader: Reader::default(),
        }
    }

    /// What becomes of one sample in a file mapped at [`BASE`].
    fn one(&mut self, index: u32, path: &Path, offset: u64) -> Option<UnknownReason> {
        let id = pid(index);
        let time = 10 + self.reader.events.len() as u64 * 100;
        let mut events = start(time, id, "hostile");
        events.push(map_file(time + 2, id, BASE, 1 << 40, path, 0));
        events.push(sample(time + 3, id, "hostile", &[BASE + offset], &[]));
        for event in &events {
            self.resolver.notice(event);
        }
        let mut out = Vec::new();
        self.resolver.resolve(&mut events, &mut out);
        self.resolver
            .finish(Duration::from_secs(60), &mut |_| {}, &mut out);
        self.reader.read(out);
        *self.reader.reasons().last().unwrap()
    }
}

#[test]
fn nothing_but_regular_files_is_opened() {
    let dir = TempDir::new("fifo");
    let fifo = dir.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let mut bench = Bench::new();
    let started = Instant::now();
    for (index, path) in [&*fifo, &*dir.0, Path::new("/dev/null")].iter().enumerate() {
        let reason = bench.one(30 + index as u32, path, 0x10);
        assert_eq!(reason, Some(UnknownReason::NoFile), "{path:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(20));
    let refused = files::open_trusted(Path::new("/dev/null"));
    assert!(matches!(refused, Err(files::OpenError::NotRegular)));
}

#[test]
fn links_do_not_lead_out_of_the_root() {
    let dir = TempDir::new("escape");
    std::fs::create_dir(dir.path("root")).unwrap();
    std::fs::write(dir.path("secret"), "outside").unwrap();
    let secret = dir.path("secret");
    symlink(&secret, dir.path("root/absolute")).unwrap();
    symlink("../secret", dir.path("root/relative")).unwrap();
    symlink("/proc/self/root", dir.path("root/magic")).unwrap();
    symlink("/inside", dir.path("root/fine")).unwrap();
    std::fs::write(dir.path("root/inside"), "inside").unwrap();
    let root = Root::at(&dir.path("root")).unwrap();
    for name in ["/absolute", "relative", "/../secret", "/magic/etc/passwd"] {
        assert!(root.open(name).is_err(), "{name}");
    }
    let (_, stat) = root.open("/fine").unwrap();
    let inside = std::fs::metadata(dir.path("root/inside")).unwrap();
    assert_eq!(stat.st_ino, inside.ino());
    assert!(root.open_without_links("/fine").is_err());
}

#[test]
fn a_sparse_file_of_4_gb_is_answered() {
    let dir = TempDir::new("sparse");
    let program = build(&dir, "program", &[]);
    let code = offset_of(&program, "inner");
    let mut bench = Bench::new();
    let sparse = dir.path("sparse");
    let file = std::fs::File::create(&sparse).unwrap();
    file.set_len(4 << 30).unwrap();
    assert_eq!(bench.one(40, &sparse, 0x10), Some(UnknownReason::BadFile));
    let file = std::fs::File::options().write(true).open(&program).unwrap();
    file.set_len(4 << 30).unwrap();
    // Our own, so read as it is; the same of another user would be copied, and is too large.
    assert_eq!(bench.one(41, &program, code), None);
    let owner = rustix::fs::Uid::from_raw(12345);
    if rustix::fs::chown(&program, Some(owner), None).is_ok() {
        let mut bench = Bench::new();
        assert_eq!(bench.one(42, &program, code), Some(UnknownReason::TooLarge));
    }
    file.set_len((4 << 30) + 1).unwrap();
    let mut bench = Bench::new();
    assert_eq!(bench.one(43, &program, code), Some(UnknownReason::NoFile));
}

#[test]
fn a_file_that_its_owner_can_change_is_copied() {
    let dir = TempDir::new("owned");
    let program = build(&dir, "program", &[]);
    let code = offset_of(&program, "inner");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&program, mode).unwrap();
    let (file, stat) = files::open_trusted(&program).unwrap();
    let own = Arc::new(Root::own().unwrap());
    let target = TargetFile::new(file, &stat, program.to_str().unwrap(), Some(&own), true);
    assert!(!target.trusted);
    // Of root and nobody else, but of which root?
    let (_, stat) = files::open_trusted(Path::new("/bin/sh")).unwrap();
    let container = Root::at(Path::new("/usr")).unwrap();
    assert!(own.trusts(&stat) && !container.trusts(&stat));
    let settings = apart::settings();
    let gather = || material::Material::gather(&target, &settings, true, u64::MAX).unwrap();
    let len = |file: &std::fs::File| file.metadata().unwrap().len();
    let change = std::fs::File::options().write(true).open(&program).unwrap();
    // What it has grown by when it is copied has no room.
    let (whole, grown) = (len(&change), gather());
    change.set_len(whole + (1 << 20)).unwrap();
    let mut kept = grown.parts.into_iter();
    let copy = kept.next().unwrap().main.take().unwrap();
    assert_eq!(len(&copy.0.into()), whole);
    change.set_len(whole).unwrap();
    let mut loaded = loaded::Loaded::new(gather(), helper::Place::Shared).unwrap();
    // Shortened while it is in use: a mapping of it would end this process with SIGBUS.
    change.set_len(0).unwrap();
    let bias = target.elf.as_ref().unwrap().code_bias();
    assert!(matches!(
        loaded.look_up(code + bias, bias, false).0,
        Answer::Lines(_)
    ));
}

#[test]
fn damage_anywhere_is_answered() {
    let dir = TempDir::new("damage");
    let program = build(&dir, "program", &["-gz=zlib"]);
    let code = offset_of(&program, "inner");
    let good = std::fs::read(&program).unwrap();
    let elf = elf::Elf::read(&std::fs::File::open(&program).unwrap()).unwrap();
    let sections = elf
        .sections(&std::fs::File::open(&program).unwrap())
        .unwrap();
    let mut spots: Vec<(usize, usize)> = vec![(0, 64), (64, 64 + 13 * 56)];
    spots.extend(sections.iter().filter_map(|section| {
        let (start, len) = section.place();
        (start + len <= good.len() as u64 && len > 0)
            .then_some((start as usize, (start + len) as usize))
    }));
    spots.push((good.len() - 64 * sections.len(), good.len()));
    let mut bench = Bench::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let mut index = 100;
    let mut named = 0;
    for &(start, end) in &spots {
        for round in 0..6 {
            let mut bad = good.clone();
            for _ in 0..=round * 4 {
                bad[start + next() % (end - start)] ^= 1 << (next() % 8);
            }
            if round == 5 {
                bad.truncate(start + next() % (end - start));
            }
            let path = dir.path(&format!("bad{index}"));
            std::fs::write(&path, &bad).unwrap();
            if bench.one(index, &path, code).is_none() {
                named += 1;
            }
            index += 1;
        }
    }
    // The symbolizer is alive, and damage that does not matter does not hurt.
    assert!(named > 0);
    assert_eq!(bench.one(index, &program, code), None);
}

/// What debug information says can be false, more than its reader can take, or nothing: symbols stay.
#[test]
fn symbols_have_names_whatever_debug_information_says() {
    let dir = TempDir::new("lies");
    let program = dir.path("program");
    let source = dir.path("program.c");
    let text =
        "int main(void) { return 0; }\n#line 1 \"other.c\"\nint inner(int n) { return n * 7; }\n";
    std::fs::write(&source, text).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.arg("-g").arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let code = offset_of(&program, "inner");
    let whole = std::fs::read(&program).unwrap();
    let file = std::fs::File::open(&program).unwrap();
    let elf = elf::Elf::read(&file).unwrap();
    let sections = elf.sections(&file).unwrap();
    let place = |name: &str| {
        let section = sections
            .iter()
            .find(|section| section.name == name)
            .unwrap();
        let (start, len) = section.place();
        start as usize..(start + len) as usize
    };
    let mut bench = Bench::new();
    let mut index = 300;
    let mut is_named = |bytes: &[u8], what: &str| {
        let liar = dir.path("liar");
        // Another file each time.
        let _ = std::fs::remove_file(&liar);
        std::fs::write(&liar, bytes).unwrap();
        index += 1;
        assert_eq!(bench.one(index, &liar, code), None, "{what}");
    };
    for name in [".debug_info", ".debug_abbrev", ".debug_line"] {
        for garbage in [0, 0x55, 0xff] {
            let mut bytes = whole.clone();
            bytes[place(name)].fill(garbage);
            is_named(&bytes, name);
        }
    }
    // One of them is a file's number, which the reader looks up without asking whether there is such a file.
    for at in place(".debug_line") {
        let mut bytes = whole.clone();
        bytes[at] = 0x80;
        is_named(&bytes, &format!("byte {at:#x}"));
    }
}

#[test]
fn packed_sections_that_lie_are_not_unpacked() {
    let dir = TempDir::new("bomb");
    let program = build(&dir, "program", &["-gz=zlib"]);
    let code = offset_of(&program, "inner");
    let mut bytes = std::fs::read(&program).unwrap();
    let file = std::fs::File::open(&program).unwrap();
    let elf = elf::Elf::read(&file).unwrap();
    let sections = elf.sections(&file).unwrap();
    elf.check_packed(&file, &sections).unwrap();
    let info = sections
        .iter()
        .find(|section| section.name == ".debug_info")
        .unwrap();
    let size = info.place().0 as usize + 8;
    // 2^60 bytes unpacked: allocating that would end this process.
    bytes[size..size + 8].copy_from_slice(&(1_u64 << 60).to_ne_bytes());
    let liar = dir.path("liar");
    std::fs::write(&liar, &bytes).unwrap();
    // Less than there is.
    bytes[size..size + 8].copy_from_slice(&1_u64.to_ne_bytes());
    let short = dir.path("short");
    std::fs::write(&short, &bytes).unwrap();
    // Within the limit, but more than so few packed bytes can hold.
    bytes[size..size + 8].copy_from_slice(&(100_u64 << 20).to_ne_bytes());
    let hollow = dir.path("hollow");
    std::fs::write(&hollow, &bytes).unwrap();
    let refused = elf.check_packed(&std::fs::File::open(&hollow).unwrap(), &sections);
    assert!(
        matches!(refused, Err(elf::ElfError::Bomb(_))),
        "{refused:?}"
    );
    let mut bench = Bench::new();
    // Its symbols are packed nowhere.
    assert_eq!(bench.one(50, &liar, code), None);
    assert_eq!(bench.one(51, &short, code), None);
}

/// What is unpacked within a file has the contents that each reader would have unpacked; without room, and where it is not what it
/// says, all stays as it was.
#[test]
fn packed_sections_are_unpacked_as_far_as_there_is_room() {
    let dir = TempDir::new("unpacked");
    let program = build(&dir, "program", &["-gz=zlib"]);
    let bytes = std::fs::read(&program).unwrap();
    let file = std::fs::File::open(&program).unwrap();
    let elf = elf::Elf::read(&file).unwrap();
    let sections = elf.sections(&file).unwrap();
    let len = bytes.len() as u64;
    let contents = |file: &std::fs::File| -> Vec<(String, bool, Vec<u8>)> {
        let elf = elf::Elf::read(file).unwrap();
        let sections = elf.sections(file).unwrap();
        let debug = sections.iter().filter(|it| it.name.starts_with(".debug_"));
        let read = |it: &elf::Section| elf.contents(file, it, u64::MAX - 1).unwrap();
        debug
            .map(|it| (it.name.clone(), it.is_packed(), read(it)))
            .collect()
    };
    let before = contents(&file);
    let is_info = |it: &(String, bool, Vec<u8>)| it.0 == ".debug_info" && it.1;
    assert!(before.iter().any(is_info), "nothing is packed");
    let unpack = |room: u64, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        let path = dir.path("copy");
        std::fs::write(&path, bytes).unwrap();
        let copy = std::fs::File::options().read(true).write(true).open(&path);
        let copy = copy.unwrap();
        elf.unpack_within(&copy, &sections, (len, room)).unwrap();
        copy
    };
    let whole = unpack(len + (1 << 20), &|_| {});
    for (was, is) in before.iter().zip(contents(&whole)) {
        let is_needless = was.0 == ".debug_loclists";
        assert_eq!((&was.0, false), (&is.0, is.1));
        assert!(is.2 == was.2 || is_needless && is.2.is_empty(), "{}", is.0);
    }
    assert!(whole.metadata().unwrap().len() <= len + (1 << 20));
    let none = unpack(len, &|_| {});
    assert_eq!(none.metadata().unwrap().len(), len);
    // But for what nobody reads.
    let is_wanted = |it: &&(String, bool, Vec<u8>)| it.0 != ".debug_loclists";
    let wanted = |all: &[(String, bool, Vec<u8>)]| -> Vec<(String, bool, Vec<u8>)> {
        all.iter().filter(is_wanted).cloned().collect()
    };
    assert_eq!(wanted(&contents(&none)), wanted(&before));
    // One byte of what is packed is another: that section alone stays packed.
    let info = sections.iter().find(|it| it.name == ".debug_info").unwrap();
    let (start, packed) = info.place();
    let damaged = unpack(len + (1 << 20), &|bytes| {
        bytes[(start + packed - 1) as usize] ^= 0xff
    });
    let sections = elf::Elf::read(&damaged).unwrap().sections(&damaged);
    for section in sections.unwrap() {
        let is_damaged = section.name == ".debug_info";
        assert_eq!(section.is_packed(), is_damaged, "{}", section.name);
    }
}

/// A file that only root can change is unpacked for the first who reads it; the next one is given what was made of it, and says
/// the same. Of what others can change nothing is kept.
#[test]
fn what_was_unpacked_once_is_unpacked() {
    let dir = TempDir::new("once");
    let program = packed_program(&dir);
    let code = offset_of(&program, "inner");
    let own = Arc::new(Root::own().unwrap());
    let kept = dir.path("kept");
    let settings = || Settings {
        unpacked: Some(Unpacked::at(&kept, "boot", 1 << 30)),
        ..apart::settings()
    };
    let read = || {
        let (file, stat) = files::open_trusted(&program).unwrap();
        let target = TargetFile::new(file, &stat, program.to_str().unwrap(), Some(&own), true);
        let bias = target.elf.as_ref().unwrap().code_bias();
        let material = material::Material::gather(&target, &settings(), true, u64::MAX);
        let mut material = material.unwrap();
        let mut parts = material.take_kept();
        let main = &material.parts.last().unwrap().main;
        let made = main.is_to_be_made();
        let mut loaded = loaded::Loaded::new(material, helper::Place::Shared).unwrap();
        parts.keep_unpacked();
        (made, loaded.look_up(code + bias, bias, false).0)
    };
    let files = || std::fs::read_dir(&kept).map_or(0, Iterator::count);
    let (made, first) = read();
    assert!(made && matches!(first, Answer::Lines(_)), "{first:?}");
    assert_eq!(files(), 1);
    assert_eq!(read(), (false, first.clone()));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&program, mode).unwrap();
    assert_eq!((read(), files()), ((true, first), 1));
}

/// With the macros of all headers, so that most of it is packed.
fn packed_program(dir: &TempDir) -> PathBuf {
    let headers = ["stdlib.h", "pthread.h", "sys/socket.h", "elf.h", "signal.h"];
    let included = headers.iter().flat_map(|header| ["-include", header]);
    let flags: Vec<&str> = ["-gz=zlib", "-g3"].into_iter().chain(included).collect();
    build(dir, "program", &flags)
}

/// A disk that is full where a file is to be unpacked: its readers unpack it themselves.
#[test]
fn without_room_to_unpack_names_are_the_same() {
    let dir = TempDir::new("room-to-unpack");
    let program = packed_program(&dir);
    let code = offset_of(&program, "inner");
    let (file, stat) = files::open_trusted(&program).unwrap();
    let own = Arc::new(Root::own().unwrap());
    let target = TargetFile::new(file, &stat, program.to_str().unwrap(), Some(&own), true);
    let bias = target.elf.as_ref().unwrap().code_bias();
    let gather = || {
        let settings = apart::settings();
        material::Material::gather(&target, &settings, true, u64::MAX).unwrap()
    };
    let name = |material| {
        let mut loaded = loaded::Loaded::new(material, helper::Place::Shared).unwrap();
        loaded.look_up(code + bias, bias, false).0
    };
    let expected = name(gather());
    assert!(matches!(expected, Answer::Lines(_)), "{expected:?}");
    let read_only = || std::fs::File::open("/dev/null").unwrap().into();
    let len = std::fs::metadata(&program).unwrap().len();
    let full = || {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let made = rustix::fs::memfd_create("full", flags).unwrap();
        rustix::fs::ftruncate(&made, len).unwrap();
        rustix::fs::fcntl_add_seals(&made, SealFlags::GROW).unwrap();
        made
    };
    for other in [read_only(), full()] {
        let mut material = gather();
        let handed = &mut material.parts.last_mut().unwrap().main;
        handed.unpack_in(other).unwrap();
        assert_eq!(name(material), expected);
    }
}
