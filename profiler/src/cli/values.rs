//! Values of flags: durations, sizes, lists, ranges; their errors say what would be accepted.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{self, Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use profiler_model::text::parse_port;
use profiler_report::export::{self, Format};

use crate::error::Failure;

/// `4096`, `64K`, `64M`, `1G`: bytes, by powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; write 4096, 512K, 64M or 1G");
    let upper = text.to_ascii_uppercase();
    let upper = upper.trim_end_matches('B').trim_end_matches('I');
    let split = upper
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(upper.len());
    let (number, unit) = upper.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(wrong)
}

/// How fast a capture is replayed; none: as fast as it is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed(pub(super) Option<f64>);

pub(super) fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed(None));
    }
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed <= 1e6 => Ok(Speed(Some(speed))),
        _ => Err("give a number above 0, or 'max'".to_owned()),
    }
}

/// The format that the name of an output tells.
pub(super) fn format_of(path: &Path) -> Result<&'static Format, Failure> {
    if path.is_dir() {
        return Err(Failure::usage(format!(
            "'{0}' is a folder; name a file in it: {0}/profile.svg",
            path.display()
        )));
    }
    export::by_path(path).map_err(|error| Failure::usage(error.to_string()))
}

/// A folder with debug files. One with a whole path is looked for below the roots of targets, too, so it need not be here;
/// another one is meant as seen from here, which is not where it is looked for later.
pub(super) fn debug_folder() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(whole_path)
}

fn whole_path(folder: PathBuf) -> io::Result<PathBuf> {
    match folder.is_relative() && !folder.is_dir() {
        true => Err(io::Error::other("there is no such folder here")),
        false => path::absolute(folder),
    }
}

/// A process or thread id: a positive number.
pub fn id(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(id) if id > 0 && id <= i32::MAX as u32 => Ok(id),
        _ => Err(format!("'{text}' is no process or thread id")),
    }
}

/// `127.0.0.1:8765`, `127.0.0.1`, `localhost`, `[::1]:9000`, `:9000`, `9000`: where to listen, by default at
/// `port` of this machine alone. `flag` is what it was given by.
pub(super) fn address(flag: &str, text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let whole = match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, port)),
        Err(_) => {
            // A number alone is no host: resolvers take it for an address of one.
            let is_port = text.bytes().all(|byte| byte.is_ascii_digit());
            let alone = Some(text).filter(|_| is_port);
            let text = match text.strip_prefix(':').or(alone) {
                Some(port) => format!("127.0.0.1:{port}"),
                None => text.to_owned(),
            };
            // The library takes a sign before the number, too.
            let port_is_one = text
                .rsplit_once(':')
                .is_none_or(|(_, it)| parse_port(it).is_some());
            let found = port_is_one.then(|| text.to_socket_addrs().ok()).flatten();
            let found = found.or_else(|| (text.as_str(), port).to_socket_addrs().ok());
            found.and_then(|mut all| all.next())
        }
    };
    whole.ok_or_else(|| {
        Failure::usage(format!(
            "{flag}: '{text}' is no address; write 127.0.0.1:{port}, localhost or :{port}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_debug_files_are_here_or_have_whole_paths() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(whole_path("src".into()).unwrap(), here.join("src"));
        assert!(whole_path("not/there".into()).is_err());
        assert_eq!(
            whole_path("/not/there".into()).unwrap(),
            Path::new("/not/there")
        );
    }

    #[test]
    fn addresses_as_people_write_them() {
        for (text, expected) in [
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("127.0.0.1", "127.0.0.1:8765"),
            ("::1", "[::1]:8765"),
            ("[::1]:9", "[::1]:9"),
            ("[::1]", "[::1]:8765"),
            (":9", "127.0.0.1:9"),
            (":0", "127.0.0.1:0"),
            ("15004", "127.0.0.1:15004"),
            ("0", "127.0.0.1:0"),
        ] {
            let expected: SocketAddr = expected.parse().unwrap();
            assert_eq!(address("--listen", text, 8765), Ok(expected), "{text}");
        }
        for text in [
            "no address",
            ":x",
            "65536",
            "",
            ":+9",
            "+9",
            "localhost:+9",
            "127.0.0.1:+9",
            "[::1]:+9",
            "localhost:-9",
        ] {
            let wrong = address("--tcf", text, 1534).unwrap_err();
            assert_eq!(wrong.status, crate::error::USAGE);
            assert!(wrong.message.starts_with("--tcf: "), "{wrong}");
        }
    }

    #[test]
    fn an_output_is_a_file_of_a_known_format() {
        assert_eq!(format_of(Path::new("a.svg")).unwrap().name, "svg");
        let unknown = format_of(Path::new("a.doc")).unwrap_err();
        assert!(unknown.message.contains("tells no format"), "{unknown}");
        let folder = format_of(Path::new("/tmp")).unwrap_err();
        assert!(
            folder.message.starts_with("'/tmp' is a folder; "),
            "{folder}"
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("12"), Ok(12));
        for text in ["", "0", "M", "1T", "99999999999999999999G", "-1K"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
