//! System calls that no crate in use wraps: perf events, their mapped buffers, memory of the kernel that it shows, a
//! private tracefs.
//!
//! Typed arguments -> `io::Result`. With `bpf` and `schedule` the files of this module with unsafe code;
//! nothing here decides anything.

#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    fs::File,
    io,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::Pod;
use aya_obj::generated::{
    PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_PERIOD, PERF_EVENT_IOC_SET_BPF,
    PERF_FLAG_FD_CLOEXEC, perf_event_attr, perf_event_mmap_page,
};
use bytes::{BufMut, BytesMut};
use zerocopy::{FromBytes, IntoBytes};

/// A value of a map that aya reads or writes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MapValue<T>(pub(super) T);

// SAFETY: `IntoBytes` says that there is no padding, `FromBytes` that all bit patterns are valid.
unsafe impl<T: FromBytes + IntoBytes + Copy + 'static> Pod for MapValue<T> {}

/// Blocks all signals that can be blocked, for this thread and those that it starts; those that were before.
pub(super) fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: two sets on this stack, given to calls that fill and read them.
    let (failed, before) = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        let set = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        (set, before)
    };
    match failed {
        0 => Ok(before),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// While it lives, this thread takes no signals that can be blocked: others of the process do, or they wait.
pub(super) struct Unheard(Option<libc::sigset_t>);

impl Unheard {
    pub(super) fn begin() -> Unheard {
        Unheard(block_signals().ok())
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: a set that the kernel has given; it is only read.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
            }
        }
    }
}

/// Takes from the calling thread, as long as it lives, the right to open files: it is told that they are not
/// there.
pub(super) fn deny_opening() -> io::Result<()> {
    const fn instruction(code: u32, jump_unless: u8, value: u32) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: jump_unless,
            k: value,
        }
    }
    // A word of `seccomp_data`: its first one is the number of the system call.
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_openat as u32,
        ),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOENT.cast_unsigned(),
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // Without this the kernel wants CAP_SYS_ADMIN. It holds for this thread alone, as the filter does.
    rustix::thread::set_no_new_privs(true)?;
    let flags = 0;
    // SAFETY: `program` and the instructions that it points to live through the call, which copies them.
    let set = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An attribute block with nothing set but its size.
pub(super) fn empty_attr() -> perf_event_attr {
    // SAFETY: a C structure of integers, for which all zeros is "nothing asked for".
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.size = size_of::<perf_event_attr>() as u32;
    attr
}

/// `perf_event_open(2)`; -1 for any process or processor.
pub(super) fn perf_event_open(attr: &perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: `attr` lives through the call and says its own size; the kernel only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            pid,
            cpu,
            -1,
            u64::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    owned(fd)
}

/// Opens an event on a place in a file that code is mapped from, or on returns of the function that
/// begins there. `kind` is the kernel's number for such events; `whom` a process and a processor,
/// -1 for any.
pub(super) fn open_uprobe(
    kind: u32,
    path: &CStr,
    offset: u64,
    at_return: bool,
    semaphore: Option<u64>,
    whom: (i32, i32),
) -> io::Result<OwnedFd> {
    let mut attr = empty_attr();
    attr.type_ = kind;
    // As described in /sys/bus/event_source/devices/uprobe/format.
    attr.config = u64::from(at_return) | semaphore.unwrap_or(0) << 32;
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    attr.__bindgen_anon_1.sample_period = 1;
    perf_event_open(&attr, whom.0, whom.1)
}

/// Has `program` run on each overflow of `event`.
pub(super) fn set_program(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())
}

/// Starts an event that is disabled.
pub(super) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_ENABLE, 0)
}

/// Stops an event: its program does not run any more when this returns.
pub(super) fn disable(event: BorrowedFd<'_>) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_DISABLE, 0)
}

/// Gives an event another period, or another frequency if it was opened with one.
pub(super) fn set_period(event: BorrowedFd<'_>, period: u64) -> io::Result<()> {
    let request = libc::c_ulong::from(PERF_EVENT_IOC_PERIOD);
    // SAFETY: this request reads the u64 that it is given the address of.
    match unsafe { libc::ioctl(event.as_raw_fd(), request, &raw const period) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ioctl(fd: BorrowedFd<'_>, request: u32, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: the requests used here take an integer argument, no pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), argument) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts tracefs where only the returned descriptor sees it; closing that unmounts it.
pub(super) fn mount_tracefs() -> io::Result<OwnedFd> {
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const CLOEXEC: libc::c_uint = 1;
    // SAFETY: the name is a C string constant; the descriptors are passed on as integers.
    unsafe {
        let context = owned(libc::syscall(
            libc::SYS_fsopen,
            c"tracefs".as_ptr(),
            CLOEXEC,
        ))?;
        let null = std::ptr::null::<libc::c_void>();
        let created = libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            null,
            null,
            0,
        );
        if created != 0 {
            return Err(io::Error::last_os_error());
        }
        owned(libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            CLOEXEC,
            0,
        ))
    }
}

/// A file of the kernel's, mapped. Who maps it says how it may be accessed, and from which threads.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; this value alone unmaps it, and hands out no more than where it is.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file: `PROT_*`, and `MAP_SHARED` or `MAP_PRIVATE`.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        len: usize,
        access: libc::c_int,
        kind: libc::c_int,
    ) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Mapping { base, len })
    }

    /// Where it begins; there until this is dropped.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; who refers into it borrows who holds this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A file of sysfs that shows memory of the kernel's own, mapped: it is not copied.
pub(super) struct KernelMemory(Mapping);

impl KernelMemory {
    /// Maps a file of `len` bytes. An error where it is another's file, which could become shorter, and where the kernel
    /// does not let this one be mapped.
    pub(super) fn map(file: &File, len: usize) -> io::Result<KernelMemory> {
        if rustix::fs::fstatfs(file)?.f_type != libc::SYSFS_MAGIC {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let mapping = Mapping::new(file.as_fd(), len, libc::PROT_READ, libc::MAP_PRIVATE)?;
        Ok(KernelMemory(mapping))
    }
}

impl Deref for KernelMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel maps no more than it has, `len` bytes of it or none; it is there as long as the kernel is, and
        // neither changes nor becomes shorter. The mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.len) }
    }
}

/// The mapped buffer of a perf event: a page of positions, then 2^n pages of records. Reading takes `&mut self`.
pub(super) struct PerfBuffer {
    mapping: Mapping,
    page_bytes: usize,
    data_bytes: usize,
}

impl PerfBuffer {
    /// Maps the buffer of `event`. `data_bytes` must be a power of two and whole pages.
    pub(super) fn map(event: BorrowedFd<'_>, data_bytes: usize) -> io::Result<PerfBuffer> {
        let page_bytes = rustix::param::page_size();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::new(event, page_bytes + data_bytes, access, libc::MAP_SHARED)?;
        Ok(PerfBuffer {
            mapping,
            page_bytes,
            data_bytes,
        })
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.mapping.len
    }

    /// Moves all records that are there to the end of `out`; whole records only. Returns the bytes
    /// moved.
    pub(super) fn take(&mut self, out: &mut BytesMut) -> usize {
        let tail = self.position(false).load(Ordering::Relaxed);
        // Acquire: the records are written before the kernel moves the head.
        let head = self.position(true).load(Ordering::Acquire);
        // The kernel never lets the head run ahead of the tail by more than the buffer.
        let len = (head.wrapping_sub(tail) as usize).min(self.data_bytes);
        let start = (tail as usize) & (self.data_bytes - 1);
        let first = len.min(self.data_bytes - start);
        // SAFETY: both pieces lie in the data pages; the kernel writes only outside of tail..head.
        unsafe {
            let data = self.mapping.base.as_ptr().add(self.page_bytes);
            out.put_slice(std::slice::from_raw_parts(data.add(start), first));
            out.put_slice(std::slice::from_raw_parts(data, len - first));
        }
        // Release: the records are read before the kernel may overwrite them.
        self.position(false).store(head, Ordering::Release);
        len
    }

    fn position(&self, head: bool) -> &AtomicU64 {
        let offset = if head {
            std::mem::offset_of!(perf_event_mmap_page, data_head)
        } else {
            std::mem::offset_of!(perf_event_mmap_page, data_tail)
        };
        // SAFETY: an aligned u64 within the first page, which lives as long as `self`; the kernel
        // and we access it atomically only.
        unsafe { AtomicU64::from_ptr(self.mapping.base.as_ptr().add(offset).cast()) }
    }
}
