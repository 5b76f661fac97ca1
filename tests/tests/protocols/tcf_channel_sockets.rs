//! A TCF server and its clients over sockets: who is admitted, who is waited for, what each costs the
//! others, TLS, and the end.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use profiler_model::{Batch, Demand};
use profiler_serve::admission::Admission;
use profiler_serve::front::Order;
use profiler_serve::machine::NoMachine;
use profiler_serve::tcf::{Limits, ServeSummary, Server, TcfError, TcfOptions};
use profiler_serve::tls::TlsOptions;
use profiler_tests::tcf_channel::{CLIENT_HELLO, HELLO, answers, command, options};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const END: &[u8] = b"\x03\x02\0\x03\x01";
const SYNC: &[u8] = b"C\0s\0Locator\0sync\0\x03\x01";
const SYNCED: &[u8] = b"R\0s\0\0\x03\x01";
/// Nothing here takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(20);

fn start(options: TcfOptions) -> Result<Server, TcfError> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Server::start(any, options, Box::new(NoMachine))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn finish(server: Server) -> ServeSummary {
    let runtime = runtime();
    runtime.block_on(server.finish(Duration::from_secs(5)))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A client after the hellos.
fn client(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    expect(&mut stream, HELLO);
    stream.write_all(CLIENT_HELLO).unwrap();
    stream
}

fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut come = vec![0; expected.len()];
    stream.read_exact(&mut come).unwrap();
    assert_eq!(come, expected);
}

fn sync(stream: &mut TcpStream) -> Duration {
    let asked = Instant::now();
    stream.write_all(SYNC).unwrap();
    expect(stream, SYNCED);
    asked.elapsed()
}

/// What comes until the connection is closed, in whatever way.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    bytes
}

#[test]
fn clients_are_served_and_told_of_the_end() {
    let server = start(options(Limits::default())).unwrap();
    let mut clients: Vec<_> = (0..50).map(|_| client(server.address())).collect();
    for stream in &mut clients {
        sync(stream);
    }
    // One leaves as it should, one within a message, one without a word.
    clients[0].write_all(END).unwrap();
    assert_eq!(rest(&mut clients[0]), END);
    clients[1].write_all(b"C\x001\0Loc").unwrap();
    drop(clients.drain(..3));
    clients[0].write_all(b"\x03\x09").unwrap();
    let said = rest(&mut clients[0]);
    assert!(said.starts_with(b"\x03\x02{\"Code\":3,"), "{said:?}");

    let address = server.address();
    let reading = std::thread::spawn(move || {
        for stream in &mut clients[1..] {
            assert_eq!(rest(stream), END);
        }
    });
    let summary = finish(server);
    reading.join().unwrap();
    assert_eq!((summary.channels, summary.refused), (50, 0));
    assert_eq!((summary.laggards, summary.commands), (0, 50));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn orders_come_and_commands_wait_for_batches() {
    let mut server = start(options(Limits::default())).unwrap();
    let runtime = runtime();
    let order = |server: &mut Server| {
        let order = runtime.block_on(async { timeout(LIMIT, server.order()).await });
        match order.unwrap() {
            Order::Demand(Demand { attached, .. }) => attached,
            other => panic!("{other:?}"),
        }
    };
    let mut stream = client(server.address());
    assert!(order(&mut server));
    let ask = command("1", "RunControl", "getChildren", &["null"]);
    stream.write_all(&ask).unwrap();
    sync(&mut stream);
    assert_eq!(server.send(Batch::default()), 0);
    server.ready();
    expect(&mut stream, b"R\x001\0\0[]\0\x03\x01");
    server.detached();
    server.trouble("no".to_owned());
    while sync(&mut stream) > LIMIT {}
    stream.write_all(&ask).unwrap();
    expect(&mut stream, b"R\x001\0{\"Code\":1,");
    drop(stream);
    assert!(!order(&mut server));
    finish(server);
}

#[test]
fn who_does_not_read_is_closed_and_others_go_on() {
    let limits = Limits {
        stall: Duration::from_millis(500),
        output_bytes: 1 << 20,
        ..Limits::default()
    };
    let server = start(options(limits)).unwrap();
    let (mut good, laggard) = (client(server.address()), client(server.address()));
    let mut writer = laggard.try_clone().unwrap();
    writer.set_write_timeout(Some(LIMIT)).unwrap();
    let text = format!("\"{}\"", "x".repeat(60_000));
    let echo = command("1", "Diagnostics", "echo", &[&text]);
    let flooding = std::thread::spawn(move || {
        let mut sent = 0;
        // Until the connection is closed from the other side.
        while writer.write_all(&echo).is_ok() {
            sent += echo.len();
            assert!(sent < 200 << 20, "all that nobody reads is taken");
        }
        sent
    });
    let mut slowest = Duration::ZERO;
    while !flooding.is_finished() {
        slowest = slowest.max(sync(&mut good));
    }
    flooding.join().unwrap();
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    sync(&mut good);
    assert_eq!(finish(server).laggards, 1);
    drop(laggard);
}

#[test]
fn who_floods_is_served_in_turns() {
    let server = start(options(Limits::default())).unwrap();
    let mut good = client(server.address());
    let mut flooder = client(server.address());
    let mut writer = flooder.try_clone().unwrap();
    const COUNT: usize = 200_000;
    let writing = std::thread::spawn(move || {
        let many = SYNC.repeat(1_000);
        for _ in 0..COUNT / 1_000 {
            writer.write_all(&many).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let reading = std::thread::spawn(move || {
        let mut come = vec![0; COUNT * SYNCED.len()];
        flooder.read_exact(&mut come).unwrap();
        assert_eq!(answers(&come).len(), COUNT);
    });
    let (mut slowest, mut synced) = (Duration::ZERO, 0);
    while !reading.is_finished() {
        slowest = slowest.max(sync(&mut good));
        synced += 1;
    }
    writing.join().unwrap();
    reading.join().unwrap();
    assert!(
        synced > 5 && slowest < Duration::from_secs(2),
        "{synced}, {slowest:?}"
    );
    finish(server);
}

#[test]
fn more_channels_than_allowed_are_refused_with_a_word() {
    let limits = Limits {
        channels: 2,
        ..Limits::default()
    };
    let server = start(options(limits)).unwrap();
    let silent = {
        let mut stream = connect(server.address());
        expect(&mut stream, HELLO);
        stream
    };
    let mut good = client(server.address());
    // Who says nothing gives way.
    let other = client(server.address());
    let said = String::from_utf8(rest(&mut { silent })).unwrap();
    assert_eq!(
        said,
        "\x03\x02{\"Code\":3,\"Format\":\"no Hello has come, and others want to be served\"}\0\x03\x01"
    );
    for _ in 0..3 {
        let said = rest(&mut connect(server.address()));
        let said = String::from_utf8(said).unwrap();
        assert_eq!(
            said,
            "\x03\x02{\"Code\":1,\"Format\":\"there are 2 channels already\"}\0\x03\x01"
        );
    }
    sync(&mut good);
    drop(other);
    let until = Instant::now() + LIMIT;
    while !read_some(&mut connect(server.address())).starts_with(b"E") {
        assert!(Instant::now() < until, "a closed channel still counts");
    }
    assert!(finish(server).refused >= 3);
}

fn read_some(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 1];
    let count = stream.read(&mut bytes).unwrap_or_default();
    bytes.truncate(count);
    bytes
}

#[test]
fn users_who_are_not_admitted_are_told_why() {
    const NOBODY: u32 = 65_534;
    let me = rustix::process::getuid().as_raw();
    for (users, admitted) in [(vec![me, NOBODY], true), (vec![me], false)] {
        let mut options = options(Limits::default());
        options.admission = Admission::only(users);
        let server = start(options).unwrap();
        let address = server.address();
        let mut python = Command::new("python3");
        python.arg("-c").arg(format!(
            "import socket\n\
             s = socket.create_connection(('{}', {}))\n\
             s.settimeout(20)\n\
             s.sendall(b'E\\0Locator\\0Hello\\0[]\\0\\3\\1')\n\
             print(s.recv(1 if {} else 4096, socket.MSG_WAITALL))",
            address.ip(),
            address.port(),
            if admitted { "True" } else { "False" },
        ));
        if rustix::process::geteuid().is_root() {
            python.uid(NOBODY);
        } else if admitted {
            continue;
        }
        if !rustix::process::geteuid().is_root() {
            // Nobody else can be made: this user itself is the one who is not admitted.
            drop(server);
            let mut options = profiler_tests::tcf_channel::options(Limits::default());
            options.admission = Admission::only([me + 1]);
            let server = start(options).unwrap();
            let said = rest(&mut connect(server.address()));
            let said = String::from_utf8(said).unwrap();
            assert!(said.contains("--allow-user"), "{said}");
            assert_eq!(finish(server).refused, 1);
            continue;
        }
        let output = python.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        match admitted {
            true => assert_eq!(said.trim(), "b'E'", "{output:?}"),
            false => {
                let (start, end) = (
                    "b'\\x03\\x02{\"Code\":1,\"Format\":\"127.0.0.1:",
                    " belongs to user 65534; --allow-user 65534 admits that user\"}\\x00\\x03\\x01'",
                );
                assert!(said.starts_with(start), "{said}");
                assert!(said.trim().ends_with(end), "{said}");
            }
        }
        sync(&mut client(address));
        let summary = finish(server);
        assert_eq!(summary.refused, u64::from(!admitted));
    }
    let mut options = options(Limits::default());
    options.admission = Admission::new([]);
    let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let error = Server::start(all, options, Box::new(NoMachine))
        .err()
        .unwrap();
    assert!(error.to_string().contains("--allow-remote"), "{error}");
}

/// Keys and certificates in a folder of their own.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str) -> Keys {
        let folder = std::env::temp_dir().join(format!("tcf-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let keys = Keys(folder);
        keys.openssl(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority \
             -keyout ca.key -out ca.pem",
        );
        for (name, more) in [
            ("server", "subjectAltName=IP:127.0.0.1"),
            ("client", "basicConstraints=CA:FALSE"),
        ] {
            fs::write(keys.path("ext"), more).unwrap();
            keys.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ));
            keys.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile ext -out {name}.pem"
            ));
        }
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        let output = openssl
            .args(arguments.split_whitespace())
            .current_dir(&self.0)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn options(&self, client_authority: bool) -> TcfOptions {
        TcfOptions {
            tls: Some(TlsOptions {
                certificate: self.path("server.pem"),
                key: self.path("server.key"),
                client_authority: client_authority.then(|| self.path("ca.pem")),
            }),
            ..options(Limits::default())
        }
    }

    /// What a client that another program encrypts for gets to read.
    fn talk(&self, address: SocketAddr, more: &[&str]) -> Vec<u8> {
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-CAfile",
                "ca.pem",
            ])
            .args(["-verify_ip", "127.0.0.1"])
            .args(["-connect", &address.to_string()])
            .args(more)
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = client.stdin.take().unwrap();
        let peers = command("1", "Locator", "getPeers", &[]);
        // It may have ended already, which is seen by what it says.
        let _ = input.write_all(&[CLIENT_HELLO, &peers, END].concat());
        let output = client.wait_with_output().unwrap();
        drop(input);
        output.stdout
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn channels_can_be_encrypted_and_clients_asked_for_a_certificate() {
    let keys = Keys::new("keys");
    let own = ["-cert", "client.pem", "-key", "client.key"];
    for (asked, more, admitted) in [
        (false, &[][..], true),
        (false, &["-tls1_2"], true),
        (true, &own, true),
        (
            true,
            &["-cert", "client.pem", "-key", "client.key", "-tls1_2"],
            true,
        ),
        (true, &[], false),
    ] {
        let server = start(keys.options(asked)).unwrap();
        // Neither one that says nothing nor one that does not encrypt holds others up.
        let silent = connect(server.address());
        let mut plain = connect(server.address());
        plain.write_all(CLIENT_HELLO).unwrap();
        let said = keys.talk(server.address(), more);
        if admitted {
            assert!(said.starts_with(HELLO), "{asked} {more:?}: {said:?}");
            assert!(said.ends_with(END));
            let said = String::from_utf8(said).unwrap();
            assert!(said.contains("\"TransportName\":\"SSL\""), "{said}");
            assert!(said.contains(&format!("\"ID\":\"SSL:{}\"", server.address())));
        } else {
            assert_eq!(said, b"", "{more:?}");
        }
        let answer = rest(&mut plain);
        assert!(!answer.starts_with(b"E"), "{answer:?}");
        let summary = finish(server);
        assert_eq!(summary.channels, u64::from(admitted));
        assert_eq!(summary.refused, 1 + u64::from(!admitted));
        drop(silent);
    }
}

#[test]
fn files_for_tls_that_are_no_keys_are_named() {
    let keys = Keys::new("files");
    fs::write(keys.path("empty"), "").unwrap();
    fs::write(
        keys.path("damaged"),
        "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    fs::write(
        keys.path("other"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let tls = |certificate: &str, key: &str, authority: Option<&str>| TlsOptions {
        certificate: keys.path(certificate),
        key: keys.path(key),
        client_authority: authority.map(|name| keys.path(name)),
    };
    for (tls, file, text) in [
        (
            tls("missing", "server.key", None),
            "missing",
            "No such file",
        ),
        (
            tls("empty", "server.key", None),
            "empty",
            "no certificate in PEM",
        ),
        (
            tls("server.key", "server.key", None),
            "server.key",
            "no certificate in PEM",
        ),
        (tls("damaged", "server.key", None), "damaged", "certificate"),
        (
            tls("server.pem", "server.pem", None),
            "server.pem",
            "no private key in PEM",
        ),
        (
            tls("server.pem", "client.key", None),
            "client.key",
            "does not go with",
        ),
        (
            tls("server.pem", "server.key", Some("empty")),
            "empty",
            "no certificate",
        ),
        (
            tls("server.pem", "server.key", Some("other")),
            "other",
            "authority",
        ),
    ] {
        let options = TcfOptions {
            tls: Some(tls),
            ..options(Limits::default())
        };
        let error = start(options).err().unwrap().to_string();
        let path: &Path = &keys.path(file);
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains(text), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
