//! A program under ptrace, stopped at entries and exits of its functions, and the fetching that the
//! kernel side does there, written anew from what `profiler_common::call` promises.

// ptrace is system calls.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libc::{c_long, c_void, pid_t, user_regs_struct};
use profiler_common::call::*;

use super::elf::Elf;

const BREAKPOINT: u8 = 0xcc;

/// A program that runs from stop to stop.
pub struct Traced {
    child: Child,
    memory: File,
    base: u64,
    original: BTreeMap<u64, u8>,
    registers: user_regs_struct,
    ended: bool,
}

/// Where it stands.
pub struct Stop<'t> {
    memory: &'t File,
    registers: &'t user_regs_struct,
}

impl Traced {
    /// Starts a program that will stop at the functions at these addresses.
    pub fn start(path: &Path, functions: impl Iterator<Item = u64>) -> Traced {
        let mut command = Command::new(path);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec, only a system call is made.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().unwrap();
        let pid = child.id();
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        // SAFETY: registers are plain numbers.
        let registers = unsafe { std::mem::zeroed() };
        let original = BTreeMap::new();
        let mut traced = Traced {
            child,
            memory,
            base: 0,
            original,
            registers,
            ended: false,
        };
        assert_eq!(traced.wait(), Some(libc::SIGTRAP));
        if Elf::read(path).is_movable() {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            let path = std::fs::canonicalize(path).unwrap();
            let first = maps
                .lines()
                .find(|line| line.ends_with(path.to_str().unwrap()))
                .unwrap();
            traced.base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        }
        for function in functions {
            traced.set(function + traced.base);
        }
        traced
    }

    fn pid(&self) -> pid_t {
        self.child.id() as pid_t
    }

    fn request(&mut self, request: libc::c_uint, data: *mut c_void) -> c_long {
        // SAFETY: the requests made have no data, or that of the registers, which is as large as
        // the kernel expects.
        unsafe { libc::ptrace(request, self.pid(), std::ptr::null_mut::<c_void>(), data) }
    }

    /// The signal that it has stopped with. None when it has ended.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: the status is written to a number of the right size.
        let got = unsafe { libc::waitpid(self.pid(), &mut status, 0) };
        assert_eq!(got, self.pid());
        self.ended = libc::WIFEXITED(status);
        if self.ended {
            return None;
        }
        assert!(libc::WIFSTOPPED(status), "killed: {status:#x}");
        let registers = (&raw mut self.registers).cast();
        assert_eq!(self.request(libc::PTRACE_GETREGS, registers), 0);
        Some(libc::WSTOPSIG(status))
    }

    /// Makes a request that lets it run, until it stops at a trap or ends.
    fn run(&mut self, request: libc::c_uint) {
        loop {
            assert_eq!(self.request(request, std::ptr::null_mut()), 0);
            match self.wait() {
                None | Some(libc::SIGTRAP) => return,
                // Go's runtime asks goroutines that run for 10 ms to yield, and asks again: its
                // signal is not passed on, since its handler would be stepped into.
                Some(signal) => assert_eq!(signal, libc::SIGURG),
            }
        }
    }

    fn set(&mut self, at: u64) {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, at).unwrap();
        self.original.entry(at).or_insert(byte[0]);
        self.memory.write_all_at(&[BREAKPOINT], at).unwrap();
    }

    /// Goes on from a stop: past the instruction below the breakpoint, if it stands on one.
    fn go_on(&mut self) {
        let at = self.registers.rip;
        if let Some(&byte) = self.original.get(&at) {
            self.memory.write_all_at(&[byte], at).unwrap();
            self.run(libc::PTRACE_SINGLESTEP);
            self.memory.write_all_at(&[BREAKPOINT], at).unwrap();
            if self.ended {
                return;
            }
        }
        self.run(libc::PTRACE_CONT);
        if !self.ended {
            self.registers.rip -= 1;
            let registers = (&raw mut self.registers).cast();
            assert_eq!(self.request(libc::PTRACE_SETREGS, registers), 0);
        }
    }

    /// Runs to the next entry of a function: its address in the file. None when it has ended.
    pub fn run_to_entry(&mut self) -> Option<u64> {
        self.go_on();
        (!self.ended).then(|| self.registers.rip - self.base)
    }

    /// Runs from an entry to where the function has returned to. False if others are entered first.
    pub fn leave(&mut self) -> bool {
        let sp = self.registers.rsp;
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, sp).unwrap();
        let back = u64::from_ne_bytes(word);
        self.set(back);
        loop {
            self.go_on();
            assert!(!self.ended);
            if self.registers.rip == back && self.registers.rsp == sp + 8 {
                break;
            }
        }
        let byte = self.original[&back];
        self.memory.write_all_at(&[byte], back).unwrap();
        self.original.remove(&back);
        true
    }

    /// Where it stands.
    pub fn stop(&self) -> Stop<'_> {
        Stop {
            memory: &self.memory,
            registers: &self.registers,
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Stop<'_> {
    /// The items that the kernel side would send.
    pub fn items(&self, fetches: &[Fetch], at_exit: bool) -> Vec<u8> {
        let mut items = Vec::new();
        let mut word_before = 0;
        for fetch in fetches
            .iter()
            .filter(|fetch| (fetch.at_exit != 0) == at_exit)
        {
            let (status, payload) = self.run(fetch, word_before);
            if fetch.kind == FETCH_WORD && status == ITEM_OK {
                word_before = u64::from_ne_bytes(payload[..].try_into().unwrap());
            } else {
                word_before = 0;
            }
            items.extend(status.to_ne_bytes());
            items.extend((payload.len() as u16).to_ne_bytes());
            items.extend([0; 4]);
            items.extend(&payload);
            items.resize(items.len().next_multiple_of(8), 0);
        }
        items
    }

    fn run(&self, fetch: &Fetch, word_before: u64) -> (u16, Vec<u8>) {
        let mut value = self.register(fetch.register);
        for step in 0..usize::from(fetch.derefs) {
            value = value.wrapping_add_signed(fetch.offsets[step].into());
            match self.read(value, 8) {
                Some(word) => value = u64::from_ne_bytes(word[..].try_into().unwrap()),
                None => return (ITEM_BAD_MEMORY, value.to_ne_bytes().to_vec()),
            }
        }
        value = value.wrapping_add_signed(fetch.offsets[usize::from(fetch.derefs)].into());
        let size = usize::from(fetch.size);
        let bad = (ITEM_BAD_MEMORY, value.to_ne_bytes().to_vec());
        match fetch.kind {
            FETCH_WORD => (ITEM_OK, value.to_ne_bytes().to_vec()),
            FETCH_MEMORY => self.read(value, size).map_or(bad, |bytes| (ITEM_OK, bytes)),
            FETCH_COUNTED => {
                let len = size.min(word_before as usize);
                let status = if word_before > size as u64 {
                    ITEM_CUT
                } else {
                    ITEM_OK
                };
                self.read(value, len).map_or(bad, |bytes| (status, bytes))
            }
            FETCH_STRING => {
                let mut text = Vec::new();
                while text.len() < size {
                    match self.read(value + text.len() as u64, 1) {
                        Some(byte) if byte[0] == 0 => return (ITEM_OK, text),
                        Some(byte) => text.push(byte[0]),
                        None => return bad,
                    }
                }
                (ITEM_CUT, text)
            }
            other => panic!("fetch of kind {other}"),
        }
    }

    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        // Beyond the file's range, the kernel says so as well.
        i64::try_from(at).ok()?;
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    fn register(&self, register: u8) -> u64 {
        let r = self.registers;
        match register {
            REGISTER_RDI => r.rdi,
            REGISTER_RSI => r.rsi,
            REGISTER_RDX => r.rdx,
            REGISTER_RCX => r.rcx,
            REGISTER_R8 => r.r8,
            REGISTER_R9 => r.r9,
            REGISTER_RAX => r.rax,
            REGISTER_RSP => r.rsp,
            REGISTER_RBP => r.rbp,
            REGISTER_RBX => r.rbx,
            REGISTER_R10 => r.r10,
            REGISTER_R11 => r.r11,
            other => panic!("register {other}"),
        }
    }
}
