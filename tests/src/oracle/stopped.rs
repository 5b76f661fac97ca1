//! A process, stopped now and then -> proofs, without a kernel side: its registers, its stack, and the
//! chain that our walk in user space finds.
//!
//! By ptrace. It is slow, and the process notices; but it needs no privileges and no BPF, so it checks
//! the rows and both walkers everywhere.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use profiler_common::unwind::{PROOF_BELOW, REGISTER_SP, REGISTERS};
use profiler_model::StackEnd;
use profiler_unwind::walk::{Memory, Start, walk};

use super::Proof;
use super::files::Space;

/// Bytes of stack that are taken.
const STACK_BYTES: usize = 64 << 10;

/// A process that this one traces; it goes on when this is dropped.
pub struct Stopped {
    pid: i32,
    memory: File,
}

/// The copied piece of a stack, as memory of the process.
pub struct Copied<'a> {
    /// Its first address.
    pub first: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Memory for Copied<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.first)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

impl Stopped {
    /// Begins to trace a process of one thread.
    pub fn seize(pid: u32) -> io::Result<Stopped> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let pid = pid.cast_signed();
        request(libc::PTRACE_SEIZE, pid, 0)?;
        Ok(Stopped { pid, memory })
    }

    /// Lets it run for a while, stops it, and takes what there is. None if it has ended.
    pub fn take(&mut self, after: Duration) -> io::Result<Option<Proof>> {
        std::thread::sleep(after);
        request(libc::PTRACE_INTERRUPT, self.pid, 0)?;
        loop {
            let mut status = 0;
            // SAFETY: `status` is writable; the process is traced by this thread.
            let waited = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) };
            if waited < 0 {
                return Err(io::Error::last_os_error());
            }
            if !libc::WIFSTOPPED(status) {
                return Ok(None);
            }
            if status >> 16 == libc::PTRACE_EVENT_STOP {
                break;
            }
            // A signal of its own: it is delivered.
            request(libc::PTRACE_CONT, self.pid, libc::WSTOPSIG(status) as usize)?;
        }
        let proof = self.proof();
        request(libc::PTRACE_CONT, self.pid, 0)?;
        proof.map(Some)
    }

    fn proof(&self) -> io::Result<Proof> {
        // SAFETY: all zeros is a valid value.
        let mut user: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let into = (&raw mut user) as usize;
        request(libc::PTRACE_GETREGS, self.pid, into)?;
        let registers: [u64; REGISTERS] = [
            user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp,
            user.r8, user.r9, user.r10, user.r11, user.r12, user.r13, user.r14, user.r15,
        ];
        let mut stack = vec![0; STACK_BYTES];
        let len = self.memory.read_at(&mut stack, user.rsp - PROOF_BELOW)?;
        stack.truncate(len);
        Ok(Proof {
            pid: self.pid.cast_unsigned(),
            chain: Vec::new(),
            end: StackEnd::NoStack,
            pc: user.rip,
            registers,
            stack,
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended, or run: then nothing is to be done, the kernel detaches.
        let _ = request(libc::PTRACE_DETACH, self.pid, 0);
    }
}

fn request(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: `data` is a number, or for GETREGS the address of a live, writable structure.
    let done = unsafe { libc::ptrace(request, pid, 0_usize, data) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl Proof {
    /// Where its walk begins.
    pub fn start(&self) -> Start {
        Start {
            pc: self.pc,
            is_return: false,
            all_known: true,
            fp_known: true,
            registers: self.registers,
        }
    }

    /// Its stack.
    pub fn memory(&self) -> Copied<'_> {
        Copied {
            first: self.registers[usize::from(REGISTER_SP)].wrapping_sub(PROOF_BELOW),
            bytes: &self.stack,
        }
    }

    /// Walks it by our own rows in user space.
    pub fn walk(&mut self, space: &Space<'_>) {
        let walked = walk(&self.start(), &[], space, &self.memory());
        self.chain = walked.addresses;
        self.end = StackEnd::from_code(walked.end);
    }
}
