//! `profiler serve --http`: sampling sessions on programs that run, and on captures.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::e2e_http_shared::{Server, converse, request, samples};
use crate::e2e_tcf_shared::{Failure, NOBODY};
use crate::e2e_tls_shared::{can_be_made, certificates, connect};
use profiler_tests::Outcome;
use profiler_tests::process::{Running, burnt};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use serde_json::{Value, json};

/// A program that runs until it is dropped.
fn spinning(setting: &Setting, name: &str) -> Result<Running, Failure> {
    let mut command = Command::new(setting.workload("http_spin.c")?);
    let mut running = setting.start(name, &mut command)?;
    running.wait_until("a line", Duration::from_secs(20), |running| {
        running
            .stdout_so_far()
            .is_ok_and(|said| said.contains("spins"))
    })?;
    Ok(running)
}

fn sleeping(setting: &Setting, name: &str) -> Result<Running, Failure> {
    Ok(setting.start(name, Command::new("sleep").arg("600"))?)
}

fn copied(setting: &Setting) -> Result<Command, Failure> {
    let copy = setting.profiler_for_all()?;
    let mut command = Command::new(copy);
    command.current_dir(setting.folder());
    Ok(command)
}

/// Intervals between samples in milliseconds, shortest first.
fn gaps(samples: &[(f64, Option<String>)]) -> Vec<f64> {
    let mut gaps: Vec<f64> = samples.windows(2).map(|two| two[1].0 - two[0].0).collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

/// Two intervals of which neither divides the other, on one thread together: the median of each is its own to a
/// hundredth, and no sample is of a time beyond the session's.
#[test]
fn samples_of_two_sessions_are_regular() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::samples_of_two_sessions_are_regular")? else {
        return Ok(());
    };
    let program = spinning(&setting, "spin")?;
    let server = Server::start(&setting, &[])?;
    let target = json!({ "tid": program.pid() });
    let sessions = [7.0, 10.0, 0.3].map(|asked| server.session(target.clone(), asked, 100_000));
    std::thread::sleep(Duration::from_millis(1500));
    for (session, effective) in sessions.into_iter().zip([7.0, 10.0, 0.4]) {
        let session = session?;
        assert_eq!(session["sampleInterval"], effective);
        let now = server.ask("GET", "/clock", &[], None)?.json()?["now"].as_f64();
        let lasted = now.ok_or("no clock")? - session["timeOrigin"].as_f64().ok_or("no origin")?;
        let samples = samples(&server.post(&session, "stop")?)?;
        let gaps = gaps(&samples);
        let quantile = |part: f64| gaps[(gaps.len() as f64 * part) as usize];
        println!(
            "{effective} ms: {} samples, median {:.4}, p99 {:.4} ms",
            samples.len(),
            quantile(0.5),
            quantile(0.99)
        );
        assert!((quantile(0.5) - effective).abs() <= effective * 0.01);
        let (first, last) = (samples[0].0, samples[samples.len() - 1].0);
        assert!(
            first > 0.0 && last <= lasted + 1000.0,
            "{first} {last} {lasted}"
        );
        let seen: Vec<&String> = samples.iter().filter_map(|(_, of)| of.as_ref()).collect();
        assert!(!seen.is_empty());
        let inside = seen.iter().filter(|of| of.contains("spin")).count();
        assert!(inside * 10 >= seen.len() * 9, "{inside} of {}", seen.len());
    }
    server.end()?;
    Ok(())
}

/// A program that sleeps has timestamps alone, though another one runs; a process gives a trace for each thread.
#[test]
fn each_session_sees_its_own_target() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::each_session_sees_its_own_target")? else {
        return Ok(());
    };
    let (spins, sleeps) = (spinning(&setting, "spin")?, sleeping(&setting, "sleep")?);
    let server = Server::start(&setting, &[])?;
    let one = server.session(json!({ "pid": spins.pid() }), 5.0, 1000)?;
    let two = server.session(json!({ "pid": sleeps.pid() }), 5.0, 1000)?;
    std::thread::sleep(Duration::from_millis(700));
    for (session, pid, runs) in [(one, spins.pid(), true), (two, sleeps.pid(), false)] {
        let traces = server.post(&session, "stop")?;
        let traces = traces["traces"].as_array().ok_or("no traces")?;
        assert_eq!(traces.len(), 1);
        assert_eq!(
            (&traces[0]["pid"], &traces[0]["tid"]),
            (&json!(pid), &json!(pid))
        );
        let samples = samples(&traces[0]["trace"])?;
        assert!(samples.len() > 20, "{}", samples.len());
        assert_eq!(samples.iter().any(|(_, of)| of.is_some()), runs);
        let frames = traces[0]["trace"]["frames"].as_array().ok_or("no frames")?;
        for (name, line) in [("spin", 6), ("main", 12)] {
            // Where they are defined, wherever they ran.
            let mut of_name = frames.iter().filter(|frame| frame["name"] == name);
            let frame = of_name.next();
            assert_eq!(frame.is_some(), runs, "{frames:?}");
            assert!(frame.is_none_or(|frame| frame["line"] == line), "{frame:?}");
            assert_eq!(of_name.next(), None);
        }
    }
    server.end()?;
    Ok(())
}

/// How many sampling events a process holds.
fn sampling_events(pid: u32) -> Result<usize, Failure> {
    let mut count = 0;
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = fs::read_link(file?.path()).unwrap_or_default();
        count += usize::from(link.to_string_lossy().contains("[perf_event]"));
    }
    Ok(count)
}

#[test]
fn a_hundred_sessions_share_one_sampler() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::a_hundred_sessions_share_one_sampler")? else {
        return Ok(());
    };
    let program = spinning(&setting, "spin")?;
    let server = Server::start(&setting, &[])?;
    let target = json!({ "tid": program.pid() });
    let first = server.session(target.clone(), 10.0, 1000)?;
    let events = sampling_events(server.running.pid())?;
    assert!(events > 0);
    let mut sessions = vec![first];
    for _ in 1..100 {
        sessions.push(server.session(target.clone(), 10.0, 1000)?);
    }
    assert_eq!(sampling_events(server.running.pid())?, events);
    std::thread::sleep(Duration::from_millis(300));
    for session in &sessions {
        let samples = samples(&server.post(session, "stop")?)?;
        assert!(samples.iter().any(|(_, of)| of.is_some()), "{samples:?}");
    }
    let left = server.ask("GET", "/session", &[], None)?.json()?;
    assert_eq!(left, json!([]));
    server.end()?;
    Ok(())
}

#[test]
fn a_forced_sample_is_there() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::a_forced_sample_is_there")? else {
        return Ok(());
    };
    let (spins, sleeps) = (spinning(&setting, "spin")?, sleeping(&setting, "sleep")?);
    let server = Server::start(&setting, &[])?;
    let running = server.session(json!({ "tid": spins.pid() }), 3_600_000.0, 10)?;
    let still = server.session(json!({ "tid": sleeps.pid() }), 3_600_000.0, 10)?;
    assert_eq!(
        server.post(&still, "forcesample")?,
        json!({ "value": null })
    );
    assert_eq!(samples(&server.post(&running, "stop")?)?.len(), 1);
    let still = samples(&server.post(&still, "stop")?)?;
    assert!(matches!(still.as_slice(), [(_, None)]), "{still:?}");
    server.end()?;
    Ok(())
}

/// Events as they come: the present state, then the full buffer, then the end.
#[test]
fn a_full_buffer_is_told() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::a_full_buffer_is_told")? else {
        return Ok(());
    };
    let program = spinning(&setting, "spin")?;
    let server = Server::start(&setting, &[])?;
    let session = server.session(json!({ "tid": program.pid() }), 10.0, 20)?;
    let id = session["id"].as_str().ok_or("no id")?;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let path = format!("/session/{id}/events");
    stream.write_all(request(server.port, "GET", &path, &[], None).as_bytes())?;
    let mut come = String::new();
    while !come.contains("\"stopped\"") {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece)?;
        assert!(count > 0, "{come}");
        come += std::str::from_utf8(&piece[..count])?;
    }
    assert!(
        come.to_ascii_lowercase()
            .contains("content-type: text/event-stream"),
        "{come}"
    );
    let events: Vec<&str> = come
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(events, ["state", "samplebufferfull", "state"]);
    assert_eq!(samples(&server.post(&session, "stop")?)?.len(), 20);
    let again = server.ask("POST", &format!("/session/{id}/stop"), &[], None)?;
    assert_eq!(again.error(), (409, "InvalidStateError".to_owned()));
    server.end()?;
    Ok(())
}

/// What has ended keeps its names, its session says that it has, and gives its trace.
#[test]
fn what_ends_is_told_and_keeps_its_names() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::what_ends_is_told_and_keeps_its_names")? else {
        return Ok(());
    };
    let program = spinning(&setting, "spin")?;
    let pid = program.pid();
    let server = Server::start(&setting, &[])?;
    let session = server.session(json!({ "pid": pid }), 5.0, 100_000)?;
    let id = session["id"].as_str().ok_or("no id")?;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let path = format!("/session/{id}/events");
    stream.write_all(request(server.port, "GET", &path, &[], None).as_bytes())?;
    // Samples are of time on a processor: on a busy machine that takes longer.
    burnt(pid, Duration::from_millis(300))?;
    program.signal(rustix::process::Signal::KILL)?;
    let mut come = String::new();
    while !come.contains("stopped") {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece)?;
        assert!(count > 0, "{come}");
        come += std::str::from_utf8(&piece[..count])?;
    }
    assert!(
        come.contains(r#"data: {"state":"stopped","why":"ended"}"#),
        "{come}"
    );
    let traces = server.post(&session, "stop")?;
    let of = &traces["traces"][0];
    assert_eq!((&of["pid"], &of["tid"]), (&json!(pid), &json!(pid)));
    for name in ["process", "thread"] {
        let name = of[name].as_str().unwrap_or_default();
        assert!(name.starts_with("http_spin"), "{name}");
    }
    let samples = samples(&of["trace"])?;
    let inside = samples
        .iter()
        .filter(|(_, of)| of.as_ref().is_some_and(|of| of.contains("spin")));
    assert!(inside.count() > 10, "{samples:?}");
    server.end()?;
    Ok(())
}

/// A capture, without privileges: a session on a thread is given what an export of it has.
#[test]
fn a_session_on_a_capture_is_its_export() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::a_session_on_a_capture_is_its_export")? else {
        return Ok(());
    };
    let program = spinning(&setting, "spin")?;
    let pid = program.pid().to_string();
    setting
        .run(&["record", "-p", &pid, "-d", "1", "-o", "out.cap"])?
        .success()?;
    fs::set_permissions(setting.path("out.cap"), fs::Permissions::from_mode(0o644))?;
    let set = format!("thread={pid}");
    let arguments = [
        "export",
        "out.cap",
        "--format",
        "js-self-profiling",
        "--set",
        &set,
        "-o",
        "-",
    ];
    let exported: Value = serde_json::from_str(&setting.run(&arguments)?.success()?.stdout)?;
    let mut command = copied(&setting)?;
    command.uid(NOBODY).gid(NOBODY);
    let more = ["--allow-user", "0", "--replay", "out.cap", "--speed", "max"];
    let server = Server::start_command(&setting, command, &more)?;
    let session = server.session(json!({ "tid": program.pid() }), 0.0, 100_000)?;
    let trace = server.post(&session, "stop")?;
    assert!(samples(&trace)?.iter().any(|(_, of)| of.is_some()));
    assert_eq!(trace, exported);
    server.end()?;
    Ok(())
}

/// Who may not is told so, by name.
#[test]
fn what_may_not_be_is_refused() -> Outcome {
    let Some(setting) = Setting::new("e2e_http::what_may_not_be_is_refused")? else {
        return Ok(());
    };
    let program = sleeping(&setting, "sleep")?;
    let origin = "https://app.example";
    let server = Server::start(
        &setting,
        &["--allow-user", "nobody", "--allow-origin", origin],
    )?;
    let denied = (403, "NotAllowedError".to_owned());
    let target =
        json!({ "target": { "pid": program.pid() }, "sampleInterval": 10, "maxBufferSize": 10 });
    let with = |headers: &[(&str, &str)]| server.ask("POST", "/session", headers, Some(&target));
    for headers in [
        [("Host", "evil.example")],
        [("Origin", "https://evil.example")],
        [("Origin", "null")],
        [("Sec-Fetch-Site", "cross-site")],
    ] {
        assert_eq!(with(&headers)?.error(), denied, "{headers:?}");
    }
    let answer = with(&[("Content-Type", "text/plain")])?;
    assert_eq!(answer.error(), (400, "TypeError".to_owned()));
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
    let answer = with(&[("Origin", origin), ("Sec-Fetch-Site", "cross-site")])?;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(
        answer
            .head
            .contains(&format!("access-control-allow-origin: {origin}"))
    );
    let preflight = server.ask("OPTIONS", "/session", &[("Origin", origin)], None)?;
    assert_eq!(preflight.status, 204, "{preflight:?}");
    assert!(
        preflight
            .head
            .contains("access-control-allow-headers: content-type")
    );
    let id = answer.json()?["id"].as_str().ok_or("no id")?.to_owned();
    for (method, path, error) in [
        (
            "GET",
            format!("/session/{id}/stop"),
            (405, "NotSupportedError"),
        ),
        ("PUT", "/session".to_owned(), (405, "NotSupportedError")),
        ("GET", "/nowhere".to_owned(), (404, "NotFoundError")),
        ("POST", "/session/0/stop".to_owned(), (404, "NotFoundError")),
        ("GET", "/".to_owned(), (404, "NotFoundError")),
        ("OPTIONS", "/nowhere".to_owned(), (404, "NotFoundError")),
        (
            "POST",
            format!("/session/{id}/stop?at=soon"),
            (400, "TypeError"),
        ),
    ] {
        let (status, name) = server.ask(method, &path, &[], None)?.error();
        assert_eq!((status, name.as_str()), error, "{method} {path}");
    }
    // What can be done is told with what can't, and when it is asked; HEAD is GET without a body.
    for (method, path, status, allow) in [
        ("POST", "/clock", 405, Some("get, head, options")),
        ("OPTIONS", "/clock", 204, Some("get, head, options")),
        ("OPTIONS", "/session/0/stop", 204, Some("post, options")),
        ("HEAD", "/clock", 200, None),
        ("HEAD", "/session", 200, None),
        ("HEAD", "/session/0", 404, None),
    ] {
        let answer = server.ask(method, path, &[], None)?;
        assert_eq!(answer.status, status, "{method} {path}");
        let told = answer
            .head
            .lines()
            .find_map(|line| line.strip_prefix("allow: "));
        assert_eq!(told, allow, "{method} {path}");
        if method != "POST" {
            assert_eq!(answer.text, "", "{method} {path}");
        }
    }
    // Whom a request is for is said once, by a name of the server, in whatever place.
    let host = format!("127.0.0.1:{}", server.port);
    for (line, hosts, status) in [
        ("GET /clock", &[&*host][..], 200),
        ("GET /clock", &[&*host, &*host], 400),
        ("GET /clock", &[&*host, "evil.example"], 400),
        ("GET /clock", &[], 400),
        ("GET http://evil.example/clock", &[&*host], 403),
        ("GET http://localhost/clock", &["evil.example"], 403),
        ("GET http://localhost/clock", &[&*host], 200),
    ] {
        let hosts: String = hosts.iter().map(|it| format!("Host: {it}\r\n")).collect();
        let request = format!("{line} HTTP/1.1\r\nConnection: close\r\n{hosts}\r\n");
        assert_eq!(server.send(&request)?.status, status, "{request}");
    }
    let large = json!({ "target": "x".repeat(100_000) });
    let answer = server.ask("POST", "/session", &[], Some(&large));
    // It may be closed before all of it was sent.
    assert!(answer.is_err() || answer.is_ok_and(|it| it.status == 429));
    let broken = server.send(&format!(
        "POST /session HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{{",
        server.port
    ))?;
    assert_eq!(broken.error(), (400, "TypeError".to_owned()));
    // Another user may profile what runs as it, and nothing else.
    let mut client = Command::new("python3");
    client
        .arg("-c")
        .arg(NOBODYS_CLIENT)
        .args([server.port.to_string(), program.pid().to_string()]);
    client.uid(NOBODY).gid(NOBODY).current_dir("/");
    let said = client.output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(
        text.trim(),
        "403 201",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    server.end()?;
    Ok(())
}

/// Who is not admitted at all hears that, and what would admit it.
#[test]
fn other_users_are_told_that_they_are_not_admitted() -> Outcome {
    let test = "e2e_http::other_users_are_told_that_they_are_not_admitted";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let server = Server::start(&setting, &[])?;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /clock HTTP/1.1\\r\\nHost: localhost:{port}\\r\\n\\r\\n' >&3; \
         timeout 10 cat <&3",
        port = server.port
    );
    let mut bash = Command::new("/bin/bash");
    bash.args(["-c", &script]).uid(NOBODY).gid(NOBODY);
    let output = bash.current_dir("/").output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("HTTP/1.1 403"), "{output:?}");
    assert!(
        said.contains("NotAllowedError") && said.contains("--allow-user"),
        "{said}"
    );
    assert_eq!(server.ask("GET", "/clock", &[], None)?.status, 200);
    server.end()?;
    Ok(())
}

/// Asks for another's process, and for its own.
const NOBODYS_CLIENT: &str = "
import json, os, sys, urllib.error, urllib.request
def ask(pid):
    body = json.dumps({'target': {'pid': pid}, 'sampleInterval': 10, 'maxBufferSize': 10}).encode()
    url = f'http://127.0.0.1:{sys.argv[1]}/session'
    request = urllib.request.Request(url, body, {'Content-Type': 'application/json'})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
print(ask(int(sys.argv[2])), ask(os.getpid()))
";

/// A socket of the machine, a policy, and other protocols beside it.
#[test]
fn a_socket_serves_by_its_policy_beside_other_protocols() -> Outcome {
    let test = "e2e_http::a_socket_serves_by_its_policy_beside_other_protocols";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let (spins, sleeps) = (spinning(&setting, "spin")?, sleeping(&setting, "sleep")?);
    let policy = r#"{ "rules": [ { "processes": ["sleep"], "allow": false } ], "private": ["*/http_spin*"] }"#;
    fs::write(setting.path("policy.json"), policy)?;
    let socket = setting.path("http.sock");
    let path = socket.display().to_string();
    let mut command = setting.profiler();
    command.args([
        "serve",
        "--http",
        &path,
        "--tcf",
        ":0",
        "--rdp",
        ":0",
        "--policy",
        "policy.json",
    ]);
    let mut running = Running::start(&mut command, setting.folder(), "serve")?;
    running.wait_until("listening", Duration::from_secs(30), |running| {
        running
            .stderr_so_far()
            .is_ok_and(|said| said.matches("listening").count() == 3)
    })?;
    assert_eq!(fs::metadata(&socket)?.permissions().mode() & 0o777, 0o600);
    let ask = |path: &str, body: Option<Value>| {
        let mut stream = UnixStream::connect(&socket)?;
        converse(
            &mut stream,
            &request(0, "POST", path, &[("Host", "any")], body.as_ref()),
        )
    };
    let body =
        |pid: u32| json!({ "target": { "tid": pid }, "sampleInterval": 10, "maxBufferSize": 1000 });
    assert_eq!(
        ask("/session", Some(body(sleeps.pid())))?.error(),
        (403, "NotAllowedError".to_owned())
    );
    let session = ask("/session", Some(body(spins.pid())))?.json()?;
    std::thread::sleep(Duration::from_millis(300));
    let id = session["id"].as_str().ok_or("no id")?;
    let trace = ask(&format!("/session/{id}/stop"), None)?.json()?;
    let samples = samples(&trace)?;
    assert!(samples.len() > 5, "{samples:?}");
    let shown = samples.iter().filter_map(|(_, of)| of.as_ref());
    assert!(
        !shown
            .clone()
            .any(|of| of.contains("spin") || of.contains("main")),
        "{samples:?}"
    );
    running.signal(rustix::process::Signal::INT)?;
    let ended = running.end(Duration::from_secs(30))?.success()?;
    assert!(ended.stderr.contains("1 session"), "{}", ended.stderr);
    assert!(!socket.exists(), "the socket is gone with its server");
    Ok(())
}

#[test]
fn bad_policies_and_origins_are_said_at_once() -> Outcome {
    let test = "e2e_http::bad_policies_and_origins_are_said_at_once";
    let Some(setting) = Setting::unprivileged(test)? else {
        return Ok(());
    };
    fs::write(setting.path("bad.json"), r#"{ "rule": [] }"#)?;
    for (arguments, says) in [
        (["--policy", "bad.json"], "unknown field `rule`"),
        (["--policy", "none.json"], "none.json can't be used"),
        (["--allow-origin", "app.example"], "is no origin"),
        (["--allow-origin", "https://app.example/"], "is no origin"),
        (["--allow-user", "nobody-of-that-name"], "no user"),
    ] {
        let ended = setting.run(&[&["serve", "--http"], &arguments[..]].concat())?;
        let ended = ended.expect_status(2)?;
        assert!(
            ended.stderr.contains(says),
            "{arguments:?}: {}",
            ended.stderr
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    Ok(())
}

/// Who has begun to speak when all is to end is answered, by TLS too; and nothing is said to be lost because the server
/// was slow.
#[test]
fn who_has_begun_to_speak_is_answered_at_the_end() -> Outcome {
    let test = "e2e_http::who_has_begun_to_speak_is_answered_at_the_end";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if !can_be_made() {
        skip(test, "no openssl");
        return Ok(());
    }
    certificates(&setting, "agent", Ipv4Addr::LOCALHOST.into())?;
    let keys = [
        "--tls-cert",
        "agent-host.pem",
        "--tls-key",
        "agent-host.key",
    ];
    for arguments in [&keys[..], &[]] {
        // Events are under way all the time.
        let mut storm = Command::new("sh");
        storm.args(["-c", "while :; do /bin/true; done"]);
        let storm = setting.start("storm", &mut storm)?;
        let server = Server::start(&setting, arguments)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port));
        let clock = request(server.port, "GET", "/clock", &[], None);
        let end = || -> Outcome {
            std::thread::sleep(Duration::from_millis(2500));
            server.running.signal(rustix::process::Signal::INT)?;
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        };
        if arguments.is_empty() {
            assert_eq!(
                converse(&mut TcpStream::connect(address)?, &clock)?.status,
                200
            );
            let mut stream = TcpStream::connect(address)?;
            end()?;
            assert_eq!(converse(&mut stream, &clock)?.status, 200);
        } else {
            assert_eq!(
                converse(&mut connect(&setting, address, "agent", None)?, &clock)?.status,
                200
            );
            let mut stream = connect(&setting, address, "agent", None)?;
            // The server has its first word, and no more.
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut stream.sock)?;
            }
            end()?;
            assert_eq!(converse(&mut stream, &clock)?.status, 200);
        }
        let ended = server.running.end(LIMIT)?.success()?;
        assert!(ended.stderr.contains("2 requests answered"), "{ended:?}");
        assert!(!ended.stderr.contains("lost"), "{ended:?}");
        drop(storm);
    }
    Ok(())
}
