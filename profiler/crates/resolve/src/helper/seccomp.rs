//! The calls of the kernel that the processes may make which read symbols, and memory.
//!
//! A list -> a program of classic BPF, which the kernel runs at each call: what is not in the list fails
//! with EPERM; calls of another architecture end the process. It can read and map what it has, take memory,
//! answer, and end. It can't start anything or speak to anybody; who reads memory may do that beside, and nobody else reaches another process. Source: seccomp(2).
//!
//! What does not belong here: the other walls (`walls`).

use std::io;

/// Calls that are allowed whatever their arguments are.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_ftruncate,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_ppoll,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Paths: there are none but its own descriptors and links to them, once it has a root of its own.
pub(super) const PATHS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_symlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Where the kernel shows the parts of a call to the program.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// The lower half of the first argument: the process that a signal is for.
const PROCESS_AT: u32 = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
/// That of the third: the protection of what is mapped.
const PROTECTION_AT: u32 = PROCESS_AT + 2 * 8;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn program(more: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let allow = step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let refuse = step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program = vec![
        step(LOAD_WORD, 0, 0, ARCHITECTURE_AT),
        step(IF_EQUAL, 1, 0, ARCHITECTURE),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD_WORD, 0, 0, NUMBER_AT),
    ];
    for &call in ALLOWED.iter().chain(more) {
        program.extend([step(IF_EQUAL, 0, 1, call as u32), allow]);
    }
    // Memory, but none that can be executed.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        program.extend([
            step(IF_EQUAL, 0, 4, call as u32),
            step(LOAD_WORD, 0, 0, PROTECTION_AT),
            step(IF_SET, 0, 1, libc::PROT_EXEC as u32),
            refuse,
            allow,
        ]);
    }
    // Signals to itself: what runs out of memory ends by one.
    program.extend([
        step(IF_EQUAL, 0, 3, libc::SYS_tgkill as u32),
        step(LOAD_WORD, 0, 0, PROCESS_AT),
        step(IF_EQUAL, 0, 1, std::process::id()),
        allow,
    ]);
    program.push(refuse);
    program
}

/// From now on the calling thread can do no more than the list says, and these calls. Needs `no_new_privs`.
#[allow(unsafe_code)]
pub(super) fn restrict(more: &[libc::c_long]) -> io::Result<()> {
    if ARCHITECTURE == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let program = program(more);
    let described = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program that `described` points to, and keeps a copy.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const described,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
