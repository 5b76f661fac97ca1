//! `serve`: flags into a [`ServeRequest`].

#[cfg(feature = "http")]
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::error::Failure;
use crate::pipeline::{self, CallLimits, ServeRequest, ServeSource, adjustable};
use profiler_serve::FrontOptions;
use profiler_serve::admission::{Admission, unguessable};
#[cfg(feature = "http")]
use profiler_serve::http::{HttpAddress, HttpLimits, HttpOptions, Policy};
use profiler_serve::listening::Listening;
#[cfg(feature = "rdp")]
use profiler_serve::rdp::{RdpLimits, RdpOptions};
#[cfg(feature = "tcf")]
use profiler_serve::tcf::{Limits, TcfOptions};
use profiler_serve::tls::TlsOptions;
use profiler_target::user::User;
#[cfg(feature = "rdp")]
use profiler_trace::pattern::{Pattern, PatternError};

use super::activation::{Given, SYSTEMD, Sockets};
use super::stacks::StackArgs;
use super::target::NameArgs;
use super::target_words::admitted_users;
#[cfg(feature = "rdp")]
use super::trace::{Budget, budget};
use super::values::{Speed, speed};
use super::{Common, values};

/// Where TCF clients look for an agent.
#[cfg(feature = "tcf")]
const TCF_PORT: u16 = 1534;
/// Where clients of Firefox's remote debugging protocol look for it.
#[cfg(feature = "rdp")]
const RDP_PORT: u16 = 6000;
/// Where clients of HTTP look for sessions.
#[cfg(feature = "http")]
const HTTP_PORT: u16 = 8977;
/// Bytes of a policy.
#[cfg(feature = "http")]
const POLICY_BYTES: u64 = 1 << 20;
/// Samples per second that sessions of HTTP can ask for, unless told otherwise: one in 0.2 ms.
#[cfg(feature = "http")]
const HTTP_FREQUENCY_HZ: u64 = 5000;
/// What people are told who open an address to other machines.
#[cfg(any(feature = "http", feature = "rdp"))]
const WITH_TLS: &str = "best with --tls-cert and --tls-key";
/// Samples per second that clients can ask for, unless told otherwise.
const FREQUENCY_HZ: u64 = 1000;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("protocol").required(true).multiple(true))]
#[command(after_help = "\
Examples:
  profiler serve --tcf                        TCF, at 127.0.0.1:1534
  profiler serve --tcf :9000 --allow-user ann
  profiler serve --tcf --replay profile.cap --speed max   needs no privileges
  profiler serve --tcf 0.0.0.0 --allow-remote --tls-cert cert.pem \\
      --tls-key key.pem --tls-client-ca clients.pem     encrypted
  profiler serve --rdp --trace 'handle_*'     calls, at 127.0.0.1:6000
  profiler serve --http                       sessions, at 127.0.0.1:8977
  profiler serve --http /run/profiler.sock --policy policy.json
  profiler serve --http systemd               by the socket of a systemd unit

A TCF client (the Target Communication Framework of Eclipse) sees the processes and threads of this \
machine, and profiles those that it chooses. A client of Firefox's remote debugging protocol sees \
them too, and is told of each frame that a thread of its choice enters and leaves. A program or a page \
opens sampling sessions on any process by HTTP, and gets their traces. Any of these serve at once. \
While nobody is connected nothing is attached; nothing is sampled or traced but what somebody has \
asked for. Ctrl-C ends it.

Only processes of root, of you and of the user behind sudo are admitted, unless you admit others.")]
pub(super) struct ServeArgs {
    /// Serve TCF clients at this address: ADDRESS, ADDRESS:PORT or PORT (port 0: any that is free)
    #[cfg(feature = "tcf")]
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:1534",
        group = "protocol"
    )]
    tcf: Option<String>,
    /// Serve clients of Firefox's remote debugging protocol at this address
    #[cfg(feature = "rdp")]
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:6000",
        group = "protocol"
    )]
    rdp: Option<String>,
    /// Open sampling sessions for clients of HTTP at this address, or at a socket of this machine: a path
    #[cfg(feature = "http")]
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:8977",
        group = "protocol"
    )]
    http: Option<String>,
    /// Serve a capture in place of what happens now
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["buffer", "max_frequency", "debug_dir", "debuginfod", "no_inlines", "call_graph", "unwind_memory"]
    )]
    replay: Option<PathBuf>,
    /// How much faster than it happened: 1 (the default), 2.5, or max for all at once. Time goes by
    /// while a client is connected
    #[arg(long, value_name = "N", value_parser = speed, requires = "replay")]
    speed: Option<Speed>,
    /// Memory for all buffers between kernel and profiler
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = values::size)]
    buffer: u64,
    /// The highest frequency that clients can ask for, in samples per second on each processor
    /// [default: 1000; sessions of --http: 5000]
    #[arg(long, value_name = "HZ")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max_frequency: Option<u64>,
    /// With --rdp: functions whose calls clients are told of that name none: '[OBJECT:]FUNCTION', a glob or
    /// /regex/; repeatable. Without, what they are told is inferred from samples
    #[cfg(feature = "rdp")]
    #[arg(
        long,
        value_name = "PATTERN",
        requires = "rdp",
        conflicts_with = "replay"
    )]
    trace: Vec<String>,
    /// Share of a process's time that tracing may take; beyond it the dearest functions are watched less.
    /// 'off' for no limit
    #[cfg(feature = "rdp")]
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = budget, conflicts_with = "replay")]
    budget: Budget,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    resolve: NameArgs,
}

/// Who may do what.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
struct AccessArgs {
    /// Admit processes of this user too (a name or a number)
    #[arg(long, value_name = "USER")]
    allow_user: Vec<String>,
    /// Listen at addresses that other machines can reach: anyone there is admitted by --tcf (see --tls-client-ca), and who
    /// shows the token, which is printed, by --rdp and --http
    #[arg(long)]
    allow_remote: bool,
    /// Let clients stop, continue and end processes of their own user (root's: all)
    #[cfg(feature = "tcf")]
    #[arg(long, requires = "tcf", conflicts_with = "replay")]
    allow_control: bool,
    /// Let clients read the environments of processes
    #[cfg(feature = "tcf")]
    #[arg(long, requires = "tcf", conflicts_with = "replay")]
    allow_env: bool,
    /// Let clients see arguments and results of traced calls of their own user (root's: all)
    #[cfg(feature = "rdp")]
    #[arg(long, requires = "rdp")]
    allow_args: bool,
    /// With --http: pages of this origin may ask (https://app.example); repeatable
    #[cfg(feature = "http")]
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    allow_origin: Vec<String>,
    /// With --http: who may profile which processes, and what is withheld of their stacks; JSON
    #[cfg(feature = "http")]
    #[arg(long, value_name = "FILE", requires = "http")]
    policy: Option<PathBuf>,
    /// Encrypt what is served by TCP: the certificate chain to show, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Admit only clients with a certificate that one of these has signed, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

/// Serves until a signal ends it.
pub(super) fn serve(args: Box<ServeArgs>, common: &Common) -> Result<(), Failure> {
    pipeline::serve(request(args, common)?)
}

/// What was asked for, made in a frame that is gone when it is done.
#[inline(never)]
fn request(args: Box<ServeArgs>, common: &Common) -> Result<ServeRequest, Failure> {
    let fronts = fronts(&args)?;
    let source = match args.replay {
        Some(capture) => ServeSource::Replay {
            capture,
            speed: args.speed.map_or(Some(1.0), |Speed(speed)| speed),
        },
        None => {
            let buffer_bytes = usize::try_from(args.buffer).unwrap_or(usize::MAX);
            let kernel_log = common.verbose >= 2;
            let unwind_bytes = args.stacks.unwind_bytes();
            let resolve = args.resolve.options();
            #[cfg(feature = "rdp")]
            let Budget(budget) = args.budget;
            #[cfg(not(feature = "rdp"))]
            let budget = None;
            let calls = CallLimits { budget };
            let options = adjustable(resolve, buffer_bytes, unwind_bytes, calls, kernel_log);
            #[cfg(feature = "http")]
            let options = match args.http {
                Some(_) => options.by_the_clock(),
                None => options,
            };
            ServeSource::Live(Box::new(options))
        }
    };
    Ok(ServeRequest {
        fronts,
        source,
        quiet: common.quiet,
    })
}

fn fronts(args: &ServeArgs) -> Result<Vec<FrontOptions>, Failure> {
    let mut fronts = Vec::new();
    let mut sockets = Sockets::take()?;
    #[cfg(any(feature = "http", feature = "rdp"))]
    let token = args.token()?;
    #[cfg(feature = "tcf")]
    if let Some(address) = &args.tcf {
        let address = sockets.address("--tcf", address, TCF_PORT)?;
        let limits = Limits {
            frequency_hz: args.max_frequency.unwrap_or(FREQUENCY_HZ),
            ..Limits::default()
        };
        let options = args.access.tcf(&address, limits)?;
        fronts.push(FrontOptions::Tcf { address, options });
    }
    #[cfg(feature = "rdp")]
    if let Some(address) = &args.rdp {
        let address = sockets.address("--rdp", address, RDP_PORT)?;
        // What is wrong with them shows at once.
        for pattern in &args.trace {
            let parsed = pattern.parse::<Pattern>();
            parsed.map_err(|error: PatternError| Failure::usage(error.to_string()))?;
        }
        let options = RdpOptions {
            admission: args.access.admission(&address, WITH_TLS)?,
            token: token.clone(),
            tls: args.access.tls(),
            functions: args.trace.clone(),
            values: args.access.allow_args,
            replay: None,
            limits: RdpLimits {
                frequency_hz: args.max_frequency.unwrap_or(FREQUENCY_HZ),
                ..RdpLimits::default()
            },
        };
        args.access.warn_of_readers(&address);
        fronts.push(FrontOptions::Rdp { address, options });
    }
    #[cfg(feature = "http")]
    if let Some(address) = &args.http {
        let is_alone = fronts.is_empty();
        fronts.push(args.http_front(address, token, is_alone, &mut sockets)?);
    }
    sockets.tell_left();
    Ok(fronts)
}

#[cfg(feature = "http")]
impl ServeArgs {
    fn http_front(
        &self,
        address: &str,
        token: Option<String>,
        is_alone: bool,
        sockets: &mut Sockets,
    ) -> Result<FrontOptions, Failure> {
        let access = &self.access;
        let address = match address {
            SYSTEMD => match sockets.named("--http")? {
                Given::Tcp(listening) => HttpAddress::Tcp(listening),
                Given::Unix(listener) => HttpAddress::By(listener),
            },
            path if path.contains('/') => HttpAddress::Unix(path.into()),
            address => HttpAddress::Tcp(values::address("--http", address, HTTP_PORT)?.into()),
        };
        let admission = match &address {
            HttpAddress::Tcp(address) => access.admission(address, WITH_TLS)?,
            HttpAddress::Unix(_) | HttpAddress::By(_) if is_alone && access.tls_cert.is_some() => {
                return Err(Failure::usage(
                    "--tls-cert encrypts what is served by TCP: a socket of this machine is not",
                ));
            }
            HttpAddress::Unix(_) | HttpAddress::By(_) => access.admitted()?,
        };
        let mut frequency_hz = self.max_frequency.unwrap_or(HTTP_FREQUENCY_HZ);
        if self.replay.is_none() {
            // What the kernel would not do is not to be promised.
            let limit = profiler_probe::max_frequency_hz().unwrap_or(u64::MAX);
            frequency_hz = frequency_hz.min(limit);
        }
        if let HttpAddress::Tcp(address) = &address {
            access.warn_of_readers(address);
        }
        let options = HttpOptions {
            admission,
            policy: access.policy()?,
            origins: access.origins()?,
            token,
            tls: access.tls(),
            replay: None,
            limits: HttpLimits {
                frequency_hz,
                ..HttpLimits::default()
            },
        };
        Ok(FrontOptions::Http { address, options })
    }
}

#[cfg(any(feature = "http", feature = "rdp"))]
impl ServeArgs {
    /// What clients on other machines must show, if they are let in: said once, to whoever starts it.
    fn token(&self) -> Result<Option<String>, Failure> {
        let mut shows = false;
        #[cfg(feature = "http")]
        if self.http.is_some() {
            shows = true;
        }
        #[cfg(feature = "rdp")]
        if self.rdp.is_some() {
            shows = true;
        }
        if !shows || !self.access.allow_remote {
            return Ok(None);
        }
        let token = unguessable::<24>()
            .ok_or_else(|| Failure::failed("the kernel gives no random numbers for a token"))?;
        say!("token for clients on other machines: {token}");
        Ok(Some(token))
    }
}

#[cfg(feature = "http")]
impl AccessArgs {
    /// Pages that may ask.
    fn origins(&self) -> Result<Vec<String>, Failure> {
        let origins = self.allow_origin.iter().map(|origin| {
            let rest = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"));
            match rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '*', ' '])) {
                true => Ok(origin.clone()),
                false => Err(Failure::usage(format!(
                    "--allow-origin: '{origin}' is no origin; write https://HOST or https://HOST:PORT"
                ))),
            }
        });
        origins.collect()
    }

    /// Who may profile whom.
    fn policy(&self) -> Result<Policy, Failure> {
        let Some(path) = &self.policy else {
            return Ok(Policy::default());
        };
        let shown = path.display();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("the policy {shown} can't be used: {error}"))
        };
        let read = || {
            let mut text = String::new();
            std::fs::File::open(path)?
                .take(POLICY_BYTES)
                .read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        let text = read().map_err(|error| failed(&error))?;
        let find = |name: &str| User::find(name).map(|user| user.uid);
        Policy::read(&text, find).map_err(|error| failed(&error))
    }
}

impl AccessArgs {
    /// Those whose processes are admitted.
    fn admitted(&self) -> Result<Admission, Failure> {
        let users = admitted_users(&self.allow_user)?;
        Ok(Admission::new(users).allow_remote(self.allow_remote))
    }

    /// Who may connect to an address; `best` is what people are told who open it to others.
    fn admission(&self, at: &Listening, best: &str) -> Result<Admission, Failure> {
        let admission = self.admitted()?;
        let address = shown(at)?;
        if admission.may_listen(address).is_err() {
            return Err(Failure::usage(format!(
                "{address} can be reached by other machines, whose users could then watch all \
                 processes of this one; --allow-remote if that is wanted, {best}"
            )));
        }
        Ok(admission)
    }

    /// Keys, if connections are to be encrypted.
    fn tls(&self) -> Option<TlsOptions> {
        let keys = self.tls_cert.as_ref().zip(self.tls_key.as_ref());
        keys.map(|(certificate, key)| TlsOptions {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authority: self.tls_client_ca.clone(),
        })
    }

    /// Who shows a token shows it to all who can read on the way.
    #[cfg(any(feature = "http", feature = "rdp"))]
    fn warn_of_readers(&self, at: &Listening) {
        if self.allow_remote
            && self.tls_cert.is_none()
            && let Ok(address) = at.address()
        {
            log::warn!(
                "who can read what passes on the way to {address} learns the token and all that is told: \
                 nothing is encrypted without --tls-cert and --tls-key"
            );
        }
    }

    #[cfg(feature = "tcf")]
    fn tcf(&self, at: &Listening, limits: Limits) -> Result<TcfOptions, Failure> {
        let admission = self.admission(at, "best with --tls-client-ca")?;
        let address = shown(at)?;
        if self.allow_remote && self.tls_client_ca.is_none() {
            log::warn!(
                "anybody who can reach {address} can watch all processes of this machine; \
                 --tls-client-ca admits only clients with a certificate"
            );
        }
        let uid = rustix::process::getuid().as_raw();
        Ok(TcfOptions {
            user: User::listed(uid).map_or_else(|| uid.to_string(), |user| user.name),
            admission,
            control: self.allow_control,
            environment: self.allow_env,
            tls: self.tls(),
            replay: None,
            limits,
        })
    }
}

fn shown(at: &Listening) -> Result<SocketAddr, Failure> {
    let address = at.address();
    address.map_err(|error| Failure::failed(format!("the socket that was passed: {error}")))
}

#[cfg(test)]
#[cfg(all(feature = "rdp", feature = "tcf"))]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
        #[command(flatten)]
        common: Common,
    }

    fn parse(words: &str) -> Result<Result<ServeRequest, Failure>, clap::Error> {
        let words = ["serve"].into_iter().chain(words.split_whitespace());
        let line = Line::try_parse_from(words)?;
        Ok(request(Box::new(line.serve), &line.common))
    }

    fn parsed(words: &str) -> ServeRequest {
        parse(words).unwrap().unwrap()
    }

    fn parsed_tcf(words: &str) -> (SocketAddr, TcfOptions) {
        let mut fronts = parsed(words).fronts;
        assert_eq!(fronts.len(), 1);
        match fronts.remove(0) {
            FrontOptions::Tcf { address, options } => (address.address().unwrap(), options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_is_let_in_or_let_do_anything_unless_told() {
        assert!(matches!(parsed("--tcf").source, ServeSource::Live(_)));
        let (address, tcf) = parsed_tcf("--tcf");
        assert_eq!(address, "127.0.0.1:1534".parse().unwrap());
        assert!(!tcf.control && !tcf.environment);
        assert!(tcf.tls.is_none() && tcf.replay.is_none());
        let me = Admission::new(User::behind_sudo().ok().flatten().map(|user| user.uid));
        assert_eq!(tcf.admission, me);
        let (address, tcf) = parsed_tcf("--tcf :9 --allow-user 0 --allow-control --allow-env");
        assert_eq!(address, "127.0.0.1:9".parse().unwrap());
        assert!(tcf.control && tcf.environment);
        assert_eq!(tcf.limits.frequency_hz, FREQUENCY_HZ);
        let limits = parsed_tcf("--tcf --max-frequency 4999").1.limits;
        assert_eq!(limits.frequency_hz, 4999);
        let (address, tcf) = parsed_tcf("--tcf 0.0.0.0:9 --allow-remote --tls-cert a --tls-key b");
        assert!(tcf.admission.may_listen(address).is_ok());
        let tls = tcf.tls.unwrap();
        assert_eq!((tls.certificate, tls.key), ("a".into(), "b".into()));
        assert_eq!(tls.client_authority, None);
    }

    #[test]
    fn protocols_serve_together() {
        let mut fronts = parsed("--rdp --tcf :0 --trace a --trace b:c --allow-args").fronts;
        assert_eq!(fronts.len(), 2);
        match fronts.remove(1) {
            FrontOptions::Rdp { address, options } => {
                let at = address.address().unwrap();
                assert_eq!(at, "127.0.0.1:6000".parse().unwrap());
                assert_eq!(options.functions, ["a", "b:c"]);
                assert!(options.values);
            }
            other => panic!("{other:?}"),
        }
        match parsed("--rdp :7 --max-frequency 4999").fronts.remove(0) {
            FrontOptions::Rdp { address, options } => {
                assert_eq!(address.address().unwrap(), "127.0.0.1:7".parse().unwrap());
                assert!(options.functions.is_empty() && !options.values);
                assert_eq!(options.limits.frequency_hz, 4999);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn captures_have_their_time() {
        for (words, expected) in [
            ("--tcf --replay a.cap", Some(1.0)),
            ("--tcf --replay a.cap --speed 2.5", Some(2.5)),
            ("--tcf --replay a.cap --speed max", None),
        ] {
            match parsed(words).source {
                ServeSource::Replay { speed, .. } => assert_eq!(speed, expected, "{words}"),
                ServeSource::Live(_) => panic!("{words} is a replay"),
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            "",
            "--replay a.cap",
            "--tcf --speed 1",
            "--tcf --replay a.cap --speed 0",
            "--tcf --replay a.cap --allow-control",
            "--tcf --replay a.cap --allow-env",
            "--tcf --replay a.cap --no-inlines",
            "--tcf --replay a.cap --max-frequency 9",
            "--tcf --max-frequency 0",
            "--tcf --tls-cert a",
            "--tcf --tls-key a",
            "--tcf --tls-client-ca a",
            "--tcf -p 1",
            "--tcf --trace a",
            "--tcf --allow-args",
            "--rdp --allow-env",
            "--rdp --tls-cert a",
            "--rdp --replay a.cap --trace a",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        for words in [
            "--tcf 0.0.0.0",
            "--tcf 192.0.2.1:80",
            "--tcf no*address",
            "--tcf --allow-user no*user",
            "--rdp 0.0.0.0",
            "--rdp --trace a:",
            "--http /a/socket --tls-cert a --tls-key b",
            "--rdp systemd",
        ] {
            let refused = parse(words).unwrap().err().unwrap();
            assert_eq!(refused.status, crate::error::USAGE, "{words}");
        }
        let remote = parse("--tcf 0.0.0.0").unwrap().err().unwrap();
        assert!(remote.message.contains("--allow-remote"), "{remote}");
    }
}
