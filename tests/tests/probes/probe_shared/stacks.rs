//! Chains of calls that are known to the byte: written in assembly, without frame pointers.
//!
//! `enter` never returns. [`Code`] says where the code of another process is, what its rules are, and
//! what its stack must be.

#![allow(unsafe_code)]

use std::arch::{asm, global_asm};

use profiler_common::sample::EXACT_ADDRESS;
use profiler_common::unwind::{CFA_REGISTER, CFA_SIGNAL, FP_AT_CFA, FP_SAME, REGISTER_SP, Rule};
use profiler_unwind::{Builder, Entry, Table};

global_asm!(
    // From here on there is no caller.
    ".balign 4096",
    "unwind_bottom:",
    "call unwind_recurse",
    "unwind_bottom_return:",
    "ud2",
    ".balign 16",
    // edi: how many calls; rsi: where to go then. Uses the frame pointer for something else.
    "unwind_recurse:",
    "push rbp",
    "unwind_recurse_1:",
    "sub rsp, 0x28",
    "unwind_recurse_2:",
    "lea rbp, [rsp + 3]",
    "dec edi",
    "jz 2f",
    "call unwind_recurse",
    "unwind_recurse_return:",
    "ud2",
    "2:",
    "jmp rsi",
    "unwind_recurse_end:",
    ".balign 4096",
    // What follows is reached by a jump from the last call, whose frame it has.
    "unwind_spin:",
    "jmp unwind_spin",
    "unwind_fault:",
    "ud2",
    "unwind_getppid:",
    "mov eax, 110",
    "syscall",
    "unwind_getppid_return:",
    "jmp unwind_getppid",
    "unwind_frame:",
    "call unwind_framed",
    "unwind_frame_return:",
    "ud2",
    "unwind_return:",
    "call unwind_returning",
    "jmp unwind_return",
    "unwind_frame_end:",
    ".balign 16",
    // A handler of signals and what it returns to.
    "unwind_handler:",
    "jmp unwind_handler",
    "unwind_handler_end:",
    ".balign 16",
    "nop",
    "unwind_restorer:",
    "mov eax, 15",
    "syscall",
    "unwind_restorer_end:",
    ".balign 16",
    // Called by one that has a frame pointer.
    "unwind_inner:",
    "sub rsp, 0x18",
    "unwind_inner_1:",
    "jmp unwind_inner_1",
    "unwind_inner_end:",
    ".balign 16",
    "unwind_returning:",
    "push rbx",
    "unwind_returning_1:",
    "mov ecx, 100",
    "3: dec ecx",
    "jnz 3b",
    "pop rbx",
    "unwind_returning_2:",
    "ret",
    "unwind_returning_end:",
    ".balign 4096",
    // No table says anything about this one.
    "unwind_framed:",
    "push rbp",
    "mov rbp, rsp",
    "call unwind_inner",
    "unwind_framed_return:",
    "ud2",
    ".balign 4096",
    "unwind_end:",
);

macro_rules! places {
    ($($name:ident $symbol:ident)*) => {
        mod symbols {
            unsafe extern "C" { $(pub(super) fn $symbol();)* }
        }

        /// Where the code of a process is.
        #[derive(Clone, Copy, Debug)]
        pub struct Code { $(pub $name: u64),* }

        impl Code {
            /// That of this process.
            pub fn here() -> Code {
                Code { $($name: symbols::$symbol as *const () as u64),* }
            }

            pub fn line(&self) -> String {
                [$(self.$name.to_string()),*].join(" ")
            }

            pub fn parse(line: &str) -> Code {
                let mut words = line.split(' ').map(|word| word.parse().unwrap());
                Code { $($name: words.next().unwrap()),* }
            }
        }
    };
}

places! {
    bottom unwind_bottom
    bottom_return unwind_bottom_return
    recurse unwind_recurse
    recurse_1 unwind_recurse_1
    recurse_2 unwind_recurse_2
    recurse_return unwind_recurse_return
    recurse_end unwind_recurse_end
    spin unwind_spin
    fault unwind_fault
    getppid unwind_getppid
    getppid_return unwind_getppid_return
    frame unwind_frame
    frame_return unwind_frame_return
    return_ unwind_return
    frame_end unwind_frame_end
    handler unwind_handler
    handler_end unwind_handler_end
    restorer unwind_restorer
    restorer_end unwind_restorer_end
    inner unwind_inner
    inner_1 unwind_inner_1
    inner_end unwind_inner_end
    returning unwind_returning
    returning_1 unwind_returning_1
    returning_2 unwind_returning_2
    returning_end unwind_returning_end
    framed unwind_framed
    framed_return unwind_framed_return
    end unwind_end
}

/// Where the stack pointer was before the call, and whether the frame pointer was saved.
fn rule(cfa_offset: i32, saved: bool) -> Entry {
    Entry::Rule(Rule {
        cfa: CFA_REGISTER,
        register: REGISTER_SP,
        fp: if saved { FP_AT_CFA } else { FP_SAME },
        cfa_offset,
        fp_offset: if saved { -2 } else { 0 },
        ra_offset: -1,
        ..Rule::default()
    })
}

fn signal() -> Entry {
    Entry::Rule(Rule {
        cfa: CFA_SIGNAL,
        ..Rule::default()
    })
}

impl Code {
    /// What its `.eh_frame` would say.
    pub fn table(&self) -> Table {
        self.shifted_table(0)
    }

    /// The same with all stack pointers off by so much: every walk by it is wrong.
    pub fn shifted_table(&self, by: i32) -> Table {
        let mut builder = Builder::default();
        for (address, entry) in [
            (self.bottom, Entry::End),
            (self.recurse, rule(8 + by, false)),
            (self.recurse_1, rule(16 + by, true)),
            (self.recurse_2, rule(0x38 + by, true)),
            (self.recurse_end, Entry::None),
            (self.spin, rule(0x38 + by, true)),
            (self.frame_end, Entry::None),
            (self.handler, rule(8 + by, false)),
            (self.handler_end, Entry::None),
            (self.restorer - 1, signal()),
            (self.restorer_end, Entry::None),
            (self.inner, rule(8 + by, false)),
            (self.inner_1, rule(0x20 + by, false)),
            (self.inner_end, Entry::None),
            (self.returning, rule(8 + by, false)),
            (self.returning_1, rule(16 + by, false)),
            (self.returning_2, rule(8 + by, false)),
            (self.returning_end, Entry::None),
        ] {
            builder.push(address, entry);
        }
        builder.finish().unwrap()
    }

    /// The stack of a role, leaf first, as the kernel side gives it.
    pub fn stack(&self, role: &str, depth: usize) -> Vec<u64> {
        let mut stack = match role {
            "recursion" => vec![self.spin],
            "signal" => vec![self.handler, self.restorer, self.fault | EXACT_ADDRESS],
            "system calls" => vec![self.getppid_return],
            "frame pointer" => vec![self.inner_1, self.framed_return, self.frame_return],
            _ => panic!("no such role: {role}"),
        };
        stack.resize(stack.len() + depth - 1, self.recurse_return);
        stack.push(self.bottom_return);
        stack
    }
}

/// Runs a role; does not return.
pub fn enter(role: &str, depth: u32) -> ! {
    let then = match role {
        "recursion" => symbols::unwind_spin,
        "signal" => {
            handle_faults();
            symbols::unwind_fault
        }
        "system calls" => symbols::unwind_getppid,
        "frame pointer" => symbols::unwind_frame,
        "returns" => symbols::unwind_return,
        _ => panic!("no such role: {role}"),
    };
    // SAFETY: the code never returns, and uses little of the stack.
    unsafe {
        asm!(
            "and rsp, -16",
            "call unwind_bottom",
            in("edi") depth,
            in("rsi") then as *const (),
            options(noreturn)
        )
    }
}

/// Has our handler called for an invalid instruction, and return by our restorer.
fn handle_faults() {
    #[repr(C)]
    struct Action {
        handler: *const (),
        flags: u64,
        restorer: *const (),
        mask: u64,
    }
    const SA_RESTORER: u64 = 0x0400_0000;
    let action = Action {
        handler: symbols::unwind_handler as *const (),
        flags: SA_RESTORER,
        restorer: symbols::unwind_restorer as *const (),
        mask: 0,
    };
    // SAFETY: the layout is the kernel's, and lives through the call; the code is a handler.
    let set = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGILL,
            &raw const action,
            0,
            8,
        )
    };
    assert_eq!(set, 0);
}
