//! Records with items: values of arguments and results, what is thrown, when a whole call began.
//!
//! A [`Hit`] -> head and items, put together in scratch memory and sent at once. User memory that is
//! not there, or not resident, gives an item that says so: this program must not sleep.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str},
};
use profiler_common::call::{
    CALL_HAS_CALLER, CallCpu, CallHead, EDGE_EXIT, EDGE_THROW, EDGE_WHOLE, FETCH_COUNTED,
    FETCH_MEMORY, FETCH_STRING, FETCH_WORD, Fetch, ITEM_BAD_MEMORY, ITEM_CUT, ITEM_OK, ItemHead,
    MAX_FETCHES, MAX_STRING, PROBE_CXX, PROBE_FETCHES,
};

use crate::{
    call::{self, Hit, add},
    emit,
    maps::{FETCHES, ITEM_BYTES, ITEM_SCRATCH, ITEM_SLOTS, ItemScratch},
    user_memory::read_word,
};

const HEAD_BYTES: u64 = size_of::<CallHead>() as u64;

/// Sends a hit with its items; without any if all workspaces are taken by threads that this one
/// has preempted. `cpu` is what the lookup of it returned.
#[inline(always)]
pub fn send(ctx: *mut c_void, hit: &mut Hit, cpu: *mut CallCpu) -> Result<(), emit::Full> {
    let Some(scratch) = claim() else {
        return if hit.edge == EDGE_WHOLE {
            call::send_whole(hit, cpu)
        } else {
            call::send_head(hit, cpu)
        };
    };
    // SAFETY: claimed above; the context of this program; the caller's lookup.
    unsafe {
        (*scratch).at = HEAD_BYTES;
        put_announced(scratch, hit);
        keep_registers(scratch, ctx.cast());
        if hit.edge == EDGE_THROW {
            put_thrown(scratch, hit);
        } else if hit.flags & u32::from(PROBE_FETCHES) != 0 {
            put_values(scratch, hit);
        }
        (&raw mut (*scratch).record)
            .cast::<CallHead>()
            .write_unaligned(hit.head);
        let len = bounded((*scratch).at);
        let sent = emit::emit_call(cpu, (&raw mut (*scratch).record).cast(), len);
        release(scratch);
        sent
    }
}

/// Workspace that no other thread uses. Adding and looking are two steps, but whoever finds 1 is
/// alone; if several come at once, some or all of them try the next one.
#[inline(always)]
fn claim() -> Option<*mut ItemScratch> {
    for slot in 0..ITEM_SLOTS {
        let scratch = ITEM_SCRATCH.get_ptr_mut(slot)?;
        // SAFETY: this processor's own slot, which the lookup returned.
        unsafe {
            let users = &raw mut (*scratch).users;
            add(users);
            if users.read_volatile() == 1 {
                return Some(scratch);
            }
            release(scratch);
        }
    }
    None
}

/// # Safety
/// `scratch` is a value that a lookup returned, to which this program has added itself.
#[inline(always)]
unsafe fn release(scratch: *mut ItemScratch) {
    // SAFETY: the caller's; the counter is at the beginning.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {less}", counter = in(reg) &raw mut (*scratch).users, less = in(reg) -1_i64);
    }
}

/// Items that the head announces.
///
/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn put_announced(scratch: *mut ItemScratch, hit: &mut Hit) {
    // SAFETY: the caller's.
    unsafe {
        if hit.edge == EDGE_WHOLE {
            put_word(scratch, ITEM_OK, hit.began_ns);
            if hit.callers != 0 {
                hit.head.what |= CALL_HAS_CALLER << 28;
                put_word(scratch, ITEM_OK, hit.caller);
            }
        } else if hit.wants_caller() {
            hit.head.what |= CALL_HAS_CALLER << 28;
            put_word_at(scratch, hit.sp);
        }
    }
}

/// What is thrown: by whom, and its type.
///
/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn put_thrown(scratch: *mut ItemScratch, hit: &Hit) {
    use profiler_common::call::{REGISTER_RDI, REGISTER_RSI};
    // SAFETY: the caller's; the registers have constant indices.
    unsafe {
        put_word_at(scratch, hit.sp);
        if hit.flags & u32::from(PROBE_CXX) == 0 {
            // _Unwind_RaiseException(exception), which begins with the class.
            let exception = (*scratch).registers[REGISTER_RDI as usize];
            put_memory(scratch, exception, 8, ITEM_OK);
            return;
        }
        // __cxa_throw(object, type, ..): a type has a table of functions, then its name.
        let name = (*scratch).registers[REGISTER_RSI as usize].wrapping_add(8);
        match read_word(name) {
            Some(name) => put_string(scratch, name, MAX_STRING as u64),
            None => put_word(scratch, ITEM_BAD_MEMORY, name),
        }
    }
}

/// The values that the probe was told to fetch at this side of the call.
///
/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn put_values(scratch: *mut ItemScratch, hit: &Hit) {
    let at_exit = hit.edge == EDGE_EXIT || hit.edge == EDGE_WHOLE;
    let Some(fetches) = FETCHES.get_ptr(hit.probe) else {
        return;
    };
    // SAFETY: the caller's; a value that the lookup returned.
    unsafe {
        (*scratch).word = 0;
        for index in 0..MAX_FETCHES {
            let fetch = &raw const (*fetches)[index];
            if (*fetch).kind == 0 {
                break;
            }
            if ((*fetch).at_exit != 0) == at_exit {
                put_value(scratch, fetch);
            }
        }
    }
}

/// # Safety
/// `scratch` is claimed by this program; `fetch` is in a value that a lookup returned.
#[inline(always)]
unsafe fn put_value(scratch: *mut ItemScratch, fetch: *const Fetch) {
    // SAFETY: the caller's; the index is below the number of registers.
    unsafe {
        let register = masked_register((*fetch).register);
        let mut value = (&raw const (*scratch).registers)
            .cast::<u64>()
            .add(register as usize)
            .read();
        let derefs = (*fetch).derefs;
        value = value.wrapping_add_signed((*fetch).offsets[0].into());
        if derefs > 0 {
            match read_word(value) {
                Some(word) => value = word,
                None => return put_word(scratch, ITEM_BAD_MEMORY, value),
            }
            value = value.wrapping_add_signed((*fetch).offsets[1].into());
        }
        if derefs > 1 {
            match read_word(value) {
                Some(word) => value = word,
                None => return put_word(scratch, ITEM_BAD_MEMORY, value),
            }
            value = value.wrapping_add_signed((*fetch).offsets[2].into());
        }
        let mut size = u64::from((*fetch).size);
        if size > MAX_STRING as u64 {
            size = MAX_STRING as u64;
        }
        match (*fetch).kind {
            FETCH_WORD => {
                (*scratch).word = value;
                put_word(scratch, ITEM_OK, value);
            }
            FETCH_STRING => put_string(scratch, value, size),
            FETCH_MEMORY => put_memory(scratch, value, size, ITEM_OK),
            FETCH_COUNTED => {
                let wanted = (*scratch).word;
                if wanted > size {
                    put_memory(scratch, value, size, ITEM_CUT);
                } else {
                    put_memory(scratch, value, wanted, ITEM_OK);
                }
            }
            // Of a newer user space: an item in its place keeps the others in theirs.
            _ => put_word(scratch, ITEM_BAD_MEMORY, value),
        }
    }
}

/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn put_word(scratch: *mut ItemScratch, status: u16, word: u64) {
    // SAFETY: the caller's; `next` leaves room for a word.
    unsafe {
        let item = next(scratch);
        item.add(8).cast::<u64>().write_unaligned(word);
        finish(scratch, item, status, 8);
    }
}

/// The word of user memory at `address`.
///
/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn put_word_at(scratch: *mut ItemScratch, address: u64) {
    // SAFETY: the caller's.
    unsafe {
        match read_word(address) {
            Some(word) => put_word(scratch, ITEM_OK, word),
            None => put_word(scratch, ITEM_BAD_MEMORY, address),
        }
    }
}

/// # Safety
/// `scratch` is claimed by this program; `size` is at most [`MAX_STRING`].
#[inline(always)]
unsafe fn put_string(scratch: *mut ItemScratch, address: u64, size: u64) {
    // SAFETY: the caller's; behind an item's head there is room for 511 bytes.
    unsafe {
        let item = next(scratch);
        // One more than fits, and its zero: so a string that just fits is told from a longer one.
        let room = short(size + 2);
        let read =
            bpf_probe_read_user_str(item.add(8).cast(), room as u32, address as *const c_void);
        if read < 1 {
            put_word(scratch, ITEM_BAD_MEMORY, address);
            return;
        }
        let len = read as u64 - 1;
        if len > size {
            finish(scratch, item, ITEM_CUT, size);
        } else {
            finish(scratch, item, ITEM_OK, len);
        }
    }
}

/// # Safety
/// `scratch` is claimed by this program; `size` is at most [`MAX_STRING`].
#[inline(always)]
unsafe fn put_memory(scratch: *mut ItemScratch, address: u64, size: u64, status: u16) {
    // SAFETY: the caller's; behind an item's head there is room for 511 bytes.
    unsafe {
        let item = next(scratch);
        let read = bpf_probe_read_user(
            item.add(8).cast(),
            short(size) as u32,
            address as *const c_void,
        );
        if read != 0 {
            put_word(scratch, ITEM_BAD_MEMORY, address);
            return;
        }
        finish(scratch, item, status, size);
    }
}

/// Where the next item begins.
///
/// # Safety
/// `scratch` is claimed by this program.
#[inline(always)]
unsafe fn next(scratch: *mut ItemScratch) -> *mut u8 {
    // SAFETY: the caller's; within the record, with room behind it.
    unsafe {
        (&raw mut (*scratch).record)
            .cast::<u8>()
            .add(bounded((*scratch).at) as usize)
    }
}

/// Writes an item's head; the next one begins behind its payload.
///
/// # Safety
/// `scratch` is claimed by this program; `item` is what `next` gave.
#[inline(always)]
unsafe fn finish(scratch: *mut ItemScratch, item: *mut u8, status: u16, len: u64) {
    // SAFETY: the caller's.
    unsafe {
        item.cast::<ItemHead>().write_unaligned(ItemHead {
            status,
            len: len as u16,
            reserved: 0,
        });
        (*scratch).at += 8 + (len + 7 & !7);
    }
}

/// # Safety
/// `scratch` is claimed by this program; `regs` is its context.
#[inline(always)]
unsafe fn keep_registers(scratch: *mut ItemScratch, regs: *const pt_regs) {
    use profiler_common::call as named;
    // SAFETY: the caller's; the verifier checks the fields.
    unsafe {
        let to = &mut (*scratch).registers;
        to[named::REGISTER_RDI as usize] = (*regs).rdi;
        to[named::REGISTER_RSI as usize] = (*regs).rsi;
        to[named::REGISTER_RDX as usize] = (*regs).rdx;
        to[named::REGISTER_RCX as usize] = (*regs).rcx;
        to[named::REGISTER_R8 as usize] = (*regs).r8;
        to[named::REGISTER_R9 as usize] = (*regs).r9;
        to[named::REGISTER_RAX as usize] = (*regs).rax;
        to[named::REGISTER_RSP as usize] = (*regs).rsp;
        to[named::REGISTER_RBP as usize] = (*regs).rbp;
        to[named::REGISTER_RBX as usize] = (*regs).rbx;
        to[named::REGISTER_R10 as usize] = (*regs).r10;
        to[named::REGISTER_R11 as usize] = (*regs).r11;
        to[named::REGISTER_R12 as usize] = (*regs).r12;
        to[named::REGISTER_R13 as usize] = (*regs).r13;
        to[named::REGISTER_R14 as usize] = (*regs).r14;
        to[named::REGISTER_R15 as usize] = (*regs).r15;
    }
}

/// `offset`, in a form from which the verifier sees that it is within the record.
#[inline(always)]
fn bounded(offset: u64) -> u64 {
    let mut bounded = offset;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0xfff", inout(reg) bounded) };
    bounded
}

/// `len`, in a form from which the verifier sees that it is below 512.
#[inline(always)]
fn short(len: u64) -> u64 {
    let mut bounded = len;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0x1ff", inout(reg) bounded) };
    bounded
}

/// `register`, in a form from which the verifier sees that it is one of 16.
#[inline(always)]
fn masked_register(register: u8) -> u64 {
    let mut bounded = u64::from(register);
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0xf", inout(reg) bounded) };
    bounded
}

const _: () = {
    // Where an item begins is a multiple of 8.
    assert!(ITEM_BYTES == 0xfff + 1);
    // A head, two words, what is thrown or fetched.
    assert!(32 + 2 * 16 + MAX_FETCHES * (8 + MAX_STRING) < ITEM_BYTES);
    assert!(MAX_STRING + 2 < 0x1ff);
};
