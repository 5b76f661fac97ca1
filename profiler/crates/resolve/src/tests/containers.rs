//! Which containers processes are said to run in.

use super::*;
use profiler_model::raw::{CgroupVerdict, RawCgroup};
use profiler_target::cgroup::{Hierarchy, Version};
use profiler_target::container::{Container, Engine, Identity};

fn hierarchy() -> Hierarchy {
    Hierarchy {
        version: Version::Two,
        number: 0,
        mount: "/no/such/mount".into(),
        root: "/".to_owned(),
    }
}

/// `/box/NAME` and what is below is a container, `/unit/NAME` a unit.
fn identify(path: &str) -> Option<Identity> {
    let mut parts = path.split('/').skip(1);
    let (kind, name) = (parts.next()?, parts.next()?);
    let engine = match kind {
        "box" => Engine::Oci,
        "unit" => Engine::Systemd,
        _ => return None,
    };
    Some(Identity {
        cgroup: format!("/{kind}/{name}"),
        engine,
        id: (kind == "box").then(|| format!("id-of-{name}")),
        name: None,
        pod_uid: None,
        unit: (kind == "unit").then(|| name.to_owned()),
    })
}

fn described(name: &str, called: &str) -> Container {
    Container {
        engine: Engine::Docker,
        name: Some(called.to_owned()),
        image: Some("image:1".to_owned()),
        ..Container::new(identify(&format!("/box/{name}")).unwrap())
    }
}

fn resolver_with(options: ResolveOptions) -> Box<Resolver> {
    let mut resolver = Resolver::new(ResolveOptions {
        hierarchy: Some(hierarchy()),
        ..options
    })
    .unwrap();
    resolver.processes.table.containers.identify = identify;
    resolver
}

fn made(time: u64, id: u64, path: &str) -> RawEvent {
    let cgroup = RawCgroup {
        id,
        path: path.into(),
        removed: false,
        verdict: CgroupVerdict::Inherited,
    };
    at(time, RawBody::Cgroup(Box::new(cgroup)))
}

fn sample_in(time: u64, pid: u32, tid: u32, cgroup: u64) -> RawEvent {
    let mut event = sample(time, pid, "program", &[], &[]);
    if let RawBody::Sample(sample) = &mut event.body {
        sample.tid = Tid(tid);
        sample.cgroup = cgroup;
    }
    event
}

/// Resolves events; what each sample's process was said to run in at that time.
struct Bench {
    resolver: Box<Resolver>,
    out: Vec<Batch>,
}

impl Bench {
    fn new(options: ResolveOptions) -> Bench {
        Bench {
            resolver: resolver_with(options),
            out: Vec::new(),
        }
    }

    /// The definitions that these events made.
    fn feed(&mut self, mut events: Vec<RawEvent>) -> Vec<Definition> {
        let first = self.out.len();
        self.resolver.resolve(&mut events, &mut self.out);
        let new = self.out[first..].iter();
        new.flat_map(|batch| batch.definitions.clone()).collect()
    }

    fn tables(&self) -> Tables {
        let mut reader = Reader::default();
        reader.read(self.out.clone());
        reader.tables
    }

    /// Path of the cgroup of a process, and that of its container, as it was said last.
    fn of(&self, pid: u32) -> (Option<String>, Option<String>) {
        let tables = self.tables();
        let processes = tables.processes();
        let (id, process) = processes
            .filter(|(_, process)| process.pid == Pid(pid))
            .last()
            .unwrap();
        let text = |id| tables.string(id).to_owned();
        let container = tables.container_of(id).map(|found| text(found.cgroup));
        (process.cgroup.map(text), container)
    }
}

fn announced(definitions: &[Definition]) -> (usize, usize) {
    let count = |is: fn(&Definition) -> bool| definitions.iter().filter(|def| is(def)).count();
    (
        count(|definition| matches!(definition, Definition::Container(..))),
        count(|definition| matches!(definition, Definition::Process(..))),
    )
}

fn some(path: &str) -> Option<String> {
    Some(path.to_owned())
}

#[test]
fn a_process_is_in_the_container_of_its_samples() {
    let (main, child) = (pid(200), pid(201));
    let mut bench = Bench::new(options());
    bench.feed(vec![
        made(5, 70, "/box/a/deep/inside"),
        fork(10, pid(1), main),
        sample_in(12, main, main, 70),
        fork(13, main, child),
    ]);
    let inside = (some("/box/a/deep/inside"), some("/box/a"));
    assert_eq!(bench.of(main), inside);
    assert_eq!(bench.of(child), inside, "inherited");
    let unknown = bench.resolver.take_unknown_containers();
    assert_eq!(unknown, [identify("/box/a").unwrap()]);
    assert_eq!(bench.resolver.take_unknown_containers(), []);
    // The same cgroup says nothing new, another one does.
    assert_eq!(
        announced(&bench.feed(vec![sample_in(20, child, child, 70)])),
        (0, 0)
    );
    let moved = bench.feed(vec![
        made(21, 71, "/unit/b.service"),
        sample_in(22, child, child, 71),
        sample_in(23, child, child, 71),
    ]);
    assert_eq!(announced(&moved), (1, 1));
    let container = moved
        .iter()
        .position(|d| matches!(d, Definition::Container(..)));
    let process = moved
        .iter()
        .position(|d| matches!(d, Definition::Process(..)));
    assert!(container < process);
    assert_eq!(
        bench.of(child),
        (some("/unit/b.service"), some("/unit/b.service"))
    );
    assert_eq!(bench.of(main), inside);
    // Of a unit, there is nothing to ask.
    assert_eq!(bench.resolver.take_unknown_containers(), []);
    bench.feed(vec![
        made(30, 72, "/slice"),
        sample_in(31, child, child, 72),
    ]);
    assert_eq!(bench.of(child), (some("/slice"), None));
}

#[test]
fn a_cgroup_without_a_path_is_no_container() {
    let main = pid(202);
    let mut bench = Bench::new(options());
    bench.feed(vec![
        made(5, 70, "/box/a"),
        fork(10, pid(1), main),
        sample_in(11, main, main, 70),
        sample_in(12, main, main, 99),
    ]);
    // It has left the container, wherever to.
    assert_eq!(bench.of(main), (None, None));
    let again = bench.feed(vec![sample_in(13, main, main, 99)]);
    assert_eq!(announced(&again), (0, 0));
    // The path comes after all.
    bench.feed(vec![
        made(14, 99, "/box/late"),
        sample_in(15, main, main, 70),
    ]);
    bench.feed(vec![sample_in(16, main, main, 99)]);
    assert_eq!(bench.of(main).1, some("/box/late"));
    // Samples that don't say their cgroup say nothing.
    bench.feed(vec![sample_in(17, main, main, 0)]);
    assert_eq!(bench.of(main).1, some("/box/late"));
}

#[test]
fn threads_in_cgroups_of_their_own_do_not_move_their_process() {
    // Its main thread's cgroup is read from /proc, where this process is in some.
    let main = std::process::id();
    let mut bench = Bench::new(options());
    bench.feed(vec![made(5, 70, "/box/a"), sample_in(6, main, main, 70)]);
    bench.feed(vec![made(7, 71, "/box/b")]);
    let mut again = Vec::new();
    for time in 0..1000 {
        again.push(sample_in(10 + time, main, main + 1, 71));
        again.push(sample_in(10 + time, main, main + 2, 99));
        again.push(sample_in(10 + time, main, main, 70));
    }
    let (containers, processes) = announced(&bench.feed(again));
    // One that ends, as nothing here is in a hierarchy, is where its threads were met, once each.
    assert!(
        containers <= 1 && processes <= 8,
        "{containers} {processes}"
    );
    assert_eq!(bench.of(main).1, some("/box/a"));
}

#[test]
fn without_a_hierarchy_nothing_is_in_a_container() {
    let main = pid(203);
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.processes.table.containers.identify = identify;
    let mut out = Vec::new();
    let mut events = vec![
        made(5, 70, "/box/a"),
        fork(10, std::process::id(), main),
        sample_in(11, main, main, 70),
        sample_in(12, main, main, 71),
    ];
    resolver.resolve(&mut events, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    assert_eq!(reader.tables.containers().count(), 0);
    assert_eq!(resolver.take_unknown_containers(), []);
    let own = proc_fs::cgroup(Pid(std::process::id()), None);
    let child = reader.process_of(reader.samples().last().unwrap());
    let said = child.cgroup.map(|path| reader.tables.string(path));
    assert_eq!(said, own.as_deref(), "inherited as ever");
}

#[test]
fn each_epoch_announces_the_containers_it_uses() {
    let (first, second) = (pid(204), pid(205));
    let mut bench = Bench::new(ResolveOptions {
        epoch_limits: EpochLimits {
            duration_ns: 1000,
            ..EpochLimits::default()
        },
        ..options()
    });
    bench.feed(vec![
        made(5, 70, "/box/a"),
        made(5, 71, "/box/b"),
        fork(10, pid(1), first),
        fork(10, pid(1), second),
        sample_in(12, first, first, 70),
        sample_in(13, second, second, 71),
        exit(14, second),
        sample_in(2000, first, first, 70),
        sample_in(4000, first, first, 70),
    ]);
    let mut epochs: BTreeMap<u32, Reader> = BTreeMap::new();
    for batch in &bench.out {
        let reader = epochs.entry(batch.epoch).or_default();
        reader.read(vec![batch.clone()]);
    }
    let containers = epochs.values().map(|reader| {
        let containers = reader.tables.containers();
        let paths = containers.map(|(_, found)| reader.tables.string(found.cgroup).to_owned());
        paths.collect::<Vec<_>>()
    });
    let containers: Vec<_> = containers.collect();
    assert_eq!(containers[0], ["/box/a", "/box/b"]);
    assert!(containers.len() >= 3);
    for later in &containers[1..] {
        assert_eq!(later, &["/box/a"]);
    }
    // A description that comes when the last of its processes is gone still reaches the capture.
    bench.resolver.describe(&described("b", "bold"));
    let late = bench.feed(vec![sample_in(4001, first, first, 70)]);
    assert_eq!(announced(&late), (1, 0));
    let tables = bench.tables();
    let found = tables
        .find_string("/box/b")
        .and_then(|path| tables.find_container(path));
    let found = tables.container(found.unwrap()).unwrap();
    assert_eq!(found.name.map(|name| tables.string(name)), Some("bold"));
    assert_eq!(tables.containers().count(), 2);
}

#[test]
fn a_description_is_announced_under_the_same_id() {
    let main = pid(206);
    let mut bench = Bench::new(options());
    // Known before anything runs in it: nothing to announce yet.
    bench.resolver.describe(&described("early", "known before"));
    let none = bench.feed(vec![made(5, 70, "/box/early"), made(5, 71, "/box/late")]);
    assert_eq!(announced(&none), (0, 0));
    let met = bench.feed(vec![fork(10, pid(1), main), sample_in(11, main, main, 70)]);
    let id = |definitions: &[Definition]| {
        let ids = definitions
            .iter()
            .filter_map(|definition| match definition {
                Definition::Container(id, container) => Some((*id, container.name.is_some())),
                _ => None,
            });
        ids.collect::<Vec<_>>()
    };
    let early = id(&met);
    assert!(early.len() == 1 && early[0].1, "{early:?}");
    assert_eq!(bench.resolver.take_unknown_containers(), []);
    let met = id(&bench.feed(vec![sample_in(12, main, main, 71)]));
    assert!(met.len() == 1 && !met[0].1, "{met:?}");
    bench.resolver.describe(&described("late", "known later"));
    bench.resolver.describe(&described("late", "known later"));
    // No event is needed for it to reach the streams.
    let first = bench.out.len();
    bench.resolver.poll_symbols(&mut bench.out);
    let told: Vec<_> = bench.out[first..]
        .iter()
        .flat_map(|batch| batch.definitions.clone())
        .collect();
    assert_eq!(id(&told), [(met[0].0, true)]);
    let tables = bench.tables();
    let (_, container) = tables.containers().nth(1).unwrap();
    let text = |id: Option<StringId>| id.map(|id| tables.string(id));
    assert_eq!(text(container.name), Some("known later"));
    assert_eq!(text(container.engine), Some("docker"));
    assert_eq!(text(container.image), Some("image:1"));
    assert_eq!(text(container.id), Some("id-of-late"));
}

#[test]
fn a_runtime_may_have_a_container_where_the_path_says_nothing() {
    let (main, other, inner) = (pid(210), pid(211), pid(212));
    let mut bench = Bench::new(options());
    bench.feed(vec![
        made(5, 70, "/plain/sub"),
        made(5, 71, "/unit/c.service/sub"),
        made(5, 72, "/plainer"),
        made(5, 73, "/box/a/sub"),
        fork(10, pid(1), main),
        fork(10, pid(1), other),
        sample_in(11, main, main, 70),
        sample_in(12, other, other, 72),
        sample_in(13, other, other, 73),
        sample_in(14, other, other, 71),
    ]);
    assert_eq!(bench.of(main).1, None);
    assert_eq!(bench.of(other).1, some("/unit/c.service"));
    let asked = bench.resolver.take_unknown_cgroups();
    let asked: Vec<&str> = asked.iter().map(|path| &**path).collect();
    assert_eq!(asked, ["/plain/sub", "/plainer", "/unit/c.service/sub"]);
    assert_eq!(
        bench.resolver.take_unknown_cgroups(),
        Vec::<Arc<str>>::new()
    );
    let runtimes = |cgroup: &str| {
        Container::new(Identity {
            cgroup: cgroup.to_owned(),
            engine: Engine::Oci,
            id: Some("by-hand".to_owned()),
            name: None,
            pod_uid: None,
            unit: None,
        })
    };
    for cgroup in ["/plain", "/unit/c.service/sub", "/box"] {
        bench.resolver.describe(&runtimes(cgroup));
    }
    // No event is needed.
    bench.resolver.poll_symbols(&mut bench.out);
    assert_eq!(bench.of(main), (some("/plain/sub"), some("/plain")));
    assert_eq!(bench.of(other).1, some("/unit/c.service/sub"));
    // Cgroups that are met below it later belong to it, but not what has a container of its own.
    bench.feed(vec![
        made(20, 74, "/plain/later/deep"),
        fork(21, pid(1), inner),
        sample_in(22, inner, inner, 74),
        sample_in(23, other, other, 73),
    ]);
    assert_eq!(bench.of(inner).1, some("/plain"));
    assert_eq!(bench.of(other).1, some("/box/a"));
    assert_eq!(
        bench.resolver.take_unknown_cgroups(),
        Vec::<Arc<str>>::new()
    );
}

#[test]
fn a_later_resolver_goes_on_with_the_same_containers() {
    let main = pid(207);
    let mut bench = Bench::new(options());
    bench.feed(vec![
        made(5, 70, "/box/a"),
        fork(10, pid(1), main),
        sample_in(11, main, main, 70),
    ]);
    bench.resolver.describe(&described("a", "alpha"));
    let known = bench.resolver.into_known_processes();
    let mut bench = Bench::new(options());
    bench.resolver.resume(known);
    bench.feed(vec![sample_in(20, main, main, 70)]);
    let tables = bench.tables();
    let (_, container) = tables.containers().next().unwrap();
    assert_eq!(
        container.name.map(|name| tables.string(name)),
        Some("alpha")
    );
    assert_eq!(bench.of(main), (some("/box/a"), some("/box/a")));
    let known = bench.resolver.into_known_processes();
    let mut other = Bench::new(options());
    let elsewhere = Hierarchy {
        number: 7,
        ..hierarchy()
    };
    other.resolver = Resolver::new(ResolveOptions {
        hierarchy: Some(elsewhere),
        ..options()
    })
    .unwrap();
    other.resolver.resume(known);
    other.feed(vec![sample_in(30, main, main, 70)]);
    assert_eq!(other.of(main), (None, None), "ids of another hierarchy");
}

#[test]
fn texts_of_engines_are_bounded() {
    let main = pid(208);
    let mut bench = Bench::new(options());
    let long = "x".repeat(1 << 20);
    bench.resolver.describe(&described("a", &long));
    bench.feed(vec![
        made(5, 70, "/box/a"),
        made(5, 71, &format!("/box/{long}")),
        fork(10, pid(1), main),
        sample_in(11, main, main, 71),
        sample_in(12, main, main, 70),
    ]);
    let tables = bench.tables();
    let containers: Vec<_> = tables.containers().collect();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0].1.name, None);
    assert_eq!(tables.find_string(&long), None);
}

#[test]
fn a_hundred_thousand_processes_in_a_thousand_containers_leave_nothing_behind() {
    let mut bench = Bench::new(options());
    let mut unknown = 0;
    let started = Instant::now();
    for index in 0..100_000u32 {
        let time = 10 + u64::from(index) * 1_000_000;
        let id = pid(1000 + index);
        // Ten generations of a thousand containers that run at once.
        let container = index / 10_000 * 1000 + index % 1000;
        let cgroup = u64::from(1000 + container);
        bench.feed(vec![
            made(time, cgroup, &format!("/box/{container}/child")),
            fork(time + 1, pid(1), id),
            sample_in(time + 2, id, id, cgroup),
            exit(time + 3, id),
        ]);
        bench.out.clear();
        unknown += bench.resolver.take_unknown_containers().len();
    }
    assert_eq!(unknown, 10_000);
    let (ids, places, known) = bench.resolver.processes.table.containers.sizes();
    assert!(
        ids <= 1 << 16 && places <= 8192 && known <= 8192,
        "{ids} {places} {known}"
    );
    assert!(started.elapsed() < Duration::from_secs(60));
}
