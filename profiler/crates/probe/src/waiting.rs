//! Threads that wait already when a recording begins: who they are, and their stacks.
//!
//! An iterator over all tasks in the kernel (Linux 5.8), which enters them as waiting since now -> their stacks,
//! as [`RawBody::WaitStack`]: the kernel's whole; of user space the registers and a copy of the stack, read
//! from /proc while they go on waiting, which is walked as that of a sample without a table. Nothing is
//! stopped. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: waits that begin later (`waits`), the walk (`resolve`).

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, OwnedFd},
};

use aya::Ebpf;
use aya_obj::generated::{bpf_attach_type, bpf_prog_type};
use bytes::Bytes;
use profiler_common::{
    sched::{ThreadWaits, WAITER_REGISTERS, WaiterRecord},
    unwind::{COPY_BYTES, CopyHead, REGISTERS},
};

use super::{
    ProbeError,
    bpf::{self, LoadAs},
    btf::Btf,
    instructions::{self, Program},
    load,
};
use profiler_model::raw::{RawBody, RawCopy, RawEvent, RawInterpreted, RawStack, RawWaitStack};
use profiler_model::{Cpu, Pid, StackEnd, Tid, Timestamp};

const PROGRAM: Program = Program {
    name: "wait_begun",
    short_name: c"wait_begun",
};
/// The kernel's function that says what such an iterator is handed over.
const FUNCTION: &str = "bpf_iter_task";

/// Most stacks that are copied, 16 KiB each.
const MAX_COPIES: usize = 1024;
/// Records that are read at a time.
const RECORDS: usize = 32;

const RECORD_BYTES: usize = size_of::<WaiterRecord>();
const WORD: usize = size_of::<u64>();

/// The code segment of 64-bit programs, and of 32-bit ones.
const USER_CS: u64 = 0x33;
const USER_CS_32: u64 = 0x23;
/// Where `struct pt_regs` has registers, by DWARF's number.
const BY_NUMBER: [usize; REGISTERS] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
const IP: usize = 16;
const CS: usize = 17;
const SP: usize = 19;

/// What is asked of user stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserStacks {
    /// Nothing.
    None,
    /// Where they are now: the function. Of a whole machine all tables would have to be built at once.
    Leaf,
    /// All, from copies.
    Copied,
}

/// The iterator, loaded.
pub(super) struct Waiting {
    program: OwnedFd,
    user: UserStacks,
}

impl Waiting {
    /// Loads it; none if this kernel has no such iterators.
    pub(super) fn load(
        ebpf: &Ebpf,
        btf: &Btf,
        user: UserStacks,
    ) -> Result<Option<Waiting>, ProbeError> {
        let Some(function) = btf.function(FUNCTION) else {
            return Ok(None);
        };
        let load_as = LoadAs {
            kind: bpf_prog_type::BPF_PROG_TYPE_TRACING,
            attach_type: Some(bpf_attach_type::BPF_TRACE_ITER),
            function,
        };
        let instructions = instructions::of(ebpf, &PROGRAM)?;
        let program = instructions::load(&PROGRAM, &instructions, &load_as)?;
        Ok(Some(Waiting { program, user }))
    }

    /// Enters all threads that are wanted and wait, but for those of a process that waits for us, and adds
    /// their stacks to `out`. `still` looks one up, `read` reads memory.
    pub(super) fn enter(
        &self,
        ebpf: &Ebpf,
        passed_over: Option<Pid>,
        still: impl Fn(u64) -> Option<ThreadWaits>,
        read: &mut dyn FnMut(Pid, Tid, u64, usize) -> Vec<u8>,
        out: &mut Vec<RawEvent>,
    ) -> Result<(), ProbeError> {
        let failed = |error| ProbeError::from_io("look which threads wait", error);
        let map = load::map_fd(ebpf, "WAIT_PASSED_OVER")?;
        let pid = passed_over.map_or(0, |pid| pid.0);
        bpf::update_map(map, &[0], &[pid]).map_err(failed)?;
        let mut file = File::from(bpf::iterate(self.program.as_fd()).map_err(failed)?);
        let mut bytes = vec![0; RECORDS * RECORD_BYTES];
        let mut copies = 0;
        loop {
            let len = fill(&mut file, &mut bytes).map_err(failed)?;
            for record in bytes[..len].chunks_exact(RECORD_BYTES) {
                let Some(found) = Found::of(record) else {
                    continue;
                };
                let (user, copy) = match self.user {
                    UserStacks::None => (RawStack::NONE, None),
                    UserStacks::Copied if copies < MAX_COPIES => found.copied(read, &still),
                    _ => (found.leaf(StackEnd::LeafOnly), None),
                };
                copies += usize::from(copy.is_some());
                out.push(found.event(user, copy));
            }
            if len < bytes.len() {
                return Ok(());
            }
        }
    }
}

/// Reads until the buffer is full or the end is there.
fn fill(file: &mut File, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// A thread that waits, as [`WaiterRecord`] has it.
struct Found {
    at_ns: u64,
    key: u64,
    pid: Pid,
    tid: Tid,
    registers: [u64; WAITER_REGISTERS],
    kernel: RawStack,
}

impl Found {
    fn of(record: &[u8]) -> Option<Found> {
        let mut words = record.chunks_exact(WORD).map(|word| {
            let word = word.try_into().unwrap_or_default();
            u64::from_ne_bytes(word)
        });
        let (at_ns, key, ids) = (words.next()?, words.next()?, words.next()?);
        let mut registers = [0; WAITER_REGISTERS];
        for register in &mut registers {
            *register = words.next()?;
        }
        let (is_cut, bytes) = (words.next()? != 0, words.next()?);
        let kernel = record.get((5 + WAITER_REGISTERS) * WORD..)?;
        let kernel = kernel.get(..usize::try_from(bytes).ok()? / WORD * WORD)?;
        Some(Found {
            at_ns,
            key,
            pid: Pid((ids >> 32) as u32),
            tid: Tid(ids as u32),
            registers,
            kernel: match (kernel, is_cut) {
                ([], _) => RawStack::NONE,
                (addresses, is_cut) => RawStack {
                    bytes: Bytes::copy_from_slice(addresses),
                    end: match is_cut {
                        true => StackEnd::Truncated,
                        false => StackEnd::Complete,
                    },
                },
            },
        })
    }

    /// Where it is in user space, and nothing of its callers.
    fn leaf(&self, end: StackEnd) -> RawStack {
        if !matches!(self.registers[CS], USER_CS | USER_CS_32) {
            return RawStack::NONE;
        }
        RawStack {
            bytes: Bytes::copy_from_slice(&self.registers[IP].to_ne_bytes()),
            end,
        }
    }

    /// What its stack is walked by; no more than where it is if that can't be had, or is another wait's by now.
    fn copied(
        &self,
        read: &mut dyn FnMut(Pid, Tid, u64, usize) -> Vec<u8>,
        still: impl Fn(u64) -> Option<ThreadWaits>,
    ) -> (RawStack, Option<Box<RawCopy>>) {
        if self.registers[CS] != USER_CS {
            return (self.leaf(StackEnd::LeafOnly), None);
        }
        let mut bytes = read(self.pid, self.tid, self.registers[SP], COPY_BYTES);
        bytes.truncate(bytes.len() / WORD * WORD);
        let ids = u64::from(self.pid.0) << 32 | u64::from(self.tid.0);
        let waits = still(ids).is_some_and(|thread| thread.from_ns == self.at_ns);
        if bytes.is_empty() || !waits {
            return (self.leaf(StackEnd::BadMemory), None);
        }
        let head = CopyHead {
            pc: self.registers[IP],
            is_return: 0,
            all_known: 1,
            registers: BY_NUMBER.map(|index| self.registers[index]),
            absent: 0,
        };
        let user = RawStack {
            bytes: Bytes::new(),
            end: StackEnd::NoTable,
        };
        let bytes = Bytes::from(bytes);
        (user, Some(Box::new(RawCopy { head, bytes })))
    }

    fn event(self, user: RawStack, copy: Option<Box<RawCopy>>) -> RawEvent {
        RawEvent {
            at: Timestamp(self.at_ns),
            cpu: Cpu(0),
            body: RawBody::WaitStack(Box::new(RawWaitStack {
                key: self.key,
                pid: self.pid,
                tid: self.tid,
                kernel: self.kernel,
                user,
                copy,
                interpreted: RawInterpreted::default(),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cs: u64, kernel: &[u64], bytes: u64) -> Vec<u8> {
        let mut words = vec![5, 7, 20 << 32 | 21];
        let mut registers = [0; WAITER_REGISTERS];
        (registers[IP], registers[CS], registers[SP]) = (0x1234, cs, 0x8000);
        words.extend(registers);
        words.extend([0, bytes]);
        words.extend(kernel);
        words.resize(RECORD_BYTES / WORD, 0);
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    #[test]
    fn a_record_is_taken_apart() {
        let found = Found::of(&record(USER_CS, &[1, 2], 16)).unwrap();
        assert_eq!((found.pid, found.tid), (Pid(20), Tid(21)));
        assert_eq!(found.kernel.bytes.len(), 16);
        assert_eq!(found.kernel.end, StackEnd::Complete);
        let leaf = found.leaf(StackEnd::LeafOnly);
        assert_eq!(leaf.addresses().collect::<Vec<_>>(), [0x1234]);
        // A thread of the kernel.
        let kernel_thread = Found::of(&record(0x10, &[], 0)).unwrap();
        assert_eq!(kernel_thread.leaf(StackEnd::Jit), RawStack::NONE);
        // What can't be.
        assert!(Found::of(&record(USER_CS, &[], u64::MAX)).is_none());
        assert!(Found::of(&[0; 40]).is_none());
    }

    #[test]
    fn a_thread_that_goes_on_meanwhile_has_no_copy() {
        let mut found = Found::of(&record(USER_CS, &[1], 8)).unwrap();
        let me = Pid(std::process::id());
        (found.pid, found.tid) = (me, Tid(me.0));
        found.registers[SP] = 64;
        let mut read = |pid: Pid, tid: Tid, address: u64, len: usize| {
            assert_eq!((pid, tid, len), (me, Tid(me.0), COPY_BYTES));
            match address {
                64 => [7_u64; 4].map(u64::to_ne_bytes).concat(),
                _ => Vec::new(),
            }
        };
        let waits_since = |from_ns| {
            move |_| {
                let thread = ThreadWaits {
                    from_ns,
                    ..ThreadWaits::default()
                };
                Some(thread)
            }
        };
        let (user, copy) = found.copied(&mut read, waits_since(5));
        let copy = copy.unwrap();
        assert_eq!((user.end, copy.head.pc), (StackEnd::NoTable, 0x1234));
        assert_eq!(copy.bytes[..], [7_u64; 4].map(u64::to_ne_bytes).concat());
        let (user, copy) = found.copied(&mut read, waits_since(6));
        assert!(copy.is_none() && user.end == StackEnd::BadMemory);
        found.registers[SP] = 8;
        assert!(found.copied(&mut read, waits_since(5)).1.is_none());
    }
}
