//! Spike: stacks as they are through the ring buffer, against a stack map of the kernel.
//!
//! Both sample the same workload with cpu-clock at 4,999 Hz, in turns, with BPF statistics on.
//! Prints ns per run of the kernel-side program, bytes per sample that user space reads, CPU time
//! of user space per sample, memory in the kernel, and stacks lost. As root:
//! `cargo run --release -p profiler-tests --example stack_transport`. The numbers are in
//! docs/adr/0001-raw-stacks-through-the-ring.md.

#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use aya::maps::{Map, MapData, RingBuf, StackTraceMap};
use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, bpf_map_type, perf_event_attr,
};
use profiler_probe::{Probe, ProbeOptions, Rate, SourceSpec};
use profiler_target::Filter;

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(3);
const HZ: u64 = 4999;

std::arch::global_asm!(
    // rdi: frames still to push; rsi: rounds of the leaf.
    "spike_descend: push rbp; mov rbp, rsp; dec rdi; jz 2f; call spike_descend; pop rbp; ret",
    "2: dec rsi; jnz 2b; pop rbp; ret",
);

unsafe extern "C" {
    fn spike_descend(depth: u64, rounds: u64);
}

/// What one way of sampling cost.
#[derive(Default)]
struct Cost {
    kernel_ns: u64,
    runs: u64,
    samples: u64,
    bytes: u64,
    user_ns: u64,
    memory: u64,
    lost: u64,
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("work") {
        // Depths as in real programs, changing all the time.
        for depth in (5..60).cycle() {
            // SAFETY: pushes `depth` frames of 16 bytes, counts, and returns.
            unsafe { spike_descend(depth, 100_000) };
        }
    }
    let stats = "/proc/sys/kernel/bpf_stats_enabled";
    let before = fs::read_to_string(stats).unwrap();
    fs::write(stats, "1").unwrap();
    let mut workers: Vec<_> = (0..2)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .arg("work")
                .spawn()
                .unwrap()
        })
        .collect();
    let (mut ring, mut map) = (Cost::default(), Cost::default());
    for _ in 0..ROUNDS {
        raw_stacks(&mut ring);
        stack_map(&mut map);
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    fs::write(stats, before).unwrap();
    println!("way          kernel ns/run  bytes/sample  user ns/sample  memory KiB  samples  lost");
    for (name, cost) in [("ring", ring), ("stack map", map)] {
        println!(
            "{name:<12} {:>13}  {:>12}  {:>14}  {:>10}  {:>7}  {:>4}",
            cost.kernel_ns / cost.runs.max(1),
            cost.bytes / cost.samples.max(1),
            cost.user_ns / cost.samples.max(1),
            cost.memory / 1024,
            cost.samples,
            cost.lost
        );
    }
}

fn raw_stacks(cost: &mut Cost) {
    let mut probe = Probe::attach(ProbeOptions {
        hierarchy: None,
        sources: vec![SourceSpec {
            event: "cpu-clock".parse().unwrap(),
            rate: Rate::FrequencyHz(HZ),
        }],
        filter: Filter::default(),
        buffer_bytes: 2 << 20,
        kernel_stacks: true,
        user_stacks: true,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    })
    .unwrap();
    let mut out = Vec::new();
    for_a_while(|| {
        let start = cpu_ns();
        out.clear();
        let stats = probe.drain(&mut out);
        cost.user_ns += cpu_ns() - start;
        cost.bytes += stats.ring_bytes as u64;
    });
    for counters in &probe.counters()[0] {
        cost.samples += counters.sent;
        cost.lost += counters.ring_full;
    }
    cost.memory = probe.memory_bytes();
    add_program_stats(cost);
}

fn stack_map(cost: &mut Cost) {
    let create = |kind: bpf_map_type, key, value, entries| {
        let map = aya_obj::Map::new_from_params(kind as u32, key, value, entries, 0);
        MapData::create(map, "spike", None).unwrap()
    };
    let stacks = create(bpf_map_type::BPF_MAP_TYPE_STACK_TRACE, 4, 127 * 8, 16_384);
    let ring = create(bpf_map_type::BPF_MAP_TYPE_RINGBUF, 0, 0, 2 << 20);
    let program = load(
        stacks.fd().as_fd().as_raw_fd(),
        ring.fd().as_fd().as_raw_fd(),
    );
    cost.memory = field(stacks.fd().as_fd().as_raw_fd(), "memlock:")
        + field(ring.fd().as_fd().as_raw_fd(), "memlock:");
    let events: Vec<OwnedFd> = (0..2).map(|cpu| attach(cpu, &program)).collect();
    let mut ring = RingBuf::try_from(Map::RingBuf(ring)).unwrap();
    let stacks = StackTraceMap::try_from(Map::StackTraceMap(stacks)).unwrap();
    let mut known = BTreeSet::new();
    for_a_while(|| {
        let start = cpu_ns();
        while let Some(record) = ring.next() {
            cost.samples += 1;
            cost.bytes += record.len() as u64 + 8;
            for id in [16, 24] {
                let id = i64::from_ne_bytes(record[id..id + 8].try_into().unwrap());
                // -EFAULT: there is no such stack; -EEXIST: its place is taken by another.
                cost.lost += u64::from(id == -17);
                if let Ok(id) = u32::try_from(id)
                    && known.insert(id)
                {
                    let stack = stacks.get(&id, 0).unwrap();
                    cost.bytes += stack.frames().len() as u64 * 8;
                }
            }
        }
        cost.user_ns += cpu_ns() - start;
    });
    add_program_stats(cost);
    drop(events);
}

fn for_a_while(mut poll: impl FnMut()) {
    let end = Instant::now() + TIME;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        poll();
    }
}

fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Adds what the kernel says of the programs that this process holds.
fn add_program_stats(cost: &mut Cost) {
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let fd = entry.file_name().to_string_lossy().parse().unwrap();
        cost.kernel_ns += field(fd, "run_time_ns:");
        cost.runs += field(fd, "run_cnt:");
    }
}

fn field(fd: i32, name: &str) -> u64 {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or(0)
}

/// Loads a program that puts both stacks into the map, and time, thread and ids into the ring.
fn load(stacks: i32, ring: i32) -> OwnedFd {
    const fn instruction(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
        code as u64
            | (dst as u64) << 8
            | (src as u64) << 12
            | (offset as u16 as u64) << 16
            | (value as u32 as u64) << 32
    }
    let copy = |dst, src| instruction(0xbf, dst, src, 0, 0);
    let set = |dst, value| instruction(0xb7, dst, 0, 0, value);
    let call = |helper| instruction(0x85, 0, 0, 0, helper);
    let store = |offset, src| instruction(0x7b, 10, src, offset, 0);
    let map = |dst, fd| [instruction(0x18, dst, 1, 0, fd), 0];
    let mut code = vec![copy(6, 1)];
    for (flags, result) in [(0, 7), (256, 8)] {
        code.push(copy(1, 6));
        code.extend(map(2, stacks));
        // bpf_get_stackid
        code.extend([set(3, flags), call(27), copy(result, 0)]);
    }
    // bpf_get_current_pid_tgid, bpf_ktime_get_ns
    code.extend([call(14), store(-24, 0), call(5), store(-32, 0)]);
    code.extend([store(-16, 7), store(-8, 8)]);
    code.extend(map(1, ring));
    code.extend([
        copy(2, 10),
        instruction(0x07, 2, 0, 0, -32),
        set(3, 32),
        set(4, 1),
    ]);
    // bpf_ringbuf_output
    code.extend([call(130), set(0, 0), instruction(0x95, 0, 0, 0, 0)]);

    let mut attr = [0_u64; 16];
    // prog_type BPF_PROG_TYPE_PERF_EVENT, insn_cnt, insns, license.
    attr[0] = 7 | (code.len() as u64) << 32;
    attr[1] = code.as_ptr() as u64;
    attr[2] = c"GPL".as_ptr() as u64;
    // SAFETY: BPF_PROG_LOAD of an attribute whose pointers live through the call.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, 5, attr.as_ptr(), size_of_val(&attr));
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    }
}

fn attach(cpu: i32, program: &OwnedFd) -> OwnedFd {
    // SAFETY: a C structure of integers; perf_event_open only reads it, and the ioctls take
    // integers.
    unsafe {
        let mut attr: perf_event_attr = std::mem::zeroed();
        attr.type_ = 1;
        attr.size = size_of::<perf_event_attr>() as u32;
        attr.__bindgen_anon_1.sample_period = 1_000_000_000 / HZ;
        attr.set_disabled(1);
        let fd = libc::syscall(libc::SYS_perf_event_open, &attr, -1, cpu, -1, 8);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let raw = fd.as_raw_fd();
        assert_eq!(
            libc::ioctl(raw, PERF_EVENT_IOC_SET_BPF.into(), program.as_raw_fd()),
            0
        );
        assert_eq!(libc::ioctl(raw, PERF_EVENT_IOC_ENABLE.into(), 0), 0);
        fd
    }
}
