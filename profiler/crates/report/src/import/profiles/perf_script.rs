//! Text of `perf script`: a line for a sample, a line for each frame of its stack, leaf first, and an empty one.
//!
//! `comm pid/tid [cpu] seconds.fraction: period event:`, where tid or pid, CPU and period may be missing; behind it
//! `address symbol+offset (object)`, with `(inlined)` for what is inlined into the frame that follows.

use std::io::BufRead;

use super::intake::Intake;
use super::{ImportError, Lines, is_silent};
use profiler_model::*;

/// Most frames of a stack.
const MAX_FRAMES: usize = 4096;

/// What the first line of a sample says.
#[derive(Debug, PartialEq, Eq)]
struct Header<'a> {
    comm: &'a str,
    pid: u32,
    tid: u32,
    cpu: u32,
    at: u64,
    period: Option<u64>,
    event: &'a str,
}

/// Whether a line is the first of a sample.
pub(super) fn is_header(line: &str) -> bool {
    header(line).is_some()
}

fn header(line: &str) -> Option<Header<'_>> {
    let offset = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize;
    let words: Vec<&str> = line.split_whitespace().collect();
    // Names may look like anything: the first time that has a number before it is it.
    (2..words.len()).find_map(|time| {
        let at = nanoseconds(words[time].strip_suffix(':')?)?;
        let cpu = words[time - 1]
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'));
        let (cpu, ids) = match cpu {
            Some(cpu) => (cpu.parse().ok()?, time.checked_sub(2)?),
            None => (0, time - 1),
        };
        let (pid, tid) = match words[ids].split_once('/') {
            Some((pid, tid)) => (id(pid)?, id(tid)?),
            None => {
                let id = id(words[ids])?;
                (id, id)
            }
        };
        let comm = line[..offset(words[ids])].trim();
        let (period, event) = match words.get(time + 1)?.parse().ok() {
            Some(period) => (Some(period), words.get(time + 2)?),
            None => (None, words.get(time + 1)?),
        };
        let event = event.strip_suffix(':')?;
        (!comm.is_empty() && !event.is_empty()).then_some(Header {
            comm,
            pid,
            tid,
            cpu,
            at,
            period,
            event,
        })
    })
}

/// A number of a process or thread; that of one that has none any more is -1.
fn id(text: &str) -> Option<u32> {
    match text {
        "-1" => Some(u32::MAX),
        text => text.parse().ok(),
    }
}

/// `5.000001` as nanoseconds.
fn nanoseconds(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - fraction.len() as u32);
    let fraction: u64 = fraction.parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * scale)
}

/// A line of a stack.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    address: u64,
    /// None if perf does not know it.
    symbol: Option<&'a str>,
    offset: Option<u64>,
    object: &'a str,
}

fn place(line: &str) -> Option<Place<'_>> {
    let line = line.trim();
    let (address, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim();
    let (symbol, object) = match rest.strip_suffix(')') {
        Some(inner) => {
            // `(/a/b (deleted))`
            let inner = inner.strip_suffix(" (deleted)").unwrap_or(inner);
            let at = inner
                .rfind(" (")
                .or_else(|| inner.starts_with('(').then_some(0))?;
            (
                inner[..at].trim(),
                inner[at..].trim_start_matches([' ', '(']),
            )
        }
        None => (rest, ""),
    };
    let split = symbol.rsplit_once("+0x");
    let offset = split.and_then(|(_, offset)| u64::from_str_radix(offset, 16).ok());
    let name = match (offset, split) {
        (Some(_), Some((name, _))) => name,
        _ => symbol,
    };
    Some(Place {
        address,
        symbol: (!name.is_empty() && name != "[unknown]").then_some(name),
        offset,
        object,
    })
}

/// What kind of object a name in brackets, or a path, stands for.
fn kind_of(object: &str) -> (ModuleKind, FrameKind) {
    let of_kernel = object.starts_with("[kernel") || object.starts_with("[guest.kernel");
    match object {
        _ if of_kernel => (ModuleKind::Kernel, FrameKind::Kernel),
        "[vdso]" => (ModuleKind::Vdso, FrameKind::Native),
        _ if object.starts_with("[jit")
            || object.contains("/perf-") && object.ends_with(".map") =>
        {
            (ModuleKind::Jit, FrameKind::Jit)
        }
        "[unknown]" | "" | "//anon" | "[stack]" | "[heap]" => {
            (ModuleKind::Unknown, FrameKind::Native)
        }
        _ if object.starts_with('[') => (ModuleKind::KernelModule, FrameKind::Kernel),
        _ => (ModuleKind::File, FrameKind::Native),
    }
}

/// What perf counts in nanoseconds, by default.
fn unit_of(event: &str, period: Option<u64>) -> Unit {
    let name = event.split(':').next().unwrap_or(event);
    match name {
        "cpu-clock" | "task-clock" | OFF_CPU if period.is_some() => Unit::Nanoseconds,
        "cycles" | "cpu-cycles" if period.is_some() => Unit::Cycles,
        _ => Unit::Events,
    }
}

pub(super) fn read(input: &mut dyn BufRead, intake: &mut Intake<'_>) -> Result<(), ImportError> {
    let mut lines = Lines::new(input);
    while let Some(line) = lines.next()? {
        if is_silent(&line) {
            continue;
        }
        let Some(header) = header(&line) else {
            return Err(lines.wrong(
                "it does not begin a sample; wanted is 'comm pid/tid [cpu] time: period event:'",
            ));
        };
        let thread = intake.thread(header.pid, header.comm, header.tid, header.comm);
        let unit = unit_of(header.event, header.period);
        let source = intake.source(header.event, unit, None);
        let weight = header.period.unwrap_or(1);
        let mut sample = Sample::new(
            Timestamp(header.at),
            thread,
            Cpu(header.cpu),
            source,
            weight,
        );
        let (mut frames, mut inlined) = (Vec::new(), Vec::new());
        while let Some(line) = lines.next()? {
            if line.trim().is_empty() {
                break;
            }
            if frames.len() >= MAX_FRAMES {
                return Err(lines.wrong(format!("a stack has more than {MAX_FRAMES} frames")));
            }
            let place = place(&line).ok_or_else(|| lines.wrong("it is no frame of a stack"))?;
            if place.object == "[wait]" {
                sample.wait = wait(place.symbol, weight);
            } else if place.object == "inlined" {
                inlined.push(named(place.symbol, None, None, intake));
            } else {
                frames.push(frame(&place, &mut inlined, intake));
            }
        }
        frames.reverse();
        let stacks = intake.stacks(&frames);
        intake.unsaid(sample, stacks)?;
    }
    Ok(())
}

/// The wait that our own export tells of.
fn wait(symbol: Option<&str>, ns: u64) -> Option<Wait> {
    let name = symbol?.strip_prefix('[')?.strip_suffix(']')?;
    let state = WaitState::ALL.iter().find(|state| state.name() == name)?;
    Some(Wait {
        ns,
        runnable_ns: 0,
        state: *state,
        waker: None,
        count: 1,
    })
}

fn named(
    symbol: Option<&str>,
    module: Option<ModuleId>,
    start: Option<u64>,
    intake: &mut Intake<'_>,
) -> FunctionId {
    let name = intake.string(symbol.unwrap_or("[unknown]"));
    intake.function(Function {
        name,
        linkage_name: None,
        module,
        file: None,
        start,
        size: None,
    })
}

fn frame(place: &Place<'_>, inlined: &mut Vec<FunctionId>, intake: &mut Intake<'_>) -> FrameId {
    let (module_kind, kind) = kind_of(place.object);
    let module = match module_kind {
        ModuleKind::Unknown => None,
        module_kind => Some(intake.module(module_kind, place.object, None)),
    };
    let start = place
        .offset
        .and_then(|offset| place.address.checked_sub(offset));
    let mut functions = std::mem::take(inlined);
    if place.symbol.is_some() || !functions.is_empty() {
        functions.push(named(place.symbol, module, start, intake));
    }
    let symbol = || match functions.is_empty() {
        true => Symbol::Unknown(UnknownReason::NoSymbol),
        false => {
            let line = |&function: &FunctionId| Line { function, line: 0 };
            Symbol::Lines(functions.iter().map(line).collect())
        }
    };
    let frame = Frame {
        kind,
        module,
        address: place.address,
    };
    intake.frame(frame, symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_all_their_forms() {
        let header = |line| {
            header(line).map(|it| (it.comm, it.pid, it.tid, it.cpu, it.at, it.period, it.event))
        };
        assert_eq!(
            header("my prog 1/ 12/13 [003]  5.000001:     250 cycles:u: "),
            Some((
                "my prog 1/",
                12,
                13,
                3,
                5_000_001_000,
                Some(250),
                "cycles:u"
            ))
        );
        assert_eq!(
            header("swapper     0 [001] 99.123456789: cpu-clock: "),
            Some(("swapper", 0, 0, 1, 99_123_456_789, None, "cpu-clock"))
        );
        assert_eq!(
            header("a 7 1.5: 1 sched:sched_switch: prev_comm=x"),
            Some(("a", 7, 7, 0, 1_500_000_000, Some(1), "sched:sched_switch"))
        );
        assert_eq!(
            header(":-1    -1 [000]  1.5: 1 cpu-clock: "),
            Some((
                ":-1",
                u32::MAX,
                u32::MAX,
                0,
                1_500_000_000,
                Some(1),
                "cpu-clock"
            ))
        );
        for line in [
            "",
            "a",
            "a 1.5: x:",
            "a b 1.5: x:",
            "a 1 1.5 x:",
            "a 1 1.5: x",
            "\t  1f main (/a)",
        ] {
            assert_eq!(header(line), None, "{line}");
        }
    }

    #[test]
    fn frames_in_all_their_forms() {
        let place = |line| place(line).map(|it| (it.address, it.symbol, it.offset, it.object));
        assert_eq!(
            place("\t    55d0 operator new(unsigned long)+0x1f (/usr/lib/libstdc++.so.6)"),
            Some((
                0x55d0,
                Some("operator new(unsigned long)"),
                Some(0x1f),
                "/usr/lib/libstdc++.so.6"
            ))
        );
        assert_eq!(
            place(" ffff [unknown] ([kernel.kallsyms])"),
            Some((0xffff, None, None, "[kernel.kallsyms]"))
        );
        assert_eq!(
            place(" 1f f (inlined)"),
            Some((0x1f, Some("f"), None, "inlined"))
        );
        assert_eq!(
            place(" 1f f+0x1 (/a b (deleted))"),
            Some((0x1f, Some("f"), Some(1), "/a b"))
        );
        assert_eq!(place(" 1f (/a)"), Some((0x1f, None, None, "/a")));
        assert_eq!(place(" main (/a)"), None);
    }
}
