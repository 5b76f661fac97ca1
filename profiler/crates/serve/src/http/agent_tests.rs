//! Sessions without sockets: what clients ask, what the session tells -> answers, traces, orders, events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::admission::Admission;
use crate::front::Replay;
use crate::http::{HttpLimits, Policy};
use crate::machine::Life as MachineLife;
use crate::machine::{Control, MachineError, Region, Status};

const MS: u64 = 1_000_000;
/// When the capture begins.
const START: u64 = 1000 * MS;
const PID: u32 = 20;
const ANN: u32 = 1000;

/// A machine that knows who its processes run as.
#[derive(Clone, Default)]
struct Users(Arc<Mutex<BTreeMap<u32, (u32, u32)>>>);

impl Machine for Users {
    fn status(&self, process: MachineLife) -> Result<Status, MachineError> {
        let users = self.0.lock().unwrap();
        let uids = users.get(&process.pid.0).ok_or(MachineError::Ended)?;
        Ok(Status {
            uids: *uids,
            ..Status::default()
        })
    }

    fn thread_status(&self, process: MachineLife, _: Tid) -> Result<Status, MachineError> {
        self.status(process)
    }

    fn command_line(&self, _: MachineLife) -> Result<Vec<String>, MachineError> {
        Err(MachineError::Ended)
    }

    fn environment(&self, _: MachineLife) -> Result<Vec<String>, MachineError> {
        Err(MachineError::Ended)
    }

    fn memory_map(&self, _: MachineLife) -> Result<Vec<Region>, MachineError> {
        Err(MachineError::Ended)
    }

    fn owner(&self, _: MachineLife) -> Result<u32, MachineError> {
        Err(MachineError::Ended)
    }

    fn control(&self, _: MachineLife, _: Control) -> Result<(), MachineError> {
        Err(MachineError::Ended)
    }
}

/// A server, and the time.
struct Served {
    agent: Agent,
    now: Instant,
    users: Users,
    /// The last demand, and questions that were asked.
    demand: Demand,
    questions: Vec<u64>,
    epoch: u32,
}

fn options(replay: Option<Replay>) -> HttpOptions {
    HttpOptions {
        admission: Admission::new([]),
        policy: Policy::default(),
        origins: Vec::new(),
        token: None,
        tls: None,
        replay,
        limits: HttpLimits::default(),
    }
}

fn name(index: usize) -> StringId {
    StringId::from_index(index)
}

/// Process 20 with threads 20 and 21, whose stacks are 0: main, 1: main of it and work of a library, 2: none known by name.
fn definitions() -> Vec<Definition> {
    let texts = [
        "server",
        "/bin/server",
        "main",
        "work",
        "/lib/libx.so.1",
        "/src/main.c",
        "cpu-clock",
    ];
    let mut all: Vec<Definition> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| Definition::String(name(index), (*text).into()))
        .collect();
    all.insert(
        0,
        Definition::Session(Session {
            started: Timestamp(START),
            ..Session::default()
        }),
    );
    let process = Process {
        pid: Pid(PID),
        started: Timestamp(5),
        parent: None,
        name: name(0),
        executable: Some(name(1)),
        command: None,
        namespace_pids: Vec::new(),
        uid: Some(ANN),
        cgroup: None,
        container: None,
    };
    all.push(Definition::Process(ProcessId::from_index(0), process));
    for (index, tid) in [(0, PID), (1, PID + 1)] {
        let thread = Thread {
            process: ProcessId::from_index(0),
            tid: Tid(tid),
            started: Timestamp(5),
            name: name(0),
        };
        all.push(Definition::Thread(ThreadId::from_index(index), thread));
    }
    let source = Source {
        name: name(6),
        unit: Unit::Nanoseconds,
        frequency_hz: Some(1000),
        period: None,
    };
    all.push(Definition::Source(SourceId::from_index(0), source));
    for (index, path) in [(0, 1), (1, 4)] {
        let module = Module {
            kind: ModuleKind::File,
            path: name(path),
            build_id: None,
            address_bias: 0,
        };
        let module_id = ModuleId::from_index(index);
        all.push(Definition::Module(module_id, module));
        let function = Function {
            name: name(2 + index),
            linkage_name: None,
            module: Some(module_id),
            file: (index == 0).then_some(name(5)),
            line: 0,
            start: Some(16),
            size: None,
        };
        all.push(Definition::Function(
            FunctionId::from_index(index),
            function,
        ));
        let frame = Frame {
            kind: FrameKind::Native,
            module: Some(module_id),
            address: 16,
        };
        all.push(Definition::Frame(FrameId::from_index(index), frame));
        let lines = Symbol::Lines(
            [Line {
                function: FunctionId::from_index(index),
                line: 3,
            }]
            .into(),
        );
        all.push(Definition::Symbol(FrameId::from_index(index), lines));
        let stack = Stack {
            parent: (index == 1).then(|| StackId::from_index(0)),
            frame: FrameId::from_index(index),
        };
        all.push(Definition::Stack(StackId::from_index(index), stack));
    }
    all
}

/// A sample, so many milliseconds after the beginning.
fn sample(ms: u64, thread: usize, stack: usize) -> Event {
    sample_at(START + ms * MS, thread, stack)
}

fn sample_at(at: u64, thread: usize, stack: usize) -> Event {
    let thread = ThreadId::from_index(thread);
    let sample = Sample::new(Timestamp(at), thread, Cpu(0), SourceId::from_index(0), MS);
    Event::Sample(sample.with_stacks(None, Some(StackId::from_index(stack))))
}

impl Served {
    fn with(options: HttpOptions) -> Served {
        let users = Users::default();
        users.0.lock().unwrap().insert(PID, (ANN, ANN));
        let mut served = Served {
            agent: Agent::new(options, Box::new(users.clone())),
            now: Instant::now(),
            users,
            demand: Demand::default(),
            questions: Vec::new(),
            epoch: 1,
        };
        served.tell(definitions(), Vec::new());
        served
    }

    /// Of a capture whose time goes by.
    fn timed() -> Served {
        Served::with(options(Some(Replay::Timed)))
    }

    fn live() -> Served {
        Served::with(options(None))
    }

    fn tell(&mut self, definitions: Vec<Definition>, events: Vec<Event>) {
        self.agent.batch(Batch {
            epoch: self.epoch,
            definitions,
            events,
        });
        self.agent.ready();
        self.hear();
    }

    /// Thread 20 runs in `main`, thread 21 in `work`, both in each of these milliseconds.
    fn run(&mut self, ms: std::ops::RangeInclusive<u64>) {
        let events = ms.flat_map(|ms| [sample(ms, 0, 0), sample(ms, 1, 1)]);
        self.tell(Vec::new(), events.collect());
    }

    fn hear(&mut self) {
        for order in self.agent.orders() {
            match order {
                Order::Demand(demand) => self.demand = demand,
                Order::Ask(question) => self.questions.push(question.id),
                Order::Failed(why) => panic!("{why}"),
            }
        }
    }

    fn try_start(&mut self, user: u32, body: Value) -> Result<Value, ErrorName> {
        let mut since = self.now;
        loop {
            let answer = self.agent.create(user, &body, since, self.now);
            self.hear();
            match answer {
                Ok(answer) => return answer.map_err(|error| error.name),
                // A while later.
                Err(Later) => since -= Duration::from_secs(20),
            }
        }
    }

    fn start(&mut self, target: Value, interval: f64, size: u64) -> String {
        let body = json!({ "target": target, "sampleInterval": interval, "maxBufferSize": size });
        let about = self.try_start(0, body).unwrap();
        about["id"].as_str().unwrap().to_owned()
    }

    fn stop(&mut self, id: &str) -> Result<Value, ErrorName> {
        self.stop_as_of(id, None)
    }

    fn stop_as_of(&mut self, id: &str, as_of_ns: Option<u64>) -> Result<Value, ErrorName> {
        let ticket = self
            .agent
            .stop(0, id, as_of_ns, self.now)
            .map_err(|error| error.name)?;
        self.hear();
        assert_eq!(self.agent.trace(&ticket, self.now), Err(Later));
        self.acknowledge();
        let trace = self.agent.trace(&ticket, self.now).unwrap();
        self.hear();
        Ok(serde_json::from_slice(&trace.unwrap()).unwrap())
    }

    fn acknowledge(&mut self) {
        for question in std::mem::take(&mut self.questions) {
            self.agent.acknowledge(question);
        }
    }
}

/// What was told by now.
fn told(events: &mut mpsc::Receiver<Told>) -> Vec<(&'static str, Value)> {
    std::iter::from_fn(|| events.try_recv().ok())
        .map(|Told(name, says)| (name, says))
        .collect()
}

fn exited(at: u64, thread: usize) -> Event {
    Event::Process(ProcessEvent {
        at: Timestamp(at),
        thread: ThreadId::from_index(thread),
        change: ProcessChange::Exited,
    })
}

/// Times in milliseconds and names of stacks, outermost first.
fn samples(trace: &Value) -> Vec<(f64, String)> {
    let list = |name: &str| trace[name].as_array().unwrap();
    let samples = list("samples").iter().map(|sample| {
        let mut names = Vec::new();
        let mut id = sample["stackId"].as_u64();
        while let Some(stack) = id.map(|id| &list("stacks")[id as usize]) {
            let frame = &list("frames")[stack["frameId"].as_u64().unwrap() as usize];
            names.insert(0, frame["name"].as_str().unwrap());
            id = stack["parentId"].as_u64();
        }
        (sample["timestamp"].as_f64().unwrap(), names.join(";"))
    });
    samples.collect()
}

fn times(samples: &[(f64, String)]) -> Vec<f64> {
    samples.iter().map(|(at, _)| *at).collect()
}

#[test]
fn sessions_of_two_intervals_share_one_clock() {
    let mut served = Served::timed();
    let seven = served.start(json!({ "pid": PID }), 7.0, 100);
    let ten = served.start(json!({ "tid": PID }), 10.0, 100);
    let sampling = served.demand.sampling.clone().unwrap();
    assert_eq!(
        (sampling.frequency_hz, sampling.regular_hz),
        (1000, Some(1000))
    );
    assert_eq!(
        (sampling.processes, sampling.threads),
        ([Pid(PID)].into(), [Tid(PID)].into())
    );
    served.run(1..=100);
    let traces = served.stop(&seven).unwrap();
    let traces = traces["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2, "each thread has one");
    let expected: Vec<f64> = (1..=14).map(|n| n as f64 * 7.0).collect();
    for (trace, (tid, stack)) in traces.iter().zip([(PID, "main"), (PID + 1, "main;work")]) {
        assert_eq!(
            (&trace["tid"], &trace["sampleInterval"]),
            (&json!(tid), &json!(7.0))
        );
        let samples = samples(&trace["trace"]);
        assert_eq!(times(&samples), expected);
        assert!(samples.iter().all(|(_, of)| of == stack), "{samples:?}");
    }
    // What a session on a thread gives is the trace alone; frames have their files, else their objects.
    assert_eq!(served.demand.sampling.as_ref().unwrap().frequency_hz, 100);
    let trace = served.stop(&ten).unwrap();
    let expected: Vec<f64> = (1..=10).map(|n| n as f64 * 10.0).collect();
    assert_eq!(times(&samples(&trace)), expected);
    assert_eq!(
        trace["frames"],
        json!([{ "name": "main", "resourceId": 0 }])
    );
    assert_eq!(trace["resources"], json!(["/src/main.c"]));
    assert_eq!(served.demand.sampling, None);
}

#[test]
fn a_thread_that_does_not_run_has_timestamps_alone() {
    let mut served = Served::timed();
    let id = served.start(json!({ "tid": PID + 1 }), 10.0, 100);
    let events = (1..=60)
        .filter(|ms| !(15..45).contains(ms))
        .map(|ms| sample(ms, 1, 1));
    served.tell(Vec::new(), events.collect());
    let samples = samples(&served.stop(&id).unwrap());
    let stacks: Vec<&str> = samples.iter().map(|(_, of)| of.as_str()).collect();
    assert_eq!(times(&samples), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    assert_eq!(stacks, ["main;work", "", "", "", "main;work", "main;work"]);
}

#[test]
fn a_full_buffer_is_told_once_and_its_trace_can_be_had_once() {
    for (size, left) in [(3, vec![10.0, 20.0, 30.0]), (0, Vec::new())] {
        let mut served = Served::timed();
        let id = served.start(json!({ "tid": PID }), 10.0, size);
        let mut events = served.agent.listen(0, &id, served.now).unwrap();
        served.run(1..=100);
        let expected = [
            ("state", json!({ "state": "started" })),
            ("samplebufferfull", json!({ "tid": PID })),
            ("state", json!({ "state": "stopped" })),
        ];
        assert_eq!(told(&mut events), expected);
        // Who listens only now is told as well.
        let mut late = served.agent.listen(0, &id, served.now).unwrap();
        let names: Vec<&str> = told(&mut late).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["state", "samplebufferfull"]);
        served.agent.tick(served.now);
        served.hear();
        assert_eq!(served.demand.sampling, None, "nothing is sampled for it");
        assert_eq!(
            served.agent.pause(0, &id, served.now).unwrap_err().name,
            ErrorName::InvalidStateError
        );
        assert_eq!(times(&samples(&served.stop(&id).unwrap())), left);
        assert_eq!(served.stop(&id), Err(ErrorName::InvalidStateError));
    }
}

/// Each thread is a profiler of its own; the session that they are of is stopped with the last one.
#[test]
fn a_session_of_a_process_is_stopped_when_all_its_buffers_are_full() {
    let mut served = Served::timed();
    let id = served.start(json!({ "pid": PID }), 10.0, 3);
    let mut events = served.agent.listen(0, &id, served.now).unwrap();
    served.tell(Vec::new(), (1..=100).map(|ms| sample(ms, 0, 0)).collect());
    let expected = [
        ("state", json!({ "state": "started" })),
        ("samplebufferfull", json!({ "tid": PID })),
    ];
    assert_eq!(told(&mut events), expected);
    served.tell(Vec::new(), vec![sample(100, 1, 1)]);
    let expected = [
        ("samplebufferfull", json!({ "tid": PID + 1 })),
        ("state", json!({ "state": "stopped" })),
    ];
    assert_eq!(told(&mut events), expected);
    // A thread that comes later finds it stopped.
    let thread = Thread {
        process: ProcessId::from_index(0),
        tid: Tid(PID + 2),
        started: Timestamp(START + 100 * MS),
        name: name(0),
    };
    served.tell(
        vec![Definition::Thread(ThreadId::from_index(2), thread)],
        (101..=200).map(|ms| sample(ms, 2, 0)).collect(),
    );
    let traces = served.stop(&id).unwrap();
    for trace in traces["traces"].as_array().unwrap() {
        let count = samples(&trace["trace"]).len();
        match &trace["tid"] {
            tid if tid == PID + 2 => assert_eq!((&trace["bufferFull"], count), (&Value::Null, 0)),
            _ => assert_eq!((&trace["bufferFull"], count), (&json!(true), 3)),
        }
    }
    // A thread that has ended takes no more either.
    let mut served = Served::timed();
    let id = served.start(json!({ "pid": PID }), 10.0, 3);
    served.tell(
        Vec::new(),
        vec![sample(10, 1, 1), exited(START + 15 * MS, 1)],
    );
    served.run(16..=100);
    let about = served.agent.state(0, &id, served.now).unwrap();
    assert_eq!(about["state"], "stopped");
}

#[test]
fn samples_after_the_stop_are_given_up() {
    let mut served = Served::timed();
    let target = json!({ "tid": PID });
    let ids = [4, 10, 100].map(|size| served.start(target.clone(), 10.0, size));
    served.run(1..=60);
    for (id, (as_of, left)) in ids
        .iter()
        .zip([(START + 35 * MS, 3), (START - 1, 0), (u64::MAX, 6)])
    {
        let trace = served.stop_as_of(id, Some(as_of)).unwrap();
        assert_eq!(samples(&trace).len(), left, "{as_of}");
    }
    assert_eq!(served.agent.budget.used(), 0, "nothing is kept");
    // A buffer that was full only later was not full.
    let id = served.start(json!({ "pid": PID }), 10.0, 2);
    served.run(61..=120);
    let traces = served.stop_as_of(&id, Some(START + 85 * MS)).unwrap();
    let first = &traces["traces"][0];
    assert_eq!(
        (&first["bufferFull"], samples(&first["trace"]).len()),
        (&Value::Null, 2)
    );
}

#[test]
fn what_has_ended_keeps_its_names_and_its_session_says_so() {
    let mut served = Served::live();
    let whole = served.start(json!({ "pid": PID }), 1.0, 1000);
    let one = served.start(json!({ "tid": PID + 1 }), 1.0, 1000);
    let now = served.now;
    let mut told_whole = served.agent.listen(0, &whole, now).unwrap();
    let mut told_one = served.agent.listen(0, &one, now).unwrap();
    let origin = served.agent.now_ns();
    let events = (1..=3).map(|ms| sample_at(origin + ms * MS, 1, 1));
    served.tell(Vec::new(), events.collect());
    served.tell(Vec::new(), vec![exited(origin + 4 * MS, 1)]);
    let started = ("state", json!({ "state": "started" }));
    let ended = ("state", json!({ "state": "stopped", "why": "ended" }));
    assert_eq!(told(&mut told_one), [started.clone(), ended.clone()]);
    assert_eq!(told(&mut told_whole), [started]);
    served.tell(Vec::new(), vec![exited(origin + 5 * MS, 0)]);
    assert_eq!(told(&mut told_whole), std::slice::from_ref(&ended));
    // Ids mean other things now, and it is not among them.
    std::thread::sleep(Duration::from_millis(10));
    served.epoch += 1;
    served.tell(
        vec![Definition::String(name(0), "other".into())],
        Vec::new(),
    );
    let traces = served.stop(&whole).unwrap();
    for trace in traces["traces"].as_array().unwrap() {
        assert_eq!(
            (&trace["process"], &trace["thread"]),
            (&json!("server"), &json!("server"))
        );
    }
    assert!(!samples(&served.stop(&one).unwrap()).is_empty());
    // An end that nobody told.
    let mut served = Served::live();
    let id = served.start(json!({ "pid": PID }), 1.0, 1000);
    let mut events = served.agent.listen(0, &id, served.now).unwrap();
    served.users.0.lock().unwrap().clear();
    served.epoch += 1;
    served.tell(
        vec![Definition::String(name(0), "other".into())],
        Vec::new(),
    );
    served.agent.tick(served.now);
    assert_eq!(told(&mut events).last(), Some(&ended));
    assert!(served.stop(&id).is_ok());
}

/// Sessions of a page that has gone end soon, whether they were stopped or not; others stay.
#[test]
fn sessions_for_listeners_end_with_them() {
    let mut served = Served::timed();
    let mut start = |context: &str, flag: bool| {
        let body = json!({ "target": { "tid": PID }, "sampleInterval": 10, "maxBufferSize": 9,
                           "context": context, "whileListened": flag });
        let about = served.try_start(0, body).unwrap();
        about["id"].as_str().unwrap().to_owned()
    };
    let (heard, unheard, stays) = (start("a", true), start("b", true), start("a", false));
    let mut events = served.agent.listen_to_context(0, "a").unwrap();
    let initial = [&heard, &stays].map(|id| json!({ "state": "started", "session": id }));
    let mut states: Vec<Value> = told(&mut events).into_iter().map(|(_, it)| it).collect();
    states.sort_by_key(|it| it["session"] != json!(heard));
    assert_eq!(states, initial);
    let pass = |served: &mut Served, seconds: u64| {
        served.now += Duration::from_secs(seconds);
        served.agent.tick(served.now);
        let list = served.agent.list(0);
        let ids = list.as_array().unwrap().iter();
        ids.map(|it| it["id"].as_str().unwrap().to_owned())
            .collect::<BTreeSet<String>>()
    };
    assert_eq!(pass(&mut served, 4).len(), 3);
    assert_eq!(pass(&mut served, 2), [heard.clone(), stays.clone()].into());
    assert_eq!(pass(&mut served, 60).len(), 2);
    // One that begins while its context is listened to is told of as well.
    let body = json!({ "target": { "tid": PID }, "sampleInterval": 10, "maxBufferSize": 9,
                       "context": "a", "whileListened": true, "paused": true });
    let paused = served.try_start(0, body).unwrap();
    assert_eq!(
        told(&mut events),
        [(
            "state",
            json!({ "state": "paused", "session": paused["id"] })
        )]
    );
    served.run(1..=35);
    let id = paused["id"].as_str().unwrap();
    served.agent.resume(0, id, served.now).unwrap();
    served.run(36..=50);
    assert_eq!(times(&samples(&served.stop(id).unwrap())), [40.0, 50.0]);
    drop(events);
    pass(&mut served, 4);
    assert_eq!(pass(&mut served, 4), [stays].into());
    let gone = served.agent.state(0, &unheard, served.now).unwrap_err();
    assert_eq!(gone.name, ErrorName::InvalidStateError);
    assert!(gone.message.contains("listened"), "{}", gone.message);
}

#[test]
fn a_paused_session_takes_no_samples() {
    let mut served = Served::timed();
    let id = served.start(json!({ "tid": PID }), 10.0, 100);
    served.run(1..=25);
    let about = served.agent.pause(0, &id, served.now).unwrap();
    served.hear();
    assert_eq!(
        (&about["state"], &served.demand.sampling),
        (&json!("paused"), &None)
    );
    served.run(26..=65);
    assert_eq!(
        served.agent.pause(0, &id, served.now).unwrap()["state"],
        "paused"
    );
    assert_eq!(
        served.agent.resume(0, &id, served.now).unwrap()["state"],
        "started"
    );
    served.hear();
    assert!(served.demand.sampling.is_some());
    served.run(66..=100);
    let trace = served.stop(&id).unwrap();
    assert_eq!(
        times(&samples(&trace)),
        [10.0, 20.0, 70.0, 80.0, 90.0, 100.0]
    );
    let error = served.agent.resume(0, &id, served.now).unwrap_err();
    assert_eq!(error.name, ErrorName::InvalidStateError);
}

#[test]
fn a_forced_sample_is_of_all_threads_of_all_started_sessions_of_the_context() {
    let mut served = Served::timed();
    let mut start = |context: &str| {
        let body = json!({ "target": { "pid": PID }, "sampleInterval": 1000, "maxBufferSize": 9, "context": context });
        served.try_start(0, body).unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (one, two, paused, other) = (start("a"), start("a"), start("a"), start("b"));
    served.agent.pause(0, &paused, served.now).unwrap();
    served.run(1..=5);
    let mut forcing = served.agent.force(0, &one, served.now).unwrap();
    served.hear();
    // Thread 20 runs then, thread 21 stands still.
    served.tell(Vec::new(), vec![sample(6, 0, 0), sample(90, 0, 1)]);
    assert_eq!(served.agent.forced(&mut forcing, served.now), Err(Later));
    served.hear();
    served.acknowledge();
    assert_eq!(served.agent.forced(&mut forcing, served.now), Ok(()));
    for id in [one, two] {
        let traces = served.stop(&id).unwrap();
        let of = |index: usize| samples(&traces["traces"][index]["trace"]);
        assert_eq!(of(0), [(5.0, "main".to_owned())].map(|(_, of)| (6.0, of)));
        assert_eq!(of(1), [(5.0, String::new())]);
    }
    for id in [paused, other] {
        let traces = served.stop(&id).unwrap();
        assert_eq!(samples(&traces["traces"][0]["trace"]), []);
    }
}

#[test]
fn errors_have_the_names_of_the_document() {
    let mut served = Served::live();
    let target = json!({ "pid": PID });
    use ErrorName::*;
    for (body, expected) in [
        (json!({}), TypeError),
        (json!([]), TypeError),
        (json!({ "target": target, "sampleInterval": 10 }), TypeError),
        (json!({ "target": target, "maxBufferSize": 10 }), TypeError),
        (
            json!({ "target": target, "sampleInterval": "a", "maxBufferSize": 10 }),
            TypeError,
        ),
        (
            json!({ "sampleInterval": 10, "maxBufferSize": 10 }),
            TypeError,
        ),
        (
            json!({ "target": { "pid": 0 }, "sampleInterval": 10, "maxBufferSize": 10 }),
            TypeError,
        ),
        (
            json!({ "target": { "pid": 7, "tid": 7 }, "sampleInterval": 10, "maxBufferSize": 10 }),
            TypeError,
        ),
        (
            json!({ "target": target, "sampleInterval": -1, "maxBufferSize": 10 }),
            RangeError,
        ),
        (
            json!({ "target": target, "sampleInterval": 1e12, "maxBufferSize": 10 }),
            RangeError,
        ),
        (
            json!({ "target": target, "sampleInterval": 10, "maxBufferSize": 4294967295u64 }),
            RangeError,
        ),
        (
            json!({ "target": target, "sampleInterval": 10, "maxBufferSize": 9, "context": 7 }),
            TypeError,
        ),
        (
            json!({ "target": { "pid": 77 }, "sampleInterval": 10, "maxBufferSize": 10 }),
            NotFoundError,
        ),
        (
            json!({ "target": { "tid": 77 }, "sampleInterval": 10, "maxBufferSize": 10 }),
            NotFoundError,
        ),
    ] {
        assert_eq!(served.try_start(0, body.clone()), Err(expected), "{body}");
    }
    assert_eq!(served.stop("0"), Err(NotFoundError));
    served.agent.trouble("no rights".to_owned());
    let body = json!({ "target": target, "sampleInterval": 10, "maxBufferSize": 10 });
    assert_eq!(served.try_start(0, body), Err(OperationError));
}

#[test]
fn root_and_the_owner_may_and_others_may_not() {
    let mut served = Served::live();
    let body = json!({ "target": { "pid": PID }, "sampleInterval": 10, "maxBufferSize": 10 });
    assert_eq!(
        served.try_start(ANN + 1, body.clone()),
        Err(ErrorName::NotAllowedError)
    );
    let id = served.try_start(ANN, body.clone()).unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(served.try_start(0, body.clone()).is_ok());
    // Nobody else sees it, but root.
    let now = served.now;
    assert!(served.agent.state(ANN, &id, now).is_ok() && served.agent.state(0, &id, now).is_ok());
    let error = served.agent.state(ANN + 1, &id, now).unwrap_err();
    assert_eq!(error.name, ErrorName::NotFoundError);
    assert_eq!(served.agent.list(ANN).as_array().unwrap().len(), 1);
    assert_eq!(served.agent.list(ANN + 1), json!([]));
    // A program with another user's rights.
    served.users.0.lock().unwrap().insert(PID, (ANN, 0));
    assert_eq!(served.try_start(ANN, body), Err(ErrorName::NotAllowedError));
    assert!(served.demand.sampling.is_some());
    let executed = ProcessEvent {
        at: Timestamp(served.agent.now_ns()),
        thread: ThreadId::from_index(0),
        change: ProcessChange::Executed(name(0)),
    };
    served.tell(Vec::new(), vec![Event::Process(executed)]);
    assert_eq!(
        served.agent.state(ANN, &id, now).unwrap()["state"],
        "stopped"
    );
    let rest = served.agent.list(0);
    let started = rest
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["state"] == "started");
    assert_eq!(started.count(), 1, "root goes on");
}

#[test]
fn a_policy_says_who_may_and_what_is_withheld() {
    let policy = r#"{ "rules": [ { "users": [7], "processes": ["serv*"], "allow": true },
                                 { "users": [1000], "allow": false } ],
                      "private": ["/bin/server"], "timestampResolution": 4 }"#;
    let mut live = options(None);
    live.policy = Policy::read(policy, |_| None).unwrap();
    let mut served = Served::with(live);
    let body = json!({ "target": { "pid": PID }, "sampleInterval": 10, "maxBufferSize": 10 });
    assert!(served.try_start(7, body.clone()).is_ok());
    assert_eq!(
        served.try_start(ANN, body.clone()),
        Err(ErrorName::NotAllowedError)
    );
    for (user, why) in [
        (ANN, "is not allowed to user 1000"),
        (8, "it is another user's"),
    ] {
        let error = served.agent.create(user, &body, served.now, served.now);
        let error = error.unwrap().unwrap_err();
        assert_eq!(error.name, ErrorName::NotAllowedError);
        assert!(error.message.contains(why), "{error}");
    }
    // No time is finer than it may be.
    assert_eq!(served.agent.clock() % 4.0, 0.0);
    let about = served.agent.list(7);
    assert_eq!(about[0]["timeOrigin"].as_f64().unwrap() % 4.0, 0.0);
    assert_eq!(served.agent.served(0)["timestampResolution"], 4.0);
    assert_eq!(served.agent.served(ANN)["jsProfiling"], false);
    assert_eq!(served.agent.served(0)["jsProfiling"], true);
    assert_eq!(
        (
            served.agent.is_allowed(8, Pid(PID)),
            served.agent.is_allowed(8, Pid(9))
        ),
        (Some(false), None)
    );
    let mut timed = options(Some(Replay::Timed));
    timed.policy = Policy::read(policy, |_| None).unwrap();
    let mut served = Served::with(timed);
    let id = served.start(json!({ "pid": PID }), 10.0, 100);
    served.run(1..=30);
    let traces = served.stop(&id).unwrap();
    for trace in traces["traces"].as_array().unwrap() {
        // What the library does for it goes with it.
        let samples = samples(&trace["trace"]);
        assert_eq!(times(&samples), [8.0, 20.0, 28.0]);
        assert!(samples.iter().all(|(_, of)| of.is_empty()));
        assert_eq!(
            (&trace["trace"]["resources"], &trace["trace"]["frames"]),
            (&json!([]), &json!([]))
        );
    }
}

#[test]
fn a_hundred_sessions_are_one_demand() {
    let mut served = Served::timed();
    let ids: Vec<String> = (0..100)
        .map(|_| served.start(json!({ "tid": PID }), 10.0, 100))
        .collect();
    let sampling = served.demand.sampling.clone().unwrap();
    assert_eq!(
        (sampling.frequency_hz, sampling.threads),
        (100, [Tid(PID)].into())
    );
    served.run(1..=50);
    let expected = [10.0, 20.0, 30.0, 40.0, 50.0];
    for id in &ids {
        assert_eq!(times(&samples(&served.stop(id).unwrap())), expected);
    }
    assert_eq!(
        served.demand,
        Demand {
            lives: served.demand.lives,
            ..Demand::default()
        }
    );
    assert_eq!(served.agent.budget.used(), 0, "nothing is kept");
}

#[test]
fn what_clients_may_cost_is_limited() {
    let mut limited = options(Some(Replay::Timed));
    limited.limits = HttpLimits {
        sessions: 2,
        samples: 5,
        threads: 1,
        ..HttpLimits::default()
    };
    let mut served = Served::with(limited);
    let one = served.start(json!({ "pid": PID }), 10.0, 100);
    let two = served.start(json!({ "tid": PID }), 10.0, 100);
    let body = json!({ "target": { "pid": PID }, "sampleInterval": 10, "maxBufferSize": 10 });
    assert_eq!(
        served.try_start(0, body),
        Err(ErrorName::QuotaExceededError)
    );
    served.run(1..=100);
    assert_eq!(
        served.agent.state(0, &one, served.now).unwrap()["threadsLeftOut"],
        1
    );
    let traces = served.stop(&one).unwrap();
    let kept =
        samples(&traces["traces"][0]["trace"]).len() + samples(&served.stop(&two).unwrap()).len();
    assert_eq!(kept, 5, "of all sessions");
    // Nobody asks for it any more.
    let id = served.start(json!({ "tid": PID }), 10.0, 100);
    served.now += served.agent.options.limits.idle + Duration::from_secs(2);
    served.agent.tick(served.now);
    assert_eq!(
        served.agent.state(0, &id, served.now).unwrap_err().name,
        ErrorName::InvalidStateError
    );
}

#[test]
fn a_capture_that_is_there_at_once_gives_whole_traces() {
    let mut served = Served::with(options(Some(Replay::AtOnce)));
    served.run(1..=100);
    for _ in 0..2 {
        let id = served.start(json!({ "tid": PID + 1 }), 20.0, 100);
        let expected = [20.0, 40.0, 60.0, 80.0, 100.0].map(|at| (at, "main;work".to_owned()));
        assert_eq!(samples(&served.stop(&id).unwrap()), expected);
    }
    let id = served.start(json!({ "tid": PID }), 20.0, 2);
    assert_eq!(
        served.agent.state(0, &id, served.now).unwrap()["state"],
        "stopped"
    );
    assert_eq!(samples(&served.stop(&id).unwrap()).len(), 2);
}

#[test]
fn names_outlive_the_tables() {
    let mut served = Served::live();
    let id = served.start(json!({ "tid": PID + 1 }), 1.0, 1000);
    let origin = served.agent.now_ns();
    let events = (1..=3).map(|ms| sample_at(origin + ms * MS, 1, 1));
    served.tell(Vec::new(), events.collect());
    served.epoch += 1;
    // The same ids mean other things now.
    served.tell(
        vec![Definition::String(name(3), "other".into())],
        Vec::new(),
    );
    served.tell(definitions(), Vec::new());
    std::thread::sleep(Duration::from_millis(5));
    let found = samples(&served.stop(&id).unwrap());
    let stacks: BTreeSet<&str> = found
        .iter()
        .map(|(_, of)| of.as_str())
        .filter(|of| !of.is_empty())
        .collect();
    assert_eq!(stacks, ["main;work"].into(), "{found:?}");
}

#[test]
fn who_does_not_read_events_is_told_no_more() {
    let mut served = Served::timed();
    let id = served.start(json!({ "tid": PID }), 10.0, 100);
    let mut events = served.agent.listen(0, &id, served.now).unwrap();
    for _ in 0..100 {
        served.agent.pause(0, &id, served.now).unwrap();
        served.agent.resume(0, &id, served.now).unwrap();
    }
    let mut told = 0;
    while events.try_recv().is_ok() {
        told += 1;
    }
    assert_eq!(told, 65, "64, and one more for its thread");
    assert!(matches!(
        events.try_recv(),
        Err(mpsc::error::TryRecvError::Disconnected)
    ));
}
