//! What Rust programs do: panics that are caught, threads, collections, text.
//!
//! Output: results of each, the same in every run. Ends with status 6.

use std::collections::BTreeMap;
use std::panic;
use std::sync::mpsc;
use std::thread;

fn down(depth: u32, numbers: &[u32]) -> usize {
    let text = depth.to_string();
    if depth == 0 {
        return numbers[text.len() + 5] as usize;
    }
    down(depth - 1, numbers) + text.len()
}

fn main() {
    let mut sums = BTreeMap::new();
    for number in 0..2000u32 {
        *sums.entry(number * 7919 % 1009).or_insert(0) += number;
    }
    println!("{:?}", sums.iter().take(5).collect::<Vec<_>>());
    panic::set_hook(Box::new(|_| {}));
    let caught = (0..100)
        .filter(|depth| panic::catch_unwind(|| down(depth % 20, &[1, 2, 3])).is_err())
        .count();
    println!("{caught} panics caught");
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..4u64)
        .map(|first| {
            let sender = sender.clone();
            thread::spawn(move || {
                let digits: usize = (first..1000).map(|number| number.to_string().len()).sum();
                sender.send(digits).is_ok()
            })
        })
        .collect();
    drop(sender);
    let mut sent: Vec<usize> = receiver.iter().collect();
    sent.sort_unstable();
    let ended = threads.into_iter().filter_map(|thread| thread.join().ok());
    println!("{sent:?} {}", ended.filter(|sent| *sent).count());
    let failed = thread::spawn(|| panic!("in a thread")).join().is_err();
    println!("{failed} {:.5}", 2f64.sqrt());
    std::process::exit(6)
}
