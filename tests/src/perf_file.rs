//! Files as `perf record -g` writes them, made by hand.
//!
//! Records, one after another -> bytes of a perf.data with two events: cpu-clock (id 7) and cycles (id 8). Times are nanoseconds.
//! Source: perf.data-file-format.txt of the kernel's tools, perf_event_open(2). What does not belong here: what becomes of them
//! (`formats::import`, the fuzz target `import`).

/// In a stack: the next addresses are of user mode.
pub const USER: u64 = -512_i64 as u64;
/// In a stack: the next addresses are of the kernel.
pub const KERNEL: u64 = -128_i64 as u64;
/// Where the kernel lies.
pub const BASE: u64 = 0xffff_ffff_9000_0000;
/// Of a fork: perf found the process running.
pub const FOUND: u16 = 1 << 13;

/// Records of a file.
#[derive(Clone, Debug, Default)]
pub struct PerfFile(Vec<u8>);

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len() / 8 * 8 + 8, 0);
    bytes
}

/// What other records than samples end with: TID, TIME, CPU, IDENTIFIER.
fn trailer(at: u64) -> Vec<u8> {
    words(&[0, at, 0, 7])
}

impl PerfFile {
    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        self.0.extend(kind.to_le_bytes());
        self.0.extend(misc.to_le_bytes());
        self.0.extend((body.len() as u16 + 8).to_le_bytes());
        self.0.extend(body);
    }

    /// The kernel is mapped.
    pub fn kernel(&mut self) {
        self.mmap(
            u32::MAX,
            [BASE, 1 << 24, BASE],
            "[kernel.kallsyms]_stext",
            0,
        );
    }

    /// A thread has a name, if `exec` with another program.
    pub fn comm(&mut self, (pid, tid): (u32, u32), name: &str, exec: bool, at: u64) {
        let ids = words(&[pair(pid, tid)]);
        let misc = u16::from(exec) << 13;
        self.record(3, misc, &[ids, text(name), trailer(at)].concat());
    }

    /// Start, length and offset are mapped.
    pub fn mmap(&mut self, pid: u32, place: [u64; 3], path: &str, at: u64) {
        let build_id = [&[20, 0, 0, 0][..], &[0xab; 20]].concat();
        let body = [
            words(&[pair(pid, pid)]),
            words(&place),
            build_id,
            words(&[5]),
            text(path),
            trailer(at),
        ];
        self.record(10, 1 << 14 | 2, &body.concat());
    }

    /// A thread begins: its process and number, those of who made it.
    pub fn fork(&mut self, (pid, tid): (u32, u32), parent: (u32, u32), misc: u16, at: u64) {
        let ids = words(&[pair(pid, parent.0), pair(tid, parent.1), at]);
        self.record(7, misc, &[ids, trailer(at)].concat());
    }

    /// A thread ends.
    pub fn exit(&mut self, (pid, tid): (u32, u32), at: u64) {
        let ids = words(&[pair(pid, 1), pair(tid, 1), at]);
        self.record(4, 0, &[ids, trailer(at)].concat());
    }

    /// A sample of an event, by its id, that weighs 250.
    pub fn sample(&mut self, id: u64, (pid, tid): (u32, u32), at: u64, chain: &[u64]) {
        let ip = chain.get(1).copied().unwrap_or(0x40_0010);
        let head = [id, ip, pair(pid, tid), at, 1, 250, chain.len() as u64];
        self.record(9, 2, &[words(&head), words(chain)].concat());
    }

    /// Samples were lost.
    pub fn lost(&mut self, count: u64, at: u64) {
        self.record(2, 0, &[words(&[7, count]), trailer(at)].concat());
    }

    /// A round is over.
    pub fn round(&mut self) {
        self.record(68, 0, &[]);
    }

    /// The whole file; the machine is called `machine`.
    pub fn finish(self) -> Vec<u8> {
        // IP, TID, TIME, CALLCHAIN, CPU, PERIOD, IDENTIFIER.
        let sample_type = 0x1_01a7;
        let attr = |kind: u32, config: u64| {
            let mut attr = kind.to_le_bytes().to_vec();
            attr.extend(128_u32.to_le_bytes());
            attr.extend(words(&[config, 4000, sample_type, 0, 1 << 10 | 1 << 18]));
            attr.resize(128, 0);
            attr
        };
        let ids_at = 104_u64;
        let attrs_at = ids_at + 16;
        let data_at = attrs_at + 2 * 144;
        let len = self.0.len() as u64;
        let host = [&8_u32.to_le_bytes()[..], b"machine\0"].concat();
        let mut file = b"PERFILE2".to_vec();
        file.extend(words(&[104, 144, attrs_at, 288, data_at, len, 0, 0]));
        file.extend(words(&[1 << 3, 0, 0, 0]));
        file.extend(words(&[7, 8]));
        for (index, attr) in [attr(1, 0), attr(0, 0)].iter().enumerate() {
            file.extend(attr);
            file.extend(words(&[ids_at + 8 * index as u64, 8]));
        }
        file.extend(self.0);
        file.extend(words(&[data_at + len + 16, host.len() as u64]));
        file.extend(host);
        file
    }
}

/// A process that forks, and samples of both, out of order within a round. What it says is in `formats::import`.
pub fn perf_data() -> Vec<u8> {
    let mut file = PerfFile::default();
    file.kernel();
    file.comm((10, 10), "parent", true, 1000);
    file.mmap(10, [0x40_0000, 0x1000, 0x2000], "/bin/parent", 1001);
    file.fork((11, 11), (10, 10), 0, 1002);
    let chain = [KERNEL, BASE + 0x123, USER, 0x40_0010, 0x40_0021];
    file.sample(7, (10, 10), 2000, &chain);
    file.round();
    file.sample(8, (11, 11), 1900, &[USER, 0x40_0010, 0x40_0031]);
    file.comm((11, 11), "child", true, 2500);
    file.mmap(11, [0x50_0000, 0x1000, 0], "/bin/child", 2501);
    file.sample(7, (11, 11), 2600, &[USER, 0x50_0004]);
    file.lost(5, 2700);
    file.exit((11, 11), 2800);
    file.round();
    file.finish()
}
