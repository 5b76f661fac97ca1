//! What happens now into fronts that only note what they get, with the probes in the kernel.

mod together;

use std::cell::{Ref, RefCell};
use std::process::{Child, Command};
use std::rc::Rc;

use tokio::sync::mpsc;

use super::*;
use profiler_model::*;
use profiler_probe::features::check_privileges;
use profiler_serve::front::{Awaited, Front, Order};
use profiler_serve::machine::Life;

/// What the front got.
#[derive(Default)]
struct Seen {
    tables: Tables,
    epoch: Option<(u32, Epoch)>,
    /// Each with the time when it came, in ns of CLOCK_MONOTONIC.
    events: Vec<(u64, Event)>,
    acknowledged: Vec<u64>,
    ready: u32,
    detached: u32,
    trouble: Vec<String>,
}

impl Seen {
    fn take(&mut self, batch: Batch) {
        if self
            .epoch
            .as_ref()
            .is_none_or(|(number, _)| *number != batch.epoch)
        {
            self.epoch = Some((batch.epoch, Epoch::default()));
        }
        let (_, epoch) = self.epoch.as_mut().unwrap();
        for definition in batch.definitions {
            epoch.define(&mut self.tables, definition).unwrap();
        }
        let now = profiler_probe::now().0;
        for event in batch.events {
            self.events.push((now, epoch.event(event).unwrap()));
        }
    }

    fn process_of(&self, thread: ThreadId) -> &Process {
        let thread = self.tables.thread(thread).unwrap();
        self.tables.process(thread.process).unwrap()
    }

    /// What became of a thread, and how late that was told.
    fn changes(&self, tid: Tid) -> Vec<(String, Duration)> {
        let changes = self.events.iter().filter_map(|(came, event)| match event {
            Event::Process(event) if self.tables.thread(event.thread).unwrap().tid == tid => {
                let name = |name| self.tables.string(name).to_owned();
                let change = match event.change {
                    ProcessChange::Started => "started".to_owned(),
                    ProcessChange::Exited => "exited".to_owned(),
                    ProcessChange::Executed(to) => format!("executed {}", name(to)),
                    ProcessChange::Renamed(to) => format!("renamed {}", name(to)),
                };
                Some((change, Duration::from_nanos(came - event.at.0)))
            }
            _ => None,
        });
        changes.collect()
    }

    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.events.iter().filter_map(|(_, event)| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        })
    }

    fn lives(&self, pid: u32) -> Vec<Timestamp> {
        let all = self.tables.processes();
        let lives = all.filter(|(_, process)| process.pid.0 == pid);
        lives.map(|(_, process)| process.started).collect()
    }
}

struct Notes {
    orders: mpsc::UnboundedReceiver<Order>,
    seen: Rc<RefCell<Seen>>,
}

impl Consumer for Notes {
    fn wants_new_epoch(&self) -> bool {
        false
    }

    fn spare(&self) -> Option<Vec<Event>> {
        None
    }

    fn send(&mut self, batch: Batch) -> u64 {
        self.seen.borrow_mut().take(batch);
        0
    }
}

impl Front for Notes {
    fn order(&mut self) -> Awaited<'_, Order> {
        Box::pin(async {
            let order = self.orders.recv().await;
            order.unwrap_or_else(|| Order::Failed("nobody orders".to_owned()))
        })
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn acknowledge(&mut self, question: u64) {
        self.seen.borrow_mut().acknowledged.push(question);
    }

    fn ready(&mut self) {
        self.seen.borrow_mut().ready += 1;
    }

    fn detached(&mut self) {
        self.seen.borrow_mut().detached += 1;
    }

    fn trouble(&mut self, text: &str) {
        self.seen.borrow_mut().trouble.push(text.to_owned());
    }

    fn welcome(&self) -> String {
        String::new()
    }

    fn finish(self: Box<Self>, _: Duration) -> Awaited<'static, String> {
        Box::pin(std::future::ready(String::new()))
    }
}

/// Who gives orders, and looks at what comes of them.
struct Client {
    orders: mpsc::UnboundedSender<Order>,
    seen: Rc<RefCell<Seen>>,
}

impl Client {
    fn demand(&self, attached: bool, sampling: Option<Sampling>) {
        let demand = Demand {
            attached,
            sampling,
            ..Demand::default()
        };
        self.orders.send(Order::Demand(demand)).unwrap();
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Seen) -> bool) {
        for _ in 0..1000 {
            if is_so(&self.seen.borrow()) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("10 s without: {what}; {:?}", self.seen.borrow().trouble);
    }

    /// Waits until half a second has brought no samples: what was on its way has come by then, and as long as
    /// anything is sampled, there is no such half second.
    async fn calm(&self) {
        for _ in 0..20 {
            let before = self.seen().samples().count();
            sleep(Duration::from_millis(500)).await;
            if self.seen().samples().count() == before {
                return;
            }
        }
        panic!("10 s after the end, samples still come");
    }

    fn seen(&self) -> Ref<'_, Seen> {
        self.seen.borrow()
    }
}

/// Ends what it holds.
struct Running(Child);

impl Running {
    fn start(program: &str, arguments: &[&str]) -> Running {
        Running(Command::new(program).args(arguments).spawn().unwrap())
    }

    fn spin() -> Running {
        Running::start("sh", &["-c", "while :; do :; done"])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A front that notes what it gets, and who gives its orders.
fn toy() -> (Box<dyn Front>, Client) {
    let (orders, received) = mpsc::unbounded_channel();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let notes = Notes {
        orders: received,
        seen: seen.clone(),
    };
    (Box::new(notes), Client { orders, seen })
}

/// Runs a client against a session, or skips where nothing can be attached.
fn with_session(name: &str, linger: Duration, client: impl AsyncFnOnce(&Client)) {
    with_fronts(name, linger, || {
        let (front, someone) = toy();
        (vec![front], async move || client(&someone).await)
    });
}

/// Runs clients against a session with these fronts, or skips where nothing can be attached.
fn with_fronts<C: AsyncFnOnce()>(
    name: &str,
    linger: Duration,
    fronts: impl FnOnce() -> (Vec<Box<dyn Front>>, C),
) {
    if let Err(error) = check_privileges() {
        crate::skip::skip(name, &error.to_string());
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let options = adjustable(
            ResolveOptions::default(),
            4 << 20,
            Some(64 << 20),
            CallLimits { budget: None },
            false,
        );
        let ready = Ready::attach(options, true).unwrap();
        let (fronts, clients) = fronts();
        let mut hub = Hub::new(fronts);
        let (mut attached, mut live) = Live::new(ready, linger, &mut hub);
        let mut signals = Signals::listen().unwrap();
        tokio::select! {
            served = drive(&mut attached, &mut live, &mut signals) => panic!("{served:?}"),
            () = clients() => {}
        }
        live.detach(&mut attached);
    });
}

#[test]
fn all_that_becomes_of_processes_is_told_at_once() {
    with_session(
        "all_that_becomes_of_processes",
        LINGER,
        async |client: &Client| {
            client.demand(true, None);
            client.until("a tree", |seen| seen.ready == 1).await;
            let own = std::process::id();
            assert_eq!(client.seen().lives(own).len(), 1);
            let mut child = Running::start("sleep", &["0.2"]);
            let (tell, told) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name("told".to_owned());
            let thread = thread.spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get())
                    .unwrap();
            });
            let tid = Tid(told.recv().unwrap() as u32);
            thread.unwrap().join().unwrap();
            let pid = Tid(child.0.id());
            let exited = |seen: &Seen, tid| {
                let changes = seen.changes(tid);
                changes.iter().any(|(change, _)| change == "exited")
            };
            let both = |seen: &Seen| exited(seen, pid) && exited(seen, tid);
            client.until("both ends", both).await;
            child.0.wait().unwrap();
            let seen = client.seen();
            let (of_child, of_thread) = (seen.changes(pid), seen.changes(tid));
            let names = |changes: &[(String, Duration)]| -> Vec<String> {
                changes.iter().map(|(change, _)| change.clone()).collect()
            };
            let expected = ["started", "executed sleep", "exited"];
            assert_eq!(names(&of_child), expected, "{of_child:?}");
            let expected = ["started", "renamed told", "exited"];
            assert_eq!(names(&of_thread), expected, "{of_thread:?}");
            println!("after {of_child:?}, {of_thread:?}");
            for (change, late) in of_child.iter().chain(&of_thread) {
                // Each 100 ms, on a machine that does other things too.
                assert!(*late < Duration::from_secs(1), "{change} after {late:?}");
            }
            let parent = seen.tables.processes();
            let parent = parent.filter(|(_, process)| process.pid.0 == pid.0);
            let parent = parent.filter_map(|(_, process)| seen.tables.process(process.parent?));
            assert_eq!(parent.map(|parent| parent.pid.0).last(), Some(own));
            assert_eq!(seen.samples().count(), 0);
        },
    );
}

#[test]
fn what_is_asked_for_is_sampled_and_named() {
    with_session("what_is_asked_for", LINGER, async |client: &Client| {
        let (wanted, other) = (Running::spin(), Running::spin());
        client.demand(true, None);
        client.until("a tree", |seen| seen.ready == 1).await;
        let sampling = Sampling {
            frequency_hz: 200,
            regular_hz: None,
            kernel_stacks: false,
            processes: [Pid(wanted.0.id())].into(),
            threads: [].into(),
            followed: [].into(),
        };
        client.demand(true, Some(sampling));
        client
            .until("samples", |seen| seen.samples().count() >= 20)
            .await;
        let pids: Vec<u32> = {
            let seen = client.seen();
            let samples = seen.samples();
            samples
                .map(|sample| seen.process_of(sample.thread).pid.0)
                .collect()
        };
        assert!(pids.iter().all(|&pid| pid == wanted.0.id()), "{pids:?}");
        let source = client.seen().samples().last().unwrap().source;
        let hz = client
            .seen()
            .tables
            .sources
            .get(source)
            .unwrap()
            .frequency_hz;
        assert_eq!(hz, Some(200));
        drop(other);
        // Off again: what was on its way comes, and then nothing more.
        client.demand(true, None);
        client.calm().await;
        let own = std::process::id();
        let code = what_is_asked_for_is_sampled_and_named as *const () as u64;
        let life = Life {
            pid: Pid(own),
            started: client.seen().lives(own)[0],
        };
        let place = Place::Process(life, vec![code]);
        let asked = Instant::now();
        client
            .orders
            .send(Order::Ask(Question { id: 5, place }))
            .unwrap();
        let name = |seen: &Seen| {
            let mut frames = seen.tables.frames.iter();
            frames.any(|(id, _)| {
                let name = seen.tables.frame_name(id);
                name.ends_with("what_is_asked_for_is_sampled_and_named")
            })
        };
        client.until("a name", name).await;
        println!("a name after {:?}", asked.elapsed());
        assert_eq!(client.seen().acknowledged, [5]);
    });
}

#[test]
fn nobody_looks_for_a_while_and_processes_stay_the_same() {
    let linger = Duration::from_millis(200);
    with_session("nobody_looks", linger, async |client: &Client| {
        // Nobody has come yet.
        client.until("an end", |seen| seen.detached == 1).await;
        client.demand(true, None);
        client.until("a tree", |seen| seen.ready == 2).await;
        let (mut goes, stays) = (
            Running::start("sleep", &["100"]),
            Running::start("sleep", &["100"]),
        );
        let (gone, stayed) = (goes.0.id(), stays.0.id());
        let known = |seen: &Seen| seen.lives(stayed).len() + seen.lives(gone).len() == 2;
        client.until("both", known).await;
        client.demand(false, None);
        client.until("an end", |seen| seen.detached == 2).await;
        goes.0.kill().unwrap();
        goes.0.wait().unwrap();
        let epoch = client.seen().epoch.as_ref().unwrap().0;
        client.demand(true, None);
        client.until("a tree again", |seen| seen.ready == 3).await;
        {
            let seen = client.seen();
            assert_eq!(seen.epoch.as_ref().unwrap().0, epoch + 1);
            assert_eq!(seen.lives(std::process::id()).len(), 1);
            assert_eq!(seen.lives(stayed).len(), 1);
            let exits = |tid| {
                let changes = seen.changes(Tid(tid)).into_iter();
                changes.filter(|(change, _)| change == "exited").count()
            };
            assert_eq!((exits(gone), exits(stayed)), (1, 0));
            assert_eq!(seen.trouble, [""; 0]);
        }
        // Who comes again in time finds all as it was.
        client.demand(false, None);
        client.demand(true, None);
        sleep(linger * 3).await;
        assert_eq!((client.seen().ready, client.seen().detached), (3, 2));
    });
}
