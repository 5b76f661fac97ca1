//! The criterion for return probes, and places for markers: small functions that are assembled, one
//! for each condition.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use profiler_object::Object;
use profiler_trace::cost::CostTable;
use profiler_trace::place::{PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::return_address::NoReturnProbe::{self, *};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Exits, Function, InstructionKind, Plan, Refusal};

/// A library that is assembled for a test, and thrown away after it.
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
    fn of(name: &str, text: &str) -> Built {
        let folder = std::env::temp_dir().join(format!("returns-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) = (folder.join("a.S"), folder.join("a.so"));
        std::fs::write(&source, text).unwrap();
        let output = Command::new("gcc")
            .args(["-shared", "-nostdlib", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let file = File::open(&library).unwrap();
        let path = library.display().to_string();
        Built {
            object: Object::read(&file, None, &path).unwrap(),
            folder,
        }
    }

    fn named<'a>(&self, of: &'a [Function], name: &str) -> &'a Function {
        let mut all = of.iter();
        all.find(|function| &*function.name == name).unwrap()
    }

    /// Plans a function for a process in which nothing else speaks against return probes.
    fn plan(&self, function: &Function, returns: Returns) -> Result<Plan, Refusal> {
        // Nothing is as cheap as a return probe but where there is nothing to probe.
        let costs = CostTable::measured([300, 310, 500, 400, 410, 420, 9000], 100, true);
        let options = PlaceOptions {
            at: ProbeAt::Cheapest,
            returns,
            costs: &costs,
        };
        let process = ProcessSafety::of([], false);
        Placer::new(&self.object, options, &process).plan(function)
    }

    fn function(&self, name: &str, returns: Returns) -> Result<Plan, Refusal> {
        self.plan(self.named(self.object.functions(), name), returns)
    }

    fn marker(&self, name: &str) -> Result<(i64, InstructionKind), Refusal> {
        let marker = self.named(self.object.markers(), name);
        let plan = self.plan(marker, Returns::Auto)?;
        let distance = plan.entry.offset as i64 - marker.offset as i64;
        Ok((distance, plan.entry.kind))
    }
}

fn function(name: &str, body: &str) -> String {
    format!(
        ".local {name}\n.type {name},@function\n{name}:\n{body}\n.size {name},.-{name}\n.p2align 4\n"
    )
}

fn assembled(name: &str, functions: &[(&str, &str)], rest: &str) -> Built {
    let bodies = functions.iter().map(|(name, body)| function(name, body));
    let text: String = bodies.collect();
    Built::of(name, &format!(".text\n{text}{rest}"))
}

#[test]
fn one_return_takes_the_address_and_nobody_else_sees_it() {
    let framed =
        "push %rbp\n mov %rsp,%rbp\n sub $32,%rsp\n mov %rdi,-8(%rbp)\n call *%rdi\n leave\n ret";
    let cases = [
        ("leaf", "lea 1(%rdi),%rax\n ret"),
        ("framed", framed),
        ("reads_an_argument_on_the_stack", "mov 8(%rsp),%rax\n ret"),
        (
            "aligned",
            "push %rbp\n mov %rsp,%rbp\n and $-32,%rsp\n sub $64,%rsp\n mov %rax,56(%rsp)\n leave\n ret",
        ),
        (
            "of_unknown_size",
            "push %rbp\n mov %rsp,%rbp\n sub %rdi,%rsp\n mov %rsp,%rdi\n call *%rsi\n leave\n ret",
        ),
        (
            "keeps_the_stack_pointer_in_its_frame",
            "mov %rsp,%rax\n push %rbx\n sub $64,%rsp\n and $-64,%rsp\n mov %rax,(%rsp)\n \
             mov (%rsp),%rsi\n mov -8(%rsi),%rbx\n mov %rsi,%rsp\n ret",
        ),
        ("jumps_on", "add $1,%rdi\n jmp framed"),
        ("jumps_on_elsewhere", "add $1,%rdi\n jmp elsewhere@plt"),
        (
            "jumps_on_or_dies",
            "test %rdi,%rdi\n js dies\n mov $1,%eax\n ret",
        ),
        ("dies", "xor %edi,%edi\n ud2"),
        (
            "saves_registers",
            "push %rbx\n push %r12\n call *%rdi\n pop %r12\n pop %rbx\n ret",
        ),
        ("asks_the_kernel", "mov $39,%eax\n syscall\n ret"),
    ];
    let built = assembled("kept", &cases, "");
    for (name, _) in cases {
        let plan = built.function(name, Returns::Auto).unwrap();
        let expected = match name {
            // There is nothing to see.
            "dies" => Exits::Instructions(Vec::new()),
            _ => Exits::Uretprobe,
        };
        assert_eq!(plan.exits, expected, "{name}: {:?}", plan.no_return_probe);
    }
}

#[test]
fn each_condition_keeps_a_function_from_return_probes() {
    let cases: &[(&str, NoReturnProbe, &str)] = &[
        ("asks_who_calls", Reads, "mov (%rsp),%rax\n ret"),
        (
            "asks_by_its_frame",
            Reads,
            "push %rbp\n mov %rsp,%rbp\n mov 8(%rbp),%rax\n pop %rbp\n ret",
        ),
        (
            "copies_it_for_unwinders",
            Reads,
            "lea 8(%rsp),%r10\n and $-32,%rsp\n push -8(%r10)\n push %rbp\n mov %rsp,%rbp\n \
             pop %rbp\n lea -8(%r10),%rsp\n ret",
        ),
        ("scrambles_it", Writes, "xor %rdi,(%rsp)\n ret"),
        ("goes_elsewhere", Writes, "mov %rdi,(%rsp)\n ret"),
        (
            "starts_a_program",
            Pops,
            "pop %rsi\n mov %rsp,%rdx\n call *%rdi\n hlt",
        ),
        ("skips_it", Pops, "add $8,%rsp\n ret"),
        (
            "binds_lazily",
            Pops,
            "push %rbx\n mov %rsp,%rbx\n and $-64,%rsp\n sub $128,%rsp\n call framed\n mov %rax,%r11\n \
             mov %rbx,%rsp\n mov (%rsp),%rbx\n add $24,%rsp\n jmp *%r11",
        ),
        (
            "hands_it_out",
            HandsOut,
            "mov %rsp,%rdi\n push %rbx\n call framed\n pop %rbx\n ret",
        ),
        ("keeps_where_it_is", HandsOut, "mov %rsp,(%rdi)\n ret"),
        (
            "reckons",
            Computes,
            "mov %rsp,%rax\n sub %rdi,%rax\n mov 8(%rax),%rax\n ret",
        ),
        ("indexes", Computes, "mov (%rsp,%rdi,8),%rax\n ret"),
        ("changes_stacks", ChangesStacks, "mov %rsi,%rsp\n ret"),
        ("goes_on_anywhere", ComputedTail, "jmp *(%rdi)"),
        (
            "goes_on_in_a_reader",
            Tail,
            "xor %esi,%esi\n jmp asks_who_calls",
        ),
        (
            "may_go_on_in_a_reader",
            Tail,
            "test %esi,%esi\n je asks_who_calls\n ret",
        ),
        ("leaves_more", StackNotBack, "push %rbx\n jmp *%rdi"),
        (
            "retpoline",
            Computes,
            "call 1f\n 2: pause\n jmp 2b\n 1: mov %rdi,(%rsp)\n ret",
        ),
        ("clones", ReturnsTwice, "mov $56,%eax\n syscall\n ret"),
        (
            "returns_from_a_signal",
            SignalReturn,
            "mov $15,%eax\n syscall\n ret",
        ),
        (
            "counts_its_callers",
            Watched,
            "push %rbx\n call mcount@plt\n pop %rbx\n ret",
        ),
        ("asks_the_linker", Watched, "jmp dlsym@plt"),
        ("dies", NeverReturns, "xor %edi,%edi\n ud2"),
        ("chooses_one", WhileLoading, "lea framed(%rip),%rax\n ret"),
    ];
    let mut functions: Vec<(&str, &str)> =
        cases.iter().map(|&(name, _, body)| (name, body)).collect();
    functions.push(("framed", "push %rbx\n call *%rdi\n pop %rbx\n ret"));
    let chosen = ".globl chosen\n.type chosen,@gnu_indirect_function\n.set chosen,chooses_one\n";
    let built = assembled("broken", &functions, chosen);
    for &(name, why, _) in cases {
        let plan = built.function(name, Returns::Auto).unwrap();
        assert_ne!(plan.exits, Exits::Uretprobe, "{name}");
        // The stack has more on it than at the entry: it is no exit by a jump.
        let instead = match name {
            "leaves_more" => &[StackNotBack.why(), ComputedJump.why()][..],
            _ => &[why.why()],
        };
        let said = plan.no_return_probe.unwrap_or_default();
        assert!(instead.contains(&said), "{name}: {said}, not {}", why.why());
        match built.function(name, Returns::Uretprobe) {
            Ok(plan) => assert_eq!(plan.exits, Exits::Instructions(Vec::new()), "{name}"),
            Err(refusal) => assert_eq!(refusal, Refusal::NoReturnProbe(said), "{name}"),
        }
        let insisted = built.function(name, Returns::Insist).unwrap();
        assert_eq!(insisted.exits, Exits::Uretprobe, "{name}");
    }
}

/// A marker as <sys/sdt.h> notes it.
fn marker(name: &str) -> String {
    format!(
        "990: .pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n\
         991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b-base_of_all\n\
         .8byte 0, 0\n.asciz \"p\"\n.asciz \"{name}\"\n.asciz \"\"\n994: .balign 4\n.popsection\n"
    )
}

#[test]
fn a_marker_that_becomes_a_call_sits_where_nothing_lives_below_the_stack() {
    use InstructionKind::{Nop, Nop5};
    const LONG: &str = ".byte 0x0f,0x1f,0x44,0,0\n";
    type Case = (
        &'static str,
        Option<(i64, InstructionKind)>,
        [&'static str; 3],
    );
    let cases: &[Case] = &[
        // Before the marker, behind it, and the marker's own instructions.
        (
            "leaf",
            None,
            ["mov %rdi,-8(%rsp)\n", "mov -8(%rsp),%rax\n ret\n", LONG],
        ),
        (
            "array",
            None,
            ["mov %rdi,-64(%rsp,%rsi,8)\n", "ret\n", LONG],
        ),
        (
            "frame_pointer",
            None,
            [
                "push %rbp\n mov %rsp,%rbp\n mov %rdi,-20(%rbp)\n",
                "pop %rbp\n ret\n",
                LONG,
            ],
        ),
        (
            "short",
            Some((0, Nop)),
            ["mov %rdi,-8(%rsp)\n", "mov -8(%rsp),%rax\n ret\n", "nop\n"],
        ),
        (
            "pair",
            Some((-1, Nop)),
            [
                "mov %rdi,-8(%rsp)\n nop\n",
                "mov -8(%rsp),%rax\n ret\n",
                LONG,
            ],
        ),
        (
            "jumped_to",
            None,
            [
                "mov %rdi,-8(%rsp)\n jz 1f\n nop\n 1:\n",
                "mov -8(%rsp),%rax\n ret\n",
                LONG,
            ],
        ),
        (
            "frame",
            Some((0, Nop5)),
            [
                "sub $24,%rsp\n mov %rdi,8(%rsp)\n",
                "add $24,%rsp\n ret\n",
                LONG,
            ],
        ),
        (
            "calls",
            Some((0, Nop5)),
            ["push %rbx\n call *%rdi\n", "pop %rbx\n ret\n", LONG],
        ),
        (
            "registers",
            Some((0, Nop5)),
            ["mov %rdi,%rax\n", "ret\n", LONG],
        ),
        (
            "computed",
            None,
            ["mov %rdi,%rax\n", "jmp *-8(%rsp,%rdi,8)\n", LONG],
        ),
    ];
    let mut text = String::from(".text\n");
    for (name, _, [before, behind, own]) in cases {
        text += &function(name, &format!("{before}{}{own}{behind}", marker(name)));
    }
    // Addresses in the notes of a library are relative to where it is loaded.
    let built = Built::of("markers", &format!("base_of_all = 0\n{text}"));
    for &(name, expected, _) in cases {
        let expected = expected.ok_or(Refusal::RedZone);
        assert_eq!(built.marker(&format!("p:{name}")), expected, "{name}");
    }
}

/// Turns come back to the entry when something may live below the stack pointer.
#[test]
fn an_entry_that_becomes_a_call_is_no_place_for_a_loop_with_a_red_zone() {
    let turns = "1: .byte 0x0f,0x1f,0x44,0,0\n mov %rdi,-8(%rsp)\n dec %rsi\n jnz 1b\n ret";
    let clean = "1: .byte 0x0f,0x1f,0x44,0,0\n mov %rdi,%rax\n dec %rsi\n jnz 1b\n ret";
    let built = assembled("turns", &[("turns", turns), ("clean", clean)], "");
    assert_eq!(
        built.function("turns", Returns::Auto),
        Err(Refusal::RedZone)
    );
    let plan = built.function("clean", Returns::Auto).unwrap();
    assert_eq!(plan.entry.kind, InstructionKind::Nop5);
    assert!(matches!(plan.exits, Exits::Instructions(_)));
}
