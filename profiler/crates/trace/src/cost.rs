//! What a hit of a probe costs the target on this machine: a table by kind of instruction.
//!
//! Measured costs (`probe`'s calibration) -> nanoseconds per hit, kept in a file for the kernel, the
//! processor and its microcode that they were measured with. Without a measurement there are
//! [`CostTable::assumed`] ones. The file is untrusted: anything odd about it, and it is not there.
//!
//! What does not belong here: measuring (`probe`), adding up a function's places (`trace`).

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::InstructionKind;

/// Version of the file; others are not there.
const VERSION: u32 = 2;

/// A file that is longer is not ours.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// No hit costs more; what says so is not ours.
const MAX_COST_NS: u32 = 10_000_000;

/// Instructions that the kernel emulates cost at most this part of one that it steps over.
const EMULATED_PART: u32 = 3;

/// All kinds, in the order of their costs in a table.
pub const KINDS: [InstructionKind; 7] = [
    InstructionKind::Nop5,
    InstructionKind::Nop,
    InstructionKind::Push,
    InstructionKind::Jump,
    InstructionKind::ConditionalJump,
    InstructionKind::Call,
    InstructionKind::Stepped,
];

/// Nanoseconds per hit, with the record that it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostTable {
    entry_ns: [u32; KINDS.len()],
    return_ns: u32,
    nop5_is_call: bool,
    measured: bool,
}

impl CostTable {
    /// From a measurement: of each kind in the order of [`KINDS`], and of a return probe besides; and
    /// whether a probe on a no-operation of 5 bytes was seen to write below the stack pointer.
    pub fn measured(entry_ns: [u32; KINDS.len()], return_ns: u32, nop5_is_call: bool) -> CostTable {
        CostTable {
            entry_ns,
            return_ns,
            nop5_is_call,
            measured: true,
        }
    }

    /// For machines on which nothing can be measured: of a virtual machine with Linux 6.18.
    pub fn assumed() -> CostTable {
        CostTable {
            entry_ns: [406, 730, 810, 530, 530, 580, 10_000],
            return_ns: 500,
            nop5_is_call: true,
            measured: false,
        }
    }

    /// Whether it was measured on this machine.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// What a hit costs at an instruction of this kind.
    pub fn entry_ns(&self, kind: InstructionKind) -> u32 {
        let index = KINDS.iter().position(|known| *known == kind);
        // Every kind is in the list; the last is the dearest.
        self.entry_ns[index.unwrap_or(KINDS.len() - 1)]
    }

    /// What a return probe costs, beyond a probe at the entry.
    pub fn return_ns(&self) -> u32 {
        self.return_ns
    }

    /// Whether the kernel makes a call of a no-operation of 5 bytes when a probe sits on it. The call
    /// writes below the stack pointer.
    pub fn nop5_is_call(&self) -> bool {
        self.nop5_is_call
    }

    /// Whether the kernel emulates such instructions, rather than step over them.
    pub fn is_emulated(&self, kind: InstructionKind) -> bool {
        kind != InstructionKind::Stepped
            && self.entry_ns(kind) <= self.entry_ns(InstructionKind::Stepped) / EMULATED_PART
    }

    /// The table that was kept in `dir` on this very machine; none if there is none that is sound.
    pub fn load(dir: &Path) -> Option<CostTable> {
        CostTable::load_for(dir, &Machine::this()?)
    }

    /// Keeps the table in `dir`, which is made if need be.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let machine = Machine::this().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.save_for(dir, &machine)
    }

    fn load_for(dir: &Path, machine: &Machine) -> Option<CostTable> {
        let mut text = String::new();
        let file = fs::File::open(path(dir)).ok()?;
        // A device or a pipe could make us wait.
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        let is_sound = |cost: &u32| (1..=MAX_COST_NS).contains(cost);
        let sound = kept.version == VERSION
            && kept.machine == *machine
            && kept.entry_ns.iter().all(is_sound)
            && kept.return_ns <= MAX_COST_NS;
        sound.then(|| CostTable::measured(kept.entry_ns, kept.return_ns, kept.nop5_is_call))
    }

    fn save_for(&self, dir: &Path, machine: &Machine) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let kept = Kept {
            version: VERSION,
            machine: machine.clone(),
            entry_ns: self.entry_ns,
            return_ns: self.return_ns,
            nop5_is_call: self.nop5_is_call,
        };
        let text = serde_json::to_vec_pretty(&kept)?;
        // Whole or not at all, also if two do it at a time.
        let new = dir.join(format!("costs.{}.new", std::process::id()));
        // Not through a link that somebody has put there.
        let _ = fs::remove_file(&new);
        let mut file = fs::File::create_new(&new)?;
        file.write_all(&text)
            .and_then(|()| fs::rename(&new, path(dir)))
            .inspect_err(|_| {
                let _ = fs::remove_file(&new);
            })
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("costs.json")
}

/// The file's contents.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    machine: Machine,
    entry_ns: [u32; KINDS.len()],
    return_ns: u32,
    nop5_is_call: bool,
}

/// What costs depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    /// The kernel's release and version: distributions build several of one release.
    kernel: String,
    processor: String,
    microcode: String,
}

impl Machine {
    fn this() -> Option<Machine> {
        let system = rustix::system::uname();
        let processors = fs::read_to_string("/proc/cpuinfo").ok()?;
        Some(Machine {
            kernel: format!(
                "{} {}",
                system.release().to_string_lossy(),
                system.version().to_string_lossy()
            ),
            processor: field(&processors, "model name"),
            microcode: field(&processors, "microcode"),
        })
    }
}

/// The first processor's value of a field of /proc/cpuinfo; empty if it has none.
fn field(processors: &str, name: &str) -> String {
    let value = processors.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [u32; 7] = [300, 310, 500, 400, 410, 420, 9000];

    fn machine(microcode: &str) -> Machine {
        Machine {
            kernel: "6.18.1 #1 SMP".to_owned(),
            processor: "Some CPU".to_owned(),
            microcode: microcode.to_owned(),
        }
    }

    /// A directory that goes with the value.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let name = format!("profiler-costs-{name}-{}", std::process::id());
            Dir(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_table_is_kept_for_its_machine_only() {
        let dir = Dir::new("kept");
        let here = machine("0x1");
        assert_eq!(CostTable::load_for(&dir.0, &here), None);
        let table = CostTable::measured(TABLE, 250, false);
        table.save_for(&dir.0, &here).unwrap();
        assert_eq!(CostTable::load_for(&dir.0, &here), Some(table.clone()));
        assert_eq!(CostTable::load_for(&dir.0, &machine("0x2")), None);
        // Again, over the old one.
        table.save_for(&dir.0, &machine("0x2")).unwrap();
        assert_eq!(CostTable::load_for(&dir.0, &here), None);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_not_there() {
        let dir = Dir::new("damaged");
        let here = machine("0x1");
        CostTable::measured(TABLE, 250, false)
            .save_for(&dir.0, &here)
            .unwrap();
        let text = fs::read_to_string(path(&dir.0)).unwrap();
        for cut in 0..text.len() {
            fs::write(path(&dir.0), &text[..cut]).unwrap();
            assert_eq!(CostTable::load_for(&dir.0, &here), None, "{cut}");
        }
        for (sound, odd) in [
            ("9000", "0"),
            ("9000", "4000000000"),
            ("9000", "-1"),
            ("\"version\": 2", "\"version\": 1"),
        ] {
            fs::write(path(&dir.0), text.replace(sound, odd)).unwrap();
            assert_eq!(CostTable::load_for(&dir.0, &here), None, "{odd}");
        }
        fs::remove_file(path(&dir.0)).unwrap();
        fs::create_dir(path(&dir.0)).unwrap();
        assert_eq!(CostTable::load_for(&dir.0, &here), None);
    }

    #[test]
    fn costs_are_by_kind() {
        let table = CostTable::measured(TABLE, 250, false);
        assert_eq!(table.entry_ns(InstructionKind::Push), 500);
        assert_eq!(table.entry_ns(InstructionKind::Stepped), 9000);
        assert_eq!(table.return_ns(), 250);
        assert!(table.is_emulated(InstructionKind::Call));
        assert!(!table.is_emulated(InstructionKind::Stepped));
        // A kernel that steps over `push`.
        let mut slow = TABLE;
        slow[2] = 8800;
        let table = CostTable::measured(slow, 250, false);
        assert!(!table.is_emulated(InstructionKind::Push));
        let assumed = CostTable::assumed();
        assert!(KINDS[..6].iter().all(|kind| assumed.is_emulated(*kind)));
        assert!(!assumed.is_measured());
    }

    #[test]
    fn fields_of_the_processor() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmicrocode\t: 0x2f\n\nprocessor\t: 1\n";
        assert_eq!(field(text, "model name"), "A: B");
        assert_eq!(field(text, "microcode"), "0x2f");
        assert_eq!(field(text, "flags"), "");
    }
}
