//! A receiver that only reads and counts: what it takes is the least that any HQ takes.
//!
//! Input: an agent's connections on loopback; output: [`Received`], counted by threads of this process.
//! It starts the run with the first heartbeat and answers the last one. The numbers of a configuration
//! are sent as the Java object that agents expect, without filters. Times are nanoseconds of the
//! receiver's own clock. Source: docs/formats/bytefrog.md. What does not belong here: whether what comes
//! makes sense (`profiler hq` checks that, and the tests).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// How long an agent may say nothing.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a read.
const READ_BYTES: usize = 256 << 10;

const CONFIGURATION: u8 = 1;
const START: u8 = 2;
const STOP: u8 = 3;
const HEARTBEAT: u8 = 8;
const DATA_BREAK: u8 = 9;
const DATA_HELLO: u8 = 30;
const DATA_HELLO_REPLY: u8 = 31;

/// What the receiver asks of the agent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Wish {
    /// Bytes of all send buffers.
    pub(super) budget_bytes: u32,
    /// Data connections.
    pub(super) senders: u32,
}

/// What came.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Received {
    /// Messages of data connections.
    pub(super) messages: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Data breaks.
    pub(super) breaks: u64,
    /// From the first data connection to the end of the last.
    pub(super) took_ns: u64,
    /// CPU time of the threads that read data.
    pub(super) cpu_ns: u64,
}

/// A receiver of one run.
pub(super) struct Receiver {
    address: SocketAddr,
    thread: JoinHandle<io::Result<Received>>,
}

impl Receiver {
    /// Listens on a free port.
    pub(super) fn start(wish: Wish) -> io::Result<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        Ok(Receiver {
            address: listener.local_addr()?,
            thread: thread::spawn(move || receive(&listener, wish)),
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// What came, when the run has ended. An agent that never came leaves it waiting: ask only for one
    /// that ended well.
    pub(super) fn end(self) -> io::Result<Received> {
        self.thread
            .join()
            .map_err(|_| io::Error::other("the receiver panicked"))?
    }
}

fn receive(listener: &TcpListener, wish: Wish) -> io::Result<Received> {
    let (control, _) = listener.accept()?;
    control.set_read_timeout(Some(PATIENCE))?;
    let control = thread::spawn(move || lead(control, wish));
    let mut readers = Vec::new();
    let mut began = Instant::now();
    for index in 0..wish.senders {
        let (data, _) = listener.accept()?;
        data.set_read_timeout(Some(PATIENCE))?;
        if index == 0 {
            began = Instant::now();
        }
        readers.push(thread::spawn(move || count(data)));
    }
    let panicked = |_| io::Error::other("a thread of the receiver panicked");
    let mut received = Received::default();
    for reader in readers {
        let (messages, bytes, cpu_ns) = reader.join().map_err(panicked)??;
        received.messages += messages;
        received.bytes += bytes;
        received.cpu_ns += cpu_ns;
    }
    received.took_ns = began.elapsed().as_nanos() as u64;
    received.breaks = control.join().map_err(panicked)??;
    Ok(received)
}

/// The control connection: starts the run and lets it end; the number of data breaks.
fn lead(mut control: TcpStream, wish: Wish) -> io::Result<u64> {
    let mut hello = [0; 2];
    control.read_exact(&mut hello)?;
    let configuration = configuration(wish);
    let mut message = vec![CONFIGURATION];
    message.extend_from_slice(&(configuration.len() as u32).to_be_bytes());
    message.extend_from_slice(&configuration);
    control.write_all(&message)?;
    let (mut started, mut breaks) = (false, 0);
    loop {
        let mut id = [0];
        if control.read(&mut id)? == 0 {
            return Ok(breaks);
        }
        match id[0] {
            HEARTBEAT => {
                let mut beat = [0; 3];
                control.read_exact(&mut beat)?;
                if beat[0] == b'X' {
                    control.write_all(&[STOP])?;
                } else if !started {
                    control.write_all(&[START])?;
                    started = true;
                }
            }
            DATA_BREAK => {
                control.read_exact(&mut [0; 4])?;
                breaks += 1;
            }
            // Classes.
            40..=42 => {
                text(&mut control)?;
            }
            99 => return Err(io::Error::other(format!("agent: {}", text(&mut control)?))),
            id => return Err(unknown(id)),
        }
    }
}

fn text(control: &mut TcpStream) -> io::Result<String> {
    let mut len = [0; 2];
    control.read_exact(&mut len)?;
    let mut text = vec![0; usize::from(u16::from_be_bytes(len))];
    control.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn unknown(id: u8) -> io::Error {
    io::Error::other(format!("{id} is no id of a message here"))
}

/// Messages, bytes and CPU time of a data connection.
fn count(mut data: TcpStream) -> io::Result<(u64, u64, u64)> {
    let mut hello = [0; 2];
    data.read_exact(&mut hello)?;
    if hello[0] != DATA_HELLO {
        return Err(unknown(hello[0]));
    }
    data.write_all(&[DATA_HELLO_REPLY])?;
    let mut buffer = vec![0; READ_BYTES];
    let (mut kept, mut messages, mut bytes) = (0, 0, 0);
    loop {
        let read = data.read(&mut buffer[kept..])?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        let whole = kept + read;
        let mut at = 0;
        while let Some(len) = message_len(&buffer[at..whole])?
            && at + len <= whole
        {
            at += len;
            messages += 1;
        }
        // The longest message, two texts of 64 KiB, fits.
        buffer.copy_within(at..whole, 0);
        kept = whole - at;
    }
    if kept > 0 {
        return Err(io::Error::other(format!("{kept} bytes of half a message")));
    }
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    let cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
    Ok((messages, bytes, cpu_ns))
}

/// Length of the message at the start of `bytes`; none if too little of it is there to say.
fn message_len(bytes: &[u8]) -> io::Result<Option<usize>> {
    let text_end = |at: usize| {
        let len = bytes.get(at..at + 2)?;
        Some(at + 2 + usize::from(u16::from_be_bytes([len[0], len[1]])))
    };
    Ok(match bytes.first() {
        None => None,
        // A thread's name, behind its number and a time.
        Some(10) => text_end(7),
        // A signature, an exception's name, behind a number.
        Some(11 | 12) => text_end(5),
        // An entry, an exit, a throw, an exit by an exception.
        Some(20) => Some(15),
        Some(21) => Some(17),
        Some(22) => Some(21),
        Some(23) => Some(19),
        // A marker, behind a time and a sequence id.
        Some(50) => text_end(9).and_then(text_end),
        Some(&id) => return Err(unknown(id)),
    })
}

/// The Java object of a configuration that has only these fields.
fn configuration(wish: Wish) -> Vec<u8> {
    let mut out = vec![0xac, 0xed, 0, 5, 0x73, 0x72];
    let text = |text: &str, out: &mut Vec<u8>| {
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    let class = "com.secdec.bytefrog.common.config.RuntimeAgentConfigurationV1";
    text(class, &mut out);
    out.extend_from_slice(&0xbf53_efb7_761d_26c2_u64.to_be_bytes());
    let fields = [
        ("bufferMemoryBudget", wish.budget_bytes),
        ("numDataSenders", wish.senders),
    ];
    out.extend_from_slice(&[2, 0, fields.len() as u8]);
    for (name, _) in fields {
        out.push(b'I');
        text(name, &mut out);
    }
    // The end of the description; no class above.
    out.extend_from_slice(&[0x78, 0x70]);
    for (_, value) in fields {
        out.extend_from_slice(&value.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_messages_apart() {
        let len = |bytes: &[u8]| message_len(bytes).unwrap();
        assert_eq!(len(&[]), None);
        assert_eq!(len(&[20]), Some(15));
        assert_eq!(len(&[11, 0, 0, 0, 1, 0]), None);
        assert_eq!(len(&[11, 0, 0, 0, 1, 1, 2]), Some(7 + 258));
        let marker = [50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'k', 0, 2, b'v', b'v'];
        assert_eq!(len(&marker), Some(marker.len()));
        assert_eq!(len(&marker[..13]), None);
        assert!(message_len(&[8]).is_err());
    }

    /// An agent in a few lines: what it sends is what is counted.
    #[test]
    fn counts_a_run() {
        let wish = Wish {
            budget_bytes: 1000,
            senders: 1,
        };
        let receiver = Receiver::start(wish).unwrap();
        let mut control = TcpStream::connect(receiver.address()).unwrap();
        control.write_all(&[0, 1, HEARTBEAT, b'I', 0, 0]).unwrap();
        let mut sent = vec![0; 5 + configuration(wish).len()];
        control.read_exact(&mut sent).unwrap();
        assert_eq!(sent[5..], configuration(wish));
        let mut answer = [0];
        control.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [START]);
        let mut data = TcpStream::connect(receiver.address()).unwrap();
        data.write_all(&[DATA_HELLO, 0]).unwrap();
        data.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [DATA_HELLO_REPLY]);
        let mut messages = vec![20; 15];
        messages.extend_from_slice(&[21; 17]);
        data.write_all(&messages).unwrap();
        control.write_all(&[DATA_BREAK, 0, 0, 0, 5]).unwrap();
        control.write_all(&[HEARTBEAT, b'X', 0, 0]).unwrap();
        control.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [STOP]);
        drop((data, control));
        let received = receiver.end().unwrap();
        assert_eq!((received.messages, received.bytes), (2, 32));
        assert_eq!(received.breaks, 1);
    }
}
