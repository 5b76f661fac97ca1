//! One capture file being written: made safely, appended to in whole blocks.
//!
//! A block that can't be written in full is taken back (the file is cut to the last whole block), so that what is
//! there always reads. A capture that is made of others gets its name when it is complete, a recording's with the
//! first block: whoever kills it finds what it had. A recording holds room on the disk behind what is written, so that its end has a place
//! where the disk is full.
//!
//! What does not belong here: names and older files (`new_file`).

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::block::*;
use super::error::CaptureError;
use super::item::{EventCounts, put};
use super::new_file::{Existing, NewFile, failed, folder_of};
use super::writer::CreateOptions;

/// Refuses an output in a folder that can't be written to.
pub(super) fn check_folder(path: &Path) -> Result<(), CaptureError> {
    let folder = folder_of(path);
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::accessat(
        rustix::fs::CWD,
        folder,
        access,
        rustix::fs::AtFlags::EACCESS,
    )
    .map_err(|source| failed(path, source.into()))
}

/// What the index says of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) epoch: u32,
    /// Where its first block begins.
    pub(super) offset: u64,
    pub(super) blocks: u32,
    pub(super) events: u64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

/// Most epochs that an index holds; a longer file is read without one.
pub(super) const MAX_INDEX: usize = 1 << 16;

/// What is held back for the end, if the disk has more than four times as much.
const RESERVE_BYTES: u64 = 256 << 10;
/// Less is of no use.
const LEAST_RESERVE_BYTES: u64 = 4 << 10;

/// A capture file that blocks are appended to.
pub(super) struct Output {
    pub(super) path: PathBuf,
    file: NewFile,
    /// It gets its name when it is complete.
    whole: bool,
    pub(super) header: FileHeader,
    /// Length of the file: whole blocks only.
    pub(super) len: u64,
    sequence: u32,
    index: Vec<IndexEntry>,
    compressor: zstd::bulk::Compressor<'static>,
    stored: Vec<u8>,
    /// Bytes of a block that could not be taken back lie behind `len`.
    torn: bool,
    /// It is made of a recording that was not finished.
    pub(super) of_unfinished: bool,
    /// Bytes that are held back behind each block; 0: none are, or the disk can't.
    reserve: u64,
    /// Up to where the disk holds room for the file.
    held: u64,
    /// Unpacked bytes of all blocks.
    pub(super) raw_bytes: u64,
}

/// A payload to be appended, and what its header says of it.
pub(super) struct Payload<'a> {
    pub(super) kind: u8,
    pub(super) epoch: u32,
    pub(super) items: u32,
    pub(super) bytes: &'a [u8],
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl Output {
    pub(super) fn create(
        path: &Path,
        existing: Existing,
        options: &CreateOptions,
    ) -> Result<Output, CaptureError> {
        let file = NewFile::create(path, existing, options.owner)?;
        let mut id = [0; 4];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|source| failed(path, source.into()))?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        let header = FileHeader {
            version: VERSION,
            file_id: u32::from_le_bytes(id),
            created_ns: created.map_or(0, |since| since.as_nanos() as u64),
        };
        let compressor =
            zstd::bulk::Compressor::new(options.level).map_err(|source| failed(path, source))?;
        let mut output = Output {
            path: path.to_owned(),
            file,
            whole: options.whole,
            header,
            len: 0,
            sequence: 0,
            index: Vec::new(),
            compressor,
            stored: Vec::new(),
            torn: false,
            of_unfinished: false,
            reserve: 0,
            held: 0,
            raw_bytes: 0,
        };
        output.append(&header.encode())?;
        Ok(output)
    }

    /// Holds room back for the end, from now on. Where there is little it is a part of that.
    pub(super) fn hold_back(&mut self) {
        let mut reserve = RESERVE_BYTES.min(self.room() / 4);
        while reserve >= LEAST_RESERVE_BYTES {
            self.reserve = reserve;
            if self.hold(0).is_ok() {
                return;
            }
            // A quota, which is not told of.
            reserve /= 4;
        }
        self.reserve = 0;
    }

    /// Has the disk hold room for so many more bytes and what is held back.
    fn hold(&mut self, more: u64) -> Result<(), CaptureError> {
        match self.reserve {
            0 => Ok(()),
            reserve => self.hold_up_to(self.len + more + reserve),
        }
    }

    fn hold_up_to(&mut self, end: u64) -> Result<(), CaptureError> {
        if end <= self.held {
            return Ok(());
        }
        let from = self.held.max(self.len);
        let how = rustix::fs::FallocateFlags::KEEP_SIZE;
        let file = self.file.file();
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, how, from, end - from)) {
            Ok(()) => {
                self.held = end;
                Ok(())
            }
            Err(error) => {
                let error = self.error(error.into());
                match error.is_full() {
                    true => Err(error),
                    // This file system has no such thing.
                    false => {
                        (self.reserve, self.held) = (0, 0);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Appends blocks into the room that is held back, all of them or none; whether there was room for them, besides so much and
    /// the end of the file.
    pub(super) fn last_blocks(
        &mut self,
        payloads: &[Payload<'_>],
        besides: u64,
    ) -> Result<bool, CaptureError> {
        self.publish()?;
        let mut blocks = std::mem::take(&mut self.stored);
        blocks.clear();
        let headers: Vec<BlockHeader> = (0..)
            .zip(payloads)
            .map(|(ahead, payload)| self.pack(payload, ahead, &mut blocks))
            .collect();
        let written = self.append_last(&blocks, besides);
        self.stored = blocks;
        if !written? {
            return Ok(false);
        }
        let stored = |header: &BlockHeader| HEADER_BYTES as u64 + u64::from(header.stored_bytes);
        let mut offset = self.len - headers.iter().map(stored).sum::<u64>();
        for header in &headers {
            self.note(header, offset);
            offset += stored(header);
        }
        Ok(true)
    }

    fn append_last(&mut self, bytes: &[u8], besides: u64) -> Result<bool, CaptureError> {
        self.heal()?;
        let besides = besides + LEAST_RESERVE_BYTES / 2 + self.index.len() as u64 * 40;
        let end = self.len + bytes.len() as u64 + besides;
        let has_room = match self.reserve {
            0 => self.len.saturating_add(self.room()) >= end,
            _ => match self.hold_up_to(end) {
                Err(error) if error.is_full() => false,
                held => held.map(|()| true)?,
            },
        };
        if has_room {
            self.append_held(bytes)?;
        }
        Ok(has_room)
    }

    /// Bytes that are held back and were not used.
    pub(super) fn held_back(&self) -> u64 {
        self.held.saturating_sub(self.len)
    }

    /// Gives the disk back what is held.
    fn release(&mut self) {
        self.reserve = 0;
        if std::mem::take(&mut self.held) > self.len {
            // What stays held belongs to the file, and goes with it.
            let _ = self.file.file().set_len(self.len);
        }
    }

    /// Gives the file its name now, unless it is to be complete first.
    pub(super) fn publish(&mut self) -> Result<(), CaptureError> {
        match self.whole {
            true => Ok(()),
            false => self.file.publish(),
        }
    }

    /// Appends one block, all of it or nothing.
    pub(super) fn block(&mut self, payload: &Payload<'_>) -> Result<(), CaptureError> {
        self.publish()?;
        // Header and payload go out in one write: a killed process leaves no half block behind
        // unless the kernel itself was stopped in the middle.
        let mut block = std::mem::take(&mut self.stored);
        block.clear();
        let header = self.pack(payload, 0, &mut block);
        let written = self.append(&block);
        self.stored = block;
        written?;
        self.note_last(&header);
        Ok(())
    }

    /// Appends a block to bytes that are to be written, behind so many others.
    fn pack(&mut self, payload: &Payload<'_>, ahead: u32, bytes: &mut Vec<u8>) -> BlockHeader {
        let start = bytes.len();
        let stored = start + HEADER_BYTES;
        let bound = zstd::zstd_safe::compress_bound(payload.bytes.len());
        bytes.resize(stored + bound, 0);
        let packed = self
            .compressor
            .compress_to_buffer(payload.bytes, &mut bytes[stored..]);
        let mut codec = codec::PLAIN;
        // Packing that fails or does not pay leaves the payload as it is, and so does packing
        // that pays more than readers accept.
        let usable = packed.ok().filter(|&len| {
            len < payload.bytes.len()
                && payload.bytes.len() as u64 <= len as u64 * MAX_RATIO + SMALL_BYTES
        });
        if let Some(len) = usable {
            codec = codec::ZSTD;
            bytes.truncate(stored + len);
        } else {
            bytes.truncate(stored);
            bytes.extend_from_slice(payload.bytes);
        }
        let header = BlockHeader {
            kind: payload.kind,
            codec,
            version: VERSION,
            file_id: self.header.file_id,
            sequence: self.sequence.wrapping_add(ahead),
            epoch: payload.epoch,
            items: payload.items,
            stored_bytes: (bytes.len() - stored) as u32,
            raw_bytes: payload.bytes.len() as u32,
            first_ns: payload.first_ns,
            last_ns: payload.last_ns,
            payload_crc: crc32fast::hash(&bytes[stored..]),
        };
        bytes[start..stored].copy_from_slice(&header.encode());
        header
    }

    /// Appends a block of another file, packed as it is.
    pub(super) fn copy(
        &mut self,
        mut header: BlockHeader,
        stored: &[u8],
    ) -> Result<(), CaptureError> {
        self.publish()?;
        header.file_id = self.header.file_id;
        header.sequence = self.sequence;
        let mut block = std::mem::take(&mut self.stored);
        block.clear();
        block.extend_from_slice(&header.encode());
        block.extend_from_slice(stored);
        let written = self.append(&block);
        self.stored = block;
        written?;
        self.note_last(&header);
        Ok(())
    }

    /// Keeps account of the block that was appended last.
    fn note_last(&mut self, header: &BlockHeader) {
        let offset = self.len - HEADER_BYTES as u64 - u64::from(header.stored_bytes);
        self.note(header, offset);
    }

    /// Keeps account of a block that was appended there.
    fn note(&mut self, header: &BlockHeader, offset: u64) {
        self.sequence = self.sequence.wrapping_add(1);
        self.raw_bytes += u64::from(header.raw_bytes);
        if header.kind != kind::DEFINITIONS && header.kind != kind::EVENTS {
            return;
        }
        let events = header.kind == kind::EVENTS;
        let same = |entry: &&mut IndexEntry| entry.epoch == header.epoch;
        let room = self.index.len() <= MAX_INDEX;
        match self.index.last_mut().filter(same) {
            Some(entry) => {
                entry.blocks += 1;
                if events {
                    if entry.events == 0 {
                        entry.first_ns = header.first_ns;
                        entry.last_ns = header.last_ns;
                    }
                    entry.events += u64::from(header.items);
                    entry.first_ns = entry.first_ns.min(header.first_ns);
                    entry.last_ns = entry.last_ns.max(header.last_ns);
                }
            }
            None if room => self.index.push(IndexEntry {
                epoch: header.epoch,
                offset,
                blocks: 1,
                events: if events { u64::from(header.items) } else { 0 },
                first_ns: header.first_ns,
                last_ns: header.last_ns,
            }),
            None => {}
        }
    }

    /// Ends the file: the index, the block of totals, the footer.
    pub(super) fn finish(
        &mut self,
        events: &EventCounts,
        dropped: u64,
    ) -> Result<(), CaptureError> {
        let mut totals = Vec::new();
        let mut items = 0;
        for (kind, &count) in (1..).zip(events) {
            put_item(&mut totals, 1, &[kind, count]);
            items += 1;
        }
        put_item(&mut totals, 2, &[dropped]);
        items += 1;
        if self.of_unfinished {
            put_item(&mut totals, 3, &[1]);
            items += 1;
        }
        let (index_offset, sequence) = (self.len, self.sequence);
        // What was held back is for this.
        self.reserve = 0;
        let ended = self.end(&totals, items);
        if ended.is_err() {
            // All of it or nothing: it may be tried again.
            (self.len, self.sequence, self.torn) = (index_offset, sequence, true);
            let _ = self.heal();
        }
        ended?;
        self.release();
        match self.whole {
            true => self.file.publish_whole(),
            false => self.file.publish(),
        }
    }

    fn end(&mut self, totals: &[u8], items: u32) -> Result<(), CaptureError> {
        let index_offset = self.len;
        let mut payload = Vec::new();
        let mut entries = 0;
        if self.index.len() <= MAX_INDEX {
            for entry in &self.index {
                let fields = [
                    u64::from(entry.epoch),
                    entry.offset,
                    u64::from(entry.blocks),
                    entry.events,
                    entry.first_ns,
                    entry.last_ns,
                ];
                put_item(&mut payload, 1, &fields);
                entries += 1;
            }
        }
        let last_ns = self.index.last().map_or(0, |entry| entry.last_ns);
        let epoch = self.index.last().map_or(0, |entry| entry.epoch);
        for (kind, items, bytes) in [
            (kind::INDEX, entries, &payload[..]),
            (kind::END, items, totals),
        ] {
            self.block(&Payload {
                kind,
                epoch,
                items,
                bytes,
                first_ns: last_ns,
                last_ns,
            })?;
        }
        self.append(&encode_footer(self.header.file_id, index_offset))
    }

    /// Time of the first event in the file, if there is one.
    pub(super) fn first_ns(&self) -> Option<u64> {
        let first = self.index.iter().find(|entry| entry.events > 0);
        first.map(|entry| entry.first_ns)
    }

    /// Time of the last event in the file.
    pub(super) fn last_ns(&self) -> u64 {
        let last = self.index.iter().map(|entry| entry.last_ns);
        last.max().unwrap_or(0)
    }

    /// How much more the disk takes, and the file may; much, if it is not told.
    pub(super) fn room(&self) -> u64 {
        let stat = rustix::fs::fstatvfs(self.file.file());
        let free = stat.map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        let may = limit
            .current
            .map_or(u64::MAX, |most| most.saturating_sub(self.len));
        free.min(may)
    }

    /// Whether the file still has a name.
    pub(super) fn vanished(&self) -> bool {
        self.file
            .file()
            .metadata()
            .is_ok_and(|found| found.nlink() == 0)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CaptureError> {
        self.heal()?;
        self.hold(bytes.len() as u64)?;
        self.append_held(bytes)
    }

    fn append_held(&mut self, bytes: &[u8]) -> Result<(), CaptureError> {
        match self.file.file().write_all(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.torn = true;
                // A failure to cut shows again at the next append; readers skip what stays.
                let _ = self.heal();
                Err(self.error(source))
            }
        }
    }

    /// Takes back what a failed write has left.
    fn heal(&mut self) -> Result<(), CaptureError> {
        if self.torn {
            let mut file = self.file.file();
            let cut = file
                .set_len(self.len)
                .and_then(|()| io::Seek::seek(&mut file, io::SeekFrom::Start(self.len)).map(drop));
            cut.map_err(|source| self.error(source))?;
            // What was held behind is cut off as well.
            (self.torn, self.held) = (false, 0);
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> CaptureError {
        CaptureError::Write {
            path: self.path.clone(),
            offset: self.len,
            source,
        }
    }
}

fn put_item(payload: &mut Vec<u8>, kind: u64, fields: &[u64]) {
    let mut bytes = Vec::new();
    for &field in fields {
        put(&mut bytes, field);
    }
    put(payload, kind);
    put(payload, bytes.len() as u64);
    payload.extend_from_slice(&bytes);
}
