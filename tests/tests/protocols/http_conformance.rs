//! Readers and pages that others have made, at ProfilerTraces and at `profiler serve --http`.
//!
//! `cargo xtask conformance jssp` installs them and says where; elsewhere this is skipped. What does not belong here:
//! what our own client finds (`e2e_http`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::e2e_http_shared::{Server, request, samples};
use crate::e2e_tcf_shared::{Failure, own};
use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use serde_json::{Value, json};

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(90);

fn clients(test: &str) -> Option<PathBuf> {
    let clients = std::env::var_os("PROFILER_CONFORMANCE_JSSP").map(PathBuf::from);
    if clients.is_none() {
        skip(test, "`cargo xtask conformance jssp` runs it");
    }
    clients
}

fn spinning(setting: &Setting) -> Result<Running, Failure> {
    let mut command = Command::new(setting.workload("http_spin.c")?);
    Ok(setting.start("spin", &mut command)?)
}

/// A trace of an export: all samples are converted, at their times, and what is sent is found right.
#[test]
fn sentry_reads_a_trace() -> Outcome {
    let test = "http_conformance::sentry_reads_a_trace";
    let Some(clients) = clients(test) else {
        return Ok(());
    };
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let program = spinning(&setting)?;
    let pid = program.pid().to_string();
    setting
        .run(&["record", "-p", &pid, "-d", "1", "-o", "out.cap"])?
        .success()?;
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
    let exported = setting.run(&arguments)?.success()?.stdout;
    let trace: Value = serde_json::from_str(&exported)?;
    let own_samples = samples(&trace)?;
    let mut node = Command::new("node")
        .arg(own("conformance/jssp/sentry.js"))
        .arg(clients)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    node.stdin
        .take()
        .ok_or("no input")?
        .write_all(exported.as_bytes())?;
    let said: Value = serde_json::from_slice(&node.wait_with_output()?.stdout)?;
    let with_stack = own_samples.iter().filter(|(_, of)| of.is_some()).count();
    assert_eq!(
        (&said["samples"], &said["withStack"]),
        (&json!(own_samples.len()), &json!(with_stack))
    );
    assert_eq!(
        (&said["valid"], &said["paths"]),
        (&json!({ "valid": true }), &json!(true))
    );
    let functions = said["functions"].as_array().ok_or("no functions")?;
    assert!(functions.contains(&json!("spin")), "{functions:?}");
    let first = own_samples.first().map_or(0.0, |(at, _)| *at);
    for (elapsed, (at, _)) in said["elapsed"]
        .as_array()
        .ok_or("no times")?
        .iter()
        .zip(&own_samples)
    {
        let elapsed = elapsed.as_f64().ok_or("no time")?;
        assert!(
            (elapsed - (at - first) * 1e6).abs() < 1000.0,
            "{elapsed} {at}"
        );
    }
    Ok(())
}

/// Serves a page until it has sent what it found.
fn found_by(page: &str, listener: &TcpListener) -> Result<Value, Failure> {
    let until = Instant::now() + PATIENCE;
    listener.set_nonblocking(true)?;
    while Instant::now() < until {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let Ok((head, body)) = received(&mut stream) else {
            continue;
        };
        let (status, text) = match head.split(' ').nth(1) {
            Some("/") => ("200 OK", page),
            Some("/result") => ("200 OK", ""),
            _ => ("404 Not Found", ""),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(answer.as_bytes())?;
        if head.starts_with("POST /result") {
            return Ok(serde_json::from_str(&body)?);
        }
    }
    Err("the page has found nothing".into())
}

fn received(stream: &mut TcpStream) -> Result<(String, String), Failure> {
    let mut come = String::new();
    loop {
        if let Some((head, body)) = come.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
        let mut piece = [0; 65536];
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err("the browser has closed".into());
        }
        come += std::str::from_utf8(&piece[..count])?;
    }
}

/// A page in headless Chromium, what it profiles, and the server that it asks.
struct Browsing {
    browser: Child,
    profile: PathBuf,
    listener: TcpListener,
    page: String,
    server: Server,
    _program: Running,
}

impl Browsing {
    /// Nothing, if there is no Chromium.
    fn start(setting: &Setting, test: &str, page: &str) -> Result<Option<Browsing>, Failure> {
        if Command::new("chromium").arg("--version").output().is_err() {
            skip(test, "no chromium");
            return Ok(None);
        }
        let program = spinning(setting)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let origin = format!("http://{}", listener.local_addr()?);
        let server = Server::start(setting, &["--allow-origin", &origin])?;
        let page = std::fs::read_to_string(own(&format!("conformance/jssp/{page}")))?
            .replace("SERVER", &format!("http://127.0.0.1:{}", server.port))
            .replace("PID", &program.pid().to_string());
        let profile = setting.path("chromium");
        let browser = Command::new("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("{origin}/"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Some(Browsing {
            browser,
            profile,
            listener,
            page,
            server,
            _program: program,
        }))
    }

    /// What the page has found.
    fn found(&self) -> Result<Value, Failure> {
        let found = found_by(&self.page, &self.listener)?;
        assert_eq!(found.get("failed"), None, "{found}");
        Ok(found)
    }

    /// Asks the browser for something about its pages.
    fn ask(&self, method: &str, path: &str) -> Result<String, Failure> {
        let port = std::fs::read_to_string(self.profile.join("DevToolsActivePort"))?;
        let port: u16 = port.lines().next().ok_or("no port")?.parse()?;
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request(port, method, path, &[], None).as_bytes())?;
        // It keeps the connection.
        let (head, body) = received(&mut stream)?;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Ok(body)
    }

    fn end(mut self) -> Result<Server, Failure> {
        self.browser.kill()?;
        self.browser.wait()?;
        let Browsing { server, .. } = self;
        Ok(server)
    }
}

/// Waits until the server has so many sessions.
fn until_sessions(server: &Server, count: usize) -> Outcome {
    let until = Instant::now() + PATIENCE;
    loop {
        let sessions = server.ask("GET", "/session", &[], None)?.json()?;
        match sessions.as_array().ok_or("no sessions")?.len() {
            now if now == count => return Ok(()),
            now if Instant::now() > until => return Err(format!("there are {now} sessions").into()),
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Sessions of pages that were left are ended soon, though none was stopped.
#[test]
fn sessions_end_with_their_pages() -> Outcome {
    let test = "http_conformance::sessions_end_with_their_pages";
    if clients(test).is_none() {
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(browsing) = Browsing::start(&setting, test, "leaving.html")? else {
        return Ok(());
    };
    assert_eq!(browsing.found()?["times"], 12);
    until_sessions(&browsing.server, 1)?;
    let server = browsing.end()?;
    until_sessions(&server, 0)?;
    server.end()?;
    Ok(())
}

/// A page that is not in the foreground: its sessions are paused, and one that begins then takes no samples before.
#[test]
fn sessions_of_hidden_pages_are_paused() -> Outcome {
    let test = "http_conformance::sessions_of_hidden_pages_are_paused";
    if clients(test).is_none() {
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(browsing) = Browsing::start(&setting, test, "hidden.html")? else {
        return Ok(());
    };
    assert_eq!(browsing.found()?, json!({ "visible": "visible" }));
    let pages: Value = serde_json::from_str(&browsing.ask("GET", "/json/list")?)?;
    let pages = pages.as_array().ok_or("no pages")?;
    let page = pages.iter().find(|page| page["type"] == "page");
    let page = page.and_then(|page| page["id"].as_str()).ok_or("no page")?;
    let other: Value = serde_json::from_str(&browsing.ask("PUT", "/json/new?about:blank")?)?;
    let other = other["id"].as_str().ok_or("no other page")?;
    browsing.ask("GET", &format!("/json/activate/{other}"))?;
    let hidden = browsing.found()?;
    assert_eq!(hidden, json!({ "after": 0, "hidden": "hidden" }));
    browsing.ask("GET", &format!("/json/activate/{page}"))?;
    let shown = browsing.found()?;
    assert_eq!(shown["early"], 0, "{shown}");
    for name in ["samples", "always"] {
        assert!(shown[name].as_u64() > Some(20), "{shown}");
    }
    browsing.end()?.end()?;
    Ok(())
}

/// The document's own examples in a page of headless Chromium: constructor, attributes, errors, event, timestamps.
#[test]
fn pages_use_the_interface_of_the_document() -> Outcome {
    let test = "http_conformance::pages_use_the_interface_of_the_document";
    if clients(test).is_none() {
        return Ok(());
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(browsing) = Browsing::start(&setting, test, "page.html")? else {
        return Ok(());
    };
    let found = browsing.found()?;
    let server = browsing.end()?;
    let errors = [
        "TypeError",
        "TypeError",
        "TypeError",
        "TypeError",
        "RangeError",
        "RangeError",
    ];
    assert_eq!(found["constructorErrors"], json!(errors));
    assert_eq!(found["isEventTarget"], true);
    assert_eq!(found["converted"], json!([0.2, 7, 3, 10, 10, 10]));
    assert_eq!(found["notConverted"], json!(vec!["TypeError"; 10]));
    assert_eq!(found["tooLong"], "RangeError");
    assert_eq!(found["firstRead"], json!(["maxBufferSize"]));
    let described = json!([
        "[object Profiler]",
        ["sampleInterval", "stopped", "stop"],
        false,
        1,
        "TypeError",
        "TypeError"
    ]);
    assert_eq!(found["described"], described);
    assert_eq!(found["late"], json!(vec![0; 6]));
    assert!(found["shortSamples"].as_u64() > Some(50), "{found}");
    assert_eq!(found["many"], "all");
    assert_eq!(found["manyStopped"], json!(vec![true; 12]));
    assert_eq!(found["manyTraces"], json!(vec![5; 12]));
    assert_eq!(found["atOnce"], json!([10, false]));
    assert_eq!(found["effective"], 8);
    assert_eq!(
        (&found["stoppedAtOnce"], &found["secondStop"]),
        (&json!(true), &json!("InvalidStateError"))
    );
    let samples = samples(&found["json"]["trace"])?;
    assert!(samples.len() > 20, "{}", samples.len());
    assert!(
        samples
            .iter()
            .any(|(_, of)| of.as_ref().is_some_and(|of| of.contains("spin")))
    );
    // On the scale of performance.now(), until stop() was called; the first are of the time before `ready`.
    let error = found["clockError"].as_f64().ok_or("no error")?;
    let (from, to) = (found["span"][0].as_f64(), found["span"][1].as_f64());
    let (from, to) = (from.ok_or("no start")?, to.ok_or("no end")?);
    println!(
        "clock error {error} ms, {} samples in {from}..{to}",
        samples.len()
    );
    assert!(error > 0.0 && error < 100.0);
    let inside = samples
        .iter()
        .filter(|(at, _)| *at >= from - error && *at <= to + error)
        .count();
    assert!(
        inside > 20 && samples.iter().all(|(at, _)| *at <= to + 0.001),
        "{inside}"
    );
    assert_eq!(
        (&found["full"], &found["fullSamples"]),
        (&json!("samplebufferfull"), &json!(10))
    );
    assert_eq!(found["fullStop"], "InvalidStateError");
    assert_eq!(
        found["nobody"],
        json!(["NotFoundError", "InvalidStateError"])
    );
    assert_eq!(found["forced"], 1);
    server.end()?;
    Ok(())
}
