//! A program that is run instruction by instruction, and the stack that a walk finds at each.
//!
//! A thread under ptrace -> [`Stepped`]. The stack at one instruction follows from that at the one before:
//! a call adds a frame, a return takes one away, all else keeps the callers as they are. So a wrong row of a
//! table shows as a difference, and nothing that the walk itself uses decides what is right.

// ptrace is system calls.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use profiler_common::sample::{EXACT_ADDRESS, LEFT_OUT};
use profiler_unwind::walk::{Code, Memory, Place, Start, Walked, walk};
use profiler_unwind::{Table, build_file, build_vdso};

/// A function of the program.
pub(crate) type Symbol = (u64, u64, String);

/// A step takes microseconds; a thread that needs so long waits for others.
const PATIENCE: Duration = Duration::from_secs(2);
/// So often it is looked for the end of a step without a pause.
const QUICK_LOOKS: u32 = 10_000;

const PAGE: u64 = 4096;

/// A page of memory: where it begins, and what it holds.
struct Page(u64, [u8; PAGE as usize]);

impl Page {
    /// None if it lies in two of them.
    fn word(&self, address: u64) -> Option<u64> {
        let from = (address % PAGE) as usize;
        let word = self.1.get(from..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*word))
    }
}

pub(crate) struct Stepped {
    child: Child,
    memory: File,
    table: Table,
    bias: u64,
    code: (u64, u64),
    /// The first instruction of the program itself.
    entry: u64,
    vdso: Option<(u64, u64, Table)>,
    symbols: Vec<Symbol>,
    thread_pointer: u64,
    /// What was read of its memory since it stopped.
    pages: RefCell<Vec<Page>>,
    asleep: bool,
}

/// What the thread is about to execute, and its stack.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    /// The word that `sp` points to.
    pub(crate) top: u64,
    /// Callers, innermost first.
    pub(crate) callers: Vec<u64>,
    pub(crate) end: u16,
}

impl Stepped {
    /// Starts a program, stopped before its first instruction: behind the dynamic linker, if it has one,
    /// which is not looked at.
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Stepped {
        // As /proc has it.
        let program = &program.canonicalize().unwrap();
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null());
        // Fewer threads, so that the one that is stepped has work.
        command.env("GOMAXPROCS", "1");
        // SAFETY: only async-signal-safe system calls are made between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().unwrap();
        let pid = child.id() as i32;
        let mut status = 0;
        // SAFETY: the status lives during the call; the child is ours.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        let file = File::open(program).unwrap();
        let (table, _) = build_file(&file, None).unwrap();
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        let mut stepped = Stepped {
            child,
            memory,
            table,
            bias: 0,
            code: (0, 0),
            entry: 0,
            vdso: None,
            symbols: Vec::new(),
            thread_pointer: 0,
            pages: RefCell::default(),
            asleep: false,
        };
        stepped.place(program);
        stepped.run_to_entry();
        stepped
    }

    /// By a breakpoint, since the linker's instructions are many.
    fn run_to_entry(&mut self) {
        let mut regs = self.registers();
        if regs.rip == self.entry {
            return;
        }
        let mut replaced = [0];
        self.memory
            .read_exact_at(&mut replaced, self.entry)
            .unwrap();
        self.memory.write_all_at(&[0xcc], self.entry).unwrap();
        self.ptrace(libc::PTRACE_CONT, 0);
        let mut status = 0;
        // SAFETY: the status lives during the call; the child is ours.
        unsafe { libc::waitpid(self.pid(), &mut status, 0) };
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP);
        self.memory.write_all_at(&replaced, self.entry).unwrap();
        regs = self.registers();
        assert_eq!(regs.rip, self.entry + 1);
        regs.rip = self.entry;
        // SAFETY: the kernel reads one user_regs_struct there.
        let set = unsafe {
            let data = (&raw mut regs).cast::<c_void>();
            let none = std::ptr::null_mut::<c_void>();
            libc::ptrace(libc::PTRACE_SETREGS, self.pid(), none, data)
        };
        assert_eq!(set, 0);
    }

    fn place(&mut self, program: &Path) {
        let bytes = std::fs::read(program).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let lowest = elf
            .segments()
            .map(|segment| segment.address())
            .min()
            .unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let mut first = None;
        for line in maps.lines() {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = (number(start), number(end));
            if rest.ends_with(program.to_str().unwrap()) {
                let first = *first.get_or_insert(start);
                self.bias = first.wrapping_sub(lowest & !0xfff);
                if rest.starts_with("r-x") {
                    self.code = (start, end);
                }
            } else if rest.ends_with("[vdso]") {
                let mut bytes = vec![0; (end - start) as usize];
                self.memory.read_exact_at(&mut bytes, start).unwrap();
                let (table, _) = build_vdso(&bytes).unwrap();
                self.vdso = Some((start, end, table));
            }
        }
        self.entry = elf.entry().wrapping_add(self.bias);
        let symbols = elf
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text);
        self.symbols = symbols
            .map(|symbol| {
                let start = symbol.address().wrapping_add(self.bias);
                (
                    start,
                    start + symbol.size(),
                    symbol.name().unwrap().to_owned(),
                )
            })
            .collect();
        self.symbols.sort_unstable();
    }

    /// The name of the function that an address is in.
    pub(crate) fn name(&self, address: u64) -> &str {
        let behind = self
            .symbols
            .partition_point(|(start, ..)| *start <= address);
        let symbol = behind.checked_sub(1).map(|index| &self.symbols[index]);
        match symbol {
            Some((_, end, name)) if address < *end => name,
            _ => "?",
        }
    }

    /// Whether there is a table for an address.
    pub(crate) fn is_known(&self, address: u64) -> bool {
        matches!(self.at(address), Place::Table(..))
    }

    /// Where the function that an address is in begins.
    pub(crate) fn symbol_start(&self, address: u64) -> u64 {
        let behind = self
            .symbols
            .partition_point(|(start, ..)| *start <= address);
        behind
            .checked_sub(1)
            .map_or(0, |index| self.symbols[index].0)
    }

    /// Lets it run until it has used `seconds` of time.
    pub(crate) fn run(&mut self, seconds: f64) -> bool {
        self.ptrace(libc::PTRACE_CONT, 0);
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let mut stopping = false;
        loop {
            let mut status = 0;
            // SAFETY: as above.
            let got = unsafe { libc::waitpid(self.pid(), &mut status, libc::WNOHANG) };
            if got == 0 {
                if !stopping && Instant::now() >= until {
                    // SAFETY: a signal to our own child's first thread.
                    unsafe {
                        libc::syscall(libc::SYS_tgkill, self.pid(), self.pid(), libc::SIGSTOP)
                    };
                    stopping = true;
                }
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            if !libc::WIFSTOPPED(status) {
                return false;
            }
            match libc::WSTOPSIG(status) {
                libc::SIGSTOP => return true,
                signal => self.ptrace(libc::PTRACE_CONT, signal),
            }
        }
    }

    /// Whether its first thread was seen to sleep in a system call, which a step does not end: the runtime has
    /// put it to rest, and goes on in another thread.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Executes one instruction; none if the program has ended, or sleeps. A signal that comes is delivered.
    pub(crate) fn step(&mut self, signal: i32) -> Option<i32> {
        self.ptrace(libc::PTRACE_SINGLESTEP, signal);
        let began = Instant::now();
        let mut status = 0;
        let mut looks = 0;
        // SAFETY: as above.
        while unsafe { libc::waitpid(self.pid(), &mut status, libc::WNOHANG) } == 0 {
            looks += 1;
            if looks > QUICK_LOOKS {
                std::thread::sleep(Duration::from_millis(1));
            }
            if began.elapsed() > PATIENCE {
                self.asleep = true;
                return None;
            }
        }
        if !libc::WIFSTOPPED(status) {
            return None;
        }
        Some(match libc::WSTOPSIG(status) {
            libc::SIGTRAP => 0,
            signal => signal,
        })
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: user_regs_struct is plain numbers.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one user_regs_struct there.
        let got = unsafe {
            let data = (&raw mut regs).cast::<c_void>();
            libc::ptrace(
                libc::PTRACE_GETREGS,
                self.pid(),
                std::ptr::null_mut::<c_void>(),
                data,
            )
        };
        assert_eq!(got, 0);
        regs
    }

    /// Where it is, with its whole stack.
    pub(crate) fn stop(&mut self) -> Stop {
        let regs = self.registers();
        self.thread_pointer = regs.fs_base;
        self.pages.borrow_mut().clear();
        let registers = [
            regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ];
        let start = Start {
            pc: regs.rip,
            is_return: false,
            all_known: true,
            fp_known: true,
            registers,
        };
        let Walked { addresses, end } = walk(&start, &[], self, self);
        Stop {
            pc: regs.rip,
            sp: regs.rsp,
            top: self.read_u64(regs.rsp).unwrap_or(0),
            callers: addresses[1..]
                .iter()
                .map(|&address| match address {
                    LEFT_OUT => LEFT_OUT,
                    address => address & !EXACT_ADDRESS,
                })
                .collect(),
            end,
        }
    }

    fn ptrace(&self, request: libc::c_uint, signal: i32) {
        // SAFETY: such requests take numbers only.
        unsafe { libc::ptrace(request, self.pid(), 0, signal as libc::c_long) };
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memory for Stepped {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mut pages = self.pages.borrow_mut();
        let first = address & !(PAGE - 1);
        // Mostly the last one, for a stack is walked from one end to the other. Millions of words are asked for, of
        // code that nothing has optimised: a plain loop.
        let mut at = pages.len();
        while at > 0 && pages[at - 1].0 != first {
            at -= 1;
        }
        if at == 0 {
            pages.push(Page(first, [0; PAGE as usize]));
            at = pages.len();
            if self
                .memory
                .read_exact_at(&mut pages[at - 1].1, first)
                .is_err()
            {
                pages.pop();
                return None;
            }
        }
        pages[at - 1].word(address).or_else(|| {
            // It lies in two of them.
            let mut word = [0; 8];
            self.memory.read_exact_at(&mut word, address).ok()?;
            Some(u64::from_ne_bytes(word))
        })
    }

    fn thread_pointer(&self) -> Option<u64> {
        Some(self.thread_pointer)
    }
}

impl Code for Stepped {
    fn at(&self, address: u64) -> Place<'_> {
        if (self.code.0..self.code.1).contains(&address) {
            return Place::Table(&self.table, address.wrapping_sub(self.bias));
        }
        match &self.vdso {
            Some((start, end, table)) if (*start..*end).contains(&address) => {
                Place::Table(table, address - start)
            }
            _ => Place::Unmapped,
        }
    }
}
