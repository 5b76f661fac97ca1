//! Placement of probes, with objdump as the judge, in objects of this machine and in small ones that
//! are assembled for one rule each.
//!
//! `OBJECTS=a:b:c` names the objects to judge; `shares` prints what they consist of.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use profiler_object::Object;
use profiler_trace::code::{self, CodeSource, Outlines, kernel};
use profiler_trace::place::{Costs, PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::safety::{FunctionSafety, ProcessSafety};
use profiler_trace::{
    Exits, Function, FunctionKind, InstructionKind, Language, NoExits, Plan, Refusal,
};

/// What probes cost on the machine where function tracing was measured first.
struct Measured;

impl Costs for Measured {
    fn entry_ns(&self, kind: InstructionKind) -> u32 {
        match kind {
            InstructionKind::Nop5 => 337,
            InstructionKind::Jump => 464,
            InstructionKind::ConditionalJump => 480,
            InstructionKind::Push => 500,
            InstructionKind::Call => 505,
            InstructionKind::Nop => 580,
            InstructionKind::Stepped => 9_413,
        }
    }

    fn return_ns(&self) -> u32 {
        305
    }
}

fn options(at: ProbeAt, returns: Returns) -> PlaceOptions<'static> {
    PlaceOptions {
        at,
        returns,
        costs: &Measured,
    }
}

fn open(path: &Path) -> Object {
    let file = File::open(path).unwrap();
    Object::read(&file, None, &path.display().to_string()).unwrap()
}

fn objects() -> Vec<PathBuf> {
    let found: Vec<PathBuf> = match std::env::var("OBJECTS") {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/libc.so.6",
            "/usr/lib/libc.so.6",
        ]
        .iter()
        .map(PathBuf::from)
        .filter(|path| path.exists())
        .take(1)
        .collect(),
    };
    assert!(
        !found.is_empty(),
        "no object to judge; name some in OBJECTS"
    );
    found
}

/// What objdump says of an object: instructions by address, in order.
fn listing(path: &Path) -> BTreeMap<u64, String> {
    let output = Command::new("objdump")
        .args(["-d", "-w", "--no-show-raw-insn"])
        .arg(path)
        .output()
        .expect("objdump (binutils) is needed");
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let (address, text) = line.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        let text = text.split('#').next().unwrap_or_default();
        Some((address, text.trim().to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn is_return(text: &str) -> bool {
    text.split_whitespace()
        .any(|word| matches!(word, "ret" | "retq"))
}

/// Whether an instruction (as objdump writes it) leaves arguments, stack and memory alone and is
/// followed by the next one.
fn changes_nothing(text: &str) -> bool {
    let (mnemonic, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if mnemonic == "endbr64" || mnemonic.starts_with("nop") || mnemonic == "lock" {
        // What is locked changes memory for all to see; the kernel allows no probe on it.
        return true;
    }
    if mnemonic.starts_with("cmp")
        || mnemonic.starts_with("test")
        || mnemonic == "bt"
        || mnemonic.contains("comis")
    {
        return true;
    }
    let stays = [
        "mov", "lea", "xor", "add", "sub", "and", "or", "pxor", "shr", "sar", "set", "bts", "bswap",
    ];
    if !stays.iter().any(|known| mnemonic.starts_with(known)) {
        return false;
    }
    let target = operands.rsplit(',').next().unwrap_or_default().trim();
    let free = [
        "%rax", "%eax", "%ax", "%al", "%rbx", "%ebx", "%bl", "%rbp", "%ebp", "%r10", "%r11",
        "%r12", "%r13", "%r14", "%r15",
    ];
    let vectors = [
        "%xmm8", "%xmm9", "%xmm10", "%xmm11", "%xmm12", "%xmm13", "%xmm14", "%xmm15",
    ];
    !target.contains(')')
        && (free.iter().any(|free| target.starts_with(free)) || vectors.contains(&target))
}

/// Everything that is planned, against objdump.
#[test]
fn plans_agree_with_objdump() {
    for path in objects() {
        let object = open(&path);
        let listing = listing(&path);
        let process = ProcessSafety::unknown();
        let options = options(ProbeAt::Cheapest, Returns::Instructions);
        let mut placer = Placer::new(&object, options, &process);
        let (mut planned, mut slid, mut wrong) = (0, 0, Vec::new());
        for function in object.functions() {
            let Ok(plan) = placer.plan(function) else {
                continue;
            };
            planned += 1;
            let flow = code::recover(&object, function);
            let end = function.address + function.size;
            let name = format!("{} at {:x}", function.name, function.address);
            let entry = object.address_of(plan.entry.offset).unwrap();
            if !listing.contains_key(&entry) {
                wrong.push(format!("{name}: entry {entry:x} is no instruction"));
            }
            if entry != function.address {
                slid += 1;
                let before = listing.range(function.address..entry);
                let go = object.is_go();
                if !go && !before.clone().all(|(_, text)| changes_nothing(text)) {
                    let before: Vec<_> = before.collect();
                    wrong.push(format!("{name}: slid to {entry:x} over {before:x?}"));
                }
            }
            let Exits::Instructions(sites) = &plan.exits else {
                continue;
            };
            for instruction in &flow.instructions {
                if !listing.contains_key(&instruction.address) {
                    wrong.push(format!(
                        "{name}: no instruction at {:x}",
                        instruction.address
                    ));
                }
            }
            let sites: HashSet<u64> = sites
                .iter()
                .map(|site| object.address_of(site.offset).unwrap())
                .collect();
            for (address, _) in listing
                .range(function.address..end)
                .filter(|(_, text)| is_return(text))
            {
                // Or right before it, where nothing happens.
                let before = listing.range(..address).next_back();
                let before = before.filter(|(_, text)| text.contains("nop"));
                if !sites.contains(address) && before.is_none_or(|(at, _)| !sites.contains(at)) {
                    wrong.push(format!("{name}: no probe on the return at {address:x}"));
                }
            }
            for site in &sites {
                let text = listing.get(site).map_or("nothing", |text| text.as_str());
                let leaves = is_return(text) || text.contains("jmp");
                if !leaves && !text.starts_with("nop") {
                    wrong.push(format!("{name}: an exit at {site:x} on {text}"));
                }
            }
        }
        println!(
            "{}: {planned} planned, {slid} slid, {} wrong",
            path.display(),
            wrong.len()
        );
        assert!(planned > 100 && slid > 0, "{} is too small", path.display());
        wrong.truncate(20);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", path.display());
    }
}

/// A share in per cent.
fn share(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Which share of the functions of some objects is of each kind.
#[test]
#[ignore = "prints a table: --ignored --nocapture"]
fn shares() {
    for path in objects() {
        let object = open(&path);
        let process = ProcessSafety::unknown();
        let options = options(ProbeAt::Cheapest, Returns::Instructions);
        let mut placer = Placer::new(&object, options, &process);
        let mut safety = FunctionSafety::of(&object);
        let mut outlines = Outlines::of(&object);
        let mut rows = BTreeMap::<(&str, String), Vec<&Function>>::new();
        let functions: Vec<&Function> = object
            .functions()
            .iter()
            .filter(|f| f.kind == FunctionKind::Function)
            .collect();
        for &function in &functions {
            let first = object.code(function.address, function.size.clamp(1, 15));
            let flow = code::recover(&object, function);
            let first = match flow.instruction(function.address) {
                Some(first) => format!(
                    "{:?}",
                    first.kind.map_or("refused".into(), |k| format!("{k:?}"))
                ),
                None => format!("no code of {} bytes", first.map_or(0, <[u8]>::len)),
            };
            rows.entry(("first", first)).or_default().push(function);
            let (chosen, exits) = match placer.plan(function) {
                Ok(plan) => {
                    let exits = match plan.exits {
                        Exits::Instructions(_) => "all".to_owned(),
                        Exits::None(why) => format!("none: {why:?}"),
                        Exits::Uretprobe => "return probe".to_owned(),
                    };
                    (format!("{:?}", plan.entry.kind), exits)
                }
                Err(refusal) => (format!("refused: {refusal:?}"), "refused".to_owned()),
            };
            rows.entry(("chosen", chosen)).or_default().push(function);
            rows.entry(("exits", exits)).or_default().push(function);
            let verdict = safety.verdict(function, &mut outlines);
            let of = if verdict.uretprobe {
                "return probe safe"
            } else {
                "not safe by itself"
            };
            rows.entry((of, verdict.why.to_owned()))
                .or_default()
                .push(function);
        }
        println!("\n{}: {} functions", path.display(), functions.len());
        println!(
            "process: {:?}",
            ProcessSafety::of([&object as &dyn CodeSource], false).verdict()
        );
        for ((what, which), list) in &rows {
            let some: Vec<&str> = match *what {
                "exits" if list.len() * 10 < functions.len() => list
                    .iter()
                    .take(4)
                    .map(|function| &*function.name)
                    .collect(),
                _ => Vec::new(),
            };
            println!(
                "{what:20} {which:45} {:6} {:>7}  {}",
                list.len(),
                share(list.len(), functions.len()),
                some.join(" ")
            );
        }
    }
}

/// A library that is built for a test, and thrown away after it.
struct Built {
    folder: PathBuf,
    object: Object,
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Built {
    fn of(compiler: &str, name: &str, suffix: &str, text: &str, flags: &[&str]) -> Built {
        let folder = std::env::temp_dir().join(format!("placement-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) = (folder.join(format!("a.{suffix}")), folder.join("a.so"));
        std::fs::write(&source, text).unwrap();
        let output = Command::new(compiler)
            .args(["-shared", "-nostdlib", "-Wl,--build-id=none", "-o"])
            .args([&library, &source])
            .args(flags)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Built {
            object: open(&library),
            folder,
        }
    }

    fn assembled(name: &str, text: &str) -> Built {
        Built::of("gcc", name, "S", text, &["-fPIC"])
    }

    fn function(&self, name: &str) -> &Function {
        self.object
            .functions()
            .iter()
            .find(|function| &*function.name == name)
            .unwrap()
    }

    fn plan(&self, name: &str, returns: Returns) -> Result<Plan, Refusal> {
        let process = ProcessSafety::unknown();
        let mut placer = Placer::new(&self.object, options(ProbeAt::Cheapest, returns), &process);
        placer.plan(self.function(name))
    }

    /// Where the entry's probe sits, behind the function's first byte, and on what.
    fn entry(&self, name: &str) -> (u64, InstructionKind) {
        let plan = self.plan(name, Returns::Instructions).unwrap();
        (plan.entry.offset - plan.function.offset, plan.entry.kind)
    }

    /// Where the exits are, relative to the function's first byte.
    fn exits(&self, name: &str) -> Result<Vec<i64>, NoExits> {
        let plan = self.plan(name, Returns::Instructions).unwrap();
        match plan.exits {
            Exits::Instructions(sites) => Ok(sites
                .iter()
                .map(|site| site.offset as i64 - plan.function.offset as i64)
                .collect()),
            Exits::None(why) => Err(why),
            Exits::Uretprobe => panic!("not asked for"),
        }
    }
}

/// A function in assembler.
fn function(name: &str, body: &str) -> String {
    format!(
        ".globl {name}\n.type {name},@function\n{name}:\n{body}\n.size {name},.-{name}\n.p2align 4\n"
    )
}

fn library(name: &str, functions: &[(&str, &str)]) -> Built {
    let text: String = functions
        .iter()
        .map(|(name, body)| function(name, body))
        .collect();
    Built::assembled(name, &format!(".text\n{text}"))
}

#[test]
fn the_entry_slides_only_over_what_changes_nothing() {
    use InstructionKind::*;
    let cases: &[(&str, &str, (u64, InstructionKind))] = &[
        (
            "behind_endbr",
            "endbr64\n push %rbx\n pop %rbx\n ret",
            (4, Push),
        ),
        ("first_is_push", "push %rbp\n pop %rbp\n ret", (0, Push)),
        (
            "extended_push",
            "endbr64\n push %r12\n pop %r12\n ret",
            (4, Push),
        ),
        (
            "loop_to_push",
            "endbr64\n 1: push %rbx\n pop %rbx\n dec %edi\n jnz 1b\n ret",
            (0, Stepped),
        ),
        (
            "push_immediate",
            "endbr64\n push $1\n pop %rax\n ret",
            (0, Stepped),
        ),
        (
            "lowered_first",
            "sub $24,%rsp\n .byte 0x0f,0x1f,0x44,0,0\n add $24,%rsp\n ret",
            (0, Stepped),
        ),
        (
            "argument_changed",
            "endbr64\n mov %esi,%edi\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
        (
            "part_of_argument",
            "endbr64\n movb $1,%dil\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
        (
            "vector_argument",
            "pxor %xmm1,%xmm1\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
        (
            "vector_scratch",
            "pxor %xmm9,%xmm9\n push %rbx\n pop %rbx\n ret",
            (5, Push),
        ),
        (
            "variadic",
            "xor %eax,%eax\n push %rbx\n pop %rbx\n ret",
            (2, Push),
        ),
        (
            "stored_first",
            "mov %rdi,-8(%rsp)\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
        (
            "saved_elsewhere",
            "endbr64\n mov %rdi,%r11\n push %rbx\n pop %rbx\n ret",
            (7, Push),
        ),
        (
            "tested_first",
            "test %rdi,%rdi\n je 1f\n mov $1,%eax\n ret\n 1: xor %eax,%eax\n ret",
            (3, ConditionalJump),
        ),
        (
            "repeated_first",
            "mov %rdi,%r11\n rep stosb\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
        (
            "nop5_behind",
            "endbr64\n .byte 0x0f,0x1f,0x44,0,0\n push %rbx\n pop %rbx\n ret",
            (4, Nop5),
        ),
        ("tail_call", "endbr64\n jmp behind_endbr@PLT", (4, Jump)),
        (
            "behind_call",
            "call behind_endbr@PLT\n push %rbx\n pop %rbx\n ret",
            (0, Call),
        ),
        (
            "refused_first",
            "lock incl (%rdi)\n push %rbx\n pop %rbx\n ret",
            (0, Stepped),
        ),
    ];
    let functions: Vec<(&str, &str)> = cases.iter().map(|&(name, body, _)| (name, body)).collect();
    let built = library("slides", &functions);
    for (name, _, expected) in cases {
        if *name == "refused_first" {
            assert_eq!(built.plan(name, Returns::None), Err(Refusal::Forbidden));
            continue;
        }
        assert_eq!(built.entry(name), *expected, "{name}");
    }
}

#[test]
fn every_exit_is_found_with_the_stack_as_it_was() {
    type Case<'a> = (&'a str, &'a str, Result<Vec<i64>, NoExits>);
    let cases: &[Case<'_>] = &[
        ("plain", "ret", Ok(vec![0])),
        ("repeated", "rep ret", Ok(vec![0])),
        ("cleans_up", "ret $16", Ok(vec![0])),
        (
            "framed",
            "push %rbp\n mov %rsp,%rbp\n sub $64,%rsp\n leave\n ret",
            Ok(vec![9]),
        ),
        (
            "restored_by_lea",
            "push %rbp\n mov %rsp,%rbp\n push %rbx\n sub $40,%rsp\n lea -8(%rbp),%rsp\n pop %rbx\n pop %rbp\n ret",
            Ok(vec![15]),
        ),
        (
            "aligned",
            "lea 8(%rsp),%r10\n and $-32,%rsp\n push -8(%r10)\n push %rbp\n mov %rsp,%rbp\n push %r10\n sub $40,%rsp\n add $40,%rsp\n pop %r10\n pop %rbp\n lea -8(%r10),%rsp\n ret",
            Ok(vec![34]),
        ),
        (
            "sized_at_run_time",
            "push %rbp\n mov %rsp,%rbp\n sub %rdi,%rsp\n leave\n ret",
            Ok(vec![8]),
        ),
        (
            "tail",
            "sub $8,%rsp\n add $8,%rsp\n jmp plain@PLT",
            Ok(vec![8]),
        ),
        ("virtual", "mov (%rdi),%rax\n jmp *16(%rax)", Ok(vec![3])),
        (
            "callback",
            "mov %rdi,%rax\n mov %rsi,%rdi\n jmp *%rax",
            Ok(vec![6]),
        ),
        (
            "self_tail",
            "test %rdi,%rdi\n je 1f\n dec %rdi\n jmp self_tail\n 1: ret",
            Ok(vec![10]),
        ),
        (
            "loops_to_itself",
            "dec %rdi\n jnz loops_to_itself\n ret",
            Ok(vec![5]),
        ),
        (
            "goes_on_if",
            "test %rdi,%rdi\n je plain\n ret",
            Err(NoExits::ConditionalExit),
        ),
        (
            "unbalanced",
            "push %rbx\n jmp plain@PLT",
            Err(NoExits::UnknownStack),
        ),
        (
            "pushed_return",
            "push %rdi\n ret",
            Err(NoExits::UnknownStack),
        ),
        (
            "context",
            "mov (%rdi),%rsp\n ret",
            Err(NoExits::UnknownStack),
        ),
        (
            "computed",
            "lea 1f(%rip),%rax\n add %rdi,%rax\n 1: jmp *%rax",
            Err(NoExits::ComputedJump),
        ),
        ("never", "xor %eax,%eax\n 1: jmp 1b", Ok(vec![])),
        ("traps", "xor %eax,%eax\n ud2", Ok(vec![])),
        (
            "refused",
            "mov (%rdi),%rax\n notrack jmp *16(%rax)",
            Err(NoExits::Forbidden),
        ),
        (
            "nop_before",
            "push %rbx\n pop %rbx\n .byte 0x0f,0x1f,0x44,0,0\n ret",
            Ok(vec![2]),
        ),
        (
            "jump_behind_nop",
            "test %edi,%edi\n je 1f\n .byte 0x0f,0x1f,0x44,0,0\n 1: ret",
            Ok(vec![9]),
        ),
        (
            "data_behind",
            "ret\n .byte 0x06, 0xc3, 0x06, 0xc3",
            Err(NoExits::NotCode),
        ),
        // A probe on it would change the number that others add.
        (
            "within_another",
            "test %edi,%edi\n jne 1f+1\n 1: mov $0x90c3,%eax\n add $5,%rax\n ret",
            Err(NoExits::NotCode),
        ),
        ("runs_on", "xor %eax,%eax", Err(NoExits::RunsOn)),
    ];
    let functions: Vec<(&str, &str)> = cases.iter().map(|(name, body, _)| (*name, *body)).collect();
    // Local, so that jumps to them are not left to the linker.
    let mut text: String = functions
        .iter()
        .map(|(name, body)| function(name, body))
        .collect();
    text = text.replace("@PLT", "").replace(".globl", ".local");
    let built = Built::assembled("exits", &format!(".text\n{text}"));
    for (name, _, expected) in cases {
        assert_eq!(built.exits(name), *expected, "{name}");
    }
}

#[test]
fn parts_that_were_moved_away_belong_to_their_function() {
    let cold = ".section .text.unlikely,\"ax\",@progbits\n .type parted.cold,@function\nparted.cold:\n add $8,%rsp\n ret\n .size parted.cold,.-parted.cold\n.text\n";
    let hot = function(
        "parted",
        "sub $8,%rsp\n test %edi,%edi\n je parted.cold\n add $8,%rsp\n ret",
    );
    let built = Built::assembled("parts", &format!("{cold}{}", hot.replace("globl", "local")));
    let exits = built.exits("parted").unwrap();
    assert_eq!(exits.len(), 2, "{exits:?}");
    assert!(exits.contains(&16), "{exits:?}");
}

const SWITCH: &str = "
int use(int);
int dense(int x, int y) {
    switch (x) {
    case 0: return use(y) + 1;
    case 1: y += use(3); break;
    case 2: return use(7) * y;
    case 3: y ^= use(5) << 3; break;
    case 4: return y - use(12);
    case 5: y *= use(x); break;
    case 6: return use(y * 77) % 5;
    case 7: y |= use(9); break;
    case 9: return use(y) / 3;
    }
    return use(y);
}
int leaf(int x, int y) {
    switch (x) {
    case 0: return y + 1;
    case 1: y += 3; break;
    case 2: return 7 * y;
    case 3: y ^= 5 << y; break;
    case 4: return y - 12;
    case 5: y *= x; break;
    case 6: return (y * 77) % 5;
    }
    return y;
}
";

#[test]
fn tables_of_switches_are_followed() {
    let mut judged = 0;
    for compiler in ["gcc", "clang"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            continue;
        }
        for level in ["-O0", "-O1", "-O2", "-Os", "-O3"] {
            for model in [
                "-fcf-protection=none",
                "-fcf-protection=full",
                "-fno-omit-frame-pointer",
            ] {
                let name = format!("switch-{compiler}{level}{model}");
                let flags = ["-fPIC", level, model];
                let built = Built::of(compiler, &name, "c", SWITCH, &flags);
                let path = built.folder.join("a.so");
                let listing = listing(&path);
                for which in ["dense", "leaf"] {
                    let function = built.function(which);
                    let end = function.address + function.size;
                    let code = listing.range(function.address..end);
                    let jumps = code
                        .clone()
                        .any(|(_, text)| text.contains("jmp") && text.contains("*%"));
                    let notrack = code.clone().any(|(_, text)| text.contains("notrack"));
                    let flow = code::recover(&built.object, function);
                    assert_eq!(flow.problem, None, "{name} {which}");
                    let returns = code.filter(|(_, text)| is_return(text)).count();
                    assert!(flow.exits.len() >= returns, "{name} {which}");
                    judged += usize::from(jumps || notrack);
                }
            }
        }
    }
    assert!(judged >= 8, "only {judged} functions had tables");
}

#[test]
fn a_leaf_is_safe_and_who_may_be_looked_at_is_not() {
    let built = {
        let cases = [
            ("leaf", "lea 1(%rdi),%eax\n ret"),
            ("calls_leaf", "push %rbx\n call leaf\n pop %rbx\n ret"),
            (
                "calls_itself",
                "push %rbx\n call calls_itself\n pop %rbx\n ret",
            ),
            ("one", "push %rbx\n call other\n pop %rbx\n ret"),
            ("other", "push %rbx\n call one\n pop %rbx\n ret"),
            ("calls_back", "push %rbx\n call *%rdi\n pop %rbx\n ret"),
            ("asks_the_kernel", "mov $39,%eax\n syscall\n ret"),
            ("switches", "mov %rsi,%rsp\n ret"),
            ("tail_to_leaf", "jmp leaf"),
            ("tail_to_any", "jmp *(%rdi)"),
        ];
        let text: String = cases
            .iter()
            .map(|(name, body)| function(name, body))
            .collect();
        Built::assembled(
            "safety",
            &format!(".text\n{}", text.replace(".globl", ".local")),
        )
    };
    let mut safety = FunctionSafety::of(&built.object);
    let mut outlines = Outlines::of(&built.object);
    let safe = ["leaf", "calls_leaf", "tail_to_leaf"];
    for function in built.object.functions() {
        let verdict = safety.verdict(function, &mut outlines);
        assert_eq!(
            verdict.uretprobe,
            safe.contains(&&*function.name),
            "{}: {}",
            function.name,
            verdict.why
        );
    }
    let process = ProcessSafety::of([&built.object as &dyn CodeSource], false);
    assert!(!process.verdict().uretprobe, "it sets the stack pointer");
    // Whatever the process maps, a leaf may have the cheap kind of return probe.
    assert_eq!(
        built.plan("leaf", Returns::Auto).unwrap().exits,
        Exits::Uretprobe
    );
    let Exits::Instructions(_) = built.plan("calls_back", Returns::Auto).unwrap().exits else {
        panic!("a return probe on a function that calls what isn't known");
    };
}

#[test]
fn what_is_mapped_later_can_only_take_away() {
    let plain = library("plain", &[("f", "ret")]);
    let context = Built::of(
        "gcc",
        "context",
        "c",
        "int swapcontext(void *, void *); int f(void *a) { return swapcontext(a, a); }",
        &["-fPIC", "-O2"],
    );
    let mut process = ProcessSafety::of([&plain.object as &dyn CodeSource], false);
    assert!(process.verdict().uretprobe, "{}", process.verdict().why);
    assert!(!process.add(&plain.object));
    assert!(process.add(&context.object));
    assert!(!process.verdict().uretprobe);
    assert!(!process.add(&plain.object), "it was forbidden before");
    assert!(
        !ProcessSafety::of([&plain.object as &dyn CodeSource], true)
            .verdict()
            .uretprobe
    );
}

/// What handles its own system calls, or traces its children's, is not to see that of a return probe: not even a leaf
/// has one.
#[test]
fn who_watches_system_calls_sees_none_of_ours() {
    let plain = library("plain", &[("f", "ret")]);
    let watching = |name: &str, text: &str| Built::of("gcc", name, "c", text, &["-fPIC", "-O2"]);
    let traces = watching(
        "traces",
        "long ptrace(int, int, void *, void *); long g(void) { return ptrace(24, 1, 0, 0) + 1; }",
    );
    let prctl = "int prctl(int, long, long, long, long);";
    let dispatches = watching(
        "dispatches",
        &format!("{prctl} int g(void) {{ return prctl(59, 1, 0, 0, 0) + 1; }}"),
    );
    let hands_on = watching(
        "hands_on",
        &format!(
            "{prctl} __attribute__((noipa)) static int set(int a, long b) {{ return prctl(a, b, 0, 0, 0) + 1; }}
             int g(int a) {{ if (a > 5) return set(59, 1) + 1; return a; }}"
        ),
    );
    // The number stands in its code, but for others: postgres, node and sshd are such.
    let names = watching(
        "names",
        &format!(
            "{prctl} int f(int); int g(long a) {{ f(59); return prctl(15, a, 0, 0, 0) + 1; }}
             int h(int a) {{ if (a) return f(59) + prctl(a, 0, 0, 0, 0); return prctl(4, 59, 0, 0, 0); }}"
        ),
    );
    let all = [
        (&traces, true),
        (&dispatches, true),
        (&hands_on, true),
        (&names, false),
    ];
    for (object, watches) in all {
        let mut process = ProcessSafety::of([&plain.object as &dyn CodeSource], false);
        assert_eq!(process.add(&object.object), watches);
        assert_eq!(process.none_at_all().is_some(), watches);
        let options = options(ProbeAt::Cheapest, Returns::Auto);
        let plan = Placer::new(&plain.object, options, &process).plan(plain.function("f"));
        let has_one = plan.unwrap().exits == Exits::Uretprobe;
        assert_eq!(has_one, !watches);
    }
}

/// Bytes as code at an address, for what no assembler makes.
struct Bytes {
    bytes: Vec<u8>,
    function: Vec<Function>,
    go: bool,
}

const AT: u64 = 0x1000;

impl CodeSource for Bytes {
    fn code(&self, address: u64, len: u64) -> Option<&[u8]> {
        let at = usize::try_from(address.checked_sub(AT)?).ok()?;
        self.bytes
            .get(at..at.checked_add(usize::try_from(len).ok()?)?)
    }
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.code(address, len)
    }
    fn offset_of(&self, address: u64) -> Option<u64> {
        address.checked_sub(AT)
    }
    fn plt(&self, _: u64) -> Option<&str> {
        None
    }
    fn import_at(&self, _: u64) -> Option<&str> {
        None
    }
    fn cold_parts(&self, _: &Function) -> Vec<(u64, u64)> {
        Vec::new()
    }
    fn function_at(&self, address: u64) -> Option<&Function> {
        self.function
            .iter()
            .find(|function| address.wrapping_sub(function.address) < function.size)
    }
    fn extent(&self, _: u64) -> Option<(u64, u64)> {
        None
    }
    fn has_section(&self, _: &str) -> bool {
        false
    }
    fn is_go(&self) -> bool {
        self.go
    }
    fn functions(&self) -> &[Function] {
        &self.function
    }
    fn imports(&self) -> Vec<&str> {
        Vec::new()
    }
    fn name(&self) -> &str {
        "bytes"
    }
    fn code_ranges(&self) -> Vec<(u64, u64)> {
        vec![(AT, self.bytes.len() as u64)]
    }
}

impl Bytes {
    fn of(bytes: Vec<u8>, size: u64, go: bool) -> Bytes {
        let function = Function {
            name: "f".into(),
            linkage_name: None,
            aliases: Vec::new(),
            offset: 0,
            address: AT,
            size,
            source: None,
            line: 0,
            kind: FunctionKind::Function,
            language: if go { Language::Go } else { Language::C },
        };
        Bytes {
            bytes,
            function: vec![function],
            go,
        }
    }
}

#[test]
fn go_functions_are_probed_behind_the_check_of_their_stack() {
    let code = [
        0x49, 0x3b, 0x66, 0x10, // cmp 0x10(%r14),%rsp
        0x76, 0x0a, // jbe grow
        0x55, // push %rbp
        0x48, 0x89, 0xe5, // mov %rsp,%rbp
        0x90, 0x90, 0x90, 0x90, // nop
        0x5d, // pop %rbp
        0xc3, // ret
        0xe8, 0xf7, 0xff, 0x00, 0x00, // grow: call runtime.morestack_noctxt
        0xeb, 0xe9, // jmp start
    ];
    let bytes = Bytes::of(code.to_vec(), code.len() as u64, true);
    let process = ProcessSafety::unknown();
    for at in [ProbeAt::Entry, ProbeAt::Cheapest] {
        let mut placer = Placer::new(&bytes, options(at, Returns::Auto), &process);
        let plan = placer.plan(&bytes.function[0]).unwrap();
        assert_eq!(
            (plan.entry.offset, plan.entry.kind),
            (6, InstructionKind::Push)
        );
        let Exits::Instructions(sites) = plan.exits else {
            panic!("{:?}", plan.exits)
        };
        let sites: Vec<u64> = sites.iter().map(|site| site.offset).collect();
        assert_eq!(sites, [15], "the way back to the start is no exit");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever the bytes are, planning ends soon and says something.
    #[test]
    fn any_bytes_are_planned_or_refused(
        bytes in proptest::collection::vec(
            prop_oneof![
                any::<u8>(),
                proptest::sample::select(vec![0xc3, 0xe8, 0xe9, 0xeb, 0x74, 0xff, 0x48, 0x8d, 0x63, 0x5d, 0x55]),
            ],
            0..600,
        ),
        size in 0u64..700,
        go in any::<bool>(),
    ) {
        let source = Bytes::of(bytes, size, go);
        let started = std::time::Instant::now();
        let process = ProcessSafety::of([&source as &dyn CodeSource], false);
        for returns in [Returns::Auto, Returns::Instructions] {
            let mut placer = Placer::new(&source, options(ProbeAt::Cheapest, returns), &process);
            if let Ok(plan) = placer.plan(&source.function[0]) {
                prop_assert!(plan.entry.offset < source.bytes.len() as u64);
                if let Exits::Instructions(sites) = plan.exits {
                    let bytes = source.bytes.len() as u64;
                    prop_assert!(sites.iter().all(|site| site.offset < bytes));
                    prop_assert!(!(go && returns == Returns::Uretprobe));
                }
            }
        }
        prop_assert!(started.elapsed().as_secs() < 5);
    }

    /// The kernel's rules are asked of whole instructions, but never trust that.
    #[test]
    fn any_bytes_have_a_kind_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
        let _ = kernel::kind(&bytes);
    }
}

#[test]
fn long_functions_take_bounded_time() {
    // Jumps that all meet, and a call between each two of them.
    let mut code = Vec::new();
    for at in 0..40_000u32 {
        code.extend_from_slice(&[0x0f, 0x84]);
        code.extend_from_slice(&(at.wrapping_mul(7919) % 100_000).to_le_bytes());
        code.extend_from_slice(&[0xe8, 0, 0, 0, 0x10, 0x50]);
    }
    let size = code.len() as u64;
    let source = Bytes::of(code, size, false);
    let started = std::time::Instant::now();
    let flow = code::recover(&source, &source.function[0]);
    assert!(flow.problem.is_some());
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}
