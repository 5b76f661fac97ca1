//! Configurations from their first word to their last.

use std::time::{Duration, Instant};

use super::*;

fn feed(profiles: &mut Profiles, made: Task, times: u64, world: &mut Made) {
    let stack = world.stack(&[1, 2, 3]);
    let sample = world.sample(made, None, Some(stack));
    (0..times).for_each(|_| profiles.sample(&sample, world));
}

fn pids(pids: &[u32]) -> BTreeSet<Pid> {
    pids.iter().copied().map(Pid).collect()
}

#[test]
fn what_is_not_configured_is_not_sampled() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Nothing);
    assert_eq!(profiles.sampling(&world), None);
    for off in [json!({}), json!({"FrameCnt": 0})] {
        profiles.set(ONE, "P100", all(1), &mut world);
        feed(&mut profiles, made, 1, &mut world);
        profiles.set(ONE, "P100", off, &mut world);
        assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Nothing);
        assert_eq!(profiles.sampling(&world), None);
        assert!(world.held.is_empty());
    }
}

#[test]
fn to_configure_again_clears() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    profiles.set(ONE, "P100", all(1), &mut world);
    feed(&mut profiles, made, 3, &mut world);
    profiles.set(ONE, "P100", all(2), &mut world);
    feed(&mut profiles, made, 2, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.counts(), [(vec![1, 2], 2)].into());
}

#[test]
fn the_number_of_samples_is_bounded() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    let parameters = json!({"FrameCnt": 1, "MaxSamples": 10});
    profiles.set(ONE, "P100", parameters, &mut world);
    feed(&mut profiles, made, 25, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!((out.samples, out.dropped), (10, 15));
    feed(&mut profiles, made, 4, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!((out.samples, out.dropped), (4, 0));
}

#[test]
fn a_channel_that_closes_takes_its_configurations_along() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    for id in ["P100", "P100.100", "P999"] {
        profiles.set(ONE, id, all(1), &mut world);
    }
    profiles.set(TWO, "P100", all(1), &mut world);
    feed(&mut profiles, made, 3, &mut world);
    assert_eq!(world.held.len(), 1);
    profiles.close(ONE, &mut world);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Nothing);
    assert_eq!(world.held.len(), 1);
    assert_eq!(profiles.take(TWO, "P100", &mut world).samples, 3);
    profiles.close(TWO, &mut world);
    assert!(world.held.is_empty());
    assert!(profiles.channels.is_empty() && profiles.waiting.is_empty());
    assert_eq!(profiles.sampling(&world), None);
    assert_eq!(profiles.budget.used(), 0);
}

#[test]
fn what_has_ended_is_read_once_more() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    let start = Instant::now();
    profiles.set(ONE, "P100", all(1), &mut world);
    feed(&mut profiles, made, 3, &mut world);
    world.end(made);
    profiles.tick(start, &mut world);
    assert_eq!(profiles.sampling(&world), None);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 3);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Spent);
    assert_eq!(profiles.read(TWO, "P100", &mut world), Read::Nothing);
    // Names are asked for after the samples were read.
    assert_eq!(world.held.len(), 1);
    profiles.tick(start + Duration::from_secs(59), &mut world);
    assert_eq!(world.held.len(), 1);
    profiles.tick(start + Duration::from_secs(60), &mut world);
    assert!(world.held.is_empty());
    // Who gets the id is another process: nobody has asked for that.
    let next = world.process(100, None);
    profiles.tick(start + Duration::from_secs(61), &mut world);
    feed(&mut profiles, next, 2, &mut world);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Spent);
    profiles.set(ONE, "P100", all(1), &mut world);
    feed(&mut profiles, next, 2, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 2);
}

#[test]
fn samples_of_a_life_are_not_those_of_the_next() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let first = world.process(100, None);
    profiles.set(ONE, "P100", all(1), &mut world);
    feed(&mut profiles, first, 3, &mut world);
    world.end(first);
    let second = world.process(100, None);
    feed(&mut profiles, second, 4, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 3);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Spent);
}

#[test]
fn an_unknown_id_is_remembered_until_it_appears() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    profiles.set(ONE, "P100", all(1), &mut world);
    profiles.set(TWO, "P100.101", all(1), &mut world);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Nothing);
    assert_eq!(profiles.sampling(&world), None);
    let made = world.process(100, None);
    profiles.tick(Instant::now(), &mut world);
    let sampling = profiles.sampling(&world).unwrap();
    assert_eq!(sampling.processes, pids(&[100]));
    assert!(sampling.threads.is_empty());
    // A thread may be sampled before any tick has seen it.
    let thread = world.thread(made.process, 101);
    feed(&mut profiles, thread, 2, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 2);
    assert_eq!(profiles.take(TWO, "P100.101", &mut world).samples, 2);
    let threads: Vec<Tid> = profiles
        .sampling(&world)
        .unwrap()
        .threads
        .iter()
        .copied()
        .collect();
    assert_eq!(threads, [Tid(101)]);
}

#[test]
fn ended_contexts_are_not_what_a_configuration_waits_for() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let first = world.process(100, None);
    world.end(first);
    profiles.set(ONE, "P100", all(1), &mut world);
    assert_eq!(profiles.read(ONE, "P100", &mut world), Read::Nothing);
    let second = world.process(100, None);
    profiles.tick(Instant::now(), &mut world);
    feed(&mut profiles, second, 1, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 1);
}

#[test]
fn the_demand_is_the_union_of_all() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    world.thread(made.process, 101);
    let child = world.process(200, Some(made.process));
    let kernel = world.process(2, None);
    profiles.set(ONE, "P100.101", all(1), &mut world);
    profiles.set(ONE, "P200", json!({"Frequency": 500}), &mut world);
    let sampling = profiles.sampling(&world).unwrap();
    assert_eq!(sampling.frequency_hz, 500);
    assert_eq!(sampling.processes, pids(&[200]));
    assert_eq!(sampling.threads, [Tid(101)].into());
    assert!(sampling.followed.is_empty() && !sampling.kernel_stacks);
    profiles.set(TWO, "P100", json!({"Scope": "Children"}), &mut world);
    let sampling = profiles.sampling(&world).unwrap();
    assert_eq!(sampling.processes, pids(&[100, 200]));
    assert_eq!(sampling.followed, pids(&[100, 200]));
    profiles.set(ONE, "P200", json!({}), &mut world);
    assert_eq!(profiles.sampling(&world).unwrap().frequency_hz, 99);
    // Threads of the kernel have kernel stacks only.
    let worker = world.process(30, Some(kernel.process));
    profiles.set(TWO, "P30", all(1), &mut world);
    assert!(profiles.sampling(&world).unwrap().kernel_stacks);
    world.end(worker);
    world.end(child);
    profiles.tick(Instant::now(), &mut world);
    let sampling = profiles.sampling(&world).unwrap();
    assert!(!sampling.kernel_stacks);
    assert_eq!(sampling.processes, pids(&[100]));
    profiles.set(TWO, "P100", json!({"KernelStacks": true}), &mut world);
    assert!(profiles.sampling(&world).unwrap().kernel_stacks);
}

#[test]
fn children_are_counted_for_their_ancestor() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let start = Instant::now();
    let root = world.process(100, None);
    let child = world.process(200, Some(root.process));
    let stranger = world.process(300, None);
    let parameters = json!({"FrameCnt": 8, "Scope": "Children"});
    profiles.set(ONE, "P100", parameters, &mut world);
    feed(&mut profiles, root, 1, &mut world);
    feed(&mut profiles, child, 10, &mut world);
    feed(&mut profiles, stranger, 1000, &mut world);
    // A grandchild whose parent has gone, seen by its first sample.
    let grandchild = world.process(400, Some(child.process));
    feed(&mut profiles, grandchild, 100, &mut world);
    let late = world.process(500, Some(grandchild.process));
    profiles.tick(start, &mut world);
    let sampling = profiles.sampling(&world).unwrap();
    assert_eq!(sampling.followed, pids(&[100, 200, 400, 500]));
    feed(&mut profiles, late, 1, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.samples, 112);
    // All of them lie in the memory of the context.
    for address in out.stacks().iter().flat_map(|stack| &stack.addresses) {
        assert_eq!(address >> 32, root.process.0);
    }
    world.end(root);
    profiles.tick(start + Duration::from_secs(2), &mut world);
    assert_eq!(profiles.sampling(&world), None);
    feed(&mut profiles, child, 1, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 0);
}

#[test]
fn a_container_is_more_than_the_leaf_of_one_of_its_processes() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let first = world.process(100, None);
    let sibling = world.process(200, None);
    let inner = world.process(300, None);
    let unplaced = world.process(400, None);
    let other = world.process(500, None);
    for (made, container, cgroup) in [
        (first, "/docker/a", "/docker/a/init.scope"),
        (sibling, "/docker/a", "/docker/a/system.slice/db.service"),
        (inner, "/docker/a/docker/b", "/docker/a/docker/b"),
        (unplaced, "/docker/a", ""),
        (other, "/docker/ab", "/docker/ab"),
    ] {
        world.containers.insert(made.process, container.to_owned());
        if !cgroup.is_empty() {
            world.cgroups.insert(made.process, cgroup.to_owned());
        }
    }
    let parameters = json!({"FrameCnt": 8, "Scope": "Container"});
    profiles.set(ONE, "P100", parameters.clone(), &mut world);
    profiles.set(ONE, "P300", parameters, &mut world);
    profiles.tick(Instant::now(), &mut world);
    let all = [first, sibling, inner, unplaced, other];
    for (made, times) in all.into_iter().zip([1, 10, 100, 1000, 10_000]) {
        feed(&mut profiles, made, times, &mut world);
    }
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 1111);
    assert_eq!(profiles.take(ONE, "P300", &mut world).samples, 100);
}

#[test]
fn a_container_is_what_shares_a_cgroup() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let start = Instant::now();
    let first = world.process(100, None);
    let second = world.process(200, None);
    let below = world.process(300, None);
    let alone = world.process(400, None);
    for (made, path) in [(first, "/c/x"), (second, "/c/x"), (below, "/c/x/y")] {
        world.cgroups.insert(made.process, path.to_owned());
    }
    let parameters = json!({"FrameCnt": 8, "Scope": "Container"});
    profiles.set(ONE, "P100", parameters.clone(), &mut world);
    profiles.set(ONE, "P300", parameters.clone(), &mut world);
    profiles.set(ONE, "P400", parameters, &mut world);
    profiles.tick(start, &mut world);
    for (made, times) in [(first, 1), (second, 10), (below, 100), (alone, 1000)] {
        feed(&mut profiles, made, times, &mut world);
    }
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 111);
    assert_eq!(profiles.take(ONE, "P300", &mut world).samples, 100);
    assert_eq!(profiles.take(ONE, "P400", &mut world).samples, 1000);
    // Processes move between cgroups.
    world.cgroups.insert(alone.process, "/c/x".to_owned());
    world.cgroups.insert(second.process, "/c".to_owned());
    profiles.tick(start + REVIEW, &mut world);
    feed(&mut profiles, second, 1, &mut world);
    feed(&mut profiles, alone, 2, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 2);
    assert_eq!(
        profiles.sampling(&world).unwrap().followed,
        pids(&[100, 200, 300, 400])
            .into_iter()
            .filter(|pid| pid.0 != 200)
            .collect()
    );
}

#[test]
fn whoever_gets_the_id_of_another_is_told_of_anew() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let first = world.process(100, None);
    profiles.set(ONE, "P100", all(1), &mut world);
    let before = (profiles.sampling(&world).cloned(), profiles.lives());
    assert_eq!(
        (profiles.sampling(&world).cloned(), profiles.lives()),
        before
    );
    world.end(first);
    world.process(100, None);
    profiles.set(ONE, "P100", all(1), &mut world);
    assert_eq!(profiles.sampling(&world), before.0.as_ref());
    assert_ne!(profiles.lives(), before.1);
}

#[test]
fn a_client_that_configures_too_much_does_not_fill_the_log() {
    let mut world = Made::default();
    let limits = Limits {
        configurations: 1,
        ..Limits::default()
    };
    let mut profiles = Profiles::with_random(limits, None, Random::new(1));
    for id in ["P1", "P2", "P3", "P4"] {
        profiles.set(ONE, id, all(1), &mut world);
    }
    assert_eq!(profiles.warnings.unsaid(), 2);
}
