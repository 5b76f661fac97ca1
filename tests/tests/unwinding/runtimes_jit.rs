//! Code that runtimes make: V8 (Node), the JVM and .NET, with whole stacks and their own names.
//!
//! Oracles: workloads with known chains of functions. Stacks before the tables of large executables are
//! loaded are cut, and say so; the others must be exact.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::recording::{Recording, Sample};
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use profiler_tests::workload::source_path;

fn has(test: &str, command: &str) -> bool {
    let mut version = Command::new(command);
    let version = version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let found = version.status().is_ok_and(|status| status.success());
    if !found {
        skip(test, &format!("no {command}"));
    }
    found
}

/// At least 95 of 100 samples in `callers[0]` have just these callers, and then come to `outer`, completely.
fn exact(recording: &Recording, callers: &[&str], outer: &str) -> Outcome {
    let is_cut = |sample: &Sample| {
        let end = sample.user_end;
        end == StackEnd::NoTable
    };
    let in_leaf = recording
        .samples
        .iter()
        .filter(|sample| sample.leaf() == callers[0]);
    let (cut, whole): (Vec<&Sample>, Vec<&Sample>) = in_leaf.partition(|sample| is_cut(sample));
    let right = whole.iter().filter(|sample| {
        sample.user_end == StackEnd::Complete
            && sample.chain().starts_with(callers)
            && sample.calls(outer)
    });
    let right = right.count();
    println!(
        "{right} of {} are exact, {} came before the tables",
        whole.len(),
        cut.len()
    );
    if whole.len() < 50 || right * 100 < whole.len() * 95 {
        let strange = whole.iter().find(|sample| {
            sample.user_end != StackEnd::Complete || !sample.chain().starts_with(callers)
        });
        let strange = strange
            .or(cut.first())
            .map(|sample| (sample.user_end, sample.chain()));
        return Err(format!("{right} of {} are exact; not: {strange:?}", whole.len()).into());
    }
    Ok(())
}

/// Records Node with options.
fn node(setting: &Setting, options: &[&str]) -> Result<Recording, Box<dyn std::error::Error>> {
    let script = setting.path("chain.js");
    fs::copy(source_path("chain.js"), &script)?;
    let script = script.to_string_lossy().into_owned();
    let mut arguments = vec!["-F", "499", "--", "node"];
    arguments.extend(options);
    arguments.extend([&*script, "12"]);
    let (_, recording) = setting.record(&arguments)?;
    for sample in recording.samples.iter().take(1) {
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", sample.pid));
    }
    Ok(recording)
}

/// A dump that the process maps: names without the engine's marks, and no need of a perf map.
#[test]
fn node_by_its_dump() -> Outcome {
    let test = "node_by_its_dump";
    let Some(setting) = Setting::new(test)?.filter(|_| has(test, "node")) else {
        return Ok(());
    };
    let recording = node(
        &setting,
        &["--perf-prof", "--interpreted-frames-native-stack"],
    )?;
    exact(&recording, &["leaf", "middle", "outer", "entry"], "_start")
}

#[test]
fn node_by_its_perf_map() -> Outcome {
    let test = "node_by_its_perf_map";
    let Some(setting) = Setting::new(test)?.filter(|_| has(test, "node")) else {
        return Ok(());
    };
    let options = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    let recording = node(&setting, &options)?;
    exact(&recording, &["leaf", "middle", "outer", "entry"], "_start")
}

/// Records the JVM with options, after it has written its perf map.
fn java(setting: &Setting, options: &[&str]) -> Result<Recording, Box<dyn std::error::Error>> {
    let source = source_path("Chain.java");
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(setting.folder())
        .arg(source)
        .status()?;
    if !compiled.success() {
        return Err("javac failed".into());
    }
    let output = setting.path("java.out");
    let mut command = Command::new("java");
    command
        .args(options)
        .arg("-cp")
        .arg(setting.folder())
        .args(["Chain", "60"]);
    command.stdout(fs::File::create(&output)?);
    let mut child = command.spawn()?;
    let map = format!("/tmp/perf-{}.map", child.id());
    let recorded = recorded_java(setting, child.id(), &output, Path::new(&map));
    let _ = child.kill();
    let _ = child.wait();
    let _ = fs::remove_file(map);
    recorded
}

fn recorded_java(
    setting: &Setting,
    pid: u32,
    output: &Path,
    map: &Path,
) -> Result<Recording, Box<dyn std::error::Error>> {
    let until = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(output)?.contains("ready") {
        if Instant::now() > until {
            return Err("java does not get ready".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = pid.to_string();
    let asked = Command::new("jcmd")
        .args([&*pid, "Compiler.perfmap"])
        .output()?;
    if !asked.status.success() || !map.exists() {
        return Err(format!("no perf map: {asked:?}").into());
    }
    Ok(setting.record(&["-F", "499", "-d", "12", "-p", &pid])?.1)
}

const KEPT: [&str; 2] = [
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Chain::*",
];

#[test]
fn java_with_frame_pointers() -> Outcome {
    let test = "java_with_frame_pointers";
    let Some(setting) = Setting::new(test)?.filter(|_| has(test, "javac")) else {
        return Ok(());
    };
    let recording = java(&setting, &["-XX:+PreserveFramePointer", KEPT[0], KEPT[1]])?;
    let chain = ["Chain.leaf(int)", "Chain.middle(int)", "Chain.outer(int)"];
    exact(&recording, &chain, "start_thread")
}

/// Without frame pointers compiled code can't be walked; no stack may say that it is whole and lack callers.
#[test]
fn java_without_frame_pointers_says_so() -> Outcome {
    let test = "java_without_frame_pointers_says_so";
    let Some(setting) = Setting::new(test)?.filter(|_| has(test, "javac")) else {
        return Ok(());
    };
    let recording = java(&setting, &KEPT)?;
    let samples: Vec<&Sample> = recording
        .samples
        .iter()
        .filter(|sample| sample.leaf() == "Chain.leaf(int)")
        .collect();
    let lies = samples
        .iter()
        .filter(|sample| sample.user_end == StackEnd::Complete && !sample.calls("start_thread"));
    let lies = lies.count();
    println!("{lies} of {} stacks are not what they say", samples.len());
    if samples.len() < 50 || lies * 100 > samples.len() {
        return Err(format!("{lies} of {}", samples.len()).into());
    }
    Ok(())
}

/// A host of .NET: `PROFILER_DOTNET`, or what the path has; and the version of its runtime.
fn dotnet(test: &str) -> Option<(PathBuf, String)> {
    let host = std::env::var_os("PROFILER_DOTNET").map_or_else(|| "dotnet".into(), PathBuf::from);
    let listed = Command::new(&host).arg("--list-runtimes").output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = listed.unwrap_or_default().lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("Microsoft.NETCore.App")).then(|| words.next().map(str::to_owned))?
    });
    if version.is_none() {
        skip(test, "no runtime of .NET: PROFILER_DOTNET names its dotnet");
    }
    let version = version?;
    has(test, "mcs").then_some((host, version))
}

/// Records .NET with these variables.
fn recorded_dotnet(
    setting: &Setting,
    (host, version): (PathBuf, String),
    variables: &[&str],
) -> Result<Recording, Box<dyn std::error::Error>> {
    let program = setting.path("Chain.dll");
    let compiled = Command::new("mcs")
        .arg("-optimize")
        .arg(format!("-out:{}", program.display()))
        .arg(source_path("Chain.cs"))
        .status()?;
    if !compiled.success() {
        return Err("mcs failed".into());
    }
    let settings = format!(
        r#"{{"runtimeOptions":{{"framework":{{"name":"Microsoft.NETCore.App","version":"{version}"}}}}}}"#
    );
    fs::write(setting.path("Chain.runtimeconfig.json"), settings)?;
    let (host, program) = (host.to_string_lossy(), program.to_string_lossy());
    let mut arguments = vec!["-F", "499", "--", "env"];
    arguments.push("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1");
    // Before version 6 the beginning of the name was another one.
    arguments.extend(["DOTNET_PerfMapEnabled=1", "COMPlus_PerfMapEnabled=1"]);
    arguments.extend(variables);
    arguments.extend([&*host, &*program, "8"]);
    let (_, recording) = setting.record(&arguments)?;
    for sample in recording.samples.iter().take(1) {
        for name in ["perf", "perfinfo"] {
            let _ = fs::remove_file(format!("/tmp/{name}-{}.map", sample.pid));
        }
    }
    Ok(recording)
}

const CHAIN: [&str; 4] = [
    "Chain::Leaf(int32)",
    "Chain::Middle(int32)",
    "Chain::Outer(int32)",
    "Chain::Main(string[])",
];
/// What the host calls the runtime's library by.
const HOST: &str = "coreclr_execute_assembly";

/// Methods have one name, however well they are compiled; what calls the first one is the runtime's C++.
#[test]
fn dotnet_by_its_perf_map() -> Outcome {
    let test = "dotnet_by_its_perf_map";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(found) = dotnet(test) else {
        return Ok(());
    };
    let recording = recorded_dotnet(&setting, found, &[])?;
    exact(&recording, &CHAIN, HOST)?;
    // The framework's own code was compiled before it was shipped: stacks go through it.
    exact(
        &recording,
        &["Chain::Spin(int32)", "Chain::Compare(int32,int32)"],
        "Chain::Sorted(int32)",
    )
}

/// The framework's own methods have names if they are compiled as the program runs.
#[test]
fn dotnet_with_names_of_the_framework() -> Outcome {
    let test = "dotnet_with_names_of_the_framework";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(found) = dotnet(test) else {
        return Ok(());
    };
    let variables = ["DOTNET_ReadyToRun=0", "COMPlus_ReadyToRun=0"];
    let recording = recorded_dotnet(&setting, found, &variables)?;
    exact(&recording, &CHAIN, HOST)?;
    let chain = ["Chain::Spin(int32)", "Chain::Compare(int32,int32)"];
    exact(&recording, &chain, "Chain::Sorted(int32)")?;
    let is_sort = |name: &&str| name.contains("ArraySortHelper") && name.contains("Sort(");
    let sorts = recording
        .samples
        .iter()
        .filter(|sample| sample.leaf() == chain[0] && sample.chain().iter().any(is_sort));
    let named = sorts.count();
    println!("{named} lead through the framework's sort by name");
    match named {
        0..50 => Err(format!("{named} lead through the framework's sort by name").into()),
        _ => Ok(()),
    }
}
