//! Text of `perf script`: a line for a sample; with call chains a line for each frame of its stack, leaf first, and an empty one.
//!
//! `comm pid/tid [cpu] mode seconds.fraction: period event:`, where tid or pid, CPU, mode, period and event may be missing; behind it
//! or in lines of their own `address symbol+offset (object)`, with `(inlined)` for what is inlined into the frame that follows.
//! Memory is that of one line for each distinct frame, of names, and of the text of stacks, up to a limit: the same stacks come again
//! and again, and are then known by their text. What does not belong here: how a recording is made of it (`intake`).

use std::io::BufRead;

use rustc_hash::FxHashMap;

use super::intake::Intake;
use super::{ImportError, Lines, is_silent};
use profiler_model::text::TextMap;
use profiler_model::*;

/// Most frames of a stack.
const MAX_FRAMES: usize = 4096;
/// Most bytes of the text of a stack: what is longer is read as it comes.
const MAX_STACK: usize = 1 << 16;
/// Most bytes of the text of stacks that are kept.
const MAX_KEPT: usize = 32 << 20;
/// What perf's own records are called where it shows them: they are not samples.
const RECORD: &str = "PERF_RECORD_";

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
    /// What is behind the event: of a tracepoint its fields; where no call chains are, the place.
    rest: &'a str,
}

/// Whether a line is the first of a sample, or one of perf's records between samples.
pub(super) fn is_header(line: &str) -> bool {
    header(line).is_some()
}

/// The word before a byte of a line, and where it begins.
fn word_before(line: &str, end: usize) -> Option<(&str, usize)> {
    let before = line[..end].trim_end();
    let start = before.rfind(char::is_whitespace).map_or(0, |at| {
        at + before[at..].chars().next().map_or(1, char::len_utf8)
    });
    let word = &before[start..];
    (!word.is_empty()).then_some((word, start))
}

fn header(line: &str) -> Option<Header<'_>> {
    // Names may look like anything: the first time that has a number before it is it.
    let mut colons = line.match_indices(':');
    colons.find_map(|(colon, _)| header_at(line, colon))
}

/// With its time ending at a colon.
fn header_at(line: &str, colon: usize) -> Option<Header<'_>> {
    let rest = &line[colon + 1..];
    if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
        return None;
    }
    let (time, start) = word_before(line, colon)?;
    let at = nanoseconds(time).filter(|_| line[..colon].ends_with(time))?;
    let (mut word, mut start) = word_before(line, start)?;
    if is_mode(word) {
        (word, start) = word_before(line, start)?;
    }
    let cpu = word
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .map(|cpu| cpu.parse().ok());
    let cpu = match cpu {
        Some(cpu) => {
            (word, start) = word_before(line, start)?;
            cpu?
        }
        None => 0,
    };
    let (pid, tid) = match word.split_once('/') {
        Some((pid, tid)) => (id(pid)?, id(tid)?),
        None => {
            let id = id(word)?;
            (id, id)
        }
    };
    let comm = line[..start].trim();
    if comm.is_empty() {
        return None;
    }
    let rest = rest.trim_start();
    let (first, behind) = split_word(rest);
    let (period, event, rest) = match first.parse().ok() {
        Some(period) => {
            let (event, behind) = split_word(behind.trim_start());
            (Some(period), event, behind)
        }
        None => (None, first, behind),
    };
    let event = match event.is_empty() {
        // No event was asked for.
        true => "samples",
        false if event.starts_with(RECORD) => event.trim_end_matches(':'),
        false => event.strip_suffix(':').filter(|it| !it.is_empty())?,
    };
    Some(Header {
        comm,
        pid,
        tid,
        cpu,
        at,
        period,
        event,
        rest: rest.trim(),
    })
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// What `-F misc` says: kernel, user, hypervisor, guest.
fn is_mode(word: &str) -> bool {
    word.len() <= 3 && word.bytes().all(|byte| b"KUHGgMESp".contains(&byte))
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
    let mut text = Text::new(intake);
    while lines.advance()? {
        text.line(&lines)?;
    }
    text.flush()
}

/// What the text of a stack says.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Of the user and of the kernel.
    stacks: (Option<StackId>, Option<StackId>),
    /// It says what was waited for.
    wait: Option<WaitState>,
}

/// A sample whose frames are being read.
struct Pending {
    sample: Sample,
    /// Leaf first.
    frames: Vec<FrameId>,
    /// It says what was waited for.
    wait: Option<WaitState>,
    /// Of what comes next.
    inlined: Vec<FunctionId>,
    /// Lines of these, to find the place again that they belong to.
    inlined_text: String,
    /// Without a call chain, its place is behind its event.
    is_leaf: bool,
}

struct Text<'i, 'a> {
    intake: &'i mut Intake<'a>,
    pending: Option<Pending>,
    /// Lines of its stack that were not looked at yet, and the number of the first.
    unread: String,
    unread_from: u64,
    /// What was read of such a text before, and how many bytes all of them have.
    known: TextMap<Box<str>, Known>,
    kept: usize,
    /// What was begun is a record of perf: lines behind it belong to it.
    in_record: bool,
    /// By pid and tid, with the name that they had last.
    threads: FxHashMap<(u32, u32), (ThreadId, StringId)>,
    /// By their lines.
    places: TextMap<String, FrameId>,
}

impl<'i, 'a> Text<'i, 'a> {
    fn new(intake: &'i mut Intake<'a>) -> Text<'i, 'a> {
        Text {
            intake,
            pending: None,
            unread: String::new(),
            unread_from: 0,
            known: TextMap::default(),
            kept: 0,
            in_record: false,
            threads: FxHashMap::default(),
            places: TextMap::default(),
        }
    }

    fn line(&mut self, lines: &Lines<'_>) -> Result<(), ImportError> {
        let line = lines.line();
        if line.trim_start().is_empty() {
            self.in_record = false;
            return self.flush();
        }
        // Frames are behind a tab; what is behind spaces can be the name of a thread, too.
        if line.starts_with('\t')
            && (self.put_off(line, lines.number) || self.frame(line, lines.number)?)
        {
            return Ok(());
        }
        self.read_on()?;
        if let Some(header) = header(line) {
            self.flush()?;
            return self.begin(&header);
        }
        if self.pending.is_none() {
            return match self.in_record || is_silent(line) {
                true => Ok(()),
                false => Err(lines.wrong(
                    "it does not begin a sample; wanted is 'comm pid/tid [cpu] time: period event:'",
                )),
            };
        }
        if self.frame(line, lines.number)? || is_source_line(line) {
            return Ok(());
        }
        Err(no_frame(lines.number))
    }

    /// Whether a line that may be one of the stack is looked at later, if its stack is not known by then.
    fn put_off(&mut self, line: &str, number: u64) -> bool {
        let is_new = |it: &Pending| it.frames.is_empty() && it.inlined_text.is_empty();
        let fits = self.unread.len() + line.len() < MAX_STACK;
        if !fits || !begins_place(line) || !self.pending.as_ref().is_some_and(is_new) {
            return false;
        }
        if self.unread.is_empty() {
            self.unread_from = number;
        }
        self.unread += line;
        self.unread.push('\n');
        true
    }

    /// Looks at what was put off.
    fn read_on(&mut self) -> Result<(), ImportError> {
        let unread = std::mem::take(&mut self.unread);
        for (line, number) in unread.lines().zip(self.unread_from..) {
            if !self.frame(line, number)? {
                return Err(no_frame(number));
            }
        }
        self.unread = unread;
        self.unread.clear();
        Ok(())
    }

    fn begin(&mut self, header: &Header<'_>) -> Result<(), ImportError> {
        let record = header.event.strip_prefix(RECORD);
        self.in_record = record.is_some();
        if let Some(record) = record {
            let lost = header
                .rest
                .strip_prefix("lost ")
                .filter(|_| record == "LOST");
            return match lost.and_then(|count| count.trim().parse().ok()) {
                Some(count) => self.intake.lost(header.at, count),
                None => Ok(()),
            };
        }
        let thread = self.thread(header);
        let unit = unit_of(header.event, header.period);
        let source = self.intake.source(header.event, unit, None);
        let weight = header.period.unwrap_or(1);
        let at = Timestamp(header.at);
        let mut pending = Pending {
            sample: Sample::new(at, thread, Cpu(header.cpu), source, weight),
            frames: Vec::new(),
            wait: None,
            inlined: Vec::new(),
            inlined_text: String::new(),
            is_leaf: false,
        };
        if let Some(place) = place(header.rest).filter(|place| !place.object.is_empty()) {
            pending
                .frames
                .push(frame(&place, &mut Vec::new(), self.intake));
            pending.is_leaf = true;
        }
        self.pending = Some(pending);
        Ok(())
    }

    /// The thread of a sample, which has the name from now on that the sample has.
    fn thread(&mut self, header: &Header<'_>) -> ThreadId {
        let &Header { pid, tid, comm, .. } = header;
        let name = self.intake.string(comm);
        let (thread, before) = *self.threads.entry((pid, tid)).or_insert_with(|| {
            let thread = self.intake.thread(pid, comm, tid, comm);
            (thread, name)
        });
        if before != name {
            if self.intake.tables.names_of(thread).next().is_none() {
                let before = self.intake.tables.string(before).to_owned();
                self.intake.named(thread, Timestamp(0), &before);
            }
            self.intake.named(thread, Timestamp(header.at), comm);
            let known = self.intake.tables.find_process(Pid(pid), Timestamp(0));
            let process = match pid == tid {
                true => Some(self.intake.process(pid, Timestamp(0), comm)),
                false => known,
            };
            if let Some(process) = process {
                self.intake.thread_of(process, tid, Timestamp(0), comm);
            }
            self.threads.insert((pid, tid), (thread, name));
        }
        thread
    }

    /// Takes a line as one of the stack, if it is.
    fn frame(&mut self, line: &str, number: u64) -> Result<bool, ImportError> {
        let Some(pending) = &mut self.pending else {
            return Ok(false);
        };
        if pending.frames.len() >= MAX_FRAMES {
            return Err(too_many(number));
        }
        let key = pending.inlined_text.len();
        pending.inlined_text.push_str(line);
        if let Some(&known) = self.places.get(&pending.inlined_text) {
            pending.frames.push(known);
            pending.inlined.clear();
            pending.inlined_text.clear();
            return Ok(true);
        }
        let Some(place) = place(line) else {
            pending.inlined_text.truncate(key);
            return Ok(false);
        };
        if place.object == "[wait]" {
            pending.inlined_text.truncate(key);
            pending.wait = wait(place.symbol);
        } else if place.object == "inlined" {
            if pending.inlined.len() >= MAX_FRAMES {
                return Err(too_many(number));
            }
            pending.inlined_text.push('\n');
            let function = named(place.symbol, None, None, self.intake);
            pending.inlined.push(function);
        } else {
            let frame = frame(&place, &mut pending.inlined, self.intake);
            let text = std::mem::take(&mut pending.inlined_text);
            self.places.insert(text, frame);
            pending.frames.push(frame);
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let is_whole = pending.frames.is_empty() && !self.unread.is_empty();
        let known = self.known.get(&*self.unread).filter(|_| is_whole);
        let known = match known.copied() {
            Some(known) => {
                self.unread.clear();
                known
            }
            None => self.read_stack(is_whole)?,
        };
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let mut sample = pending.sample;
        sample.wait = known.wait.map(|state| waited(state, sample.weight));
        let (user, kernel) = known.stacks;
        match pending.is_leaf {
            true => {
                let sample = sample.with_stacks(kernel, user);
                self.intake.sample(sample.with_ends(StackEnd::LeafOnly))
            }
            false => self.intake.unsaid(sample, (user, kernel)),
        }
    }

    /// Reads the stack of the sample; if its text is all of it, that is kept.
    fn read_stack(&mut self, is_whole: bool) -> Result<Known, ImportError> {
        let text: Option<Box<str>> = is_whole.then(|| self.unread.as_str().into());
        self.read_on()?;
        let mut known = Known::default();
        if let Some(pending) = &mut self.pending {
            pending.frames.reverse();
            known.stacks = self.intake.stacks(&pending.frames);
            known.wait = pending.wait;
        }
        if let Some(text) = text {
            if self.kept + text.len() > MAX_KEPT {
                self.known.clear();
                self.kept = 0;
            }
            self.kept += text.len();
            self.known.insert(text, known);
        }
        Ok(known)
    }
}

/// What `-F srcline` has behind a frame: `  file.c:12`.
fn is_source_line(line: &str) -> bool {
    let text = line.strip_prefix("  ");
    text.is_some_and(|text| !text.starts_with(char::is_whitespace))
}

/// Whether a line begins as one of a stack does: with an address.
fn begins_place(line: &str) -> bool {
    let (address, _) = split_word(line.trim_start());
    u64::from_str_radix(address, 16).is_ok()
}

fn no_frame(line: u64) -> ImportError {
    let what = "it is no frame of a stack".to_owned();
    ImportError::Line { line, what }
}

fn too_many(line: u64) -> ImportError {
    let what = format!("a stack has more than {MAX_FRAMES} frames");
    ImportError::Line { line, what }
}

/// What was waited for, as our own export tells it.
fn wait(symbol: Option<&str>) -> Option<WaitState> {
    let name = symbol?.strip_prefix('[')?.strip_suffix(']')?;
    let mut states = WaitState::ALL.iter().copied();
    states.find(|state| state.name() == name)
}

fn waited(state: WaitState, ns: u64) -> Wait {
    Wait {
        ns,
        runnable_ns: 0,
        state,
        waker: None,
        count: 1,
        open: false,
    }
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
        line: 0,
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
        assert_eq!(
            header("two  1771 [003] K   959.377435:    1003009 cpu-clock:ppp: "),
            Some((
                "two",
                1771,
                1771,
                3,
                959_377_435_000,
                Some(1_003_009),
                "cpu-clock:ppp"
            ))
        );
        assert_eq!(
            header("two 1771 U 959.377435: "),
            Some(("two", 1771, 1771, 0, 959_377_435_000, None, "samples"))
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
    fn lines_behind_a_record_belong_to_it() {
        let sample = "a 1 1.5: 7 cycles: \n\tf1 f (/x)\n\n";
        let record =
            "a 1 1.0: PERF_RECORD_NAMESPACES 1/1 - nr_namespaces: 7\n\t\t[0/net: 3/0xf0000078,\n\n";
        let imported = |text: &str| {
            let mut take = |_| Ok(());
            let mut intake = Intake::new("x", "perf-script", &mut take);
            read(&mut text.as_bytes(), &mut intake)?;
            intake.finish()
        };
        let text = [record, sample, record, sample].concat();
        assert_eq!(imported(&text).unwrap().samples, 2);
        let error = imported(&[record, "\t\tmore\n"].concat()).unwrap_err();
        assert!(error.to_string().contains("line 4"), "{error}");
    }

    /// What is imported of a text, and what of the same without the empty lines, where no stack is known by its text.
    fn both_ways(text: &str) -> [Vec<(Vec<Definition>, Vec<Event>)>; 2] {
        [text.to_owned(), text.replace("\n\n", "\n")].map(|text| {
            let mut batches = Vec::new();
            let mut take = |batch: Batch| {
                batches.push((batch.definitions, batch.events));
                Ok(())
            };
            let mut intake = Intake::new("x", "perf-script", &mut take);
            read(&mut text.as_bytes(), &mut intake).unwrap();
            intake.finish().unwrap();
            batches
        })
    }

    #[test]
    fn stacks_that_come_again_say_the_same() {
        let long: String = (0..3000)
            .map(|at| format!("\t{at:x} f{at} (/x)\n"))
            .collect();
        assert!(long.len() < MAX_STACK);
        let longer: String = (0..4000)
            .map(|at| format!("\t{at:x} function{at} (/x)\n"))
            .collect();
        assert!(longer.len() > MAX_STACK);
        let stacks = [
            "\tf1 f+0x1 (/x)\n\tf9 main (/x)\n",
            "\tf1 g (inlined)\n\tf1 f+0x1 (/x)\n\tf9 main (/x)\n",
            "\tffff0000 entry ([kernel.kallsyms])\n\tf9 main (/x)\n",
            "\t0 [disk] ([wait])\n\tf9 main (/x)\n",
            "\t0 [disk] ([wait])\n",
            "\tf1 left_open (inlined)\n",
            "",
            &long,
            &longer,
        ];
        let mut text = String::new();
        for round in 1..4 {
            for (number, stack) in stacks.iter().enumerate() {
                text += &format!(
                    "a 1/{number} [000] {round}.{number}00: {round} offcpu-time: \n{stack}\n"
                );
            }
        }
        let [known, read] = both_ways(&text);
        assert_eq!(known, read);
        let events: Vec<_> = known.iter().flat_map(|(_, events)| events).collect();
        assert_eq!(events.len(), 3 * stacks.len());
        let waits = events.iter().filter_map(|event| match event {
            Event::Sample(sample) => Some(sample.wait?.ns),
            _ => None,
        });
        assert_eq!(waits.collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn damage_is_told_by_its_line() {
        let sample = "a 1 1.5: 7 cycles: \n\tf1 f (/x)\n";
        for (rest, line) in [
            ("\tf2 foo)\n\n", 3),
            ("\tf2 f (/x)\n\tf3 foo)\n\tf4 f (/x)\n\n", 4),
            ("\tf2 foo)\n", 3),
        ] {
            let mut take = |_| Ok(());
            let mut intake = Intake::new("x", "perf-script", &mut take);
            let text = [sample, rest].concat();
            let error = read(&mut text.as_bytes(), &mut intake).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("line {line}: it is no frame of a stack")
            );
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
