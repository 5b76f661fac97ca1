//! Whose turn it is to have files read.
//!
//! Threads that each read files of one user -> the few of them that may read now. Of those that wait, who has taken
//! least time so far is next: a user who comes is served as soon as anybody is done, however many others there are and
//! however much they ask for. What only root can change waits for nobody.
//!
//! What does not belong here: how long a file may be read, and by whom (`symbolize`, `unwinding`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::owners::Owners;

/// How many may read at once.
pub(crate) const READERS: usize = 3;
/// Who has waited so long does something about it.
const LONG: Duration = Duration::from_secs(1);
/// Who has a turn for longer hangs, and nobody waits for it.
const LONGEST: Duration = Duration::from_secs(600);

/// Turns of users.
#[derive(Debug)]
pub(crate) struct Turns {
    most: usize,
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Now {
    /// Number of a turn, the user, when it began.
    running: Vec<(u64, u32, Instant)>,
    waiting: Vec<(u64, u32)>,
    /// How long turns took that are over.
    taken: Owners,
    last: u64,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Turns {
    /// So many at once.
    pub(crate) fn new(most: usize) -> Arc<Turns> {
        Arc::new(Turns {
            most,
            now: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Waits for a turn of this user; none is root, who needs none. If that takes long, `meanwhile` is done once.
    pub(crate) fn take(
        self: &Arc<Turns>,
        user: Option<u32>,
        meanwhile: impl FnOnce(),
    ) -> Option<Turn> {
        let user = user?;
        let mut now = self.lock();
        now.last += 1;
        let number = now.last;
        now.waiting.push((number, user));
        let mut meanwhile = Some(meanwhile);
        let began = Instant::now();
        while now.running() >= self.most || now.next() != Some(number) {
            let waited = self.changed.wait_timeout(now, LONG);
            now = waited.unwrap_or_else(PoisonError::into_inner).0;
            if began.elapsed() >= LONG
                && let Some(meanwhile) = meanwhile.take()
            {
                drop(now);
                meanwhile();
                now = self.lock();
            }
        }
        now.waiting.retain(|&(waiting, _)| waiting != number);
        now.running.push((number, user, Instant::now()));
        drop(now);
        // There may be room for one more.
        self.changed.notify_all();
        Some(Turn {
            turns: self.clone(),
            number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// How many turns there are.
    fn running(&self) -> usize {
        let running = self.running.iter();
        running
            .filter(|(_, _, since)| since.elapsed() < LONGEST)
            .count()
    }

    /// The turn that is next: of who has taken least, the first.
    fn next(&self) -> Option<u64> {
        let cost = |user: u32| {
            let running = self.running.iter().filter(|&&(_, whose, _)| whose == user);
            let running: Duration = running.map(|(_, _, since)| since.elapsed()).sum();
            self.taken.so_far(user) + running
        };
        let first = self.waiting.iter().min_by_key(|&&(number, user)| {
            // What is not a moment more is no reason to go before somebody who waits longer.
            (cost(user).as_millis() / 10, number)
        });
        first.map(|&(number, _)| number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut now = self.turns.lock();
        let over = now.running.iter();
        if let Some(index) = over
            .into_iter()
            .position(|&(number, _, _)| number == self.number)
        {
            let (_, user, since) = now.running.swap_remove(index);
            now.taken.add(user, since.elapsed());
        }
        drop(now);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until so many threads wait for a turn.
    fn until_waiting(turns: &Turns, count: usize) {
        while turns.lock().waiting.len() != count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_comes_is_next_and_who_has_taken_most_is_last() {
        let turns = Turns::new(READERS);
        let busy = [1001, 1002, 1003];
        for user in busy {
            turns
                .lock()
                .taken
                .add(user, Duration::from_secs(u64::from(user)));
        }
        let mut running: Vec<_> = busy.map(|user| turns.take(Some(user), || ())).into();
        assert!(turns.take(None, || ()).is_none(), "root needs none");
        let (told, served) = channel();
        let mut waiting = 0;
        // Of the three more wait than are served in a while.
        for user in [1003, 1003, 1002, 1001, 1001, 2000] {
            let (of, told) = (turns.clone(), told.clone());
            std::thread::spawn(move || {
                let turn = of.take(Some(user), || ());
                told.send((user, turn)).unwrap();
            });
            waiting += 1;
            until_waiting(&turns, waiting);
        }
        // One at a time.
        let mut order = Vec::new();
        running.pop();
        for _ in 0..waiting {
            let (user, turn) = served.recv_timeout(Duration::from_secs(60)).unwrap();
            order.push(user);
            drop(turn);
        }
        assert_eq!(order, [2000, 1001, 1001, 1002, 1003, 1003]);
    }

    #[test]
    fn who_waits_long_does_something_meanwhile() {
        let turns = Turns::new(1);
        let first = turns.take(Some(1), || panic!("nobody was there"));
        let (told, rests) = channel();
        let other = turns.clone();
        let waits =
            std::thread::spawn(move || other.take(Some(2), || told.send(()).unwrap()).is_some());
        rests.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(first);
        assert!(waits.join().unwrap());
    }
}
