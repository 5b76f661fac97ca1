//! Limits, broken on purpose.

use super::*;

fn limited(limits: Limits) -> Profiles {
    Profiles::with_random(limits, None, Random::new(4711))
}

/// Samples of so many stacks of 20 frames that nobody else has.
fn flood(profiles: &mut Profiles, made: Task, stacks: u64, world: &mut Made) {
    for _ in 0..stacks {
        let next = world.tables.frames.len() as u64 + 1;
        let frames: Vec<u64> = (next..next + 20).collect();
        let user = world.stack(&frames);
        let sample = world.sample(made, None, Some(user));
        profiles.sample(&sample, world);
    }
}

#[test]
fn memory_is_bounded_and_shared_fairly() {
    let limits = Limits {
        profile_bytes: 1 << 20,
        ..Limits::default()
    };
    let bound = limits.profile_bytes;
    let (mut world, mut profiles) = (Made::default(), limited(limits));
    let (first, second) = (world.process(100, None), world.process(200, None));
    profiles.set(ONE, "P100", all(20), &mut world);
    flood(&mut profiles, first, 20_000, &mut world);
    assert!(profiles.budget.used() <= bound);
    // One that comes later has room all the same.
    profiles.set(TWO, "P200", all(20), &mut world);
    flood(&mut profiles, second, 500, &mut world);
    assert!(profiles.budget.used() <= bound);
    let out = profiles.take(TWO, "P200", &mut world);
    assert_eq!((out.samples, out.dropped), (500, 0));
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.samples + out.dropped, 20_000);
    assert!(out.dropped > 10_000);
    assert!(world.held.is_empty());
    // What was read makes room.
    flood(&mut profiles, first, 500, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!((out.samples, out.dropped), (500, 0));
    // What was remembered is bounded too: 500 stacks of each buffer, and an eighth of all.
    assert!(profiles.stacks.len() * 20 * 8 < bound / 4);
}

#[test]
fn a_read_fits_into_what_may_wait_for_a_client() {
    let limits = Limits {
        output_bytes: 1 << 16,
        ..Limits::default()
    };
    let output_bytes = limits.output_bytes;
    let (mut world, mut profiles) = (Made::default(), limited(limits));
    let made = world.process(100, None);
    profiles.set(ONE, "P100", all(20), &mut world);
    flood(&mut profiles, made, 1000, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert!(
        out.data.len() * 4 / 3 <= output_bytes / 2,
        "{}",
        out.data.len()
    );
    assert!(
        out.data.len() * 4 / 3 > output_bytes / 3,
        "{}",
        out.data.len()
    );
    assert_eq!(out.samples + out.dropped, 1000);
}

#[test]
fn a_channel_has_so_many_configurations() {
    let limits = Limits {
        configurations: 3,
        ..Limits::default()
    };
    let (mut world, mut profiles) = (Made::default(), limited(limits));
    let made: Vec<Task> = (1..6).map(|pid| world.process(pid, None)).collect();
    for pid in 1..6 {
        profiles.set(ONE, &format!("P{pid}"), all(1), &mut world);
    }
    let sampled =
        |profiles: &Profiles, world: &Made| profiles.sampling(world).unwrap().processes.clone();
    assert_eq!(sampled(&profiles, &world).len(), 3);
    profiles.set(ONE, "P1", all(4), &mut world);
    assert_eq!(sampled(&profiles, &world).len(), 3);
    // One that is spent makes room.
    world.end(made[0]);
    profiles.take(ONE, "P1", &mut world);
    profiles.set(ONE, "P4", all(1), &mut world);
    assert!(sampled(&profiles, &world).contains(&Pid(4)));
    assert_eq!(profiles.read(ONE, "P1", &mut world), Read::Nothing);
    // Ids that can't be any are not kept.
    profiles.set(TWO, &"x".repeat(1 << 20), all(1), &mut world);
    assert!(!profiles.channels.contains_key(&TWO));
    // Nor is there memory for any number of channels.
    let tight = Limits {
        profile_bytes: 1 << 16,
        ..Limits::default()
    };
    let mut profiles = limited(tight);
    for channel in 0..50 {
        for pid in 1000..1020 {
            profiles.set(ChannelId(channel), &format!("P{pid}"), all(1), &mut world);
        }
    }
    assert!(profiles.budget.used() <= 1 << 16);
}

#[test]
fn groups_of_processes_are_few() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    for pid in 1..=100 {
        let made = world.process(pid, None);
        world.cgroups.insert(made.process, "/all".to_owned());
    }
    for pid in 1..=100 {
        let parameters = json!({"FrameCnt": 1, "Scope": "Container"});
        profiles.set(ONE, &format!("P{pid}"), parameters, &mut world);
    }
    let routes: usize = profiles.routes.values().map(Vec::len).sum();
    assert_eq!(routes, 64 * 100 + 36);
    profiles.close(ONE, &mut world);
    let routes: usize = profiles.routes.values().map(Vec::len).sum();
    assert_eq!((routes, profiles.wide.len()), (0, 0));
}
