//! A function's code, in the file and in the memory of a process: what a probe changes.
//!
//! Input: a process, an object file that it maps, the name of a function. Output: the bytes that the
//! file holds, and those that `/proc/PID/mem` shows.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags};

/// The code of one function.
#[derive(Debug)]
pub struct Code {
    /// As the file holds it.
    pub in_file: Vec<u8>,
    /// As the process has it.
    pub in_memory: Vec<u8>,
}

impl Code {
    /// The code of `function` of `object` in process `pid`: its name in the symbol table, or `*` and a
    /// part of it (what Rust makes of names ends with a hash).
    pub fn of(pid: u32, object: &Path, function: &str) -> io::Result<Code> {
        let file = fs::read(object)?;
        let (offset, size) = place(&file, function)?;
        let in_file = file
            .get(offset as usize..(offset + size) as usize)
            .ok_or_else(|| io::Error::other(format!("{function} is not in the file")))?;
        let address = mapped_at(pid, object, offset)?;
        let mut in_memory = vec![0; in_file.len()];
        File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut in_memory, address)?;
        Ok(Code {
            in_file: in_file.to_vec(),
            in_memory,
        })
    }

    /// Whether there is a probe in it.
    pub fn is_probed(&self) -> bool {
        self.in_file != self.in_memory
    }
}

/// File offset and length of a function.
fn place(file: &[u8], function: &str) -> io::Result<(u64, u64)> {
    const PF_X: u32 = 1;
    let object = object::File::parse(file).map_err(io::Error::other)?;
    let symbol = object
        .symbols()
        .chain(object.dynamic_symbols())
        .filter(|symbol| symbol.is_definition())
        .find(|symbol| match (function.strip_prefix('*'), symbol.name()) {
            (Some(part), Ok(name)) => name.contains(part),
            (None, Ok(name)) => name == function,
            (_, Err(_)) => false,
        })
        .ok_or_else(|| io::Error::other(format!("no function {function}")))?;
    let segment = object
        .segments()
        .find(|segment| {
            let executable =
                matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0);
            let range = segment.address()..segment.address() + segment.size();
            executable && range.contains(&symbol.address())
        })
        .ok_or_else(|| io::Error::other(format!("{function} is not code")))?;
    let offset = symbol.address() - segment.address() + segment.file_range().0;
    Ok((offset, symbol.size().max(1)))
}

/// Where the byte at `offset` of a file is in the memory of a process.
fn mapped_at(pid: u32, object: &Path, offset: u64) -> io::Result<u64> {
    let path = object.canonicalize()?;
    let path = path.to_string_lossy();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(permissions), Some(from)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if !permissions.contains('x') || !line.ends_with(path.as_ref()) {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end) = range.split_once('-').unwrap_or((range, "0"));
        let (start, end, from) = (hex(start)?, hex(end)?, hex(from)?);
        if (from..from + (end - start)).contains(&offset) {
            return Ok(start + offset - from);
        }
    }
    Err(io::Error::other(format!("{path} is not mapped by {pid}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_probe_memory_is_as_the_file() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("libc.so"))
            .unwrap();
        let (pid, libc) = (std::process::id(), Path::new(libc));
        let code = Code::of(pid, libc, "malloc").unwrap();
        assert!(code.in_file.len() > 16 && !code.is_probed());
        assert!(Code::of(pid, libc, "no such function").is_err());
    }
}
