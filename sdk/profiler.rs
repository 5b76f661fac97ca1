//! Markers by which a program says what is to be traced, whoever traces it: what `profiler.h` is for C, as a module of
//! Rust without dependencies.
//!
//! Names and types as text with a zero at its end -> static probes (USDT) `profiler:start_trace` and
//! `profiler:stop_trace`, which clients of `profiler serve --rdp` are told of that are attached to the calling thread.
//! While there are none, each costs a look at a counter. Linux on x86-64; elsewhere they do nothing. Source: systemtap's
//! `sys/sdt.h`, version 3 of the notes. This file may be copied into any program.

use std::ffi::CStr;

/// Begins a trace of the calling thread. Without a name one is made up; one of the same name is replaced. `types` are
/// those that are wanted of each frame, with commas in between (`name,time,arguments`); none: the eight of the
/// specification. Of either up to 255 bytes count.
#[inline]
pub fn start_trace(name: Option<&CStr>, types: Option<&CStr>) {
    imp::start_trace(name, types);
}

/// Ends the trace of this name of the calling thread; none: that which was begun last, whoever did.
#[inline]
pub fn stop_trace(name: Option<&CStr>) {
    imp::stop_trace(name);
}

/// Whether somebody is attached who would be told of a trace.
#[inline]
pub fn is_watched() -> bool {
    imp::is_watched()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64"))]
mod imp {
    use std::arch::asm;
    use std::ffi::CStr;
    use std::hint::black_box;
    use std::ptr;
    use std::sync::atomic::{AtomicU16, Ordering};

    /// How many trace each of them: the kernel counts.
    #[unsafe(link_section = ".probes")]
    static START: AtomicU16 = AtomicU16::new(0);
    #[unsafe(link_section = ".probes")]
    static STOP: AtomicU16 = AtomicU16::new(0);

    /// A no-operation, and the note that says where it is and where its arguments are.
    macro_rules! marker {
        ($name:literal, $arguments:literal, $counter:path, $($text:ident),+) => {
            // SAFETY: a no-operation, which reads and writes nothing; the rest is data of sections that no code looks at.
            unsafe {
                asm!(
                    "990: nop",
                    ".pushsection .note.stapsdt,\"?\",\"note\"",
                    ".balign 4",
                    ".4byte 992f-991f, 994f-993f, 3",
                    "991: .asciz \"stapsdt\"",
                    "992: .balign 4",
                    "993: .8byte 990b, _.stapsdt.base, {counter}",
                    ".asciz \"profiler\"",
                    concat!(".asciz \"", $name, "\""),
                    concat!(".asciz \"", $arguments, "\""),
                    "994: .balign 4",
                    ".popsection",
                    ".ifndef _.stapsdt.base",
                    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                    ".weak _.stapsdt.base",
                    ".hidden _.stapsdt.base",
                    "_.stapsdt.base: .space 1",
                    ".size _.stapsdt.base, 1",
                    ".popsection",
                    ".endif",
                    counter = sym $counter,
                    $($text = in(reg) $text,)+
                    options(att_syntax, readonly, preserves_flags, nostack),
                )
            }
        };
    }

    pub(super) fn is_watched() -> bool {
        START.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(super) fn start_trace(name: Option<&CStr>, types: Option<&CStr>) {
        if START.load(Ordering::Relaxed) != 0 {
            let (name, types) = (text(name), text(types));
            marker!("start_trace", "8@{name} 8@{types}", START, name, types);
        }
    }

    #[inline]
    pub(super) fn stop_trace(name: Option<&CStr>) {
        if STOP.load(Ordering::Relaxed) != 0 {
            let name = text(name);
            marker!("stop_trace", "8@{name}", STOP, name);
        }
    }

    /// Where text is. The kernel reads it only where it is in memory: what the program has never looked at need not be.
    fn text(text: Option<&CStr>) -> *const i8 {
        let Some(text) = text else {
            return ptr::null();
        };
        for byte in text.to_bytes() {
            black_box(byte);
        }
        text.as_ptr()
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64")))]
mod imp {
    use std::ffi::CStr;

    pub(super) fn is_watched() -> bool {
        false
    }
    pub(super) fn start_trace(_: Option<&CStr>, _: Option<&CStr>) {}
    pub(super) fn stop_trace(_: Option<&CStr>) {}
}
