//! `profiler serve --rdp`: programs say themselves what is to be traced, by the markers of `sdk`.

use std::process::Command;
use std::time::Duration;

use crate::e2e_rdp_shared::{Client, Server, counts};
use crate::e2e_tcf_shared::{Failure, Talking};
use profiler_tests::Outcome;
use profiler_tests::kernel_objects::held_by;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::workload;
use serde_json::{Value, json};

/// Calls before the end of which no probes sit, at the latest.
const SITS: Duration = Duration::from_secs(1);

/// The workload, and its two threads.
fn started(setting: &Setting) -> Result<(Talking, [u64; 2]), Failure> {
    let mut program = Talking::workload(setting, "rdp_marks.c", &[])?;
    let said = program.hear()?;
    let tid = |index: usize| said["tids"][index].as_u64().ok_or("no thread");
    Ok((program, [tid(0)?, tid(1)?]))
}

/// The next packet of an actor that tells of no lost frames: those of before its probes sat are.
fn next(client: &mut Client, actor: &str) -> Result<Value, Failure> {
    loop {
        let packet = client.packet_of(actor)?;
        match packet["type"] == "lostFrames" {
            true => assert_eq!(packet["why"], "notYetAttached", "{packet}"),
            false => return Ok(packet),
        }
    }
}

/// Waits until it was said that nobody saw what was called before.
fn sits(client: &mut Client, actor: &str) -> Result<(), Failure> {
    let packet = client.packet_of(actor)?;
    assert_eq!(packet["type"], "lostFrames", "{packet}");
    Ok(())
}

/// A program begins and ends a trace of one of its threads: who is attached to it is told, with the types, and of exactly
/// the calls in between; nobody else is. The markers cost nothing while nobody is attached.
#[test]
fn a_program_says_what_is_to_be_traced() -> Outcome {
    let test = "e2e_rdp_marks::a_program_says_what_is_to_be_traced";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let (mut program, [main, second]) = started(&setting)?;
    let arguments = [
        "--budget",
        "off",
        "--trace",
        "main:outer",
        "--trace",
        "main:leaf",
    ];
    let server = Server::start(&setting, &arguments)?;
    let mut client = server.client()?;
    let mut other = server.client()?;
    let mut early = server.client()?;
    client.process(program.pid())?;
    assert_eq!(program.ask("0 start early name")?["watched"], false);
    let idle = held_by(server.running.pid())?;
    let actor = client.attached(program.pid(), second)?;
    let mains = client.attached(program.pid(), main)?;
    let others = other.attached(program.pid(), second)?;
    // Who is attached is told from then on.
    assert_eq!(program.ask("0 calls 7")?["watched"], true);

    program.ask("1 start foo name,depth,time")?;
    let started = next(&mut client, &actor)?;
    assert_eq!(
        (&started["type"], &started["why"], &started["name"]),
        (
            &json!("startedTrace"),
            &json!("console.startTrace"),
            &json!("foo")
        )
    );
    assert_eq!(started["tracing"], json!(["name", "time", "depth"]));
    sits(&mut client, &actor)?;
    let started = next(&mut other, &others)?;
    assert_eq!(started["name"], "foo");
    sits(&mut other, &others)?;
    program.ask("0 calls 11")?;
    program.ask("1 calls 500")?;
    program.ask("1 stop foo")?;
    program.ask("1 calls 13")?;
    for (client, actor) in [(&mut client, &actor), (&mut other, &others)] {
        let packets = client.until(actor, "stoppedTrace")?;
        let stopped = &packets[packets.len() - 1];
        assert_eq!(stopped["why"], "console.stopTrace", "{stopped}");
        assert_eq!(stopped["name"], "foo");
        let seen = counts(&packets, 0);
        assert_eq!(seen["outer"], (500, 500));
        assert_eq!(seen["leaf"], (1000, 1000));
        let wrong = client.ask(actor, "stopTrace", json!({}))?;
        assert_eq!(wrong["error"], "wrongState");
    }

    // Without a name and types; beside a trace of the client; what is wrong starts nothing.
    let wanted = json!({ "trace": ["name"], "name": "asked" });
    let answer = client.ask(&actor, "startTrace", wanted)?;
    assert_eq!(answer["type"], "startedTrace", "{answer}");
    assert!(answer.get("tracing").is_none());
    program.ask("1 start wrong name,colour")?;
    program.ask("1 start - -")?;
    program.ask("1 calls 20")?;
    program.ask("1 stop nobody")?;
    program.ask("1 stop -")?;
    program.ask("1 calls 30")?;
    program.ask("1 stop asked")?;
    let mut packets = client.until(&actor, "stoppedTrace")?;
    packets.extend(client.until(&actor, "stoppedTrace")?);
    let told = packets.iter().filter(|it| it["sequence"].is_null());
    let told: Vec<(&Value, &Value, usize)> = told
        .map(|it| {
            (
                &it["type"],
                &it["name"],
                it["tracing"].as_array().map_or(0, Vec::len),
            )
        })
        .collect();
    let (starts, stops) = (json!("startedTrace"), json!("stoppedTrace"));
    let (own, asked) = (json!("Trace 1"), json!("asked"));
    assert_eq!(
        told,
        [(&starts, &own, 8), (&stops, &own, 0), (&stops, &asked, 0)]
    );
    let frames: Vec<&Value> = packets
        .iter()
        .filter(|it| it["sequence"].is_u64())
        .collect();
    assert_eq!(frames.len(), 2 * 3 * (20 + 30));
    let sequences = frames.iter().map(|it| it["sequence"].as_u64());
    assert!(sequences.eq((0..300).map(Some)));
    let timed = frames.iter().filter(|it| it["time"].is_number()).count();
    assert_eq!(timed, 2 * 3 * 20, "the types of both while both last");

    // The other thread was told nothing, and who came late neither.
    assert_eq!(
        client.ask(&mains, "stopTrace", json!({}))?["error"],
        "wrongState"
    );
    client.ask(&mains, "detach", json!({}))?;
    client.ask(&actor, "detach", json!({}))?;
    assert_eq!(
        program.ask("0 calls 1")?["watched"],
        true,
        "the other is attached"
    );
    drop(other);
    let mut left = true;
    for _ in 0..200 {
        let now = held_by(server.running.pid())?;
        let came = now.links.iter().filter(|id| !idle.links.contains(id));
        left = came.count() > 0 || program.ask("0 calls 0")?["watched"] == true;
        if !left {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!left, "markers are watched though nobody is attached");
    early.process(program.pid())?;
    server.end()?;
    program.end()?;
    Ok(())
}

/// Traces that follow each other closely come whole and in order, each with a sequence of its own.
#[test]
fn traces_that_follow_each_other_are_told_apart() -> Outcome {
    let test = "e2e_rdp_marks::traces_that_follow_each_other_are_told_apart";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let (mut program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &["--budget", "off", "--trace", "main:outer"])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    let mut holder = server.client()?;
    // While somebody else traces, the probes sit.
    let others = holder.attached(program.pid(), main)?;
    holder.ask(
        &others,
        "startTrace",
        json!({ "trace": [], "name": "held" }),
    )?;
    const TURNS: usize = 200;
    program.ask(&format!("0 turns {TURNS}"))?;
    let mut whole = 0;
    for turn in 0..TURNS {
        let packets = client.until(&actor, "stoppedTrace")?;
        let packets: Vec<Value> = packets
            .into_iter()
            .filter(|it| it["type"] != "lostFrames")
            .collect();
        assert_eq!(packets[0]["type"], "startedTrace", "{turn}: {packets:?}");
        let seen = counts(&packets, 0);
        let seen = seen.get("outer").copied().unwrap_or_default();
        assert!(seen.0 <= 3 && seen.0 == seen.1, "{turn}: {seen:?}");
        whole += usize::from(seen.0 == 3);
    }
    // Those of before it was known that a trace had begun are lost, which was said.
    println!("{whole} of {TURNS} traces are whole");
    assert!(client.packet_within(Duration::from_millis(300))?.is_none());
    server.end()?;
    program.end()?;
    Ok(())
}

/// The examples, in C and in Rust; without functions to trace, frames are inferred.
#[test]
fn examples_are_understood() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp_marks::examples_are_understood")? else {
        return Ok(());
    };
    for source in ["markers.c", "markers.rs"] {
        let built = workload::example(source)?;
        for functions in [&["--trace", "main:work"][..], &[]] {
            let mut program = Talking::start(&mut Command::new(&built))?;
            program.line()?;
            let arguments = [&["--budget", "off"], functions].concat();
            let server = Server::start(&setting, &arguments)?;
            let mut client = server.client()?;
            let actor = client.attached(program.pid(), program.pid().into())?;
            for _ in 0..2 {
                program.say("abc")?;
                assert_eq!(program.line()?.trim(), "294 1", "{source}");
                let packets = client.until(&actor, "stoppedTrace")?;
                assert_eq!(packets[0]["why"], "console.startTrace", "{source}");
                assert_eq!(packets[0]["tracing"], json!(["name", "time", "depth"]));
                let stopped = &packets[packets.len() - 1];
                assert_eq!(stopped["name"], "request");
                assert_eq!(stopped["why"], "console.stopTrace");
            }
            server.end()?;
            program.end()?;
        }
    }
    Ok(())
}

/// A library with markers that is loaded after the client has attached.
#[test]
fn markers_that_are_loaded_later_are_found() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp_marks::markers_that_are_loaded_later_are_found")?
    else {
        return Ok(());
    };
    let plain = setting.path("plain.c");
    std::fs::write(
        &plain,
        "#include <dlfcn.h>\n#include <stdio.h>\n#include <string.h>\n\
         int main(void) {\n\
         char line[256];\n\
         void (*mark)(void) = 0;\n\
         while (fgets(line, sizeof line, stdin)) {\n\
         line[strcspn(line, \"\\n\")] = 0;\n\
         if (!mark) mark = (void (*)(void))dlsym(dlopen(line, RTLD_NOW), \"mark\");\n\
         else mark();\n\
         puts(\"{}\");\n\
         fflush(stdout);\n}\n}\n",
    )?;
    let library = setting.path("marks.c");
    let header = crate::e2e_tcf_shared::own("../sdk/profiler.h");
    std::fs::write(
        &library,
        format!(
            "#include \"{}\"\nvoid mark(void) {{ profiler_start_trace(\"late\", \"name\"); }}\n",
            header.display()
        ),
    )?;
    for (output, source, flags) in [
        ("plain", &plain, &["-ldl"][..]),
        ("marks.so", &library, &["-shared", "-fPIC"]),
    ] {
        let mut cc = Command::new("cc");
        cc.arg("-O2")
            .arg("-o")
            .arg(setting.path(output))
            .arg(source)
            .args(flags);
        assert!(cc.status()?.success());
    }
    let mut program = Talking::start(&mut Command::new(setting.path("plain")))?;
    let server = Server::start(&setting, &[])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), program.pid().into())?;
    let path = setting.path("marks.so");
    program.ask(path.to_str().ok_or("no path")?)?;
    let until = std::time::Instant::now() + LIMIT;
    let started = loop {
        program.ask("mark")?;
        match client.packet_within(SITS)? {
            Some(packet) if packet["from"] == *actor => break packet,
            _ if std::time::Instant::now() > until => return Err("they were not found".into()),
            _ => {}
        }
    };
    assert_eq!(
        (&started["type"], &started["name"]),
        (&json!("startedTrace"), &json!("late"))
    );
    server.end()?;
    program.end()?;
    Ok(())
}
