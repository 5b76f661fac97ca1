//! Frames as a TraceActor tells of them: traced calls and samples -> frames that are entered and left.
//!
//! A traced call says exactly when its frame was entered and left. Samples say only which frames were open: what two
//! of a thread have in common at the root has stayed, what only the first has was left, what only the second has was
//! entered; such frames are marked as inferred. Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here:
//! packets (`wire::rdp`), who is told.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::frames::{DisplayFrame, stack_frames};
use profiler_model::*;
use profiler_wire::rdp::{Entered, Exited, Place, Values, Why};

/// Parts of parts of a value that are shown.
const MAX_DEPTH: u32 = 8;

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameEvent<'t> {
    /// It is entered.
    Entered(Entered<'t>),
    /// It is left.
    Exited(Exited),
}

/// What a traced call tells. With `values`, its arguments and what it returned, as far as they are known.
pub fn call_frames<'t>(
    tables: &'t Tables,
    call: &Call,
    values: bool,
    mut tell: impl FnMut(FrameEvent<'t>),
) {
    let function = function_key(tables, call.function);
    let entered = |at: Timestamp, arguments: &Option<Box<[Value]>>| {
        let arguments = arguments.as_deref().filter(|_| values);
        FrameEvent::Entered(entered(tables, call, function, at, arguments))
    };
    let exited = |why, value, inferred| {
        FrameEvent::Exited(Exited {
            function,
            depth: call.depth,
            goroutine: call.stack,
            at_ns: call.at.0,
            why,
            value,
            inferred,
        })
    };
    match &call.edge {
        CallEdge::Enter(arguments) => tell(entered(call.at, arguments)),
        CallEdge::Hit(arguments) => {
            tell(entered(call.at, arguments));
            // Nobody saw how it went on: it is not to seem open for ever.
            tell(exited(Why::Return, None, true));
        }
        CallEdge::Exit(exit) => {
            if exit.whole.is_some() {
                tell(entered(exit.began, &exit.whole));
            }
            tell(match exit.how {
                ExitKind::Return => {
                    exited(Why::Return, returned(tables, call, exit, values), false)
                }
                ExitKind::Exception(kind) => {
                    let thrown = kind.map(|kind| thrown(tables.string(kind)));
                    exited(Why::Exception, thrown, false)
                }
                ExitKind::Terminated => exited(Why::Terminated, None, false),
                ExitKind::Inferred | ExitKind::Unwatched => exited(Why::Terminated, None, true),
            });
        }
    }
}

fn entered<'t>(
    tables: &'t Tables,
    call: &Call,
    key: u64,
    at: Timestamp,
    arguments: Option<&[Value]>,
) -> Entered<'t> {
    let function = tables.functions.get(call.function);
    let traced = tables.traced(call.function);
    let name = function.map_or("", |function| tables.string(function.name));
    let file = function.and_then(|function| function.file);
    let location = file.map(|file| Place {
        path: tables.string(file).into(),
        line: tables.line_of(call.function).unwrap_or(0),
    });
    let names = traced.map(|traced| {
        let names = traced.parameters.iter();
        names.map(|it| tables.string(it.name).into()).collect()
    });
    Entered {
        function: key,
        depth: call.depth,
        goroutine: call.stack,
        at_ns: at.0,
        name: name.into(),
        // A traced call does not tell whence it came.
        callsite: None,
        location,
        // None of them: whether there are any is known where values are.
        parameter_names: names
            .filter(|names: &Vec<Cow<'_, str>>| !names.is_empty() || has_values(&call.edge)),
        arguments: arguments.map(grips),
        inferred: false,
    }
}

/// Whether arguments were looked for.
fn has_values(edge: &CallEdge) -> bool {
    match edge {
        CallEdge::Enter(arguments) | CallEdge::Hit(arguments) => arguments.is_some(),
        CallEdge::Exit(exit) => exit.whole.is_some(),
    }
}

/// Tells functions apart, across tables.
fn function_key(tables: &Tables, id: FunctionId) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(function) = tables.functions.get(id) {
        let module = function.module.and_then(|id| tables.modules.get(id));
        tables.string(function.name).hash(&mut hasher);
        module.map(|it| tables.string(it.path)).hash(&mut hasher);
        function.start.hash(&mut hasher);
    }
    hasher.finish()
}

fn returned(tables: &Tables, call: &Call, exit: &Exit, values: bool) -> Option<Values> {
    let result = tables.traced(call.function).and_then(|it| it.result);
    let mut grips = Values::default();
    let grip = match &exit.result {
        Some(value) if values => grip(value, &mut grips, 0),
        None if matches!(result.map(|it| tables.string(it)), Some("void" | "()")) => {
            Values::undefined()
        }
        _ => return None,
    };
    grips.push(grip);
    Some(grips)
}

/// What was thrown, of which only the type is known.
fn thrown(kind: &str) -> Values {
    let mut values = Values::default();
    let grip = values.object(kind, Vec::new());
    values.push(grip);
    values
}

fn grips(arguments: &[Value]) -> Values {
    let mut values = Values::default();
    for argument in arguments {
        let grip = grip(argument, &mut values, 0);
        values.push(grip);
    }
    values
}

fn grip(value: &Value, pool: &mut Values, depth: u32) -> serde_json::Value {
    let address = |address: u64| vec![("address".to_owned(), format!("{address:#x}").into())];
    match value {
        Value::Signed(number) => Values::integer((*number).into()),
        Value::Unsigned(number) => Values::integer((*number).into()),
        Value::Float(number) => Values::float(*number),
        Value::Bool(truth) => (*truth).into(),
        Value::Char(character) => character.to_string().into(),
        Value::Text(text, false) => Values::text(text),
        Value::Text(text, true) => Values::cut_text(text),
        // A text at no address is none.
        Value::Pointer(0) | Value::Unreadable(0) => Values::null(),
        Value::Pointer(at) => pool.object("Pointer", address(*at)),
        Value::Unreadable(at) => pool.object("Unreadable", address(*at)),
        Value::Unavailable => pool.object("Unavailable", Vec::new()),
        Value::Named(name, number) => {
            let number = Values::integer((*number).into());
            let properties = vec![
                ("name".to_owned(), (&**name).into()),
                ("value".to_owned(), number),
            ];
            pool.object("Enum", properties)
        }
        Value::Struct(_) if depth >= MAX_DEPTH => pool.object("Unavailable", Vec::new()),
        Value::Struct(parts) => {
            let parts = parts.iter();
            let parts = parts.map(|(name, part)| (name.to_string(), grip(part, pool, depth + 1)));
            let parts = parts.collect();
            pool.object("Object", parts)
        }
    }
}

/// Why frames are missing, in a word; none if no frames are.
pub fn missing_frames(event: &Event) -> Option<(Option<u64>, &'static str)> {
    match event {
        Event::Lost(Lost { count, reason, .. }) => match reason {
            LostReason::CallRingFull => Some((Some(*count), "ringFull")),
            LostReason::SlowOutput => Some((Some(*count), "slowServer")),
            LostReason::BadRecord => Some((Some(*count), "badRecord")),
            LostReason::Unwritten | LostReason::UnwrittenCalls => {
                Some((Some(*count), "notWritten"))
            }
            LostReason::Late => Some((Some(*count), "late")),
            _ => None,
        },
        Event::Gap(gap) => match gap.reason {
            GapReason::NotYetAttached => Some((None, "notYetAttached")),
            GapReason::NoReturns => Some((None, "noExitsOverBudget")),
            GapReason::DutyCycle | GapReason::Detached => Some((None, "overBudget")),
            GapReason::Suspended => Some((None, "suspended")),
            GapReason::MissingData | GapReason::CutOff => Some((None, "agentData")),
        },
        _ => None,
    }
}

/// The frames of one thread, as its samples tell of them.
#[derive(Clone, Debug, Default)]
pub struct SampledFrames {
    /// What tells functions apart, outermost first.
    open: Vec<u64>,
}

impl SampledFrames {
    /// What a sample tells, since the one before.
    pub fn sample<'t>(
        &mut self,
        tables: &'t Tables,
        sample: &Sample,
        mut tell: impl FnMut(FrameEvent<'t>),
    ) {
        let mut frames: Vec<DisplayFrame<'t>> =
            stack_frames(tables, sample.kernel, sample.user).collect();
        frames.reverse();
        let keys: Vec<u64> = frames
            .iter()
            .map(|frame| frame_key(tables, frame))
            .collect();
        let both = self.open.iter().zip(&keys);
        let stayed = both.take_while(|(before, now)| before == now).count();
        self.leave(stayed, sample.at.0, &mut tell);
        for (depth, (frame, key)) in frames.iter().zip(&keys).enumerate().skip(stayed) {
            let caller = depth.checked_sub(1).map(|caller| &frames[caller]);
            let place = |frame: &DisplayFrame<'t>, line| {
                let path = frame.file?;
                Some(Place {
                    path: path.into(),
                    line,
                })
            };
            let defined = frame.function.and_then(|function| tables.line_of(function));
            self.open.push(*key);
            tell(FrameEvent::Entered(Entered {
                function: *key,
                depth: depth as u32,
                goroutine: 0,
                at_ns: sample.at.0,
                name: frame.name.clone(),
                callsite: caller.and_then(|caller| place(caller, caller.line)),
                location: place(frame, defined.unwrap_or(0)),
                parameter_names: None,
                arguments: None,
                inferred: true,
            }));
        }
    }

    /// Nothing more is known of the thread: what is open is left.
    pub fn end<'t>(&mut self, at: Timestamp, mut tell: impl FnMut(FrameEvent<'t>)) {
        self.leave(0, at.0, &mut tell);
    }

    fn leave<'t>(&mut self, stayed: usize, at_ns: u64, tell: &mut impl FnMut(FrameEvent<'t>)) {
        while self.open.len() > stayed
            && let Some(function) = self.open.pop()
        {
            tell(FrameEvent::Exited(Exited {
                function,
                depth: self.open.len() as u32,
                goroutine: 0,
                at_ns,
                why: Why::Return,
                value: None,
                inferred: true,
            }));
        }
    }
}

fn frame_key(tables: &Tables, frame: &DisplayFrame<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.name.hash(&mut hasher);
    // Functions of one name in several files are several.
    frame.file.hash(&mut hasher);
    let module = frame.module.and_then(|id| tables.modules.get(id));
    module.map(|it| tables.string(it.path)).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tables() -> (Tables, FunctionId) {
        let mut tables = Tables::default();
        let name = tables.intern_string("work").0;
        let file = tables.intern_string("/src/work.c").0;
        let parameter = tables.intern_string("count").0;
        let function = Function {
            name,
            linkage_name: None,
            module: None,
            file: Some(file),
            line: 11,
            start: Some(16),
            size: None,
        };
        let function = tables.functions.intern(function).0;
        tables.set_traced(
            function,
            Traced {
                kind: TracedKind::Function,
                entry_offset: 0,
                returns: ReturnMode::Instructions,
                cost_ns: 0,
                line: 12,
                parameters: Box::new([Parameter {
                    name: parameter,
                    kind: None,
                }]),
                result: None,
            },
        );
        (tables, function)
    }

    fn call(function: FunctionId, at: u64, edge: CallEdge) -> Call {
        Call {
            at: Timestamp(at),
            thread: ThreadId::from_index(0),
            cpu: Cpu(0),
            function,
            stack: 0,
            depth: 3,
            edge,
            later: None,
        }
    }

    fn exit(how: ExitKind, result: Option<Value>) -> CallEdge {
        CallEdge::Exit(Box::new(Exit {
            began: Timestamp(1),
            self_ns: 0,
            how,
            line: 0,
            result,
            whole: None,
        }))
    }

    fn told(tables: &Tables, call: &Call, values: bool) -> Vec<FrameEvent<'static>> {
        let mut all = Vec::new();
        call_frames(tables, call, values, |event| {
            all.push(match event {
                FrameEvent::Exited(exited) => FrameEvent::Exited(exited),
                FrameEvent::Entered(it) => FrameEvent::Entered(Entered {
                    name: it.name.into_owned().into(),
                    callsite: None,
                    location: it.location.map(|place| Place {
                        path: place.path.into_owned().into(),
                        line: place.line,
                    }),
                    parameter_names: it
                        .parameter_names
                        .map(|it| it.into_iter().map(|it| it.into_owned().into()).collect()),
                    ..Entered {
                        function: it.function,
                        depth: it.depth,
                        goroutine: it.goroutine,
                        at_ns: it.at_ns,
                        name: "".into(),
                        callsite: None,
                        location: None,
                        parameter_names: None,
                        arguments: it.arguments,
                        inferred: it.inferred,
                    }
                }),
            });
        });
        all
    }

    #[test]
    fn a_call_says_what_is_known_of_its_frame() {
        let (tables, function) = tables();
        let enter = CallEdge::Enter(Some(Box::new([Value::Signed(7)])));
        let events = told(&tables, &call(function, 5, enter), true);
        let [FrameEvent::Entered(entered)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(
            (&*entered.name, entered.depth, entered.at_ns),
            ("work", 3, 5)
        );
        let place = entered.location.as_ref().unwrap();
        // Where its name is, which the first instruction need not be of.
        assert_eq!((&*place.path, place.line), ("/src/work.c", 11));
        assert_eq!(entered.parameter_names, Some(vec!["count".into()]));
        let mut seven = Values::default();
        seven.push(Values::integer(7));
        assert_eq!(entered.arguments, Some(seven));
        assert!(!entered.inferred);
    }

    #[test]
    fn values_are_told_only_to_whom_may_see_them() {
        let (tables, function) = tables();
        let enter = CallEdge::Enter(Some(Box::new([Value::Signed(7)])));
        let left = exit(ExitKind::Return, Some(Value::Signed(8)));
        for edge in [enter, left] {
            match &told(&tables, &call(function, 5, edge), false)[..] {
                [FrameEvent::Entered(entered)] => assert_eq!(entered.arguments, None),
                [FrameEvent::Exited(exited)] => assert_eq!(exited.value, None),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_known_to_be_nothing_is_no_secret() {
        let (mut tables, function) = tables();
        let traced = tables.traced(function).unwrap().clone();
        let void = tables.intern_string("void").0;
        let traced = Traced {
            parameters: Box::new([]),
            result: Some(void),
            ..traced
        };
        tables.set_traced(function, traced);
        for (arguments, expected) in [(Some(Box::default()), Some(Vec::new())), (None, None)] {
            let events = told(
                &tables,
                &call(function, 5, CallEdge::Enter(arguments)),
                true,
            );
            let [FrameEvent::Entered(entered)] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(entered.parameter_names, expected);
        }
        let mut nothing = Values::default();
        nothing.push(Values::undefined());
        let left = call(function, 9, exit(ExitKind::Return, None));
        let [FrameEvent::Exited(exited)] = &told(&tables, &left, false)[..] else {
            panic!();
        };
        assert_eq!(exited.value, Some(nothing));
    }

    #[test]
    fn text_is_whole_or_said_to_be_cut() {
        let mut pool = Values::default();
        let mut grip = |value: Value| grip(&value, &mut pool, 0);
        assert_eq!(grip(Value::Text("a".into(), false)), json!("a"));
        let cut = json!({ "type": "longString", "initial": "a", "length": null });
        assert_eq!(grip(Value::Text("a".into(), true)), cut);
        for none in [Value::Pointer(0), Value::Unreadable(0)] {
            assert_eq!(grip(none), json!({ "type": "null" }));
        }
        assert_eq!(grip(Value::Unreadable(8))["type"], "object");
    }

    #[test]
    fn each_way_to_leave_has_its_reason() {
        let (mut tables, function) = tables();
        let kind = tables.intern_string("std::runtime_error").0;
        for (how, why, inferred) in [
            (ExitKind::Return, Why::Return, false),
            (ExitKind::Exception(Some(kind)), Why::Exception, false),
            (ExitKind::Exception(None), Why::Exception, false),
            (ExitKind::Terminated, Why::Terminated, false),
            (ExitKind::Inferred, Why::Terminated, true),
        ] {
            let events = told(&tables, &call(function, 9, exit(how, None)), true);
            let [FrameEvent::Exited(exited)] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!((exited.why, exited.inferred), (why, inferred));
            assert_eq!(
                exited.value.is_some(),
                how == ExitKind::Exception(Some(kind))
            );
        }
        let hit = told(&tables, &call(function, 9, CallEdge::Hit(None)), true);
        assert!(matches!(
            &hit[..],
            [
                FrameEvent::Entered(_),
                FrameEvent::Exited(Exited { inferred: true, .. })
            ]
        ));
    }

    #[test]
    fn samples_tell_what_has_changed_between_them() {
        let mut tables = Tables::default();
        let mut stack = |names: &[&str]| {
            let mut parent = None;
            for (address, name) in names.iter().enumerate() {
                let name = tables.intern_string(name).0;
                let function = tables.functions.intern(Function {
                    name,
                    linkage_name: None,
                    module: None,
                    file: None,
                    line: 0,
                    start: None,
                    size: None,
                });
                let frame = tables.frames.intern(Frame {
                    kind: FrameKind::Native,
                    module: None,
                    address: name.index() as u64 * 100 + address as u64,
                });
                let line = Line {
                    function: function.0,
                    line: 1,
                };
                tables.set_symbol(frame.0, Symbol::Lines(Box::new([line])));
                parent = Some(
                    tables
                        .stacks
                        .intern(Stack {
                            parent,
                            frame: frame.0,
                        })
                        .0,
                );
            }
            parent
        };
        let stacks = [stack(&["main", "a", "b"]), stack(&["main", "c"]), None];
        let mut frames = SampledFrames::default();
        let mut told = Vec::new();
        for (at, user) in (1..).zip(stacks) {
            let thread = ThreadId::from_index(0);
            let sample = Sample::new(Timestamp(at), thread, Cpu(0), SourceId::from_index(0), 1);
            frames.sample(&tables, &sample.with_stacks(None, user), |event| {
                told.push(match event {
                    FrameEvent::Entered(it) => {
                        assert!(it.inferred);
                        format!("{} +{} {}", it.at_ns, it.name, it.depth)
                    }
                    FrameEvent::Exited(it) => format!("{} - {}", it.at_ns, it.depth),
                });
            });
        }
        let expected = [
            "1 +main 0",
            "1 +a 1",
            "1 +b 2",
            "2 - 2",
            "2 - 1",
            "2 +c 1",
            "3 - 1",
            "3 - 0",
        ];
        assert_eq!(told, expected);
    }
}
