//! A program that enters and leaves functions when it is told to -> what a tracer that is suspended in
//! the middle of its calls makes of them.
//!
//! Against the real kernel: needs root and a C compiler, and says so without.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::pipeline::scope::Scope;
use crate::pipeline::tracer::{News, PathFilter, TraceRequest};
use profiler_model::order::Order;
use profiler_model::raw::RawBody;
use profiler_model::{CallEdge, Event, ExitKind, LostReason, Pid};
use profiler_probe::ProbeOptions;
use profiler_resolve::{ResolveOptions, Resolver};
use profiler_target::Filter;
use profiler_trace::pattern::Selection;
use profiler_trace::place::{ProbeAt, Returns};

/// `d`: a function calls itself, `u`: it returns, `f`: a child goes on, until its `x`.
const PROGRAM: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
static void say(char c) { if (write(1, &c, 1) != 1) _exit(1); }
__attribute__((noinline)) int filtered(int depth) { return depth + 1; }
__attribute__((noinline)) int step(int depth) {
    char c;
    say('e');
    while (read(0, &c, 1) == 1) {
        if (c == 'd') { step(filtered(depth)); say('r'); }
        if (c == 'u') return depth;
        if (c == 'x') { say('x'); _exit(0); }
        if (c == 'f') {
            if (fork() == 0) { say('c'); continue; }
            wait(0);
            say('p');
        }
    }
    _exit(0);
}
int main(void) { return step(0); }
"#;

struct Live {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
    folder: PathBuf,
    tracer: Tracer,
    probe: Box<Probe>,
    resolver: Box<Resolver>,
    scope: Scope,
    order: Order,
    raw: Vec<RawEvent>,
    events: Vec<Event>,
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn request(returns: Returns) -> TraceRequest {
    TraceRequest {
        selection: Selection {
            include: vec!["main:step".parse().unwrap()],
            exclude: Vec::new(),
            sources: Vec::new(),
        },
        filter: None,
        at: ProbeAt::Cheapest,
        returns,
        arguments: None,
        budget: None,
        min_duration: Duration::ZERO,
        max_depth: 0,
        max_rate: 0,
        follow_exact: false,
        yes: false,
    }
}

impl Live {
    /// Traces the program, which is in its outermost call already. None, and said so, where that can't
    /// be.
    fn start(test: &str, request: TraceRequest) -> Option<Live> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("{test} skipped: it needs root");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("profiler-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, program) = (folder.join("steps.c"), folder.join("steps"));
        std::fs::write(&source, PROGRAM).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O0", "-g", "-o"]).args([&program, &source]);
        match compiler.status() {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                eprintln!("{test} skipped: no C compiler: {error}");
                return None;
            }
        }
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, mut answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        answers.read_exact(&mut [0]).unwrap();
        let pid = Pid(child.id());
        let filter = Filter {
            pids: vec![pid],
            ..Filter::default()
        };
        let scope = Scope::new(&filter);
        let mut tracer = Tracer::prepare(request, &filter, None, None).unwrap();
        let mut probe = Probe::attach(ProbeOptions {
            hierarchy: None,
            sources: Vec::new(),
            calls: Some(tracer.call_options(1 << 20)),
            filter,
            buffer_bytes: 16 << 20,
            kernel_stacks: false,
            user_stacks: false,
            unwind: None,
            kernel_log: false,
            off_cpu: false,
            adjustable: false,
        })
        .unwrap();
        let mut resolver = Resolver::new(ResolveOptions::default()).unwrap();
        resolver.snapshot_of(&[pid], now());
        tracer.attach_all(&mut probe, &mut resolver).unwrap();
        Some(Live {
            child,
            orders,
            answers,
            folder,
            tracer,
            probe,
            resolver,
            scope,
            order: Order::new(1 << 20),
            raw: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Has the program do what each letter says, nothing for a blank, and its answer to each is as expected.
    fn orders(&mut self, orders: &str, answers: &str) {
        for (order, answer) in orders.bytes().zip(answers.bytes()) {
            if order != b' ' {
                self.orders.write_all(&[order]).unwrap();
            }
            let mut said = [0];
            self.answers.read_exact(&mut said).unwrap();
            assert_eq!(char::from(said[0]), char::from(answer), "{orders}");
        }
    }

    /// What a session does at each tick.
    fn tick(&mut self) {
        let until = now();
        self.probe.drain(&mut self.raw);
        let is_hit = |event: &RawEvent| matches!(event.body, RawBody::Call(_));
        self.raw
            .retain(|event| is_hit(event) || self.scope.admits(event));
        for event in self.raw.iter().filter(|event| !is_hit(event)) {
            self.resolver.notice(event);
            self.tracer.notice(event);
        }
        self.order.push(&mut self.raw);
        let Live { tracer, probe, .. } = self;
        tracer.step(probe, &mut self.resolver, &mut self.raw);
        let mut due = Vec::new();
        self.order.release(until, &mut due);
        self.resolve(due);
    }

    fn resolve(&mut self, mut due: Vec<RawEvent>) {
        let mut batches = Vec::new();
        self.resolver.resolve(&mut due, &mut batches);
        let events = batches.iter().flat_map(|batch| batch.events.iter());
        self.events.extend(events.cloned());
    }

    fn suspend(&mut self) {
        self.tracer.suspend(&mut self.probe, &mut self.raw);
        self.tick();
    }

    fn resume(&mut self) {
        self.tracer.resume(&mut self.probe, &mut self.raw);
    }

    /// Detaches; a letter for each event: entries, returns, inferred ends, whole calls, and at the end
    /// how many exits had no entry. All pairs are right. With it the kernel's counts of both.
    fn finish(&mut self) -> (String, u64, u64) {
        self.tracer.finish(&mut self.probe, &mut self.raw);
        let counted = self.tracer.plans.probes[0].counted;
        self.probe.drain(&mut self.raw);
        self.raw.retain(|event| self.scope.admits(event));
        self.order.push(&mut self.raw);
        let mut due = Vec::new();
        self.order.finish(&mut due);
        self.resolve(due);
        let (mut log, mut unmatched, mut open) = (String::new(), 0, Vec::new());
        for event in &self.events {
            let (sign, at) = match event {
                Event::Call(call) => match &call.edge {
                    CallEdge::Enter(_) => {
                        assert_eq!(call.depth as usize, open.len(), "{log}");
                        open.push(call.at);
                        ('e', call.at)
                    }
                    CallEdge::Hit(_) => ('h', call.at),
                    CallEdge::Exit(exit) => {
                        if exit.whole.is_none() {
                            assert_eq!(open.pop(), Some(exit.began), "{log}");
                        }
                        match exit.how {
                            ExitKind::Return if exit.whole.is_some() => ('w', exit.began),
                            ExitKind::Return => ('r', exit.began),
                            _ => ('?', call.at),
                        }
                    }
                },
                Event::Gap(gap) if gap.reason == GapReason::Suspended => ('|', gap.to),
                Event::Lost(lost) => {
                    // Of other processes on a busy machine.
                    if lost.reason != LostReason::SideBand {
                        assert_eq!(lost.reason, LostReason::Unmatched);
                        unmatched += lost.count;
                    }
                    continue;
                }
                _ => continue,
            };
            assert!(at.0 > 0);
            log.push(sign);
        }
        (format!("{log} {unmatched}"), counted.entries, counted.exits)
    }

    /// The byte of the program's code at the entry's probe.
    fn code(&mut self) -> u8 {
        let pid = Pid(self.child.id());
        let offset = self.tracer.plans.probes[0].plan.entry.offset;
        let main = self.tracer.finder.objects_of(pid).unwrap().remove(0);
        let holds =
            |range: &&(u64, u64, u64)| (range.2..range.2 + range.1 - range.0).contains(&offset);
        let range = main.ranges.iter().find(holds).unwrap();
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, range.0 + offset - range.2)
            .unwrap();
        byte[0]
    }
}

/// Suspended three calls deep; meanwhile two return and another begins at the same place.
fn across(test: &str, request: TraceRequest, detached: bool) -> Option<(String, u64)> {
    let mut live = Live::start(test, request)?;
    live.orders("ddd", "eee");
    let breakpoint = live.code();
    live.suspend();
    if detached {
        let suspension = live.tracer.suspension.as_mut().unwrap();
        suspension.since.0 -= DETACH_NS;
        live.tick();
        assert!(live.tracer.links.attached.is_empty());
        // The kernel takes seconds for that where it is busy.
        let mut tries = 0..3000;
        while live.code() == breakpoint {
            tries.next().expect("the program gets its own code back");
            std::thread::sleep(Duration::from_millis(20));
        }
    } else {
        live.tick();
        assert_eq!(live.code(), breakpoint);
    }
    live.orders("uud", "rre");
    live.tick();
    live.resume();
    live.orders("dduuuudu", "eerrrrer");
    live.tick();
    let (log, entries, exits) = live.finish();
    // Three before, three after.
    assert_eq!(entries, 6);
    Some((log, exits))
}

#[test]
fn nothing_is_paired_across_a_suspension() {
    let name = "nothing_is_paired_across_a_suspension";
    for returns in [Returns::Auto, Returns::Instructions, Returns::Uretprobe] {
        for detached in [false, true] {
            let Some((log, exits)) = across(name, request(returns), detached) else {
                return;
            };
            // Those of the three after, and of the two that had begun before. With return probes, of
            // what was entered when there were none the kernel knows nothing.
            let unseen = detached && returns != Returns::Instructions;
            assert!(exits == 5 || unseen && (3..5).contains(&exits), "{exits}");
            let unmatched = exits - 3;
            let expected = format!("eee???|eerrer {unmatched}");
            assert_eq!(log, expected, "{returns:?}, detached: {detached}");
        }
    }
}

#[test]
fn nothing_is_paired_by_the_kernel_side_either() {
    let request = TraceRequest {
        min_duration: Duration::from_nanos(1),
        ..request(Returns::Auto)
    };
    let name = "nothing_is_paired_by_the_kernel_side_either";
    if let Some(seen) = across(name, request, false) {
        assert_eq!(seen, ("|www 0".to_owned(), 5));
    }
}

#[test]
fn what_begins_in_a_suspension_is_traced_when_it_ends() {
    let name = "what_begins_in_a_suspension_is_traced_when_it_ends";
    for detached in [false, true] {
        let Some(mut live) = Live::start(name, request(Returns::Auto)) else {
            return;
        };
        live.suspend();
        if detached {
            live.tracer.suspension.as_mut().unwrap().since.0 -= DETACH_NS;
            live.tick();
        }
        live.orders("f", "c");
        live.tick();
        live.orders("du", "er");
        live.tick();
        live.resume();
        live.orders("ddx du", "eexper");
        live.tick();
        // What the child has left open ends with it.
        assert_eq!(live.finish(), ("|ee??er 0".to_owned(), 3, 1));
    }
}

#[test]
fn a_filter_of_paths_and_what_became_of_objects() {
    let name = "a_filter_of_paths_and_what_became_of_objects";
    let mut request = request(Returns::Auto);
    request.selection.include = vec![
        "main:step".parse().unwrap(),
        "main:filtered".parse().unwrap(),
    ];
    request.filter = Some(PathFilter(Arc::new(|path| path == "steps/step")));
    let Some(mut live) = Live::start(name, request.clone()) else {
        return;
    };
    let object = live.folder.join("steps").to_str().unwrap().to_owned();
    let traced = News::Traced {
        object: object.clone(),
        functions: 1,
    };
    assert_eq!(live.tracer.news(), [traced]);
    assert_eq!(live.tracer.news(), []);
    live.orders("du", "er");
    live.tick();
    assert_eq!(live.finish(), ("er 0".to_owned(), 1, 1));
    request.filter = Some(PathFilter(Arc::new(|_| false)));
    let Some(mut live) = Live::start(name, request) else {
        return;
    };
    assert_eq!(live.tracer.news(), [News::Filtered { object }]);
}
