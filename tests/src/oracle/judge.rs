//! The other walker: a C program on libdwfl, built when it is needed, and run once for many samples.
//!
//! Mappings and samples -> a file in the program's format (see `tests/oracle/walk.c`) -> a
//! [`Judgement`] for each sample, in their order.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Mapped, Proof};
use crate::workload::{self, Unbuilt};

const MAPPINGS: u32 = 1;
const SAMPLE: u32 = 2;

/// What the other walker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Addresses, leaf first; those of callers are return addresses but for interrupted ones.
    pub chain: Vec<u64>,
    /// Which of them were interrupted by a signal.
    pub exact: Vec<bool>,
    /// Why there are no more.
    pub end: JudgeEnd,
}

/// Why the other walker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JudgeEnd {
    /// At the outermost frame.
    Complete,
    /// It needed memory that the copy does not have.
    Memory(u64),
    /// It says why itself.
    Error(String),
}

/// Builds the program. It needs libdw's header and a compiler.
pub fn built() -> Result<PathBuf, Unbuilt> {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/walk.c");
    if !Path::new("/usr/include/elfutils/libdwfl.h").exists() {
        return Err(Unbuilt::NoCompiler("for libdwfl (package libdw-dev)"));
    }
    workload::made("oracle-walk", std::slice::from_ref(&input), |fresh| {
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        command.arg(fresh).arg(&input).args(["-ldw", "-lelf"]);
        ("cc", command)
    })
}

/// What the other walker is to be asked, written to a file as it comes in.
pub struct Questions {
    path: PathBuf,
    file: BufWriter<File>,
    samples: u32,
}

impl Questions {
    /// None yet; the file is made anew.
    pub fn new(path: PathBuf) -> io::Result<Questions> {
        let file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        Ok(Questions {
            path,
            file,
            samples: 0,
        })
    }

    /// How many samples there are.
    pub fn len(&self) -> u32 {
        self.samples
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// From here on, this is what the process has mapped.
    pub fn mappings(&mut self, pid: u32, mappings: &[Mapped]) -> io::Result<()> {
        let files = || mappings.iter().filter(|mapped| !mapped.path.is_empty());
        self.words(&[MAPPINGS, pid, files().count() as u32])?;
        for mapped in files() {
            for value in [mapped.start, mapped.end, mapped.offset] {
                self.file.write_all(&value.to_ne_bytes())?;
            }
            self.words(&[mapped.path.len() as u32])?;
            self.file.write_all(mapped.path.as_bytes())?;
        }
        Ok(())
    }

    /// A sample; its process's mappings were told before.
    pub fn sample(&mut self, proof: &Proof) -> io::Result<()> {
        self.words(&[SAMPLE, self.samples, proof.pid])?;
        self.samples += 1;
        self.file.write_all(&proof.pc.to_ne_bytes())?;
        for register in proof.registers {
            self.file.write_all(&register.to_ne_bytes())?;
        }
        self.words(&[proof.stack.len() as u32])?;
        self.file.write_all(&proof.stack)
    }

    /// Has all samples walked.
    pub fn ask(mut self) -> io::Result<Vec<Judgement>> {
        self.file.flush()?;
        let program = built().map_err(io::Error::other)?;
        let mut command = Command::new(program);
        command
            .stdin(File::open(&self.path)?)
            .stderr(Stdio::inherit());
        let output = command.output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "the other walker failed: {}",
                output.status
            )));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let judgements: Vec<Judgement> = text
            .lines()
            .enumerate()
            .map(|(number, line)| judgement(number, line))
            .collect::<Option<_>>()
            .ok_or_else(|| io::Error::other("the other walker's answer can't be read"))?;
        if judgements.len() != self.samples as usize {
            return Err(io::Error::other(
                "the other walker's answers are not all there",
            ));
        }
        Ok(judgements)
    }

    fn words(&mut self, words: &[u32]) -> io::Result<()> {
        for word in words {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// Reads `number why<TAB>addresses`.
fn judgement(number: usize, line: &str) -> Option<Judgement> {
    let (head, addresses) = line.split_once('\t')?;
    let (of, why) = head.split_once(' ')?;
    if of.parse() != Ok(number) {
        return None;
    }
    let end = match why.split_once(' ') {
        None if why == "end" => JudgeEnd::Complete,
        Some(("memory", at)) => JudgeEnd::Memory(u64::from_str_radix(at, 16).ok()?),
        Some(("error", text)) => JudgeEnd::Error(text.to_owned()),
        _ => JudgeEnd::Error(why.to_owned()),
    };
    let (mut chain, mut exact) = (Vec::new(), Vec::new());
    for address in addresses.split(' ').filter(|text| !text.is_empty()) {
        let plain = address.trim_end_matches('!');
        chain.push(u64::from_str_radix(plain, 16).ok()?);
        exact.push(plain.len() < address.len());
    }
    Some(Judgement { chain, exact, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let read = judgement(3, "3 memory 7ffe10\t401000 401020! 7f00").unwrap();
        assert_eq!(read.chain, [0x40_1000, 0x40_1020, 0x7f00]);
        assert_eq!(read.exact, [false, true, false]);
        assert_eq!(read.end, JudgeEnd::Memory(0x7ffe10));
        assert_eq!(judgement(4, "3 end\t1"), None);
        let read = judgement(0, "0 error no matching address range\t1").unwrap();
        assert_eq!(
            read.end,
            JudgeEnd::Error("no matching address range".into())
        );
        assert!(judgement(0, "0 end\t").unwrap().chain.is_empty());
    }
}
