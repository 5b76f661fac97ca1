//! Pairing, event by event: what happens on a thread, and which calls come of it.
//!
//! A log says it in short: `+f0` function f entered at depth 0, `-f0` returned, `!f0 int` left by
//! an exception, `?f0` inferred, `xf0` terminated, `/f0` not watched any more, `.f1` passed, `unmatched` an exit alone. Functions
//! in lower case are probed at their exits, those in upper case by the kernel's return probe.

use super::shadow::{Hit, Shadows};
use super::stack::{How, Left, MAX_DEPTH};
use profiler_model::{Pid, Tid};

const PAGE: u64 = 0x7fff_ffff_e000;

#[derive(Default)]
struct Case {
    shadows: Shadows,
    now: u64,
    log: Vec<String>,
    /// 0 for the thread's own stack.
    goroutine: u32,
    caller: u64,
    thread: u32,
}

impl Case {
    fn hit(&mut self, name: char, sp: u64) -> Hit {
        self.now += 10;
        Hit {
            at: self.now,
            pid: Pid(1),
            tid: Tid(10 + self.thread),
            goroutine: self.goroutine,
            probe: name as u32,
            sp,
            caller: std::mem::take(&mut self.caller),
            uretprobe: name.is_ascii_uppercase(),
            unwatched: false,
            over: false,
        }
    }

    fn left(&mut self, left: Vec<Left>) {
        for call in left {
            let (mark, more) = match call.how {
                How::Return => ('-', String::new()),
                How::Exception(kind) => ('!', format!(" {}", kind.as_deref().unwrap_or("?"))),
                How::Terminated => ('x', String::new()),
                How::Inferred => ('?', String::new()),
                How::Unwatched => ('/', String::new()),
            };
            let name = char::from_u32(call.probe).unwrap();
            self.log.push(format!("{mark}{name}{}{more}", call.depth));
        }
    }

    fn enter(&mut self, name: char, sp: u64) {
        let (hit, mut left) = (self.hit(name, sp), Vec::new());
        let depth = self.shadows.enter(&hit, &mut left);
        self.left(left);
        match depth {
            Some(depth) => self.log.push(format!("+{name}{depth}")),
            None => self.log.push("too deep".to_owned()),
        }
    }

    fn exit(&mut self, name: char, sp: u64) {
        let (hit, mut left) = (self.hit(name, sp), Vec::new());
        let matched = self.shadows.exit(&hit, &mut left);
        self.left(left);
        if !matched {
            self.log.push("unmatched".to_owned());
        }
    }

    fn pass(&mut self, name: char, sp: u64) {
        let (hit, mut left) = (self.hit(name, sp), Vec::new());
        let (depth, _) = self.shadows.pass(&hit, None, &mut left);
        self.left(left);
        self.log.push(format!(".{name}{depth}"));
    }

    /// Whether it is a new one.
    fn throw(&mut self, kind: &str, sp: u64) -> bool {
        self.throw_by('~', kind, sp)
    }

    fn throw_by(&mut self, name: char, kind: &str, sp: u64) -> bool {
        let (hit, mut left) = (self.hit(name, sp), Vec::new());
        let kind = (!kind.is_empty()).then(|| kind.into());
        let (new, _) = self.shadows.throw(&hit, kind, &mut left);
        self.left(left);
        new
    }

    fn land(&mut self, sp: u64, resumes: bool) {
        let (hit, mut left) = (self.hit('~', sp), Vec::new());
        self.shadows.land(&hit, resumes, &mut left);
        self.left(left);
    }

    fn jump(&mut self, sp: u64) {
        let (hit, mut left) = (self.hit('~', sp), Vec::new());
        self.shadows.jump(&hit, &mut left);
        self.left(left);
    }

    fn end(&mut self) {
        let mut left = Vec::new();
        let tid = Tid(10 + self.thread);
        self.shadows
            .end_thread(Pid(1), tid, self.now + 10, &mut left);
        self.left(left);
    }

    /// A function is not watched any more.
    fn give_up(&mut self, name: char) {
        for (_, left) in self.shadows.give_up(name as u32, self.now + 5) {
            self.left(left);
        }
    }

    /// What was told since this was called last.
    #[track_caller]
    fn check(&mut self, want: &str) {
        assert_eq!(self.log.join(" "), want);
        self.log.clear();
    }
}

fn case() -> Case {
    Case::default()
}

#[test]
fn calls_nest_and_recurse() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.enter('f', 0x8e00);
    c.exit('f', 0x8e00);
    c.exit('g', 0x8f00);
    c.enter('g', 0x8f00);
    c.exit('g', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 +f2 -f2 -g1 +g1 -g1 -f0");
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn self_time_is_that_without_calls_inside() {
    let mut shadows = Shadows::default();
    let hit = |at, name: char, sp| Hit {
        at,
        pid: Pid(1),
        tid: Tid(1),
        goroutine: 0,
        probe: name as u32,
        sp,
        caller: 0,
        uretprobe: false,
        unwatched: false,
        over: false,
    };
    let mut left = Vec::new();
    shadows.enter(&hit(100, 'f', 900), &mut left);
    shadows.enter(&hit(110, 'g', 800), &mut left);
    shadows.enter(&hit(115, 'h', 700), &mut left);
    shadows.exit(&hit(120, 'h', 700), &mut left);
    shadows.exit(&hit(130, 'g', 800), &mut left);
    shadows.enter(&hit(140, 'g', 800), &mut left);
    shadows.exit(&hit(141, 'g', 800), &mut left);
    shadows.exit(&hit(200, 'f', 900), &mut left);
    let times: Vec<_> = left.iter().map(|call| (call.began, call.self_ns)).collect();
    assert_eq!(times, [(115, 5), (110, 15), (140, 1), (100, 79)]);

    // Those that are told when they are over: inner ones first.
    let whole = |shadows: &mut Shadows, began, at, sp| {
        shadows.pass(&hit(at, 'w', sp), Some(began), &mut Vec::new())
    };
    assert_eq!(whole(&mut shadows, 310, 320, 700), (0, 10));
    assert_eq!(whole(&mut shadows, 305, 325, 800), (0, 10));
    assert_eq!(whole(&mut shadows, 330, 331, 800), (0, 1));
    assert_eq!(whole(&mut shadows, 300, 400, 900), (0, 79));
}

#[test]
fn tail_calls_share_a_place() {
    let mut c = case();
    // Probes at exits: f is seen to leave by its jump.
    c.enter('f', 0x9000);
    c.exit('f', 0x9000);
    c.enter('g', 0x9000);
    c.exit('g', 0x9000);
    c.check("+f0 -f0 +g0 -g0");
    // Return probes: both report when the last one returns, innermost first.
    c.enter('F', 0x9000);
    c.caller = PAGE;
    c.enter('G', 0x9000);
    c.exit('G', 0x9000);
    c.exit('F', 0x9000);
    c.check("+F0 +G1 -G1 -F0");
    // The same without the return address.
    c.enter('F', 0x9000);
    c.enter('G', 0x9000);
    c.exit('G', 0x9000);
    c.exit('F', 0x9000);
    c.check("+F0 +G1 -G1 -F0");
    // Of both kinds, either way round.
    c.enter('F', 0x9000);
    c.enter('g', 0x9000);
    c.exit('g', 0x9000);
    c.exit('F', 0x9000);
    c.enter('f', 0x9000);
    c.exit('f', 0x9000);
    c.enter('G', 0x9000);
    c.exit('G', 0x9000);
    c.check("+F0 +g1 -g1 -F0 +f0 -f0 +G0 -G0");
    // A function that calls itself so.
    for _ in 0..2 {
        c.enter('F', 0x9000);
    }
    for _ in 0..2 {
        c.exit('F', 0x9000);
    }
    c.check("+F0 +F1 -F1 -F0");
}

#[test]
fn a_lost_exit_is_inferred_where_it_shows() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.enter('h', 0x8e00);
    // The exit of h is lost, and the next call of f shows it; then that of its caller.
    c.enter('i', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 +h2 ?h2 ?g1 +i1 ?i1 -f0");
    // A return probe's exit is lost: the same place is called from elsewhere.
    c.enter('F', 0x9000);
    c.caller = 0x40_1234;
    c.enter('G', 0x9000);
    c.exit('G', 0x9000);
    c.check("+F0 ?F0 +G0 -G0");
    // Without the return address it is the loss that tells.
    c.enter('F', 0x9000);
    c.shadows.lost();
    c.enter('G', 0x9000);
    c.exit('G', 0x9000);
    c.check("+F0 ?F0 +G0 -G0");
}

#[test]
fn a_lost_entry_leaves_its_exit_unmatched() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.exit('g', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 unmatched -f0");
    // Attached in the middle of calls.
    c.exit('h', 0x9100);
    c.exit('h', 0x9200);
    c.enter('f', 0x9000);
    c.exit('f', 0x9000);
    c.exit('h', 0xa000);
    c.check("unmatched unmatched +f0 -f0 unmatched");
    // What is open below has been left.
    c.enter('f', 0x9000);
    c.exit('g', 0x9100);
    c.check("+f0 ?f0 unmatched");
    // The same function at another place is another call.
    c.enter('f', 0x9000);
    c.exit('f', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 unmatched -f0");
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn exceptions_leave_what_lies_below_their_landing() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.enter('h', 0x8e00);
    assert!(c.throw("int", 0x8d00));
    // The unwinder calls a traced function; a destructor runs where g's caller stood.
    c.enter('p', 0x8c00);
    c.exit('p', 0x8c00);
    c.enter('d', 0x8e80);
    c.exit('d', 0x8e80);
    // It goes on from g, and is caught in f, whose frame is above.
    c.land(0x8e80, true);
    c.land(0x8f80, false);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 +h2 +p3 -p3 !h2 int +d2 -d2 !g1 int -f0");
    // It is over: what is inferred now is inferred.
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 ?g1 -f0");
}

#[test]
fn a_call_whose_exits_are_given_up_is_not_taken_to_have_thrown() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    let probe = c.hit('g', 0).probe;
    c.shadows.unwatch(probe);
    // It returned unseen, and f has thrown long after.
    c.throw("int", 0x8d00);
    c.land(0x9080, false);
    c.check("+f0 +g1 /g1 !f0 int");
    // Its exit may still be on the way.
    c.enter('g', 0x8f00);
    c.shadows.unwatch(probe);
    c.exit('g', 0x8f00);
    c.check("+g0 -g0");
}

#[test]
fn calls_that_are_not_watched_any_more_are_taken_off_at_once() {
    let mut c = case();
    c.enter('g', 0x9100);
    c.enter('f', 0x9000);
    c.give_up('f');
    c.exit('g', 0x9100);
    c.check("+g0 +f1 /f1 -g0");
    // With a call in it that is watched, when that has ended; what is around it is as it was.
    c.enter('g', 0x9100);
    c.enter('f', 0x9000);
    c.enter('h', 0x8f00);
    c.give_up('f');
    c.check("+g0 +f1 +h2");
    c.exit('h', 0x8f00);
    c.check("-h2 /f1");
    c.exit('g', 0x9100);
    // Its exit may still come: then it is one that returned.
    c.enter('f', 0x9000);
    c.enter('h', 0x8f00);
    c.give_up('f');
    c.exit('f', 0x9000);
    c.check("-g0 +f0 +h1 ?h1 -f0");
    // None ends with its thread, nor with what happens above it.
    c.enter('f', 0x9000);
    c.enter('h', 0x8f00);
    c.give_up('f');
    c.end();
    c.check("+f0 +h1 xh1 /f0");
    c.goroutine = 7;
    c.enter('f', 0x90);
    c.give_up('f');
    c.check("+f0 /f0");
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn a_call_from_the_catching_frame_lies_where_the_catch_is_begun() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.throw("E", 0x8e00);
    c.land(0x8f00, false);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 !g1 E -f0");
    // The same seen by a return probe and through a destructor.
    c.enter('F', 0x9000);
    c.enter('G', 0x8f00);
    c.throw("E", 0x8e00);
    c.enter('D', 0x8f00);
    c.exit('D', 0x8f00);
    c.land(0x8f00, true);
    c.end();
    c.check("+F0 +G1 !G1 E +D1 -D1 xF0");
}

#[test]
fn one_throw_is_one_however_many_functions_it_passes() {
    let mut c = case();
    c.enter('f', 0x9000);
    assert!(c.throw("std::logic_error", 0x8f00));
    assert!(
        !c.throw_by('^', "C++ exception", 0x8e80),
        "the same, by the unwinder"
    );
    c.land(0x8fc0, false);
    assert!(c.throw("", 0x8f00), "thrown again");
    c.end();
    c.check("+f0 xf0");
    c.enter('f', 0x9000);
    assert!(c.throw("", 0x8f00), "it says no name");
    assert!(
        !c.throw_by('^', "Rust panic", 0x8e80),
        "but what it calls does"
    );
    c.land(0x9040, false);
    c.check("+f0 !f0 Rust panic");
    // Whose landing is not seen, and which is thrown again and again.
    for _ in 0..20 {
        c.enter('f', 0x9000);
        assert!(c.throw("E", 0x8f00) && !c.throw_by('^', "?", 0x8e80));
    }
    assert_eq!(c.log.iter().filter(|line| *line == "!f0 E").count(), 19);
}

#[test]
fn a_destructor_may_throw_and_catch() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.throw("outer", 0x8e00);
    c.enter('d', 0x8ec0);
    c.enter('e', 0x8e80);
    assert!(
        c.throw("inner", 0x8d80),
        "near to where the outer one was thrown"
    );
    c.land(0x8e80, false);
    c.exit('d', 0x8ec0);
    c.land(0x8f80, false);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 +d2 +e3 !e3 inner -d2 !g1 outer -f0");
}

#[test]
fn a_landing_says_of_itself_that_something_was_thrown() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.land(0x8f80, false);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 !g1 ? -f0");
}

#[test]
fn longjmp_leaves_what_it_jumps_over() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.enter('h', 0x8e00);
    c.jump(0x8d00);
    c.enter('i', 0x8f00);
    c.exit('i', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 +h2 ?h2 ?g1 +i1 -i1 -f0");
    // A return probe at the place that is called next: no tail call.
    c.enter('F', 0x9000);
    c.enter('G', 0x8f00);
    c.jump(0x8d00);
    c.enter('I', 0x8f00);
    c.check("+F0 +G1 ?G1 +I1");
}

#[test]
fn the_kernel_reports_no_more_than_64_returns() {
    let mut c = case();
    for depth in 0..70 {
        c.enter('R', 0x9000 - depth * 0x40);
    }
    // A deeper one returns unseen, and its caller calls another function.
    c.enter('S', 0x9000 - 69 * 0x40);
    c.log.clear();
    for depth in (0..64).rev() {
        c.exit('R', 0x9000 - depth * 0x40);
    }
    let inferred = c.log.iter().filter(|line| line.starts_with('?')).count();
    let returned = c.log.iter().filter(|line| line.starts_with('-')).count();
    assert_eq!((inferred, returned), (6, 64));
    assert_eq!(c.shadows.open(), 0);
    // Which leaves room for others.
    c.log.clear();
    c.enter('R', 0x9000);
    assert_eq!(c.shadows.pending_returns(Tid(10)), [0]);
}

#[test]
fn signals_nest_on_the_same_stack() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('s', 0x8a00);
    c.enter('f', 0x8900);
    c.exit('f', 0x8900);
    c.exit('s', 0x8a00);
    c.exit('f', 0x9000);
    c.check("+f0 +s1 +f2 -f2 -s1 -f0");
}

#[test]
fn a_signal_stack_does_not_end_what_it_interrupts() {
    // Below the thread's stack, and far above.
    for signal in [0x5555_0000_8000, 0x7fff_0000_8000] {
        let mut c = case();
        c.enter('f', 0x7000_0000_9000);
        c.enter('g', 0x7000_0000_8f00);
        c.enter('s', signal);
        c.enter('t', signal - 0x100);
        c.exit('t', signal - 0x100);
        c.exit('s', signal);
        c.enter('h', 0x7000_0000_8e00);
        c.exit('h', 0x7000_0000_8e00);
        c.exit('g', 0x7000_0000_8f00);
        c.exit('f', 0x7000_0000_9000);
        c.check("+f0 +g1 +s0 +t1 -t1 -s0 +h2 -h2 -g1 -f0");
        assert!(!c.shadows.is_switching(Pid(1)));
    }
}

/// Two coroutines and their scheduler take turns.
fn coroutines(c: &mut Case, one: u64, two: u64) {
    let main = 0x7fff_0000_9000;
    c.enter('m', main);
    for _ in 0..2 {
        c.enter('a', one);
        c.enter('b', two);
        c.enter('a', one - 0x100);
        c.enter('b', two - 0x100);
        c.exit('a', one - 0x100);
        c.exit('b', two - 0x100);
        c.exit('a', one);
        c.exit('b', two);
    }
    c.exit('m', main);
}

#[test]
fn coroutines_on_distant_stacks_survive() {
    let mut c = case();
    c.shadows.switches(Pid(1));
    coroutines(&mut c, 0x5555_0000_9000, 0x5555_0100_9000);
    let turn = "+a0 +b0 +a1 +b1 -a1 -b1 -a0 -b0";
    c.check(&format!("+m0 {turn} {turn} -m0"));
}

#[test]
fn coroutines_on_adjacent_stacks_are_told_apart_once_they_were_seen() {
    let mut c = case();
    c.shadows.switches(Pid(1));
    // 16 KiB each, so that the second looks like a deep call of the first.
    coroutines(&mut c, 0x5555_0000_9000, 0x5555_0000_5000);
    let first: Vec<String> = c.log.drain(..9).collect();
    assert!(first.iter().all(|line| !line.starts_with('?')), "{first:?}");
    assert_eq!(first[8], "-b1");
    c.log.clear();
    assert_eq!(c.shadows.open(), 0);
    coroutines(&mut c, 0x5555_0000_9000, 0x5555_0000_5000);
    let turn = "+a0 +b0 +a1 +b1 -a1 -b1 -a0 -b0";
    c.check(&format!("+m0 {turn} {turn} -m0"));
}

#[test]
fn that_a_process_switches_stacks_is_found_out() {
    let mut c = case();
    // A coroutine within reach of the thread's stack.
    let (main, coroutine) = (0x7000_0000_9000, 0x7000_0000_0000);
    c.enter('f', main);
    c.enter('g', coroutine);
    // It is left in the middle; to end f is to prove it.
    c.exit('f', main);
    c.check("+f0 +g1 ?g1 -f0");
    c.exit('g', coroutine);
    c.check("unmatched");
    assert!(c.shadows.is_switching(Pid(1)));
    // From now on nothing ends too early, and where the coroutine's stack is shows, too.
    for depth in [1, 0] {
        c.enter('f', main);
        c.enter('g', coroutine);
        c.exit('f', main);
        c.exit('g', coroutine);
        c.check(&format!("+f0 +g{depth} -f0 -g{depth}"));
    }
    // On stacks that lie apart it is the exit on another stack that tells.
    let mut c = case();
    c.enter('f', main);
    c.enter('g', 0x5555_0000_0000);
    c.exit('f', main);
    c.exit('g', 0x5555_0000_0000);
    c.check("+f0 +g0 -f0 -g0");
    assert!(c.shadows.is_switching(Pid(1)));
}

#[test]
fn a_process_that_switches_stacks_still_throws_jumps_and_loses() {
    let mut c = case();
    c.shadows.switches(Pid(1));
    c.enter('f', 0x90_0000);
    c.enter('g', 0x8f_0000);
    c.throw("E", 0x8e_0000);
    c.land(0x8f_8000, false);
    c.exit('f', 0x90_0000);
    c.check("+f0 +g1 !g1 E -f0");
    c.enter('f', 0x90_0000);
    c.enter('g', 0x8f_4000);
    c.jump(0x8f_3000);
    c.enter('h', 0x8f_f000);
    c.exit('h', 0x8f_f000);
    c.exit('f', 0x90_0000);
    c.check("+f0 +g1 ?g1 +h1 -h1 -f0");
    c.enter('f', 0x90_0000);
    c.enter('g', 0x8f_4000);
    c.shadows.lost();
    c.exit('f', 0x90_0000);
    c.check("+f0 +g1 ?g1 -f0");
    // A near one needs no explanation: no stack is that small.
    c.enter('f', 0x90_0000);
    c.enter('g', 0x8f_ff00);
    c.exit('f', 0x90_0000);
    c.check("+f0 +g1 ?g1 -f0");
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn goroutines_move_between_threads() {
    // Addresses count from the upper end: deeper ones are larger.
    let mut c = case();
    c.goroutine = 7;
    c.enter('f', 0x100);
    c.enter('g', 0x200);
    c.goroutine = 8;
    c.enter('f', 0x100);
    (c.goroutine, c.thread) = (7, 1);
    c.exit('g', 0x200);
    c.enter('h', 0x180);
    c.exit('f', 0x100);
    (c.goroutine, c.thread) = (8, 1);
    c.exit('f', 0x100);
    c.exit('f', 0x80);
    c.check("+f0 +g1 +f0 -g1 +h1 ?h1 -f0 -f0 unmatched");
    assert_eq!(c.shadows.open(), 0);
    // They end with their process, not with a thread.
    c.enter('f', 0x100);
    c.end();
    c.check("+f0");
    let ended = c.shadows.end_process(Pid(1), 999);
    assert_eq!((ended.len(), ended[0].0), (1, Tid(11)));
    assert_eq!(ended[0].1[0].how, How::Terminated);
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn threads_end_with_all_their_calls() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.thread = 1;
    c.enter('f', 0x9000);
    c.thread = 0;
    c.end();
    c.check("+f0 +g1 +f0 xg1 xf0");
    c.exit('f', 0x9000);
    c.check("unmatched");
    let ended = c.shadows.end_process(Pid(1), 999);
    assert_eq!(ended.len(), 1);
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn passing_ends_what_lies_below_and_nothing_else() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.pass('u', 0x9000);
    c.enter('g', 0x8f00);
    c.pass('u', 0x8f80);
    c.exit('f', 0x9000);
    c.check("+f0 .u1 +g1 ?g1 .u1 -f0");
}

#[test]
fn tail_calls_have_one_place_on_the_stack_of_a_sample() {
    let mut c = case();
    c.caller = 0x111;
    c.enter('F', 0x9000);
    c.caller = 0x222;
    c.enter('G', 0x8f00);
    c.caller = PAGE;
    c.enter('H', 0x8f00);
    c.caller = 0x333;
    c.enter('i', 0x8e00);
    assert_eq!(c.shadows.pending_returns(Tid(10)), [0x222, 0x111]);
}

#[test]
fn memory_is_bounded_whatever_happens() {
    let mut c = case();
    for depth in 0..MAX_DEPTH as u64 + 100 {
        c.enter('f', (1 << 40) - depth * 16);
    }
    assert_eq!(c.shadows.open(), MAX_DEPTH);
    assert_eq!(c.log.iter().filter(|line| *line == "too deep").count(), 100);
    c.end();
    assert_eq!(c.shadows.open(), 0);
    // Ever new stacks, with a call open on each.
    for stack in 1..1000u64 {
        c.enter('f', stack << 32);
    }
    assert!(c.shadows.open() <= 256, "{}", c.shadows.open());
    c.shadows.retain(|_, _| false);
    assert_eq!(c.shadows.open(), 0);
    // Anything at all, in any order.
    let mut random = 1u64;
    for _ in 0..200_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (what, sp) = (
            random >> 60,
            (random >> 20) & 0x3_ff00 | (random >> 55 & 3) << 40,
        );
        let name = ['f', 'g', 'F', 'G'][(random >> 50 & 3) as usize];
        c.thread = (random >> 48 & 3) as u32;
        c.goroutine = u32::from(random >> 45 & 7 == 0);
        match what {
            0..=5 => c.enter(name, sp),
            6..=10 => c.exit(name, sp),
            11 => c.pass(name, sp),
            12 => drop(c.throw("E", sp)),
            13 => c.land(sp, random & 1 << 30 == 0),
            14 => c.jump(sp),
            _ => c.shadows.lost(),
        }
        c.log.clear();
    }
    for thread in 0..4 {
        c.thread = thread;
        c.end();
    }
    c.shadows.end_process(Pid(1), c.now);
    assert_eq!(c.shadows.open(), 0);
}

#[test]
fn a_suspension_ends_what_is_open_and_pairs_nothing_across_it() {
    let mut c = case();
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.thread = 1;
    c.enter('h', 0x19000);
    c.throw("int", 0x18f00);
    c.thread = 0;
    c.goroutine = 7;
    c.enter('m', 0x100);
    c.goroutine = 0;
    c.check("+f0 +g1 +h0 +m0");
    for (_, left) in c.shadows.suspend(c.now, &How::Inferred) {
        c.left(left);
    }
    c.check("?g1 ?f0 ?m0 ?h0");
    assert_eq!(c.shadows.open(), 0);
    // f goes on, or is another f at the same place: nobody knows.
    c.enter('g', 0x8f00);
    c.exit('g', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+g0 -g0 unmatched");
    // That exits come whose calls were inferred to be over does not make it a switcher of stacks.
    c.enter('f', 0x9000);
    c.enter('g', 0x8f00);
    c.exit('f', 0x9000);
    c.check("+f0 +g1 ?g1 -f0");
    // What was thrown before has landed meanwhile.
    c.thread = 1;
    c.enter('h', 0x19000);
    c.enter('k', 0x18f00);
    c.exit('h', 0x19000);
    c.check("+h0 +k1 ?k1 -h0");
    c.thread = 0;
    c.goroutine = 7;
    c.exit('m', 0x100);
    c.check("unmatched");
}
