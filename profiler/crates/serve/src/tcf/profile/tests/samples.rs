//! Which samples a configuration gets, and how they look.

use std::time::Instant;

use proptest::prelude::*;

use super::*;

#[test]
fn samples_are_merged_by_their_addresses() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    let other = world.process(200, None);
    profiles.set(ONE, "P100", all(2), &mut world);
    let (deep, same, leaf) = (
        world.stack(&[1, 2, 3]),
        world.stack(&[1, 2, 9]),
        world.stack(&[1]),
    );
    for user in [deep, same, leaf, deep] {
        let sample = world.sample(made, None, Some(user));
        profiles.sample(&sample, &mut world);
    }
    let sample = world.sample(other, None, Some(deep));
    profiles.sample(&sample, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    let base = made.process.0 << 32;
    let stack = |count, addresses: &[u64]| StackTrace {
        count,
        addresses: addresses.iter().map(|address| base | address).collect(),
    };
    assert_eq!(out.stacks(), [stack(3, &[1, 2]), stack(1, &[1])]);
    assert_eq!((out.samples, out.dropped, out.frequency_hz), (4, 0, 99));
    let again = profiles.take(ONE, "P100", &mut world);
    assert_eq!((again.samples, again.data.len()), (0, 0));
}

#[test]
fn stacks_that_lack_frames_that_were_wanted_are_counted() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    let stack = world.stack(&[1, 2, 3]);
    let kernel = world.stack(&[9]);
    for (frames, kernel_stacks, expected) in
        [(2, false, 0), (3, false, 0), (4, false, 2), (8, true, 3)]
    {
        let wanted = json!({"FrameCnt": frames, "KernelStacks": kernel_stacks});
        profiles.set(ONE, "P100", wanted, &mut world);
        let sample = world.sample(made, Some(kernel), Some(stack));
        let whole = sample.clone();
        let cut = Sample {
            user_end: StackEnd::Truncated,
            ..sample.clone()
        };
        let cut_in_kernel = Sample {
            kernel_end: StackEnd::Truncated,
            ..sample
        };
        for sample in [&whole, &cut, &cut_in_kernel, &cut] {
            profiles.sample(sample, &mut world);
        }
        let out = profiles.take(ONE, "P100", &mut world);
        assert_eq!((out.samples, out.truncated), (4, expected), "{frames}");
        assert_eq!(profiles.take(ONE, "P100", &mut world).truncated, 0);
    }
}

#[test]
fn a_thread_gets_its_own_samples_only() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let main = world.process(100, None);
    let second = world.thread(main.process, 101);
    profiles.set(ONE, "P100", all(1), &mut world);
    profiles.set(ONE, "P100.101", all(1), &mut world);
    let stack = world.stack(&[7]);
    for (made, times) in [(main, 3), (second, 2)] {
        let sample = world.sample(made, None, Some(stack));
        (0..times).for_each(|_| profiles.sample(&sample, &mut world));
    }
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 5);
    assert_eq!(profiles.take(ONE, "P100.101", &mut world).samples, 2);
}

#[test]
fn kernel_frames_come_on_request_or_where_there_are_no_others() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    profiles.set(ONE, "P100", all(3), &mut world);
    let with = json!({"FrameCnt": 3, "KernelStacks": true});
    profiles.set(TWO, "P100", with, &mut world);
    let (kernel, user) = (world.stack(&[90, 91]), world.stack(&[1, 2]));
    for (kernel, user) in [
        (Some(kernel), Some(user)),
        (Some(kernel), None),
        (None, Some(user)),
        (None, None),
    ] {
        let sample = world.sample(made, kernel, user);
        profiles.sample(&sample, &mut world);
    }
    let without = profiles.take(ONE, "P100", &mut world);
    let expected = [(vec![1, 2], 2), (vec![90, 91], 1)];
    assert_eq!(without.counts(), expected.into());
    assert_eq!((without.samples, without.no_stack), (3, 1));
    let with = profiles.take(TWO, "P100", &mut world);
    let expected = [(vec![90, 91, 1], 1), (vec![90, 91], 1), (vec![1, 2], 1)];
    assert_eq!(with.counts(), expected.into());
    assert_eq!((with.samples, with.no_stack), (3, 1));
}

#[test]
fn each_client_gets_its_own_frequency() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    profiles.set(
        ONE,
        "P100",
        json!({"FrameCnt": 1, "Frequency": 1000}),
        &mut world,
    );
    profiles.set(
        TWO,
        "P100",
        json!({"FrameCnt": 1, "Frequency": 100}),
        &mut world,
    );
    let stack = world.stack(&[7]);
    let mut sample = world.sample(made, None, Some(stack));
    // A second at 1,000 Hz, and one at 50 Hz before anybody had asked for more.
    for (period, count) in [(20_000_000, 50), (1_000_000, 1000)] {
        sample.weight = period;
        (0..count).for_each(|_| profiles.sample(&sample, &mut world));
    }
    let one = profiles.take(ONE, "P100", &mut world);
    assert_eq!((one.samples, one.frequency_hz), (1050, 1000));
    let two = profiles.take(TWO, "P100", &mut world);
    assert!(two.samples.abs_diff(150) <= 1, "{}", two.samples);
    assert_eq!((two.dropped, two.frequency_hz), (0, 100));
}

#[test]
fn threads_that_take_turns_keep_their_shares() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    profiles.set(
        ONE,
        "P100",
        json!({"FrameCnt": 1, "Frequency": 250}),
        &mut world,
    );
    let turns = [world.stack(&[1]), world.stack(&[2])];
    let mut samples = turns.map(|stack| world.sample(made, None, Some(stack)));
    samples
        .iter_mut()
        .for_each(|sample| sample.weight = 1_000_000);
    for turn in 0..40_000 {
        profiles.sample(&samples[turn % 2], &mut world);
    }
    let counts = profiles.take(ONE, "P100", &mut world).counts();
    // 5,000 each are expected; strata make the deviation smaller than that of a coin, 50.
    for (stack, count) in &counts {
        assert!(count.abs_diff(5_000) < 250, "{stack:?}: {counts:?}");
    }
    assert_eq!(counts.values().sum::<u64>(), 10_000);
}

#[test]
fn recordings_are_thinned_on_request_only() {
    let (mut world, mut profiles) = (Made::default(), replay(Replay::Timed));
    let made = world.process(100, None);
    profiles.set(ONE, "P100", all(1), &mut world);
    profiles.set(
        TWO,
        "P100",
        json!({"FrameCnt": 1, "Frequency": 99}),
        &mut world,
    );
    let stack = world.stack(&[7]);
    let mut sample = world.sample(made, None, Some(stack));
    sample.weight = 1_000_000;
    (0..1000).for_each(|_| profiles.sample(&sample, &mut world));
    // Page faults have no frequency: all of them stay.
    sample.source = world.source(Unit::Events, None);
    (0..10).for_each(|_| profiles.sample(&sample, &mut world));
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 1010);
    let thinned = profiles.take(TWO, "P100", &mut world).samples;
    assert!(thinned.abs_diff(109) <= 1, "{thinned}");
    assert_eq!(profiles.sampling(&world), None);
}

#[test]
fn a_recording_that_is_there_at_once_fills_each_configuration() {
    let (mut world, mut profiles) = (Made::default(), replay(Replay::AtOnce));
    let made = world.process(100, None);
    let second = world.thread(made.process, 101);
    let child = world.process(300, Some(made.process));
    let (often, once) = (world.stack(&[1, 2]), world.stack(&[3]));
    for (made, stack, times) in [(made, often, 6), (second, once, 1), (child, once, 2)] {
        let sample = world.sample(made, None, Some(stack));
        (0..times).for_each(|_| profiles.sample(&sample, &mut world));
    }
    world.end(made);
    for channel in [ONE, TWO] {
        profiles.set(channel, "P100", all(8), &mut world);
        let out = profiles.take(channel, "P100", &mut world);
        assert_eq!(out.counts(), [(vec![1, 2], 6), (vec![3], 1)].into());
        assert_eq!(profiles.take(channel, "P100", &mut world).samples, 0);
    }
    profiles.set(ONE, "P100.101", all(8), &mut world);
    assert_eq!(profiles.take(ONE, "P100.101", &mut world).samples, 1);
    // The most frequent stacks are those that find room.
    profiles.set(
        ONE,
        "P100",
        json!({"FrameCnt": 8, "MaxSamples": 5}),
        &mut world,
    );
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.counts(), [(vec![1, 2], 5)].into());
    assert_eq!(out.dropped, 2);
    let children = json!({"FrameCnt": 8, "Scope": "Children"});
    profiles.set(ONE, "P100", children, &mut world);
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.counts(), [(vec![1, 2], 6), (vec![3], 3)].into());
    // What comes later is added.
    let sample = world.sample(made, None, Some(once));
    profiles.sample(&sample, &mut world);
    assert_eq!(profiles.take(ONE, "P100", &mut world).samples, 1);
    // Ids that mean nothing any more are no samples.
    world.turns += 1;
    profiles.sample(&sample, &mut world);
    profiles.set(TWO, "P100", all(8), &mut world);
    let out = profiles.take(TWO, "P100", &mut world);
    assert_eq!((out.samples, out.dropped), (1, 8));
}

#[test]
fn stacks_of_other_tables_are_placed_anew() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    profiles.set(ONE, "P100", all(8), &mut world);
    let stack = world.stack(&[1]);
    let sample = world.sample(made, None, Some(stack));
    profiles.sample(&sample, &mut world);
    profiles.sample(&sample, &mut world);
    assert_eq!(world.asked, 1);
    // The same id, another stack; then the first one under another id.
    world.tables = Tables::default();
    world.turns += 1;
    let (other, first) = (world.stack(&[2]), world.stack(&[1]));
    assert_eq!(other, stack);
    for user in [other, first] {
        let sample = world.sample(made, None, Some(user));
        profiles.sample(&sample, &mut world);
    }
    let out = profiles.take(ONE, "P100", &mut world);
    assert_eq!(out.counts(), [(vec![1], 3), (vec![2], 1)].into());
    assert_eq!(out.stacks().len(), 2);
}

#[test]
fn losses_of_samples_are_told_to_all_once() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    world.process(100, None);
    let lost = |reason, count| Lost {
        cpu: None,
        from: Timestamp(0),
        to: Timestamp(1),
        count,
        reason,
    };
    profiles.lost(&lost(LostReason::RingFull, 1000));
    profiles.set(ONE, "P100", all(1), &mut world);
    profiles.lost(&lost(LostReason::Skipped, 3));
    profiles.lost(&lost(LostReason::SideBand, 50));
    profiles.lost(&lost(LostReason::CallRingFull, 50));
    profiles.set(TWO, "P100", all(1), &mut world);
    profiles.lost(&lost(LostReason::SlowOutput, 4));
    assert_eq!(profiles.take(ONE, "P100", &mut world).lost, 7);
    assert_eq!(profiles.take(TWO, "P100", &mut world).lost, 4);
    assert_eq!(profiles.take(ONE, "P100", &mut world).lost, 0);
}

/// Not a test of anything but that it ends: says what a sample costs for each client.
#[test]
fn what_a_sample_costs() {
    let (mut world, mut profiles) = (Made::default(), profiles());
    let made = world.process(100, None);
    let clients = 50;
    for client in 0..clients {
        let frames = 8 + client % 4;
        let hz = 500 + 250 * (client % 3);
        let parameters = json!({"FrameCnt": frames, "Frequency": hz});
        profiles.set(ChannelId(client), "P100", parameters, &mut world);
    }
    let mut samples = Vec::new();
    for stack in 0..500 {
        let frames: Vec<u64> = (0..30)
            .map(|frame| frame * 1000 + stack % (frame + 2))
            .collect();
        let stack = world.stack(&frames);
        let mut sample = world.sample(made, None, Some(stack));
        sample.weight = 500_000;
        samples.push(sample);
    }
    let rounds = 20;
    let mut asked = 0;
    let mut began = Instant::now();
    for round in 0..rounds {
        for sample in &samples {
            profiles.sample(sample, &mut world);
        }
        if round == 0 {
            // All stacks are known from here on.
            (asked, began) = (world.asked, Instant::now());
        }
    }
    let count = (rounds - 1) * samples.len() as u128;
    let each = began.elapsed().as_nanos() / count;
    println!(
        "{each} ns a sample, {} ns a client",
        each / u128::from(clients)
    );
    assert!(asked > 0);
    for client in 0..clients {
        let out = profiles.take(ChannelId(client), "P100", &mut world);
        let expected = 10_000 * (500 + 250 * (client % 3)) / 2000;
        assert!(out.samples.abs_diff(expected) <= 1, "{}", out.samples);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Sample {
        thread: usize,
        kernel: u64,
        user: u64,
    },
    Read,
    Configure {
        frames: u64,
        max: u64,
        kernel: bool,
    },
    Turn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sample = (0..3usize, 0..4u64, 0..6u64);
    let step = prop_oneof![
        20 => sample.prop_map(|(thread, kernel, user)| Step::Sample { thread, kernel, user }),
        2 => Just(Step::Read),
        1 => (1..6u64, 1..40u64, any::<bool>())
            .prop_map(|(frames, max, kernel)| Step::Configure { frames, max, kernel }),
        1 => Just(Step::Turn),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #[test]
    fn no_sample_is_lost_in_silence(steps in steps()) {
        let (mut world, mut profiles) = (Made::default(), profiles());
        let main = world.process(100, None);
        let threads = [main, world.thread(main.process, 101), world.process(200, None)];
        let (mut fed, mut frames, mut max) = (0, 3, u64::MAX);
        profiles.set(ONE, "P100", all(frames), &mut world);
        for step in steps.into_iter().chain([Step::Read]) {
            match step {
                Step::Sample { thread, kernel, user } => {
                    // Stacks of 0 to 5 frames.
                    let mut stack = |base: u64, len: u64| {
                        let addresses: Vec<u64> = (0..len).map(|frame| base + frame * 2).collect();
                        (len > 0).then(|| world.stack(&addresses))
                    };
                    let (kernel, user) = (stack(1000, kernel), stack(1, user));
                    let sample = world.sample(threads[thread], kernel, user);
                    profiles.sample(&sample, &mut world);
                    fed += u64::from(thread < 2);
                }
                Step::Read => {
                    let out = profiles.take(ONE, "P100", &mut world);
                    let stacks = out.stacks();
                    let counted: u64 = stacks.iter().map(|stack| stack.count).sum();
                    prop_assert_eq!(counted, out.samples);
                    prop_assert_eq!(counted + out.dropped + out.no_stack, fed);
                    prop_assert!(counted <= max);
                    let distinct: BTreeSet<_> = stacks.iter().map(|s| &s.addresses).collect();
                    prop_assert_eq!(distinct.len(), stacks.len());
                    for stack in &stacks {
                        prop_assert!((1..=frames as usize).contains(&stack.addresses.len()));
                    }
                    prop_assert!(world.held.is_empty());
                    fed = 0;
                }
                Step::Configure { frames: new, max: most, kernel } => {
                    (frames, max, fed) = (new, most, 0);
                    let parameters =
                        json!({"FrameCnt": frames, "MaxSamples": max, "KernelStacks": kernel});
                    profiles.set(ONE, "P100", parameters, &mut world);
                }
                Step::Turn => {
                    world.tables = Tables::default();
                    world.turns += 1;
                }
            }
        }
        profiles.close(ONE, &mut world);
        profiles.stacks.forget();
        prop_assert_eq!(profiles.stacks.len(), 0);
        prop_assert_eq!(profiles.budget.used(), 0);
    }
}
