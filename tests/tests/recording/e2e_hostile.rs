//! Targets whose files are traps: the recording survives, ends in time, and still names what can be
//! named.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::recording::{Frame, Recording, Sample};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::at_least;
use profiler_tests::undisturbed::leave_undisturbed;
use profiler_tests::workload;
use rustix::fs::inotify;
use rustix::process::Signal;

/// Records `map_file` with `file` mapped as code. It must end in time, with the program's own
/// samples named: one bad file costs the others nothing.
fn survives_mapping(setting: &Setting, file: &Path) -> Outcome {
    let program = setting.workload("map_file.c")?;
    let from = Instant::now();
    let program = program.to_string_lossy();
    let (_, recording) =
        setting.record(&["-F", "999", "--", &program, "600", &file.to_string_lossy()])?;
    assert!(
        from.elapsed() < Duration::from_secs(30),
        "{} held it up",
        file.display()
    );
    let samples = recording.of_process("map_file");
    let named = samples
        .iter()
        .filter(|sample| sample.leaf() == "beside_mapping")
        .count();
    at_least("samples with names", named, samples.len(), 0.95)?;
    Ok(())
}

/// Where the section header table is, how large an entry, and how many there are.
fn section_table(elf: &[u8]) -> Option<(usize, usize, usize)> {
    let field = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(elf.get(at..at + len)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    Some((field(0x28, 8)?, field(0x3a, 2)?, field(0x3c, 2)?))
}

/// Copies of a program that still run, with the contents or the header of one section turned to
/// rubbish, each in turn; what the kernel and the loader need is left alone.
#[test]
fn damaged_programs() -> Outcome {
    let test = "e2e_hostile::damaged_programs";
    if !cfg!(target_endian = "little") {
        skip(test, "damages little-endian ELF files only");
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    let whole = fs::read(&program)?;
    let (table, size, count) = section_table(&whole).ok_or("no section table")?;
    let word = |at: usize| -> usize {
        whole.get(at..at + 8).map_or(0, |b| {
            u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as usize
        })
    };
    const ALLOCATED: usize = 2;
    let mut damaged = 0;
    for index in 1..count {
        let header = table + index * size;
        let (flags, offset, len) = (word(header + 8), word(header + 0x18), word(header + 0x20));
        let mut variants = vec![{
            let mut copy = whole.clone();
            copy[header..header + size].fill(0xff);
            copy
        }];
        if flags & ALLOCATED == 0 && offset + len <= whole.len() {
            let mut copy = whole.clone();
            // A pattern in which every size, offset and count is large and different.
            for (at, byte) in copy[offset..offset + len].iter_mut().enumerate() {
                *byte = (at as u8).wrapping_mul(37) | 0x81;
            }
            variants.push(copy);
        }
        for bytes in variants {
            damaged += 1;
            let copy = setting.path("damaged");
            // A file of its own: the one before may still be mapped by who is just ending.
            if damaged > 1 {
                fs::remove_file(&copy)?;
            }
            fs::write(&copy, bytes)?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
            let from = Instant::now();
            let (_, recording) = setting
                .record(&["-F", "999", "--", &copy.to_string_lossy(), "100"])
                .map_err(|error| format!("section {index}: {error}"))?;
            assert!(
                from.elapsed() < Duration::from_secs(20),
                "section {index} held it up"
            );
            // Names may be gone; samples may not.
            let samples = recording.of_process("damaged");
            assert!(
                samples.len() > 50,
                "section {index}: {} samples",
                samples.len()
            );
            let placed = samples
                .iter()
                .filter(|s| s.user.first().is_some_and(|f| f.module.is_some()));
            at_least("samples in a module", placed.count(), samples.len(), 0.9)?;
        }
    }
    assert!(damaged > count, "only {damaged} variants");
    Ok(())
}

/// Files mapped as code that are no programs, or cut off, or huge.
#[test]
fn odd_files_mapped_as_code() -> Outcome {
    let Some(setting) = Setting::new("e2e_hostile::odd_files_mapped_as_code")? else {
        return Ok(());
    };
    let whole = fs::read(setting.workload("plugin.c")?)?;
    for (name, bytes) in [
        (
            "text.so",
            &b"not an object file at all, but long enough to be looked at twice"[..],
        ),
        ("magic.so", b"\x7fELF"),
        ("head.so", &whole[..64]),
        ("half.so", &whole[..whole.len() / 2]),
        ("odd\nname;with \"all\" <sorts>.so", &whole),
    ] {
        let file = setting.path(name);
        fs::write(&file, bytes)?;
        survives_mapping(&setting, &file)?;
    }
    Ok(())
}

/// A sparse file of 4 GB, with a valid head.
#[test]
fn huge_sparse_file() -> Outcome {
    let Some(setting) = Setting::new("e2e_hostile::huge_sparse_file")? else {
        return Ok(());
    };
    let huge = setting.path("huge.so");
    fs::copy(setting.workload("plugin.c")?, &huge)?;
    File::options().write(true).open(&huge)?.set_len(4 << 30)?;
    survives_mapping(&setting, &huge)
}

/// A FIFO where the perf map should be, and then one that is a link to a secret: neither is read, and
/// the recording doesn't wait for a writer.
#[test]
fn perf_maps_that_are_traps() -> Outcome {
    let test = "e2e_hostile::perf_maps_that_are_traps";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let secret = setting.path("secret");
    fs::write(&secret, "0 ffffffffffffffff secret_name\n")?;
    for trap in ["fifo", "link"] {
        let chain = setting.start(
            "chain",
            Command::new(setting.workload("chain.c")?).arg("2500"),
        )?;
        let map = format!("/tmp/perf-{}.map", chain.pid());
        if trap == "fifo" {
            Command::new("mkfifo").arg(&map).status()?;
        } else {
            symlink(&secret, &map)?;
        }
        let recorder = setting.start_recording(&["-F", "999", "-p", &chain.pid().to_string()])?;
        chain.end(LIMIT)?.success()?;
        let from = Instant::now();
        let ended = recorder.end(LIMIT);
        let _ = fs::remove_file(&map);
        ended?.success()?;
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "the {trap} held it up"
        );
        let recording = setting.recording()?;
        let samples: Vec<_> = recording.samples.iter().collect();
        let named = samples
            .iter()
            .filter(|sample| sample.leaf().starts_with("leaf_"))
            .count();
        at_least("samples with names", named, samples.len(), 0.97)?;
    }
    Ok(())
}

/// Stripped programs whose links to debug files lead to a FIFO, by the name of a neighbour and by an absolute one: nobody opens it,
/// and the recording waits for no writer.
#[test]
fn links_to_debug_files_that_are_traps() -> Outcome {
    let Some(setting) = Setting::new("e2e_hostile::links_to_debug_files_that_are_traps")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    let absolute = setting.path("absolute.fifo");
    let names = [
        ("near", "near.debug".to_owned()),
        ("far", absolute.to_string_lossy().into_owned()),
    ];
    for (program, link) in &names {
        let mut section = link.clone().into_bytes();
        section.resize((section.len() + 4) & !3, 0);
        section.extend(0x1234_5678_u32.to_le_bytes());
        fs::write(setting.path("section"), section)?;
        let copy = Command::new("objcopy")
            .arg("--strip-all")
            .arg("--add-section")
            .arg(format!(
                ".gnu_debuglink={}",
                setting.path("section").display()
            ))
            .args([&chain, &setting.path(program)])
            .status()?;
        assert!(copy.success());
    }
    let fifos = [setting.path("near.debug"), absolute];
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    for fifo in &fifos {
        assert!(Command::new("mkfifo").arg(fifo).status()?.success());
        inotify::add_watch(&watch, fifo, inotify::WatchFlags::OPEN)?;
    }
    for (program, _) in &names {
        let program = setting.path(program);
        let (_, recording) =
            setting.record(&["-F", "999", "--", &program.to_string_lossy(), "700"])?;
        assert!(!recording.samples.is_empty(), "{program:?}");
    }
    let mut events = [0; 256];
    let opened = rustix::io::read(&watch, &mut events);
    assert_eq!(opened, Err(rustix::io::Errno::AGAIN), "a FIFO was opened");
    // What is watched is seen.
    let open = fs::File::options().read(true).write(true).open(&fifos[0])?;
    assert!(rustix::io::read(&watch, &mut events)? > 0);
    drop(open);
    Ok(())
}

/// A program in a chroot whose path outside is something else: names come from the file that runs,
/// and an absolute link in the chroot does not lead out of it.
#[test]
fn absolute_links_in_a_chroot() -> Outcome {
    let Some(setting) = Setting::new("e2e_hostile::absolute_links_in_a_chroot")? else {
        return Ok(());
    };
    let root = setting.path("root");
    fs::create_dir_all(root.join("real"))?;
    fs::create_dir_all(root.join("tmp"))?;
    fs::copy(workload::static_chain()?, root.join("real/chain"))?;
    // Outside, /<name> would be another file; inside, it leads to the program.
    symlink("/real/chain", root.join("chain"))?;
    let proc = root.join("proc");
    fs::create_dir(&proc)?;
    let script = format!(
        "mount -t proc proc {} && exec chroot {} /chain 1500",
        proc.display(),
        root.display()
    );
    let (_, recording) =
        setting.record(&["-F", "999", "--", "unshare", "--mount", "sh", "-c", &script])?;
    let samples = recording.of_process("chain");
    let named = samples
        .iter()
        .filter(|sample| sample.leaf().starts_with("leaf_"))
        .count();
    at_least("samples with names", named, samples.len(), 0.97)?;
    Ok(())
}

/// A capture of it all can be shown.
#[test]
fn names_that_are_traps_are_shown_as_text() -> Outcome {
    let test = "e2e_hostile::names_that_are_traps_are_shown_as_text";
    if !cfg!(target_arch = "x86_64") {
        skip(test, "the workload has machine code of x86-64 only");
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let program = setting.workload("jit.c")?;
    let name = "\u{1b}[31mred</text>&amp;<script>;x";
    let capture = setting.path("out.cap");
    let program = program.to_string_lossy();
    setting
        .run(&[
            "record",
            "-F",
            "999",
            "-o",
            "out.cap",
            "-o",
            "out.svg",
            "-o",
            "out.folded",
            "--",
            &program,
            "500",
            name,
        ])?
        .success()?;
    let recording = Recording::read(&capture)?;
    if let Some(sample) = recording.samples.first() {
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", sample.pid));
    }
    let svg = fs::read_to_string(setting.path("out.svg"))?;
    profiler_tests::xml::elements(&svg)?;
    assert!(
        !svg.contains("red</text>") && !svg.contains('\u{1b}'),
        "the name was not escaped"
    );
    let report = setting.run(&["report", "out.cap"])?.success()?.stdout;
    assert!(
        !report.contains('\u{1b}'),
        "an escape sequence reached the terminal"
    );
    // A name with the separator in it must not make two frames.
    let folded = fs::read_to_string(setting.path("out.folded"))?;
    assert!(!folded.contains(";x "), "{folded}");
    Ok(())
}

/// A line of /proc/PID/status.
fn status_of(pid: u32, field: &str) -> Result<String, Box<dyn std::error::Error>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(line.ok_or("no such line")?.trim().to_owned())
}

/// Debug information that names a file which its program's user may not read, and outputs that are made of such
/// captures: as root nothing of the file is shown, and what reads captures may do nothing.
#[test]
fn a_report_is_nobodys_deputy() -> Outcome {
    let test = "e2e_hostile::a_report_is_nobodys_deputy";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let secret = setting.path("secret.c");
    fs::write(&secret, "the secret\n".repeat(20))?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    fs::create_dir(setting.path("src"))?;
    fs::write(setting.path("src/secret.c"), "what is shown\n".repeat(20))?;
    let source = format!(
        "__attribute__((noinline)) int main(void) {{ volatile long x = 0;\n#line 1 \"{}\"\n\
         for (long i = 0; i < 400000000; i++)\n  x += i;\n return 0; }}\n",
        secret.display()
    );
    fs::write(setting.path("deputy.c"), source)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-O1", "-o", "deputy", "deputy.c"]);
    let compiled = compiler.current_dir(setting.folder()).status()?;
    assert!(compiled.success());
    setting.record(&["-F", "999", "--as", "nobody", "--", "./deputy"])?;
    let annotate = ["report", "out.cap", "--annotate", "main"];
    for format in ["text", "json"] {
        let all = [&annotate[..], &["--format", format]].concat();
        let shown = setting.run(&all)?.success()?.stdout;
        assert!(
            shown.contains("secret.c") && !shown.contains("the secret"),
            "{shown}"
        );
        assert!(shown.contains("may not read it"), "{shown}");
    }
    let below = [&annotate[..], &["--source-dir", "src"]].concat();
    let shown = setting.run(&below)?.success()?.stdout;
    assert!(shown.contains("what is shown"), "{shown}");

    // What reads captures, or receives them, may do nothing; root under sudo is the user behind it.
    for (arguments, user) in [
        (
            &["serve", "--replay", "out.cap", "--tcf", "127.0.0.1:0"][..],
            "65534",
        ),
        (&["hq", "--listen", "127.0.0.1:0"], "0"),
    ] {
        let mut command = setting.profiler();
        command.args(arguments).env("SUDO_UID", "65534");
        let mut running = setting.start("renouncing", &mut command)?;
        let pid = running.pid();
        running.wait_until("giving up privileges", LIMIT, |_| {
            status_of(pid, "CapPrm:").is_ok_and(|set| set == "0000000000000000")
        })?;
        let users = status_of(pid, "Uid:")?;
        assert!(users.split_whitespace().all(|uid| uid == user), "{users}");
        running.signal(rustix::process::Signal::TERM)?;
        running.end(LIMIT)?;
    }
    Ok(())
}

/// A process with a mapped file whose server does not answer; none where there is no FUSE.
fn silent(
    setting: &Setting,
    test: &str,
    kind: &str,
) -> Result<Option<Running>, Box<dyn std::error::Error>> {
    let program = setting.workload("silent_files.c")?;
    let arguments = kind.split(' ');
    let mut silent = setting.start("silent", Command::new(program).args(arguments))?;
    while !silent.stdout_so_far()?.contains("ready") {
        if silent.has_ended()? {
            skip(
                test,
                "needs FUSE (/dev/fuse), overlays and namespaces of users",
            );
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Some(silent))
}

/// Whether a sample is of what the process does all the time.
fn is_beside(sample: &Sample) -> bool {
    let mut frames = sample.user.iter();
    frames.any(|frame| frame.name == "beside_silence")
}

/// Records a process that a silent server has to do with: how many samples it has, and how many of them have their names.
fn recorded_beside(
    setting: &Setting,
    test: &str,
    kind: &str,
    mode: &str,
) -> Result<Option<(usize, usize)>, Box<dyn std::error::Error>> {
    let Some(process) = silent(setting, test, kind)? else {
        return Ok(None);
    };
    // It is there for as many samples as are asked for, whatever runs beside it.
    leave_undisturbed(process.pid())?;
    let pid = process.pid().to_string();
    let from = Instant::now();
    let recorder = setting.start_recording(&["-F", "999", "-p", &pid, "-d", "1", mode])?;
    recorder.end(LIMIT)?.success()?;
    let took = from.elapsed();
    assert!(took < Duration::from_secs(20), "{kind}: {took:?}");
    process.signal(Signal::KILL)?;
    process.end(LIMIT)?;
    let recording = setting.recording()?;
    // Waits have one of the kernel.
    let at_work = recording.samples.iter();
    let at_work: Vec<_> = at_work.filter(|sample| sample.kernel.is_empty()).collect();
    let named = at_work.iter().filter(|sample| is_beside(sample)).count();
    Ok(Some((at_work.len(), named)))
}

/// Files whose servers don't answer who opens, reads or executes them or asks what they are. The rest is recorded, and
/// named, and the end comes in time.
#[test]
fn servers_that_never_answer_hold_nothing_up() -> Outcome {
    let test = "e2e_hostile::servers_that_never_answer_hold_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let kinds = [
        "open",
        "attributes",
        "read",
        "exec",
        "sections",
        "read overlay",
        "statfs overlay",
    ];
    for (kind, mode) in kinds.into_iter().zip(["--wall", "-v"].into_iter().cycle()) {
        let Some((all, named)) = recorded_beside(&setting, test, kind, mode)? else {
            return Ok(());
        };
        assert!(all > 100 && named > 100, "{kind}: {named} of {all}");
    }
    Ok(())
}

/// The same where functions are traced, of all processes: what is traced is looked for in all files that they map.
#[test]
fn servers_that_never_answer_do_not_hold_tracing_up() -> Outcome {
    let test = "e2e_hostile::servers_that_never_answer_do_not_hold_tracing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for kind in ["open", "attributes", "read", "exec", "sections"] {
        let Some(process) = silent(&setting, test, kind)? else {
            return Ok(());
        };
        let from = Instant::now();
        let recorder =
            setting.start_recording(&["-a", "-d", "1", "--trace", "*:beside_silence"])?;
        recorder.end(LIMIT)?.success()?;
        let took = from.elapsed();
        assert!(took < Duration::from_secs(20), "{kind}: {took:?}");
        process.signal(Signal::KILL)?;
    }
    Ok(())
}

/// A process whose list of mappings is held by a silent server: what is mapped is not known, and the end comes in time.
#[test]
fn a_process_whose_mappings_are_held_holds_nothing_up() -> Outcome {
    let test = "e2e_hostile::a_process_whose_mappings_are_held_holds_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if let Some((all, _)) = recorded_beside(&setting, test, "locked", "--wall")? {
        assert!(all > 100, "{all} samples");
    }
    Ok(())
}

/// While a silent server is waited for at the beginning, buffers are emptied: no stack is cut for want of room for its copy,
/// which it needs until tables are there.
#[test]
fn stacks_are_whole_while_a_silent_server_is_waited_for() -> Outcome {
    let test = "e2e_hostile::stacks_are_whole_while_a_silent_server_is_waited_for";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(_server) = silent(&setting, test, "open")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    let busy = setting.start("busy", Command::new(chain).arg("60000"))?;
    leave_undisturbed(busy.pid())?;
    // Fewer than are copied in a second, and more than there is room for as long as it is waited for: of whom, depends on
    // how much their stacks hold.
    let (ended, recording) = setting.record(&["-v", "-a", "-F", "1999", "-d", "1"])?;
    assert!(recording.of_pid(busy.pid()).len() > 600);
    let samples = recording.samples.iter();
    let cut = samples.filter(|sample| sample.user_end == StackEnd::NoTable);
    // Some of whoever runs beside may be longer than what is copied of any.
    let said = ended.stderr.split_once(" of these longer than a copy");
    let longer = said.and_then(|(before, _)| before.rsplit(' ').next());
    let longer: usize = longer.ok_or("no count")?.replace(',', "").parse()?;
    let all = recording.samples.len();
    at_least(
        "stacks that are not cut",
        all + longer - cut.count(),
        all,
        0.99,
    )
    .map_err(|why| format!("{why}\n{}", ended.stderr))?;
    Ok(())
}

/// While a server is silent, others have their files opened, which are gone in a moment.
#[test]
fn no_names_of_others_are_lost_to_a_silent_server() -> Outcome {
    let test = "e2e_hostile::no_names_of_others_are_lost_to_a_silent_server";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    // On a disk, and on a file system that may be a server's as well.
    for folder in [setting.folder(), Path::new("/dev/shm")] {
        let name = format!("brief-{}", std::process::id());
        let brief = folder.join(&name);
        fs::copy(setting.workload("chain.c")?, &brief)?;
        let recorder = setting.start_recording(&["-a", "-F", "999"])?;
        let mut servers = Vec::new();
        for _ in 0..5 {
            let Some(process) = silent(&setting, test, "read")? else {
                fs::remove_file(&brief)?;
                return Ok(());
            };
            servers.push(process);
        }
        let other = setting.start("brief", Command::new(&brief).arg("150"))?;
        leave_undisturbed(other.pid())?;
        fs::remove_file(&brief)?;
        other.end(LIMIT)?.success()?;
        for process in &servers {
            process.signal(Signal::KILL)?;
        }
        recorder.signal(Signal::INT)?;
        recorder.end(LIMIT)?.success()?;
        let recording = setting.recording()?;
        let all = recording.of_process(&name);
        let folder = folder.display();
        assert!(all.len() > 100, "{folder}: {} samples", all.len());
        let named = all.iter().filter(|sample| sample.calls("main"));
        at_least("samples with names", named.count(), all.len(), 0.9)
            .map_err(|error| format!("{folder}: {error}"))?;
    }
    Ok(())
}

/// Samples have names from the first one on that has: a file that is open stays open.
fn from_then_on(all: &[&Sample]) -> Result<(), String> {
    let named = |sample: &&Sample| sample.calls("main");
    let first = all.iter().position(named);
    let first = first.ok_or_else(|| format!("none of {} has names", all.len()))?;
    let later = &all[first..];
    let with = later.iter().filter(|sample| named(sample)).count();
    at_least(
        "samples with names since the first",
        with,
        later.len(),
        0.99,
    )
}

/// A server that did not answer is gone, and another file system gets its number: what is there has names.
#[test]
fn the_number_of_a_silent_server_is_given_again() -> Outcome {
    let test = "e2e_hostile::the_number_of_a_silent_server_is_given_again";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    // Whoever mounts something at that moment may get the number, and whoever looks at the server's process keeps it.
    for _ in 0..8 {
        let mut recorder = setting.start_recording(&["-a", "-F", "999"])?;
        let Some(server) = silent(&setting, test, "read")? else {
            return Ok(());
        };
        if let Some(again) = gets_the_number_of(server, &setting, &mut recorder)? {
            recorder.signal(Signal::INT)?;
            recorder.end(LIMIT)?.success()?;
            let recording = setting.recording()?;
            let all = recording.of_process(&again);
            assert!(all.len() > 200, "{} samples", all.len());
            let named = all.iter().filter(|sample| sample.calls("main"));
            at_least("samples with names", named.count(), all.len(), 0.9)?;
            from_then_on(&all)?;
            return Ok(());
        }
    }
    skip(test, "needs a number that nobody else takes");
    Ok(())
}

/// Ends a server that a recorder has called silent. Gives the name of a program that has run in a file system with the number
/// of the server's, if one got it.
fn gets_the_number_of(
    server: Running,
    setting: &Setting,
    recorder: &mut Running,
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", server.pid()))?;
    let mut lines = mounts.lines().map(|line| line.split(' '));
    let number = lines.find_map(|mut words| {
        let number = words.nth(2)?.to_owned();
        (words.nth(1) == Some("/mnt")).then_some(number)
    });
    let number = number.ok_or("no file system of a server's")?;
    recorder.wait_until("a server that is silent", LIMIT, |recorder| {
        let said = recorder.stderr_so_far();
        said.is_ok_and(|said| said.contains("does not answer"))
    })?;
    server.signal(Signal::KILL)?;
    server.end(LIMIT)?;
    let name = format!("again-{}", std::process::id());
    let brief = setting.path(&name);
    fs::copy(setting.workload("chain.c")?, &brief)?;
    // It lasts so long that the time until its file is open, which depends on what else runs, is little of it.
    // Numbers that are free are given from the lowest one on, and there may be several, or others take it.
    let script = "for i in $(seq 100); do mkdir $1/$i; mount -t tmpfs none $1/$i
        [ $(stat -c %Hd:%Ld $1/$i) = $2 ] && cp $3 $1/$i && exec $1/$i/${3##*/} 1000
        done; exit 77";
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", script, "sh"]);
    shell.arg(setting.folder()).arg(&number).arg(&brief);
    let again = setting.start("again", &mut shell)?.end(LIMIT)?;
    if again.status.code() == Some(77) {
        return Ok(None);
    }
    again.success()?;
    Ok(Some(name))
}

/// Starts a recording into `late.cap` whose helpers begin late: who traces it, and its folder of /proc.
fn with_late_helpers(
    setting: &Setting,
    arguments: &[&str],
) -> Result<(Running, PathBuf), Box<dyn std::error::Error>> {
    let mut command = Command::new("strace");
    // What a helper does first.
    command.args(["-f", "-o", "/dev/null", "-e", "trace=close_range"]);
    command.args(["-e", "inject=close_range:delay_enter=700000"]);
    command.arg(setting.profiler_path());
    command.args(["record", "-o", "late.cap", "--force", "-F", "999"]);
    let mut tracer = setting.start("strace", command.args(arguments))?;
    let children = format!("/proc/{0}/task/{0}/children", tracer.pid());
    let mut recorder = String::new();
    tracer.wait_until("a recorder", LIMIT, |_| {
        // It tries out first what it can do, with another one.
        let of = fs::read_to_string(&children).unwrap_or_default();
        let name = |id: &&str| fs::read_to_string(format!("/proc/{id}/comm"));
        let is_recorder = |id: &&str| name(id).is_ok_and(|name| name == "profiler\n");
        let found = of.split(' ').find(is_recorder);
        recorder = found.unwrap_or_default().to_owned();
        !recorder.is_empty()
    })?;
    Ok((tracer, Path::new("/proc").join(recorder)))
}

/// Waits until nothing is left of a recorder. Who traces it waits for all that it traces.
fn ends_in_time(recorder: &Path) {
    let from = Instant::now();
    while recorder.exists() {
        let threads = || -> std::io::Result<Vec<String>> {
            let tasks = fs::read_dir(recorder.join("task"))?.flatten();
            let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat"));
            tasks.map(stat).collect()
        };
        assert!(from.elapsed() < Duration::from_secs(20), "{:?}", threads());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Who opens files for the recorder begins late: what a server has is not opened by the recorder instead, whose end
/// would wait for that.
#[test]
fn helpers_that_begin_late_hold_nothing_up() -> Outcome {
    let test = "e2e_hostile::helpers_that_begin_late_hold_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for kind in ["read", "read overlay"] {
        let Some(process) = silent(&setting, test, kind)? else {
            return Ok(());
        };
        let pid = process.pid().to_string();
        let (tracer, recorder) = with_late_helpers(&setting, &["-d", "1", "-p", &pid])?;
        ends_in_time(&recorder);
        process.signal(Signal::KILL)?;
        tracer.end(LIMIT)?.success()?;
    }
    // And what is mapped until one has begun has names, though it is gone by then: this file system has no device.
    let brief = Path::new("/dev/shm").join(format!("brief-{}", std::process::id()));
    fs::copy(setting.workload("chain.c")?, &brief)?;
    let script = format!(
        "read line; {silent} read & server=$!; sleep 0.1; {brief} 1500 & until readlink /proc/$!/exe | grep -q {brief}; do \
         sleep 0.01; done; sleep 0.1; rm {brief}; wait $!; kill -KILL $server",
        silent = setting.workload("silent_files.c")?.display(),
        brief = brief.display(),
    );
    let mut shell = setting.start("shell", Command::new("sh").args(["-c", &script]))?;
    let capture = setting.path("late.cap");
    fs::remove_file(&capture)?;
    let (mut tracer, recorder) = with_late_helpers(&setting, &["-p", &shell.pid().to_string()])?;
    let mut waits = 0;
    tracer.wait_until("recording", LIMIT, |_| {
        let place = fs::read_to_string(recorder.join("wchan")).unwrap_or_default();
        let is_idle = capture.exists() && place.contains("ep");
        waits = (waits + 1) * u32::from(is_idle);
        waits > 40
    })?;
    shell.stdin().ok_or("no pipe")?.write_all(b"go\n")?;
    shell.end(LIMIT)?.success()?;
    ends_in_time(&recorder);
    tracer.end(LIMIT)?.success()?;
    let recording = Recording::read(&capture)?;
    let name = brief.file_name().and_then(|name| name.to_str());
    let all = recording.of_process(name.ok_or("no name")?);
    assert!(all.len() > 1000, "{} samples", all.len());
    let named = all
        .iter()
        .filter(|sample| sample.leaf().starts_with("leaf_"));
    at_least("samples with names", named.count(), all.len(), 0.9)?;
    Ok(())
}

/// Files in memory and on overlays, as containers have them, have no device of their own, and yet are no silent server's: where
/// opening one takes longer than a server may take, what is mapped has its names from then on.
#[test]
fn slow_disks_of_containers_are_no_silent_servers() -> Outcome {
    let test = "e2e_hostile::slow_disks_of_containers_are_no_silent_servers";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    // Of one file, so that no other one is waited for meanwhile.
    let program = workload::contained("slow")?;
    let overlay = "mkdir lower upper work && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work at";
    for (name, mounts) in [("memory", "mount -t tmpfs none at"), ("overlay", overlay)] {
        let folder = setting.path(name);
        fs::create_dir(&folder)?;
        let script = format!(
            "cd {folder} && mkdir at && {mounts} && cp {program} at/slow-{name} && exec {folder}/at/slow-{name} 60000 1000 3000",
            folder = folder.display(),
            program = program.display(),
        );
        let mut own_mounts = Command::new("unshare");
        own_mounts.args(["--mount", "sh", "-c", &script]);
        let mut slow = setting.start(name, &mut own_mounts)?;
        slow.wait_until("the program", LIMIT, |slow| {
            let runs = fs::read_link(format!("/proc/{}/exe", slow.pid()));
            runs.is_ok_and(|runs| runs.ends_with(format!("slow-{name}")))
        })?;
        let capture = format!("{name}.cap");
        let mut command = Command::new("strace");
        // Whoever opens a file asks where it lies.
        command.args(["-f", "-o", "/dev/null", "-e", "trace=fstatfs"]);
        command.args(["-e", "inject=fstatfs:delay_enter=2000000:when=1"]);
        command.arg(setting.profiler_path());
        // Two of these may come one after the other before it is open.
        command.args(["record", "-d", "8", "-F", "499", "--wait-names", "60"]);
        command.args(["-o", &capture, "-p"]);
        let recorder = setting.start("strace", command.arg(slow.pid().to_string()))?;
        let said = recorder.end(LIMIT)?.success()?.stderr;
        slow.signal(Signal::KILL)?;
        let recording = Recording::read(&setting.path(&capture))?;
        let all = recording.of_pid(slow.pid());
        let from = all
            .last()
            .map_or(0, |last| last.at_ns.saturating_sub(2_000_000_000));
        let late = all.iter().filter(|sample| sample.at_ns >= from);
        let named = late.clone().filter(|sample| sample.calls("slow_inner"));
        at_least(name, named.count(), late.count(), 0.95)
            .map_err(|error| format!("{error}; {} in all\n{said}", all.len()))?;
        from_then_on(&all).map_err(|error| format!("{name}: {error}\n{said}"))?;
        // It did take long.
        let first = all.first().is_some_and(|first| first.calls("slow_inner"));
        assert!(!first, "{name}: its file was open at once");
    }
    Ok(())
}

/// A folder of separate debug files whose server does not answer who looks for one, or opens, asks about or reads it: what is
/// traced, and the names that the program's own files have, are there in time.
#[test]
fn debug_files_that_never_come_hold_nothing_up() -> Outcome {
    let test = "e2e_hostile::debug_files_that_never_come_hold_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let traced = [
        "--trace",
        "*:beside_silence",
        // Whether a path leads there by a link has to be looked at.
        "--trace",
        "/usr/lib/debug/folder/library:anything",
    ];
    for kind in ["lookup", "open", "attributes", "read"] {
        let Some(process) = silent(&setting, test, &format!("{kind} debug"))? else {
            return Ok(());
        };
        let pid = process.pid().to_string();
        for more in [&[][..], &traced] {
            let arguments = [&["-F", "999", "-p", &pid, "-d", "1"], more].concat();
            let from = Instant::now();
            let recorder = setting.start_recording(&arguments)?;
            let ended = recorder.end(LIMIT)?.success()?;
            let took = from.elapsed();
            assert!(took < Duration::from_secs(20), "{kind}: {took:?}");
            let said = ended.stderr;
            assert!(said.contains("does not answer"), "{kind}: {said}");
            let recording = setting.recording()?;
            let all = recording.of_process("silent_files");
            let named = all.iter().filter(|sample| is_beside(sample));
            at_least("samples with names", named.count(), all.len(), 0.9)
                .map_err(|error| format!("{kind} {more:?}: {error}; {said}"))?;
            let frames = all.iter().flat_map(|sample| &sample.user);
            let of_library = |frame: &&Frame| {
                let module = frame.module.as_deref();
                module.is_some_and(|module| module.contains("/libc"))
            };
            let mut frames = frames.filter(of_library).peekable();
            assert!(frames.peek().is_some(), "{kind}: nothing of a library");
            assert!(frames.any(|frame| frame.named), "{kind}: none has a name");
        }
        process.signal(Signal::KILL)?;
    }
    Ok(())
}

/// Each of several servers that never answer is not waited for as long as the first one.
#[test]
fn many_silent_servers_hold_up_as_long_as_one() -> Outcome {
    let test = "e2e_hostile::many_silent_servers_hold_up_as_long_as_one";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let mut silent_ones = Vec::new();
    let mut took = Vec::new();
    for count in [1, 7] {
        while silent_ones.len() < count {
            let Some(process) = silent(&setting, test, "read")? else {
                return Ok(());
            };
            silent_ones.push(process);
        }
        let from = Instant::now();
        let recorder = setting.start_recording(&["-a", "-d", "1"])?;
        let said = recorder.end(LIMIT)?.success()?.stderr;
        took.push(from.elapsed());
        let silent = said.matches("does not answer").count();
        assert!(silent >= 1, "{silent} of {count}: {said}");
    }
    let more = took[1].saturating_sub(took[0]);
    assert!(more < Duration::from_secs(3), "{took:?}");
    for process in silent_ones {
        process.signal(Signal::KILL)?;
    }
    Ok(())
}

/// Where a probe is attached the kernel reads the file, and all new processes of the machine wait for that: to a file
/// that a server has none is attached, however well that answers now.
#[test]
fn nothing_is_attached_to_what_a_server_has() -> Outcome {
    let test = "e2e_hostile::nothing_is_attached_to_what_a_server_has";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for kind in ["later", "later overlay"] {
        let Some(process) = silent(&setting, test, kind)? else {
            return Ok(());
        };
        nothing_is_attached(&setting, &process).map_err(|error| format!("{kind}: {error}"))?;
    }
    Ok(())
}

fn nothing_is_attached(setting: &Setting, process: &Running) -> Outcome {
    let pid = process.pid().to_string();
    let file = format!("/proc/{pid}/root/mnt/file");
    let listed = setting.run(&["list", "functions", "-p", &pid, "*:beside_silence"])?;
    let listed = listed.success()?;
    assert!(listed.stdout.contains("silent_files"), "{}", listed.stdout);
    let lies = "lies with a server";
    assert!(listed.stderr.contains(lies), "{}", listed.stderr);
    let trace = [
        "record",
        "--force",
        "-d",
        "1",
        "--trace",
        "*:beside_silence",
    ];
    // By who maps it.
    let mapped = [&trace[..], &["-p", &pid]].concat();
    let said = setting.run(&mapped)?.success()?.stderr;
    assert_eq!(
        said.matches(&format!("/mnt/file {lies}")).count(),
        1,
        "{said}"
    );
    // And by its path.
    let named = [&trace[..], &["--", &file, "later"]].concat();
    let ended = setting.run(&named)?;
    assert!(ended.stderr.contains(lies), "{}", ended.stderr);
    process.signal(Signal::KILL)?;
    Ok(())
}

/// A server that falls silent when its file is open already, and is to be read for names.
#[test]
fn a_server_that_falls_silent_holds_nothing_up() -> Outcome {
    let test = "e2e_hostile::a_server_that_falls_silent_holds_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(process) = silent(&setting, test, "later")? else {
        return Ok(());
    };
    let pid = process.pid().to_string();
    // Who is asked then is waited for, and tables of all come after that: stacks of so long find room to be walked later.
    let mut recorder = setting.start_recording(&["-F", "199", "-p", &pid, "-v"])?;
    recorder.wait_until("a capture", LIMIT, |_| setting.recording().is_ok())?;
    process.signal(Signal::USR1)?;
    std::thread::sleep(Duration::from_millis(500));
    recorder.signal(Signal::INT)?;
    let from = Instant::now();
    recorder.end(LIMIT)?.success()?;
    assert!(from.elapsed() < Duration::from_secs(40), "it was held up");
    process.signal(Signal::KILL)?;
    let recording = setting.recording()?;
    let all = recording.of_process("silent_files");
    let named = all.iter().filter(|sample| is_beside(sample));
    at_least("samples with names", named.count(), all.len(), 0.9)?;
    Ok(())
}

/// An output whose folder never answers: the first Ctrl-C is not heard, the second one ends it all the same.
#[test]
fn a_second_interrupt_ends_what_hears_none() -> Outcome {
    let test = "e2e_hostile::a_second_interrupt_ends_what_hears_none";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(process) = silent(&setting, test, "later")? else {
        return Ok(());
    };
    let output = format!("/proc/{}/root/mnt/out.cap", process.pid());
    process.signal(Signal::USR1)?;
    let mut command = setting.profiler();
    command.args(["record", "-d", "1", "-o", &output]);
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    let main = format!("/proc/{}/wchan", recorder.pid());
    recorder.wait_until("a wait without end", LIMIT, |_| {
        fs::read_to_string(&main).is_ok_and(|place| place.starts_with("request_wait"))
    })?;
    recorder.signal(Signal::INT)?;
    // Two that nobody has taken are one.
    let status = format!("/proc/{}/status", recorder.pid());
    recorder.wait_until("a thread that takes it", LIMIT, |_| {
        let status = fs::read_to_string(&status).unwrap_or_default();
        status.contains("ShdPnd:\t0000000000000000")
    })?;
    assert!(!recorder.has_ended()?, "the first one ended it");
    recorder.signal(Signal::INT)?;
    recorder.wait_until("the end", LIMIT, |recorder| {
        let said = recorder.stderr_so_far();
        said.is_ok_and(|said| said.contains("ended at once"))
    })?;
    // The kernel keeps what is left of it as long as the server has its question.
    process.signal(Signal::KILL)?;
    recorder.end(LIMIT)?.expect_status(130)?;
    Ok(())
}
