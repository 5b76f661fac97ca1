//! One budget of memory for what all runs keep.
//!
//! Each run says how many bytes it keeps; when all together keep too much, the run that keeps most goes. Until it has
//! gone the others are held up, so that the budget is one, however many agents send at once.
//!
//! What does not belong here: what a run keeps (`flow`, [`Receiver::bytes`](super::Receiver::bytes)).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The budget, where nothing else is said: a quarter of the machine's memory, within bounds.
const LEAST: u64 = 256 << 20;
const MOST: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    kept: Mutex<Vec<Kept>>,
}

/// What one run keeps.
#[derive(Debug)]
struct Kept {
    serial: u64,
    bytes: usize,
    /// It is to go.
    doomed: bool,
}

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    /// Others have to go first.
    Wait,
    /// It keeps most.
    End,
}

impl Budget {
    pub(super) fn new(most: usize) -> Budget {
        Budget {
            most,
            kept: Mutex::default(),
        }
    }

    /// Bytes that all may keep.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Takes what a run keeps now.
    pub(super) fn note(&self, serial: u64, bytes: usize) -> Verdict {
        let mut kept = self.kept();
        match kept.iter_mut().find(|kept| kept.serial == serial) {
            Some(kept) => kept.bytes = bytes,
            None => kept.push(Kept {
                serial,
                bytes,
                doomed: false,
            }),
        }
        let all = kept.iter().map(|kept| kept.bytes);
        if all.fold(0, usize::saturating_add) > self.most
            && !kept.iter().any(|kept| kept.doomed)
            && let Some(largest) = kept.iter_mut().max_by_key(|kept| kept.bytes)
        {
            largest.doomed = true;
        }
        match kept.iter().find(|kept| kept.doomed) {
            None => Verdict::Go,
            Some(doomed) if doomed.serial == serial => Verdict::End,
            Some(_) => Verdict::Wait,
        }
    }

    /// A run has gone.
    pub(super) fn forget(&self, serial: u64) {
        self.kept().retain(|kept| kept.serial != serial);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all runs may keep on this machine.
pub(super) fn usual() -> usize {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    (memory / 4).clamp(LEAST, MOST) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_most_goes_and_others_wait_for_that() {
        let budget = Budget::new(100);
        assert_eq!(budget.note(1, 60), Verdict::Go);
        assert_eq!(budget.note(2, 40), Verdict::Go);
        assert_eq!(budget.note(2, 41), Verdict::Wait);
        assert_eq!(budget.note(3, 500), Verdict::Wait);
        assert_eq!(budget.note(1, 0), Verdict::End);
        budget.forget(1);
        // One at a time, until there is room.
        assert_eq!(budget.note(2, 41), Verdict::Wait);
        assert_eq!(budget.note(3, 500), Verdict::End);
        budget.forget(3);
        assert_eq!(budget.note(2, 100), Verdict::Go);
        assert_eq!(budget.note(2, 101), Verdict::End);
    }
}
