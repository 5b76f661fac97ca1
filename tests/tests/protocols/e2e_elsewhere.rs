//! `profiler serve --http --rdp` for clients on other machines: what they must show, and that all is encrypted; and by sockets
//! that somebody else has opened.
//!
//! A client on another machine is one that comes by an address of this one that is not on loopback. What does not belong here:
//! clients on loopback (`e2e_http`, `e2e_rdp`), TCF's (`e2e_tcf_access`).

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::e2e_http_shared::{Timed, converse, request};
use crate::e2e_tcf_shared::Failure;
use crate::e2e_tls_shared::{can_be_made, certificates, connect};

/// A server that other machines can reach.
struct Server {
    running: Running,
    http: SocketAddr,
    rdp: SocketAddr,
    token: String,
}

/// The address of this machine by which it reaches others. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

fn start(setting: &Setting, own: IpAddr, more: &[&str]) -> Result<Server, Failure> {
    let mut command = setting.profiler();
    let at = format!("{own}:0");
    command.args(["serve", "--http", &at, "--rdp", &at, "--allow-remote"]);
    command.args(more).current_dir(setting.folder());
    let mut running = Running::start(&mut command, setting.folder(), "serve")?;
    let mut said = String::new();
    running.wait_until("listening", LIMIT, |running| {
        said = running.stderr_so_far().unwrap_or_default();
        said.matches("listening for").count() == 2
    })?;
    let after = |what: &str| {
        let (_, rest) = said.split_once(what).ok_or("it does not say that")?;
        let word = rest.split_whitespace().next().ok_or("nothing follows")?;
        Ok::<String, Failure>(word.trim_end_matches('/').to_owned())
    };
    let http = after("clients of HTTP on ")?;
    let scheme = match more.contains(&"--tls-cert") {
        true => "https://",
        false => "http://",
    };
    Ok(Server {
        http: http.strip_prefix(scheme).ok_or("another scheme")?.parse()?,
        rdp: after("remote debugging protocol on ")?.parse()?,
        token: after("token for clients on other machines: ")?,
        running,
    })
}

/// What is answered to a request for all sessions that shows this.
fn status(
    stream: &mut (impl Read + Write + Timed),
    at: SocketAddr,
    shown: Option<&str>,
) -> Result<u16, Failure> {
    let host = at.to_string();
    let mut headers = vec![("Host", host.as_str())];
    headers.extend(shown.map(|shown| ("Authorization", shown)));
    let request = request(at.port(), "GET", "/session", &headers, None);
    Ok(converse(stream, &request)?.status)
}

/// A packet of a stream.
fn packet(stream: &mut impl Read) -> Result<Value, Failure> {
    let mut length = String::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        match byte[0] {
            b':' => break,
            digit => length.push(digit.into()),
        }
    }
    let mut packet = vec![0; length.parse()?];
    stream.read_exact(&mut packet)?;
    Ok(serde_json::from_slice(&packet)?)
}

fn ask(stream: &mut (impl Read + Write), packet_: &Value) -> Result<Value, Failure> {
    let json = packet_.to_string();
    stream.write_all(format!("{}:{json}", json.len()).as_bytes())?;
    packet(stream)
}

/// What a client of the remote debugging protocol is told until it shows the token, and after.
fn talks(stream: &mut (impl Read + Write), token: &str) -> Outcome {
    packet(stream)?;
    let list = json!({ "to": "root", "type": "listProcesses" });
    let refused = ask(stream, &list)?;
    assert_eq!(refused["error"], "notAuthenticated", "{refused}");
    let shown = json!({ "to": "root", "type": "authenticate", "token": token });
    let admitted = ask(stream, &shown)?;
    assert!(admitted["error"].is_null(), "{admitted}");
    let all = ask(stream, &list)?;
    assert!(all["processes"].is_array(), "{all}");
    Ok(())
}

/// Who comes from elsewhere shows the token, by either protocol; without keys that is warned of.
#[test]
fn a_token_is_wanted() -> Outcome {
    let test = "e2e_elsewhere::a_token_is_wanted";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(own) = own_address() else {
        skip(test, "no address but that of loopback");
        return Ok(());
    };
    let server = start(&setting, own, &[])?;
    let Server { http, rdp, .. } = server;
    let http_status = |shown: Option<&str>| status(&mut TcpStream::connect(http)?, http, shown);
    assert_eq!(http_status(None)?, 401);
    assert_eq!(http_status(Some("Bearer 0123"))?, 401);
    let token = &server.token;
    assert_eq!(http_status(Some(&format!("Bearer {token}")))?, 200);
    let mut stream = TcpStream::connect(rdp)?;
    stream.limit(LIMIT)?;
    talks(&mut stream, token)?;
    // A wrong one is the end.
    let mut stream = TcpStream::connect(rdp)?;
    stream.limit(LIMIT)?;
    packet(&mut stream)?;
    let wrong = json!({ "to": "root", "type": "authenticate", "token": "0123" });
    let refused = ask(&mut stream, &wrong)?;
    assert_eq!(refused["error"], "notAuthenticated", "{refused}");
    assert_eq!(stream.read(&mut [0])?, 0);
    server.running.signal(Signal::INT)?;
    let ended = server.running.end(LIMIT)?.success()?;
    let warnings = ended.stderr.matches("nothing is encrypted").count();
    assert_eq!(warnings, 2, "{}", ended.stderr);
    Ok(())
}

/// With keys all is encrypted; with an authority of clients, those without its certificate are not even asked for a token.
#[test]
fn all_is_encrypted() -> Outcome {
    let test = "e2e_elsewhere::all_is_encrypted";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(own) = own_address().filter(|_| can_be_made()) else {
        skip(test, "no openssl, or no address but that of loopback");
        return Ok(());
    };
    certificates(&setting, "agent", own)?;
    certificates(&setting, "clients", own)?;
    let keys = [
        "--tls-cert",
        "agent-host.pem",
        "--tls-key",
        "agent-host.key",
    ];
    let server = start(&setting, own, &keys)?;
    let Server { http, rdp, .. } = server;
    let bearer = format!("Bearer {}", server.token);
    let mut stream = connect(&setting, http, "agent", None)?;
    assert_eq!(status(&mut stream, http, Some(&bearer))?, 200);
    let mut stream = connect(&setting, http, "agent", None)?;
    assert_eq!(status(&mut stream, http, None)?, 401);
    let mut stream = connect(&setting, rdp, "agent", None)?;
    stream.limit(LIMIT)?;
    talks(&mut stream, &server.token)?;
    // Plain text gets nothing back that is of the protocol.
    for at in [http, rdp] {
        let mut stream = TcpStream::connect(at)?;
        stream.limit(LIMIT)?;
        stream.write_all(b"GET /session HTTP/1.1\r\n\r\n")?;
        let mut answer = Vec::new();
        // What comes is an alert of TLS; the connection may be reset behind it.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("HTTP/") && !text.contains("root"), "{text}");
    }
    // A client that trusts somebody else does not go on.
    let mut stream = connect(&setting, http, "clients", None)?;
    assert!(status(&mut stream, http, Some(&bearer)).is_err());
    server.running.signal(Signal::INT)?;
    let ended = server.running.end(LIMIT)?.success()?;
    assert!(
        !ended.stderr.contains("nothing is encrypted"),
        "{}",
        ended.stderr
    );

    let both = [&keys[..], &["--tls-client-ca", "clients.pem"]].concat();
    let server = start(&setting, own, &both)?;
    let Server { http, .. } = server;
    let bearer = format!("Bearer {}", server.token);
    let mut stream = connect(&setting, http, "agent", Some("clients"))?;
    assert_eq!(status(&mut stream, http, Some(&bearer))?, 200);
    for shown in [None, Some("agent")] {
        let mut stream = connect(&setting, http, "agent", shown)?;
        assert!(
            status(&mut stream, http, Some(&bearer)).is_err(),
            "{shown:?}"
        );
    }
    server.running.signal(Signal::INT)?;
    server.running.end(LIMIT)?.success()?;
    Ok(())
}

/// What systemd does: opens sockets, and runs a program that finds them behind its standard streams.
const ACTIVATE: &str = "
import os, socket, sys
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
print(*[it.getsockname()[1] for it in sockets], flush=True)
copies = [os.dup2(it.fileno(), 20 + n, inheritable=False) for n, it in enumerate(sockets)]
for n, it in enumerate(copies): os.dup2(it, 3 + n, inheritable=True)
names = {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2', 'LISTEN_FDNAMES': 'rdp:http'}
os.execve(sys.argv[1], sys.argv[1:], {**os.environ, **names})
";

/// Clients that have come before the server has started are served.
#[test]
fn sockets_are_passed() -> Outcome {
    let Some(setting) = Setting::new("e2e_elsewhere::sockets_are_passed")? else {
        return Ok(());
    };
    let none = setting.run(&["serve", "--http", "systemd"])?;
    let none = none.expect_status(2)?;
    assert!(none.stderr.contains("socket unit"), "{}", none.stderr);

    let mut command = std::process::Command::new("python3");
    command.args(["-c", ACTIVATE]).arg(setting.profiler_path());
    command.args(["serve", "--http", "systemd", "--rdp", "systemd"]);
    let mut running = Running::start(&mut command, setting.folder(), "serve")?;
    let mut ports = Vec::new();
    running.wait_until("its ports", LIMIT, |running| {
        let said = running.stdout_so_far().unwrap_or_default();
        let words = said.split_whitespace();
        ports = words.filter_map(|word| word.parse::<u16>().ok()).collect();
        said.ends_with('\n') && ports.len() == 2
    })?;
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let mut rdp = TcpStream::connect(at(ports[0]))?;
    rdp.limit(LIMIT)?;
    let mut http = TcpStream::connect(at(ports[1]))?;
    assert_eq!(status(&mut http, at(ports[1]), None)?, 200);
    let greeting = packet(&mut rdp)?;
    assert_eq!(greeting["from"], "root", "{greeting}");
    running.signal(Signal::INT)?;
    let ended = running.end(LIMIT)?.success()?;
    assert!(!ended.stderr.contains("was passed"), "{}", ended.stderr);

    // Of one that nobody serves by the clients would hear nothing.
    let mut command = std::process::Command::new("python3");
    command.args(["-c", ACTIVATE]).arg(setting.profiler_path());
    command.args(["serve", "--http", "systemd"]);
    let mut running = Running::start(&mut command, setting.folder(), "serve-http")?;
    running.wait_until("listening", LIMIT, |running| {
        let said = running.stderr_so_far();
        said.is_ok_and(|said| said.contains("listening"))
    })?;
    running.signal(Signal::INT)?;
    let ended = running.end(LIMIT)?.success()?;
    let said = "a socket called 'rdp' was passed, and nothing is served by it";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    Ok(())
}
