//! This very process, as a walk sees it, and what the C library's unwinder says of the same stacks.
//!
//! /proc/self -> [`Code`] and [`Memory`]; a function called in a signal handler -> both opinions.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use object::elf::PF_X;
use object::{Object, ObjectSegment, SegmentFlags};
use profiler_unwind::walk::{Code, Memory, Place, Start};
use profiler_unwind::{Table, build_file, build_vdso};

/// Executable memory of this process.
pub(crate) struct Process {
    ranges: Vec<Range>,
    memory: File,
}

struct Range {
    start: u64,
    end: u64,
    /// The file's own address of `start`.
    address: u64,
    table: Option<Table>,
    path: String,
    build_id: String,
}

impl Process {
    pub(crate) fn read() -> Process {
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut ranges = Vec::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [range, permissions, offset, _, _, ref path @ ..] = words[..] else {
                continue;
            };
            if !permissions.contains('x') {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end, offset) = (number(start), number(end), number(offset));
            let mut range = Range {
                start,
                end,
                address: 0,
                table: None,
                path: path.join(" "),
                build_id: String::new(),
            };
            if range.path == "[vdso]" {
                let mut bytes = vec![0; (end - start) as usize];
                memory.read_exact_at(&mut bytes, start).unwrap();
                range.table = Some(build_vdso(&bytes).unwrap().0);
            } else if range.path.starts_with('/') {
                let file = File::open(&range.path).unwrap();
                let bytes = std::fs::read(&range.path).unwrap();
                let elf = object::File::parse(&*bytes).unwrap();
                let mut segments = elf.segments();
                let bias = segments.find_map(|segment| {
                    let (at, len) = segment.file_range();
                    let covers = at & !0xfff <= offset && offset < at + len;
                    (covers && is_code(&segment)).then(|| segment.address().wrapping_sub(at))
                });
                range.address = offset.wrapping_add(bias.unwrap());
                range.table = Some(build_file(&file, None).unwrap().0);
                let id = elf.build_id().unwrap().unwrap_or_default();
                range.build_id = hexadecimal(id);
            }
            ranges.push(range);
        }
        Process { ranges, memory }
    }

    /// Build id and path of what is mapped at an address; of what is not installed, its name.
    pub(crate) fn file(&self, address: u64) -> (String, String) {
        let range = self.range(address).unwrap();
        let name = match range.path.rsplit_once('/') {
            Some((directory, name)) if !directory.starts_with("/usr") => name,
            _ => &range.path,
        };
        (range.build_id.clone(), name.to_owned())
    }

    fn range(&self, address: u64) -> Option<&Range> {
        let mut ranges = self.ranges.iter();
        ranges.find(|range| (range.start..range.end).contains(&address))
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_code<'a>(segment: &impl ObjectSegment<'a>) -> bool {
    let flags = segment.flags();
    matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0)
}

impl Code for Process {
    fn at(&self, address: u64) -> Place<'_> {
        let Some(range) = self.range(address) else {
            return Place::Unmapped;
        };
        match &range.table {
            Some(table) => Place::Table(table, address - range.start + range.address),
            None => Place::Jit,
        }
    }
}

impl Memory for Process {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        let read = self.memory.read_exact_at(&mut word, address);
        read.ok().map(|()| u64::from_le_bytes(word))
    }
}

/// What the C library's unwinder finds from here on: return addresses, and those that signals
/// interrupted.
#[inline(always)]
fn other_opinion() -> Vec<u64> {
    let mut addresses = [std::ptr::null_mut::<c_void>(); 200];
    // SAFETY: the array has as many places as is said.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), addresses.len() as c_int) };
    let found = &addresses[..count as usize];
    found.iter().map(|&address| address as u64).collect()
}

/// Where a walk of what a `ucontext_t` describes begins.
fn start_of(context: &libc::ucontext_t) -> Start {
    let registers = &context.uc_mcontext.gregs;
    let register = |number: c_int| registers[number as usize] as u64;
    Start {
        pc: register(libc::REG_RIP),
        is_return: false,
        all_known: true,
        fp_known: true,
        registers: [
            libc::REG_RAX,
            libc::REG_RDX,
            libc::REG_RCX,
            libc::REG_RBX,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_RBP,
            libc::REG_RSP,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ]
        .map(register),
    }
}

/// What a handler was asked to do with what it interrupted and with itself.
type Look = Box<dyn FnMut(Start, Start, Vec<u64>)>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = RefCell::default();
}

extern "C" fn handler(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let mut own = MaybeUninit::<libc::ucontext_t>::uninit();
    // SAFETY: it writes to what it is given.
    unsafe { libc::getcontext(own.as_mut_ptr()) };
    // SAFETY: written, but for members that are not looked at, and plain numbers.
    let own = start_of(unsafe { own.assume_init_ref() });
    // SAFETY: the kernel gives a handler with SA_SIGINFO a pointer to a context.
    let interrupted = start_of(unsafe { &*context.cast::<libc::ucontext_t>() });
    let addresses = other_opinion();
    // The signal is sent by the thread to itself, so nothing of what this calls is in the midst of
    // anything.
    LOOK.with_borrow_mut(|look| {
        if let Some(look) = look {
            look(interrupted, own, addresses);
        }
    });
}

/// Sends the thread a signal, whose handler calls `look`: where the interrupted code and the handler
/// stand, and what the C library's unwinder finds from the handler on. `aside`: on a stack of its own.
#[inline(never)]
pub(crate) fn interrupt(aside: bool, look: impl FnMut(Start, Start, Vec<u64>) + 'static) {
    LOOK.set(Some(Box::new(look)));
    let mut other = vec![0u8; 1 << 20];
    // SAFETY: plain system calls; the stack lives until it is taken out of use again. The handler
    // uses only what its own thread has.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        stack.ss_sp = other.as_mut_ptr().cast();
        stack.ss_size = other.len();
        let mut before: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(&stack, &mut before), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | if aside { libc::SA_ONSTACK } else { 0 };
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
        assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
    }
    LOOK.set(None);
}
