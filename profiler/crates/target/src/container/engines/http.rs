//! As much HTTP/1.1 as one question to an engine takes (RFC 9112).
//!
//! A path -> the body of the answer, bounded; chunked or not. A connection serves one question.
//!
//! What does not belong here: what is in the body, timeouts (`sockets`).

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::sockets::{MAX_ANSWER_BYTES, Silence, Sockets};

/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The body of the answer to a GET, if it is good.
pub(super) fn get(sockets: &mut Sockets, socket: &Path, path: &str) -> Option<Vec<u8>> {
    let answer = sockets.ask(socket, async |stream| exchange(stream, path).await)?;
    (answer.status == 200).then_some(answer.body)
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

async fn exchange(mut stream: UnixStream, path: &str) -> Result<Answer, Silence> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let written = stream.write_all(request.as_bytes()).await;
    written.map_err(|_| Silence::Closed)?;
    let most = (MAX_HEAD_BYTES + MAX_ANSWER_BYTES) as u64;
    let mut bytes = Vec::new();
    let read = stream.take(most).read_to_end(&mut bytes).await;
    read.map_err(|_| Silence::Bad)?;
    parse(&bytes).ok_or(Silence::Bad)
}

/// A whole answer, whose end is that of the connection.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let near = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let end = near.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let (mut chunked, mut length) = (false, None);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().ok()?);
        }
    }
    let body = match (chunked, length) {
        (true, _) => joined(body)?,
        (false, Some(length)) => body.get(..length)?.to_vec(),
        (false, None) => body.to_vec(),
    };
    Some(Answer {
        status: status.parse().ok()?,
        body,
    })
}

/// A body that comes in chunks, each behind its length in hexadecimal digits.
fn joined(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).take(256).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let length = line.split(';').next()?.trim();
        let length = usize::from_str_radix(length, 16).ok()?;
        rest = &rest[end + 2..];
        if length == 0 {
            return Some(body);
        }
        let (chunk, behind) = rest.split_at_checked(length)?;
        body.extend_from_slice(chunk);
        rest = behind.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(text: &str) -> Option<(u16, String)> {
        let answer = parse(text.as_bytes())?;
        Some((answer.status, String::from_utf8(answer.body).unwrap()))
    }

    #[test]
    fn answers_in_all_forms() {
        let expected = |body: &str| Some((200, body.to_owned()));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       4\r\nWiki\r\nA;x=y\r\npedia in\r\n\r\n0\r\n\r\n";
        assert_eq!(answer(chunked), expected("Wikipedia in\r\n"));
        let counted = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabc";
        assert_eq!(answer(counted), expected("ab"));
        assert_eq!(
            answer("HTTP/1.0 200 OK\r\nA: b\r\n\r\nabc"),
            expected("abc")
        );
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(answer(missing), Some((404, String::new())));
        for damaged in [
            "",
            "HTTP/1.1",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki",
        ] {
            assert_eq!(answer(damaged), None, "{damaged}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse(&bytes);
            joined(&bytes);
            let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            chunked.extend(&bytes);
            parse(&chunked);
        }
    }
}
