//! A small TCF client that is fast: it sends commands, many at a time, and takes the fields of their results.
//!
//! Of events it takes no notice. Bytes are counted as they come over the socket. What does not belong
//! here: what is measured with it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long any answer may take.
const LIMIT: Duration = Duration::from_secs(60);

const ESCAPE: u8 = 3;

/// A channel.
pub(super) struct Client {
    stream: TcpStream,
    tokens: u64,
    decoder: Decoder,
    results: BTreeMap<u64, Vec<Vec<u8>>>,
    /// All bytes that came.
    pub(super) received_bytes: u64,
}

impl Client {
    /// Connects and says Hello.
    pub(super) fn connect(address: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        let mut client = Client {
            stream,
            tokens: 0,
            decoder: Decoder::default(),
            results: BTreeMap::new(),
            received_bytes: 0,
        };
        let hello = message(&[b"E", b"Locator", b"Hello", b"[\"Locator\"]"]);
        client.stream.write_all(&hello)?;
        // Commands before the other side's Hello are those of a service that is not known.
        while !client.decoder.is_greeted {
            client.receive()?;
        }
        Ok(client)
    }

    /// Sends commands of one service at once, each with its arguments in JSON; gives the fields of their
    /// results in the same order.
    pub(super) fn all(
        &mut self,
        service: &str,
        command: &str,
        arguments: &[Vec<String>],
    ) -> io::Result<Vec<Vec<Vec<u8>>>> {
        let first = self.tokens + 1;
        let mut bytes = Vec::new();
        for arguments in arguments {
            self.tokens += 1;
            let token = self.tokens.to_string();
            let mut fields = vec![
                b"C",
                token.as_bytes(),
                service.as_bytes(),
                command.as_bytes(),
            ];
            fields.extend(arguments.iter().map(String::as_bytes));
            bytes.extend(message(&fields));
        }
        // A client that only wrote would wait for an agent that only writes.
        let mut sender = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            let sent = scope.spawn(move || sender.write_all(&bytes));
            while self.results.len() < arguments.len() {
                self.receive()?;
            }
            sent.join().unwrap_or(Ok(()))
        })?;
        let results = (first..=self.tokens).map(|token| self.results.remove(&token));
        results
            .map(|fields| fields.ok_or_else(|| io::Error::other("a result that nobody waits for")))
            .collect()
    }

    /// Sends one command; gives its result as JSON behind the error, which there must not be.
    pub(super) fn call(
        &mut self,
        service: &str,
        command: &str,
        arguments: &[&str],
    ) -> io::Result<Vec<serde_json::Value>> {
        let arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
        let mut results = self.all(service, command, &[arguments])?;
        let fields = results.pop().unwrap_or_default();
        let (error, rest) = fields
            .split_first()
            .ok_or_else(|| io::Error::other(format!("{service}.{command} is not known")))?;
        if !error.is_empty() {
            let error = String::from_utf8_lossy(error);
            return Err(io::Error::other(format!("{service}.{command}: {error}")));
        }
        rest.iter()
            .map(|field| serde_json::from_slice(field).map_err(io::Error::other))
            .collect()
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; 1 << 16];
        let count = self.stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::Error::other("the agent has closed the channel"));
        }
        self.received_bytes += count as u64;
        self.decoder.feed(&chunk[..count], &mut self.results);
        Ok(())
    }
}

/// A message of these fields.
fn message(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        for &byte in *field {
            bytes.push(byte);
            if byte == ESCAPE {
                bytes.push(0);
            }
        }
        bytes.push(0);
    }
    bytes.extend([ESCAPE, 1]);
    bytes
}

/// Bytes -> the fields of results, by token. An agent that escapes bytes in the other way, by length, is
/// not understood.
#[derive(Default)]
struct Decoder {
    fields: Vec<Vec<u8>>,
    field: Vec<u8>,
    is_escaped: bool,
    is_greeted: bool,
}

impl Decoder {
    fn feed(&mut self, bytes: &[u8], results: &mut BTreeMap<u64, Vec<Vec<u8>>>) {
        for &byte in bytes {
            match (std::mem::take(&mut self.is_escaped), byte) {
                (false, ESCAPE) => self.is_escaped = true,
                (false, 0) => self.fields.push(std::mem::take(&mut self.field)),
                (true, 0) => self.field.push(ESCAPE),
                (true, _) => self.end(results),
                (false, _) => self.field.push(byte),
            }
        }
    }

    fn end(&mut self, results: &mut BTreeMap<u64, Vec<Vec<u8>>>) {
        let mut fields = std::mem::take(&mut self.fields);
        match fields.first().map(Vec::as_slice) {
            Some(b"E") => self.is_greeted |= fields.get(2).is_some_and(|name| name == b"Hello"),
            Some(b"R" | b"N") if fields.len() > 1 => {
                let token = String::from_utf8_lossy(&fields[1]).parse();
                if let Ok(token) = token {
                    results.insert(token, fields.split_off(2));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read() {
        let mut bytes = message(&[b"E", b"Locator", b"Hello", b"[]"]);
        bytes.extend(message(&[b"R", b"7", b"", b"\x03\x01"]));
        bytes.extend(message(&[b"N", b"8"]));
        for size in 1..bytes.len() {
            let (mut decoder, mut results) = (Decoder::default(), BTreeMap::new());
            for piece in bytes.chunks(size) {
                decoder.feed(piece, &mut results);
            }
            assert!(decoder.is_greeted);
            assert_eq!(results[&7], [b"".to_vec(), b"\x03\x01".to_vec()]);
            assert!(results[&8].is_empty());
        }
    }
}
