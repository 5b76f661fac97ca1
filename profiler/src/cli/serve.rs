//! `serve`: flags into a [`ServeRequest`].

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::error::Failure;
use crate::pipeline::{self, CallLimits, ServeRequest, ServeSource, adjustable};
use profiler_serve::FrontOptions;
use profiler_serve::admission::Admission;
use profiler_serve::tcf::{Limits, TcfOptions, TlsOptions};
use profiler_target::user::User;

use super::stacks::StackArgs;
use super::target::NameArgs;
use super::values::{Speed, speed};
use super::{Common, values};

/// Where TCF clients look for an agent.
const TCF_PORT: u16 = 1534;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler serve --tcf                        clients on this machine, at 127.0.0.1:1534
  profiler serve --tcf :9000 --allow-user ann
  profiler serve --tcf --replay profile.cap --speed max    no privileges are needed
  profiler serve --tcf 0.0.0.0 --allow-remote --tls-cert cert.pem --tls-key key.pem \\
      --tls-client-ca clients.pem             encrypted, for clients with a certificate

A TCF client (the Target Communication Framework of Eclipse) sees the processes and threads of this
machine, and profiles those that it chooses. While nobody is connected nothing is attached; nothing
is sampled but what somebody has asked for. Ctrl-C ends it.

Only processes of root, of you and of the user behind sudo are admitted, unless you admit others.")]
pub(super) struct ServeArgs {
    /// Serve TCF clients at this address: ADDRESS, ADDRESS:PORT or :PORT (port 0: any that is free)
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:1534",
        required = true
    )]
    tcf: String,
    /// Serve a capture in place of what happens now
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["allow_control", "allow_env", "buffer", "max_frequency", "debug_dir", "debuginfod", "no_inlines", "call_graph", "unwind_memory"]
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
    #[arg(long, value_name = "HZ", default_value_t = Limits::default().frequency_hz)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max_frequency: u64,
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
    /// Listen at an address that other machines can reach, and admit anyone from there
    #[arg(long)]
    allow_remote: bool,
    /// Let clients stop, continue and end processes of their own user (root's: all)
    #[arg(long)]
    allow_control: bool,
    /// Let clients read the environments of processes
    #[arg(long)]
    allow_env: bool,
    /// Encrypt: the certificate chain to show, PEM
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
pub(super) fn serve(args: ServeArgs, common: &Common) -> Result<(), Failure> {
    pipeline::serve(request(args, common)?)
}

fn request(args: ServeArgs, common: &Common) -> Result<ServeRequest, Failure> {
    let address = values::address("--tcf", &args.tcf, TCF_PORT)?;
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
            let calls = CallLimits { budget: Some(0.05) };
            let options = adjustable(resolve, buffer_bytes, unwind_bytes, calls, kernel_log);
            ServeSource::Live(Box::new(options))
        }
    };
    let limits = Limits {
        frequency_hz: args.max_frequency,
        ..Limits::default()
    };
    let options = args.access.options(address, limits)?;
    Ok(ServeRequest {
        fronts: vec![FrontOptions::Tcf { address, options }],
        source,
        quiet: common.quiet,
    })
}

impl AccessArgs {
    fn options(self, address: SocketAddr, limits: Limits) -> Result<TcfOptions, Failure> {
        let mut users = Vec::new();
        for name in &self.allow_user {
            let user = User::find(name);
            let unknown = || Failure::usage(format!("there is no user '{name}' here"));
            users.push(user.ok_or_else(unknown)?.uid);
        }
        // Started by sudo, it was started by the user behind it.
        users.extend(User::behind_sudo().ok().flatten().map(|user| user.uid));
        let admission = Admission::new(users).allow_remote(self.allow_remote);
        if admission.may_listen(address).is_err() {
            return Err(Failure::usage(format!(
                "{address} can be reached by other machines, whose users could then watch all \
                 processes of this one; --allow-remote if that is wanted, best with --tls-client-ca"
            )));
        }
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
            tls: self
                .tls_cert
                .zip(self.tls_key)
                .map(|(certificate, key)| TlsOptions {
                    certificate,
                    key,
                    client_authority: self.tls_client_ca,
                }),
            replay: None,
            limits,
        })
    }
}

#[cfg(test)]
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
        Ok(request(line.serve, &line.common))
    }

    fn parsed(words: &str) -> ServeRequest {
        parse(words).unwrap().unwrap()
    }

    fn parsed_tcf(words: &str) -> (SocketAddr, TcfOptions) {
        let mut fronts = parsed(words).fronts;
        assert_eq!(fronts.len(), 1);
        let FrontOptions::Tcf { address, options } = fronts.remove(0);
        (address, options)
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
        let limits = parsed_tcf("--tcf --max-frequency 4999").1.limits;
        assert_eq!(limits.frequency_hz, 4999);
        let (address, tcf) = parsed_tcf("--tcf 0.0.0.0:9 --allow-remote --tls-cert a --tls-key b");
        assert!(tcf.admission.may_listen(address).is_ok());
        let tls = tcf.tls.unwrap();
        assert_eq!((tls.certificate, tls.key), ("a".into(), "b".into()));
        assert_eq!(tls.client_authority, None);
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
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        for words in [
            "--tcf 0.0.0.0",
            "--tcf 192.0.2.1:80",
            "--tcf no*address",
            "--tcf --allow-user no*user",
        ] {
            let refused = parse(words).unwrap().err().unwrap();
            assert_eq!(refused.status, crate::error::USAGE, "{words}");
        }
        let remote = parse("--tcf 0.0.0.0").unwrap().err().unwrap();
        assert!(remote.message.contains("--allow-remote"), "{remote}");
    }
}
