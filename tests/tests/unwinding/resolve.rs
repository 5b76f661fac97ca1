//! The resolver and real processes: other namespaces, lives of a few milliseconds.
//!
//! The events are made up from what /proc says of the processes, in place of the kernel's side-band
//! buffers. Needs root (namespaces, `map_files`) and gcc.

// A test may panic, outside of the functions that are marked as tests too.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use profiler_model::raw::{Comm, FileIdentity, RawBody, RawEvent, RawMmap, RawSample, RawStack};
use profiler_model::*;
use profiler_resolve::{ResolveOptions, Resolver};
use profiler_target::cgroup::Hierarchies;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int work(volatile int *x) { for (int i = 0; i < 9; i++) *x += i; return *x; }
int main(int argc, char **argv) {
  char *code = mmap((void *)0x7e0000000000, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
  if (argc > 2) {
    FILE *map = fopen(path, "w");
    fprintf(map, "7e0000000000 100 compiled_by_pid_%d\n", getpid());
    fclose(map);
  }
  volatile int x = 0;
  printf("%p\n", (void *)work);
  fflush(stdout);
  if (argc > 1) pause();
  return work(&x) == (int)code[0];
}
"#;

/// Ends what it holds.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("resolve-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    fn build(&self, name: &str) -> PathBuf {
        let source = self.0.join("program.c");
        std::fs::write(&source, PROGRAM).unwrap();
        let out = self.0.join(name);
        let gcc = Command::new("gcc")
            .args(["-g", "-O0", "-o"])
            .arg(&out)
            .arg(&source)
            .status();
        assert!(gcc.unwrap().success());
        out
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn skip(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        profiler_tests::skip::skip(name, "needs root");
    }
    !root
}

fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Timestamp(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn event(body: RawBody) -> RawEvent {
    RawEvent {
        at: now(),
        cpu: Cpu(0),
        body,
    }
}

fn sample(pid: u32, user: &[u64]) -> RawEvent {
    let bytes: Vec<u8> = user
        .iter()
        .flat_map(|address| address.to_ne_bytes())
        .collect();
    event(RawBody::Sample(Box::new(RawSample {
        comm: Comm::from_bytes(b"program"),
        cgroup: 1,
        user: RawStack {
            bytes: bytes.into(),
            end: StackEnd::Complete,
        },
        ..RawSample::new(Pid(pid), Tid(pid))
    })))
}

fn inside<'t>(path: &'t str, root: &str) -> &'t str {
    path.strip_prefix(root).unwrap_or(path)
}

/// What the kernel would have said of a process's fork, exec and mappings.
fn side_band(pid: u32) -> Vec<RawEvent> {
    let own = std::process::id();
    let mut events = vec![
        event(RawBody::Fork {
            pid: Pid(pid),
            tid: Tid(pid),
            parent_pid: Pid(own),
            parent_tid: Tid(own),
        }),
        event(RawBody::Comm {
            pid: Pid(pid),
            tid: Tid(pid),
            exec: true,
            comm: Comm::from_bytes(b"program"),
        }),
    ];
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Read from outside, paths begin at the root of the mount namespace.
    let root = std::fs::read_link(format!("/proc/{pid}/root")).unwrap();
    let root = root.to_str().unwrap().trim_end_matches('/');
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if !fields[1].contains('x') {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let (major, minor) = fields[3].split_once(':').unwrap();
        events.push(event(RawBody::Mmap(Box::new(RawMmap {
            pid: Pid(pid),
            tid: Tid(pid),
            start: hex(start),
            len: hex(end) - hex(start),
            file_offset: hex(fields[2]),
            path: inside(fields.get(5).unwrap_or(&"//anon"), root)
                .as_bytes()
                .into(),
            file: FileIdentity {
                major: hex(major) as u32,
                minor: hex(minor) as u32,
                inode: fields[4].parse().unwrap(),
                generation: 0,
            },
        }))));
    }
    events
}

/// The address that the program prints.
fn printed_address(child: &mut Child) -> u64 {
    let mut text = String::new();
    let out = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        text.push(byte[0] as char);
    }
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

/// The pid, seen from here, of a process whose command line begins so.
fn find_by_command(command: &str) -> u32 {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.starts_with(command.as_bytes()) {
                return pid;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{command} does not run");
}

fn names(batches: Vec<Batch>) -> (Tables, Vec<Vec<String>>) {
    let mut tables = Tables::default();
    let mut epoch = Epoch::default();
    let mut samples = Vec::new();
    for batch in batches {
        for definition in batch.definitions {
            epoch.define(&mut tables, definition).unwrap();
        }
        for event in batch.events {
            if let Event::Sample(sample) = epoch.event(event).unwrap() {
                samples.push(sample.user);
            }
        }
    }
    let stack = |&stack: &Option<StackId>| {
        let frames = tables.frames_of(stack);
        frames.map(|frame| tables.frame_name(frame)).collect()
    };
    let stacks = samples.iter().map(stack).collect();
    (tables, stacks)
}

fn finish(resolver: &mut Resolver, events: &mut Vec<RawEvent>) -> (Tables, Vec<Vec<String>>) {
    let mut out = Vec::new();
    resolver.resolve(events, &mut out);
    resolver.finish(Duration::from_secs(30), &mut |_| {}, &mut out);
    names(out)
}

#[test]
fn a_program_in_other_namespaces_has_names_when_it_has_ended() {
    if skip("a_program_in_other_namespaces_has_names_when_it_has_ended") {
        return;
    }
    let dir = TempDir::new("namespaces");
    let program = dir.build("program");
    // Only inside is there a program at that path; pids and /tmp are its own too.
    let unique = format!("/tmp/inside-{}", std::process::id());
    let script = format!(
        "mount -t tmpfs none /mnt && cp {} /mnt/p && mount -t tmpfs none /tmp && \
         cp /mnt/p {unique} && exec {unique} stay map",
        program.display()
    );
    let mut child = Running(
        Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                &script,
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let address = printed_address(&mut child.0);
    let pid = find_by_command(&unique);
    assert!(!Path::new(&unique).exists());
    let mut by_range = side_band(pid);
    // The same, but where map_files can't help: found by path, below the process's root.
    let mut by_path = side_band(pid);
    for event in &mut by_path {
        if let RawBody::Mmap(mmap) = &mut event.body
            && &*mmap.path == unique.as_bytes()
        {
            mmap.len += 4096;
        }
    }
    let mut resolvers: Vec<Box<Resolver>> = (0..2)
        .map(|_| Resolver::new(ResolveOptions::default()).unwrap())
        .collect();
    for (resolver, events) in resolvers.iter_mut().zip([&by_range, &by_path]) {
        for event in events {
            resolver.notice(event);
        }
    }
    let jit = 0x7e00_0000_0010;
    by_range.push(sample(pid, &[address + 4, jit]));
    by_path.push(sample(pid, &[address + 4, jit]));
    drop(child);
    let gone = Instant::now() + Duration::from_secs(10);
    while Path::new(&format!("/proc/{pid}/root/tmp")).exists() {
        assert!(Instant::now() < gone, "pid {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    for (resolver, mut events) in resolvers.iter_mut().zip([by_range, by_path]) {
        let (tables, stacks) = finish(resolver, &mut events);
        let compiled = stacks[0][1].strip_prefix("compiled_by_pid_").unwrap();
        let inner: u32 = compiled.parse().unwrap();
        assert!(
            inner < 100,
            "a pid of the namespace, not of the host: {inner}"
        );
        assert_eq!(stacks[0][0], "work");
        let (_, process) = tables
            .processes()
            .find(|(_, process)| process.pid == Pid(pid))
            .unwrap();
        assert_eq!(process.namespace_pids, [Pid(inner)]);
        let executable = process.executable.map(|path| tables.string(path));
        assert_eq!(executable, Some(&*unique));
        let arguments = tables.arguments(process);
        assert_eq!(arguments, Some(vec![&*unique, "stay", "map"]));
        let command = tables.command_line(process);
        assert_eq!(command, Some(format!("{unique} stay map")));
    }
}

#[test]
fn places_of_a_program_that_has_ended_in_other_namespaces_can_be_asked_about() {
    if skip("places_of_a_program_that_has_ended_in_other_namespaces_can_be_asked_about") {
        return;
    }
    let dir = TempDir::new("asked");
    let program = dir.build("program");
    let unique = format!("/tmp/asked-{}", std::process::id());
    let script = format!(
        "mount -t tmpfs none /mnt && cp {} /mnt/p && mount -t tmpfs none /tmp && \
         cp /mnt/p {unique} && exec {unique} stay",
        program.display()
    );
    let mut child = Running(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let address = printed_address(&mut child.0);
    let pid = child.0.id();
    let mut resolver = Resolver::new(ResolveOptions {
        threads: true,
        grace: Duration::from_secs(10),
        ..ResolveOptions::default()
    })
    .unwrap();
    resolver.snapshot(now());
    let mut out = Vec::new();
    resolver.poll_symbols(&mut out);
    drop(child);
    let exit = RawBody::Exit {
        pid: Pid(pid),
        tid: Tid(pid),
    };
    // Files of what ended are looked through now and then: after the usual grace, not after this one.
    let mut later = now();
    later.0 += 6_000_000_000;
    let mut events = vec![event(exit), event(RawBody::Mark("".into()))];
    events[1].at = later;
    resolver.resolve(&mut events, &mut out);
    let (tables, _) = names(out.clone());
    let (_, process) = tables
        .processes()
        .find(|(_, process)| process.pid == Pid(pid))
        .unwrap();
    assert!(resolver.ask_process(Pid(pid), process.started, &[address + 4]));
    resolver.finish(Duration::from_secs(30), &mut |_| {}, &mut out);
    let (tables, _) = names(out);
    let mut frames = tables.frames.iter();
    let named = frames.any(|(id, _)| tables.frame_name(id) == "work");
    assert!(named, "{:?}", resolver.counters());
}

/// A static program whose function is called like this, and its process below an overlay of its own.
struct Contained {
    child: Running,
    pid: u32,
    address: u64,
}

/// What to do in a new mount namespace to run `/app` of an overlay, without /proc and without a shell.
fn contained(dir: &TempDir, setup: &str, options: &str, namespaces: &[&str]) -> Contained {
    let merged = dir.0.join("merged").display().to_string();
    std::fs::create_dir_all(&merged).unwrap();
    let script = format!(
        "{setup} mount -t overlay overlay -o {options} {merged} && exec chroot {merged} /app stay"
    );
    let child = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-ec", &script])
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Running(child.unwrap());
    let address = printed_address(&mut child.0);
    Contained {
        pid: child.0.id(),
        child,
        address,
    }
}

fn build_static(dir: &TempDir, function: &str) -> PathBuf {
    let source = dir.0.join(format!("{function}.c"));
    std::fs::write(&source, PROGRAM.replace("work", function)).unwrap();
    let out = dir.0.join(function);
    let gcc = Command::new("gcc")
        .args(["-static", "-O0", "-Wl,--build-id=none", "-o"])
        .args([&out, &source])
        .status();
    assert!(gcc.unwrap().success());
    out
}

fn gone(pid: u32) {
    let until = Instant::now() + Duration::from_secs(10);
    while Path::new(&format!("/proc/{pid}/root/")).exists() {
        assert!(Instant::now() < until, "pid {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_overlays_with_the_same_inode_numbers_share_no_names() {
    if skip("two_overlays_with_the_same_inode_numbers_share_no_names") {
        return;
    }
    let dir = TempDir::new("overlays");
    let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
    let mut events = Vec::new();
    let mut inodes = Vec::new();
    for function in ["alpha", "omega"] {
        let program = build_static(&dir, function);
        let below = dir.0.join("below").display().to_string();
        std::fs::create_dir_all(&below).unwrap();
        // Each on a file system of its own, whose inodes are numbered alike; gone with the process.
        let setup = format!(
            "mount -t tmpfs none {below} && mkdir {below}/l {below}/u {below}/w && \
             cp {} {below}/l/app &&",
            program.display()
        );
        let options = format!("lowerdir={below}/l,upperdir={below}/u,workdir={below}/w");
        let contained = contained(&dir, &setup, &options, &["--mount"]);
        let pid = contained.pid;
        let new = side_band(pid);
        for event in &new {
            resolver.notice(event);
            if let RawBody::Mmap(mmap) = &event.body
                && &*mmap.path == b"/app"
            {
                inodes.push(mmap.file.inode);
            }
        }
        events.extend(new);
        events.push(sample(pid, &[contained.address + 4]));
        drop(contained.child);
        gone(pid);
    }
    inodes.dedup();
    assert_eq!(inodes.len(), 1, "the numbers differ: this tests nothing");
    let (_, stacks) = finish(&mut resolver, &mut events);
    assert_eq!(stacks, [["alpha"], ["omega"]]);
}

#[test]
fn a_program_that_something_is_mounted_over_is_found_in_its_layer() {
    if skip("a_program_that_something_is_mounted_over_is_found_in_its_layer") {
        return;
    }
    let machines = &["--mount"][..];
    let strangers = &["--user", "--map-root-user", "--mount"][..];
    for (namespaces, expected) in [(machines, Some("alpha")), (strangers, None)] {
        let dir = TempDir::new("layered");
        let program = build_static(&dir, "alpha");
        for folder in ["low", "up", "work"] {
            std::fs::create_dir(dir.0.join(folder)).unwrap();
        }
        std::fs::rename(program, dir.0.join("low/app")).unwrap();
        let folder = dir.0.display();
        let options = format!("lowerdir={folder}/low,upperdir={folder}/up,workdir={folder}/work");
        let contained = contained(&dir, "", &options, namespaces);
        let pid = contained.pid;
        let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
        let mut events = side_band(pid);
        let is_mapping = |event: &RawEvent| matches!(event.body, RawBody::Mmap(_));
        // The root is looked at when the program starts; its files are not, until it has ended.
        for event in events.iter().filter(|event| !is_mapping(event)) {
            resolver.notice(event);
        }
        let over = Command::new("nsenter")
            .arg(format!("--mount=/proc/{pid}/ns/mnt"))
            .args(["mount", "--bind", "/bin/true"])
            .arg(dir.0.join("merged/app"))
            .status();
        assert!(over.unwrap().success());
        drop(contained.child);
        gone(pid);
        for event in events.iter().filter(|event| is_mapping(event)) {
            resolver.notice(event);
        }
        events.push(sample(pid, &[contained.address + 4]));
        let (_, stacks) = finish(&mut resolver, &mut events);
        let named = stacks[0][0].as_str() == "alpha";
        assert_eq!(named, expected.is_some(), "{namespaces:?}: {stacks:?}");
    }
}

#[test]
fn a_deleted_program_is_found_without_its_mapping() {
    if skip("a_deleted_program_is_found_without_its_mapping") {
        return;
    }
    let dir = TempDir::new("by-exe");
    let program = dir.build("program");
    let mut child = Running(
        Command::new(&program)
            .arg("stay")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let address = printed_address(&mut child.0);
    std::fs::remove_file(&program).unwrap();
    let pid = child.0.id();
    let mut events = side_band(pid);
    for event in &mut events {
        // As where the kernel does not let us look at mappings.
        if let RawBody::Mmap(mmap) = &mut event.body {
            mmap.len += 4096;
        }
    }
    let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
    for event in &events {
        resolver.notice(event);
    }
    drop(child);
    events.push(sample(pid, &[address + 4]));
    let (_, stacks) = finish(&mut resolver, &mut events);
    assert_eq!(stacks, [["work"]]);
}

#[test]
fn a_process_is_in_the_cgroup_that_its_samples_name() {
    if skip("a_process_is_in_the_cgroup_that_its_samples_name") {
        return;
    }
    let hierarchies = Hierarchies::read().unwrap();
    let hierarchy = hierarchies.primary().unwrap();
    // Named as Docker names its own, of which nothing but the path is there.
    let id = "0123456789abcdef".repeat(4);
    let name = format!("/resolve-{}/docker/{id}", std::process::id());
    let folder = hierarchy.directory(&name);
    std::fs::create_dir_all(&folder).unwrap();
    let cgroup = hierarchy.cgroup(&name).unwrap();
    let child = Running(Command::new("sleep").arg("60").spawn().unwrap());
    let pid = child.0.id();
    let mut resolver = Resolver::new(ResolveOptions {
        hierarchy: Some(hierarchy.clone()),
        ..ResolveOptions::default()
    })
    .unwrap();
    resolver.snapshot(now());
    std::fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
    let mut moved = sample(pid, &[]);
    if let RawBody::Sample(sample) = &mut moved.body {
        sample.cgroup = cgroup.id;
    }
    let (tables, _) = finish(&mut resolver, &mut vec![moved]);
    drop(child);
    let removed = [folder.as_path(), folder.parent().unwrap()]
        .into_iter()
        .chain(folder.parent().unwrap().parent())
        .map(std::fs::remove_dir);
    let removed: Vec<_> = removed.collect();
    let (_, process) = tables
        .processes()
        .find(|(_, process)| process.pid == Pid(pid))
        .unwrap();
    assert_eq!(process.cgroup.map(|path| tables.string(path)), Some(&*name));
    let container = tables.container(process.container.unwrap()).unwrap();
    let text = |text: Option<StringId>| text.map(|text| tables.string(text));
    assert_eq!(text(container.engine), Some("docker"));
    assert_eq!(text(container.id), Some(&*id));
    let asked = resolver.take_unknown_containers();
    assert!(asked.iter().any(|identity| identity.cgroup == name));
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
}

#[test]
fn a_program_that_was_deleted_while_it_runs_has_names() {
    if skip("a_program_that_was_deleted_while_it_runs_has_names") {
        return;
    }
    let dir = TempDir::new("unlinked");
    let program = dir.build("program");
    let mut child = Running(
        Command::new(&program)
            .arg("stay")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let address = printed_address(&mut child.0);
    std::fs::remove_file(&program).unwrap();
    // Another program takes its name.
    std::fs::copy("/bin/true", &program).unwrap();
    let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
    resolver.snapshot(now());
    let pid = child.0.id();
    drop(child);
    let (tables, stacks) = finish(&mut resolver, &mut vec![sample(pid, &[address + 4])]);
    assert_eq!(stacks, [["work"]]);
    let (_, module) = tables
        .modules
        .iter()
        .find(|(_, module)| tables.string(module.path) == program.to_str().unwrap())
        .unwrap();
    assert!(module.build_id.is_some());
}

#[test]
fn the_perf_map_of_another_user_is_refused() {
    if skip("the_perf_map_of_another_user_is_refused") {
        return;
    }
    let dir = TempDir::new("other-user");
    let program = dir.build("program");
    let mut child = Running(
        Command::new(&program)
            .arg("stay")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    printed_address(&mut child.0);
    let pid = child.0.id();
    let path = format!("/tmp/perf-{pid}.map");
    std::fs::write(&path, "7e0000000000 100 forged\n").unwrap();
    let nobody = rustix::fs::Uid::from_raw(65534);
    rustix::fs::chown(&path, Some(nobody), None).unwrap();
    let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
    resolver.snapshot(now());
    let mut events = vec![sample(pid, &[0x7e00_0000_0010])];
    let (_, forged) = finish(&mut resolver, &mut events);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(forged, [[format!("[jit {pid}]+0x7e0000000010")]]);
}
