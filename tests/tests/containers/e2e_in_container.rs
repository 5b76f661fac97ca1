//! The profiler in a container: the image of docs/deploy/Dockerfile, made of the static binary, and the
//! options that docs/permissions.md has; and by a runtime alone, with exactly the least set.
//!
//! Oracle: two programs whose functions have names of their own, one on the host, one in another container;
//! every sample of theirs is named, by functions that are in the file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use profiler_probe::privileges::{CapabilitySet, recording_set};
use profiler_tests::Outcome;
use profiler_tests::containers::{Docker, NOW_AND_THEN, Root, functions, in_path};
use profiler_tests::process::{Ended, Running, run};
use profiler_tests::recording::{Frame, Recording, Sample};
use profiler_tests::setting::{self, LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::at_least;
use profiler_tests::workload;

/// How long building the static binary may take, from nothing.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

fn documentation(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name)
}

/// The profiler without shared libraries, of the present sources. Only its last step is another than
/// that of the ordinary one: what both are made of is built once, as long as the package asks for the same
/// features of it, which is checked. A folder of its own for what comes out keeps the ordinary one.
fn static_profiler() -> Result<PathBuf, Box<dyn std::error::Error>> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let from = Instant::now();
        let folder = workload::target().join("static");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut cargo = workload::cargo();
        cargo
            .args(["rustc", "--package", "profiler-tests"])
            .args(["--bin", "profiler-static"])
            .args(setting::is_release().then_some("--release"))
            .arg("--target-dir")
            .arg(&folder)
            .args([
                "--",
                "-C",
                "target-feature=+crt-static",
                "-C",
                "strip=symbols",
            ])
            .env("CARGO_BUILD_BUILD_DIR", workload::target())
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let said = run(&mut cargo, &folder, "build", BUILD_LIMIT)
            .map_err(|error| error.to_string())?
            .success()?
            .stderr;
        eprintln!("the static binary took {} s", from.elapsed().as_secs());
        let compiled = said.lines().filter(|line| line.contains("Compiling"));
        let twice = compiled
            .filter(|line| !line.contains(" profiler v") && !line.contains(" profiler-tests v"));
        let twice: Vec<&str> = twice.collect();
        if !twice.is_empty() {
            return Err(format!(
                "features differ, so these were built twice: {twice:?}"
            ));
        }
        Ok(folder.join(setting::profile()).join("profiler-static"))
    });
    let path = built.clone()?;
    use object::{Object, read::elf::ElfFile64};
    let bytes = fs::read(&path)?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes)?;
    assert!(
        elf.imports()?.is_empty(),
        "{} needs libraries",
        path.display()
    );
    Ok(path)
}

/// A program on the host and what is expected of it.
struct Workload {
    pid: u32,
    prefix: &'static str,
    functions: BTreeSet<String>,
}

/// So many samples can be judged.
const ENOUGH: usize = 20;

/// Every sample of these is named, by what is in their files.
fn named(recording: &Recording, workloads: &[&Workload]) -> Outcome {
    for workload in workloads {
        let samples = recording.of_pid(workload.pid);
        assert!(
            samples.len() >= ENOUGH,
            "{}: {} samples",
            workload.prefix,
            samples.len()
        );
        // On a busy machine the first stacks may end before its callers: tables come first.
        let own = ["leaf", "inner", "outer"].map(|name| format!("{}_{name}", workload.prefix));
        let is_named = |sample: &&&Sample| own.iter().any(|name| sample.calls(name));
        let named = samples.iter().filter(is_named).count();
        let other = samples.iter().find(|sample| !is_named(sample));
        at_least(workload.prefix, named, samples.len(), 0.95)
            .map_err(|error| format!("{error}; one of the others: {other:?}"))?;
        // What the kernel maps into each process is in no file.
        let is_of_file = |frame: &&Frame| frame.named && frame.module.as_deref() != Some("[vdso]");
        for frame in samples.iter().flat_map(|s| &s.user).filter(is_of_file) {
            assert!(workload.functions.contains(&frame.name), "{}", frame.name);
        }
    }
    Ok(())
}

fn kernel_is_named(recording: &Recording) -> bool {
    let mut kernel = recording.samples.iter().flat_map(|s| &s.kernel);
    kernel.any(|frame| frame.named)
}

fn start_green(setting: &Setting) -> Result<(Running, Workload), Box<dyn std::error::Error>> {
    let program = workload::contained("green")?;
    let running = setting.start("green", Command::new(&program).args(&NOW_AND_THEN[1..]))?;
    let workload = Workload {
        pid: running.pid(),
        prefix: "green",
        functions: functions(&program)?,
    };
    Ok((running, workload))
}

/// The `docker run` of the documentation as words, for this image and folder.
fn documented(folder: &Path, image: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(documentation("permissions.md"))?;
    let begin = text.find("docker run --rm").ok_or("no docker run")?;
    let block = text[begin..].split("```").next().ok_or("no end")?;
    let words = block
        .split_whitespace()
        .skip(1)
        .filter(|word| *word != "\\");
    Ok(words
        .map(|word| match word {
            "profiler" => image.to_owned(),
            "\"$PWD:/out\"" => format!("{}:/out", folder.display()),
            word => word.to_owned(),
        })
        .collect())
}

/// For engines that don't know the finer ones.
fn with_sys_admin(words: &[String]) -> Vec<String> {
    let unknown = ["BPF", "PERFMON", "CHECKPOINT_RESTORE"].map(|name| format!("--cap-add={name}"));
    let mut words: Vec<_> = words
        .iter()
        .filter(|w| !unknown.contains(w))
        .cloned()
        .collect();
    words.insert(1, "--cap-add=SYS_ADMIN".to_owned());
    words
}

/// All samples of a process are said to be of this container, which Docker has made of an image of that
/// name.
fn in_container(recording: &Recording, pid: u32, name: &str) {
    for sample in recording.of_pid(pid) {
        let Some(container) = &sample.container else {
            panic!("no container: {sample:?}");
        };
        assert_eq!(container.name.as_deref(), Some(name));
        assert_eq!(container.image.as_deref(), Some(name));
        assert_eq!(container.engine.as_deref(), Some("docker"));
    }
}

/// From the container: the other one is found by its name, by its cgroup, and in the list; and also from
/// a namespace of cgroups, which Kubernetes gives.
fn containers_by_name(docker: &Docker, words: &[String], out: &Path, red: &Workload) -> Outcome {
    let image = words
        .iter()
        .position(|word| word == "prof")
        .ok_or("image")?;
    let id = docker.command(&["inspect", "--format", "{{.Id}}", "red"])?;
    for namespace in ["--cgroupns=host", "--cgroupns=private"] {
        let run = |arguments: &[&str]| {
            let options = words[..=image].iter().map(|word| match word.as_str() {
                "--cgroupns=host" => namespace,
                word => word,
            });
            let all: Vec<&str> = options.chain(arguments.iter().copied()).collect();
            docker.command(&all)
        };
        let listed = run(&["list", "containers", "--json", "red"])?;
        for part in [&*id, "\"red\"", "docker"] {
            assert!(listed.contains(part), "{namespace}: {listed}");
        }
        // As long as it takes until there is something to judge: on a busy machine it hardly runs.
        let recorded = |target: [&str; 2]| {
            let mut seconds = 1;
            loop {
                let lasts = seconds.to_string();
                let record = ["record", "-F", "499", "-d", &lasts, "--wait-names", "60"];
                let to = ["--force", "-o", "/out/one.cap"];
                run(&[&record[..], &to, &target].concat())?;
                let one = Recording::read(&out.join("one.cap"))?;
                if one.of_pid(red.pid).len() >= ENOUGH || seconds > 60 {
                    return Ok::<_, Box<dyn std::error::Error>>(one);
                }
                seconds *= 4;
            }
        };
        for target in [
            ["--container", "red"],
            ["--cgroup", &format!("docker/{id}")],
        ] {
            let one = recorded(target)?;
            named(&one, &[red])?;
            in_container(&one, red.pid, "red");
            let others = one.samples.iter().filter(|sample| sample.pid != red.pid);
            assert_eq!(others.count(), 0, "{namespace} {target:?}");
        }
        // By its number: nothing has looked for a name.
        let pid = red.pid.to_string();
        let by_pid = recorded(["-p", &pid])?;
        named(&by_pid, &[red])?;
        in_container(&by_pid, red.pid, "red");
    }
    Ok(())
}

/// From the container: a process of the host, and one of another container.
#[test]
fn the_documented_container_sees_the_machine() -> Outcome {
    let test = "e2e_in_container::the_documented_container_sees_the_machine";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(docker) = Docker::start(&setting, test)? else {
        return Ok(());
    };
    let context = setting.path("context");
    fs::create_dir_all(&context)?;
    fs::copy(static_profiler()?, context.join("profiler"))?;
    let file = documentation("deploy/Dockerfile");
    let (file, context) = (file.to_string_lossy(), context.to_string_lossy());
    docker.command(&[
        "build", "--quiet", "--tag", "prof", "--file", &file, &context,
    ])?;

    let root = Root::new(&setting.path("red"), "red")?;
    docker.image("red", &root)?;
    docker.run("red", &[], "red", &NOW_AND_THEN)?;
    let red = Workload {
        pid: docker.pid("red")?,
        prefix: "red",
        functions: functions(&workload::contained("red")?)?,
    };
    let (_running, green) = start_green(&setting)?;

    let out = setting.path("out");
    fs::create_dir_all(&out)?;
    let exact = documented(&out, "prof")?;
    let mut words = exact.clone();
    // The last of each: how long, and where to.
    for word in &mut words {
        if word == "10" {
            *word = "2".to_owned();
        }
    }
    // Names that are not there in the second that a recording may take longer come by `symbolize` later.
    words.extend(["-a", "-F", "499", "--wait-names", "60"].map(str::to_owned));
    let run = |words: &[String]| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        docker.command(&words)
    };
    let knows = match run(&words) {
        Ok(_) => true,
        Err(error) if error.to_string().contains("unknown capability") => {
            words = with_sys_admin(&words);
            run(&words)?;
            false
        }
        Err(error) => return Err(error.into()),
    };
    let whole = Recording::read(&out.join("profile.cap"))?;
    named(&whole, &[&red, &green])?;
    assert!(kernel_is_named(&whole));
    in_container(&whole, red.pid, "red");
    containers_by_name(&docker, &words, &out, &red)?;

    // `doctor` inside: all well, and what is missing named if it is not.
    let inside = |drop: &str| -> Vec<String> {
        let words = if knows {
            exact.clone()
        } else {
            with_sys_admin(&exact)
        };
        let image = words.iter().position(|word| word == "prof").unwrap_or(0);
        let mut words: Vec<_> = words[..=image]
            .iter()
            .filter(|w| *w != drop)
            .cloned()
            .collect();
        words.push("doctor".to_owned());
        words
    };
    let said = run(&inside("nothing"))?;
    assert!(said.contains("This machine can be recorded"), "{said}");
    assert!(!said.contains("run with --pid=host"), "{said}");
    let said = run(&inside("--pid=host"))?;
    assert!(said.contains("run with --pid=host"), "{said}");
    let said = run(&inside("--cgroupns=host"))?;
    // Engines that make no namespace of their own for cgroups of version 1 lose nothing.
    let namespaced = docker.command(&["info", "--format", "{{.CgroupVersion}}"])? == "2";
    assert_eq!(
        said.contains("run with --cgroupns=host"),
        namespaced,
        "{said}"
    );
    let refused = if knows {
        "--cap-add=BPF"
    } else {
        "--cap-add=SYS_ADMIN"
    };
    let error = run(&inside(refused))
        .err()
        .ok_or("doctor is content")?
        .to_string();
    assert!(error.contains("--cap-add=BPF"), "{error}");
    Ok(())
}

fn in_bundle(
    setting: &Setting,
    user: u32,
    set: CapabilitySet,
    arguments: &[&str],
) -> Result<Ended, Box<dyn std::error::Error>> {
    let bundle = setting.path(&format!("bundle-{user}"));
    let root = bundle.join("rootfs");
    for inside in ["dev", "proc", "sys", "out", "run", "tmp"] {
        fs::create_dir_all(root.join(inside))?;
    }
    let profiler = root.join("profiler");
    if !profiler.exists() {
        // A former one may be running yet, until the kernel has taken its probes out.
        fs::copy(static_profiler()?, profiler)?;
    }
    let out = setting.path("out");
    fs::create_dir_all(&out)?;
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777))?;
    let names: Vec<_> = set
        .iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    let words = [&["/profiler"][..], arguments].concat();
    let ambient = if user == 0 { &[][..] } else { &names };
    let tmpfs = |path: &str| {
        serde_json::json!({ "destination": path, "type": "tmpfs", "source": "tmpfs",
                            "options": ["mode=1777", "size=16m"] })
    };
    let configuration = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": user, "gid": user },
            "args": words,
            "env": ["PATH=/"],
            "cwd": "/out",
            "noNewPrivileges": true,
            "capabilities": { "bounding": names, "permitted": names, "effective": names,
                              "inheritable": ambient, "ambient": ambient },
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"] },
            { "destination": "/out", "type": "bind", "source": out, "options": ["bind", "rw"] },
            tmpfs("/tmp"),
            tmpfs("/run"),
        ],
        "linux": {
            "cgroupsPath": format!("/profiler-test-inside-{}-{user}", std::process::id()),
            "namespaces": [{ "type": "mount" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }],
        },
    });
    fs::write(bundle.join("config.json"), configuration.to_string())?;
    let mut runc = Command::new("runc");
    runc.arg("--root")
        .arg(setting.path("runc"))
        .args(["run", "--bundle"])
        .arg(&bundle)
        .arg(format!("profiler-inside-{}-{user}", std::process::id()));
    Ok(run(&mut runc, setting.folder(), "runc", LIMIT)?)
}

/// By a runtime alone, with exactly the least set: as root without anything else, and as nobody.
#[test]
fn the_least_set_is_enough_in_a_container() -> Outcome {
    let test = "e2e_in_container::the_least_set_is_enough_in_a_container";
    if in_path("runc").is_none() {
        skip(test, "runc is not installed");
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    static_profiler()?;
    // Below a root of its own, which is not ours.
    let root = Root::new(&setting.path("red"), "red")?;
    let mut command = Command::new("chroot");
    command.arg(root.folder()).args(NOW_AND_THEN);
    let red = setting.start("red", &mut command)?;
    let red = (
        Workload {
            pid: red.pid(),
            prefix: "red",
            functions: functions(&workload::contained("red")?)?,
        },
        red,
    );
    let (_running, green) = start_green(&setting)?;
    for user in [0, 65_534] {
        let output = format!("{user}.cap");
        let arguments = [
            "record",
            "-a",
            "-F",
            "499",
            "-d",
            "2",
            "--wait-names",
            "60",
            "-o",
            &output,
        ];
        let ended = in_bundle(&setting, user, recording_set(), &arguments)?.success()?;
        let recording = Recording::read(&setting.path("out").join(output))?;
        named(&recording, &[&red.0, &green])
            .map_err(|error| format!("user {user}: {error}; {}", ended.stderr))?;
        assert!(kernel_is_named(&recording));
        let pid = red.0.pid.to_string();
        let output = format!("{user}-p.cap");
        let arguments = [
            "record",
            "-p",
            &pid,
            "-d",
            "1",
            "--trace",
            "red_inner",
            "-o",
            &output,
        ];
        let ended = in_bundle(&setting, user, recording_set(), &arguments)?.success()?;
        assert!(
            ended.stderr.contains(" calls; 1 function had probes"),
            "{}",
            ended.stderr
        );
        let less = recording_set() - CapabilitySet::PERFMON;
        let again = [&arguments[..], &["--force"]].concat();
        let ended = in_bundle(&setting, user, less, &again)?.expect_status(1)?;
        assert!(ended.stderr.contains("CAP_PERFMON"), "{}", ended.stderr);
    }
    Ok(())
}

/// The manifest asks for the least set, and for no more.
#[test]
fn the_manifest_has_the_least_set() -> Outcome {
    let text = fs::read_to_string(documentation("deploy/daemonset.yaml"))?;
    let (_, rest) = text
        .split_once("              add:\n")
        .ok_or("no capabilities")?;
    let added: BTreeSet<_> = rest
        .lines()
        .map_while(|line| line.trim().strip_prefix("- "))
        .collect();
    let set = recording_set();
    let least: BTreeSet<_> = set.iter_names().map(|(name, _)| name).collect();
    assert_eq!(added, least);
    for line in [
        "hostPID: true",
        "privileged: false",
        "readOnlyRootFilesystem: true",
    ] {
        assert!(text.contains(line), "{line}");
    }
    Ok(())
}
