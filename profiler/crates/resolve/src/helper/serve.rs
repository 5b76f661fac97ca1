//! What the process does that reads files: it takes them, and says what addresses in them mean, or what their
//! unwind tables are.
//!
//! Standard input, a socket of frames -> answers. It ends when nobody is there any more, when it is told
//! what it does not understand, and when it needs more than it may have. What a file makes it do is that
//! file's affair: a panic is an answer.
//!
//! What does not belong here: how a file is read (`loaded`).

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::client::MAX_FDS;
use super::place::Place;
use super::questions::Answering;
use super::walls::Walls;
use super::wire::{self, Answers, Frame, Reader};
use crate::loaded::{LoadError, Loaded, MAX_COPY_BYTES};
use crate::material::Material;
use crate::symbolize::Answer;
use profiler_model::UnknownReason;
use profiler_unwind::cache::encode;

/// Most addresses of one question.
const MAX_ADDRESSES: usize = 1 << 16;

/// Does all of it, in a process that was started for this; returns the exit status. `limit`: as
/// its argument says it; `answering`: what else it answers.
pub fn serve_names(limit: Option<&std::ffi::OsStr>, answering: Answering) -> u8 {
    let limit = limit.and_then(std::ffi::OsStr::to_str);
    let told = match limit {
        Some(super::OPENS) => {
            super::walls::raise_for_opening(MAX_COPY_BYTES);
            begin(Walls::default(), |socket| {
                each(socket, wire::OPEN, super::opener::answer)
            })
        }
        Some(super::READS) => {
            let walls = super::walls::raise_for_reading();
            begin(walls, |socket| {
                each(socket, wire::READ, super::pieces::answer)
            })
        }
        _ => {
            let limit = limit.and_then(|limit| limit.parse().ok());
            let (walls, place) = super::walls::raise(limit.unwrap_or(0), MAX_COPY_BYTES);
            begin(walls, |socket| serve(socket, place, answering))
        }
    };
    u8::from(told.is_err())
}

/// Says that it is there, behind which walls, and answers.
fn begin(walls: Walls, serve: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut ready = Frame::new(wire::READY);
    ready.u8(walls.to_bits());
    #[allow(unsafe_code)]
    // SAFETY: standard input is open, and nothing else in this process uses it.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    say(socket.as_fd(), &ready.finish())?;
    serve(socket.as_fd())
}

/// Answers questions of one kind.
pub(super) fn each(
    socket: BorrowedFd<'_>,
    wanted: u32,
    answer: impl Fn(BorrowedFd<'_>, Reader<'_>, Vec<OwnedFd>) -> io::Result<()>,
) -> io::Result<()> {
    while let Some((kind, bytes, fds)) = receive(socket)? {
        if kind != wanted {
            return Err(wire::nonsense());
        }
        answer(socket, Reader(&bytes), fds)?;
    }
    Ok(())
}

/// The same on a thread of this process, without walls.
pub(super) fn on_thread(socket: OwnedFd, answering: Answering) {
    let _ = serve(socket.as_fd(), Place::Shared, answering);
}

fn serve(socket: BorrowedFd<'_>, place: Place, mut answering: Answering) -> io::Result<()> {
    let mut files: FxHashMap<u32, Box<Loaded>> = FxHashMap::default();
    while let Some((kind, bytes, fds)) = receive(socket)? {
        let mut reader = Reader(&bytes);
        // Of what is loaded; whether the file is what was read of one, in another case.
        let number = reader.u32()?;
        match kind {
            wire::LOAD => {
                let material = Material::from_description(&mut || reader.u8().ok(), fds);
                let material = material.ok_or_else(wire::nonsense)?;
                let loaded = load(material, place);
                let mut frame = Frame::new(wire::LOADED);
                frame.u8(match &loaded {
                    Ok(_) => 0,
                    Err(LoadError::TooMuch) => 2,
                    Err(LoadError::Bad | LoadError::Large) => 1,
                });
                frame.u64(loaded.as_ref().map_or(0, |loaded| loaded.cost()));
                if let Ok(loaded) = loaded {
                    files.insert(number, loaded);
                }
                say(socket, &frame.finish())?;
            }
            wire::FIND => {
                let bias = reader.u64()?;
                let count = reader.count(MAX_ADDRESSES)?;
                let mut answers = Answers::new();
                for _ in 0..count {
                    let (address, code) = (reader.u64()?, reader.u8()? != 0);
                    let found = match files.get_mut(&number) {
                        Some(loaded) => {
                            let find = || loaded.look_up(address, bias, code);
                            let found = catch_unwind(AssertUnwindSafe(find));
                            if found.is_err() {
                                files.remove(&number);
                            }
                            found.ok()
                        }
                        None => None,
                    };
                    let bad = (Answer::Unknown(UnknownReason::BadFile), None);
                    answers.push(&found.unwrap_or(bad));
                }
                say(socket, &answers.finish())?;
            }
            wire::FORGET => {
                files.remove(&number);
            }
            wire::TABLE => {
                let file = fds.into_iter().next().ok_or_else(wire::nonsense)?.into();
                let table = table(&file, number != 0);
                let mut frame = Frame::new(wire::TABLED);
                frame.u8(table.is_some().into());
                frame.all(&table.unwrap_or_default());
                say(socket, &frame.finish())?;
            }
            wire::QUESTION => {
                let answer = || answering(reader.0, fds);
                let answer = catch_unwind(AssertUnwindSafe(answer)).unwrap_or_default();
                let mut frame = Frame::new(wire::ANSWER);
                let answer = answer.filter(|answer| answer.len() <= wire::MAX_TABLE);
                frame.u8(answer.is_some().into());
                frame.all(&answer.unwrap_or_default());
                say(socket, &frame.finish())?;
            }
            _ => return Err(wire::nonsense()),
        }
    }
    Ok(())
}

/// Loads a file, in a frame that is gone when it is asked about.
#[inline(never)]
fn load(material: Material, place: Place) -> Result<Box<Loaded>, LoadError> {
    let load = || Loaded::new(material, place).map(Box::new);
    catch_unwind(AssertUnwindSafe(load)).unwrap_or(Err(LoadError::Bad))
}

/// The unwind table of a file, encoded; none if it has none. `is_raw`: the file holds what was read of another one.
#[inline(never)]
fn table(file: &File, is_raw: bool) -> Option<Vec<u8>> {
    let build = || build(file, is_raw);
    catch_unwind(AssertUnwindSafe(build)).unwrap_or_default()
}

fn build(file: &File, is_raw: bool) -> Option<Vec<u8>> {
    let built = match is_raw {
        true => profiler_unwind::build_raw(file),
        false => profiler_unwind::build_file(file, None),
    };
    let (table, report) = built.ok()?;
    let bytes = encode(&table, &report);
    (bytes.len() <= wire::MAX_TABLE).then_some(bytes)
}

/// What a frame is, what it says, and the descriptors that came with it.
type Asked = (u32, Vec<u8>, Vec<OwnedFd>);

/// The next frame; none at the end.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Asked>> {
    let mut head = [0; wire::HEAD];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags)
    })?;
    match received.bytes {
        0 => return Ok(None),
        wire::HEAD => {}
        _ => return Err(wire::nonsense()),
    }
    let messages = ancillary.drain();
    let fds = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    let (kind, len) = wire::head(&head);
    if len > wire::MAX_ASKED {
        return Err(wire::nonsense());
    }
    let mut bytes = vec![0; len];
    Stream(socket).read_exact(&mut bytes)?;
    Ok(Some((kind, bytes, fds)))
}

pub(super) fn say(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    Stream(socket).write_all(bytes)
}

struct Stream<'a>(BorrowedFd<'a>);

impl Read for Stream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (got, _) = rustix::net::recv(self.0, bytes, RecvFlags::empty())?;
        Ok(got)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(
            self.0,
            bytes,
            rustix::net::SendFlags::NOSIGNAL,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
