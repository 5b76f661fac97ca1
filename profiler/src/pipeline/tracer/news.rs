//! What becomes of object files, for those who want to be told of each: traced, left out, refused.
//!
//! Notes of the choice and of what is attached -> [`News`], in the order in which they come up.
//! Bounded, however many files and functions there are, and whether or not anybody asks.
//!
//! What does not belong here: warnings for people (`log`), how others are told.

use rustc_hash::FxHashMap;

/// Most functions of one object that are named because they can't be traced.
const MAX_FAILED: usize = 1000;
/// Most notes that wait to be taken.
const MAX_WAITING: usize = 1 << 14;

/// What became of an object file, or of a function in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Functions of it are traced.
    Traced {
        /// Its path, as the first process that mapped it sees it.
        object: String,
        /// How many.
        functions: usize,
    },
    /// Functions of it were chosen, but [`TraceRequest::filter`](super::TraceRequest::filter) admits
    /// none of them.
    Filtered {
        /// See above.
        object: String,
    },
    /// A function that was chosen is not traced.
    Failed {
        /// See above.
        object: String,
        /// Which function; `*`: all, the object can't be read. After many, how many others.
        function: String,
        /// Why.
        why: String,
    },
}

/// News that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Bulletin {
    waiting: Vec<News>,
    /// Functions of each object that were named as failed, and that were not.
    failed: FxHashMap<Box<str>, (usize, usize)>,
    /// Notes for which there was no room.
    dropped: usize,
}

impl Bulletin {
    /// Notes a function that is not traced.
    pub(super) fn failed(&mut self, object: &str, function: &str, why: impl ToString) {
        if self.failed.len() >= MAX_WAITING && !self.failed.contains_key(object) {
            self.dropped += 1;
            return;
        }
        let (named, others) = self.failed.entry(object.into()).or_default();
        if *named >= MAX_FAILED {
            *others += 1;
            return;
        }
        *named += 1;
        self.add(News::Failed {
            object: object.to_owned(),
            function: function.to_owned(),
            why: why.to_string(),
        });
    }

    /// Notes anything else.
    pub(super) fn add(&mut self, news: News) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(news);
        } else {
            self.dropped += 1;
        }
    }

    /// What has come up since the last time.
    pub(super) fn take(&mut self) -> Vec<News> {
        let mut taken = std::mem::take(&mut self.waiting);
        for (object, (_, others)) in &mut self.failed {
            let others = std::mem::take(others);
            if others > 0 {
                taken.push(News::Failed {
                    object: object.to_string(),
                    function: format!("{others} more"),
                    why: "too many to be named".to_owned(),
                });
            }
        }
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            log::warn!("what became of {dropped} objects and functions is not told: too many");
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_named_up_to_a_number_per_object_and_then_counted() {
        let mut bulletin = Bulletin::default();
        for index in 0..MAX_FAILED + 7 {
            bulletin.failed("/a", &format!("f{index}"), "refused");
        }
        bulletin.failed("/b", "g", "refused");
        let taken = bulletin.take();
        assert_eq!(taken.len(), MAX_FAILED + 2);
        let is_summary = |news: &News| {
            matches!(news, News::Failed { object, function, .. }
                if object == "/a" && function == "7 more")
        };
        assert_eq!(taken.iter().filter(|news| is_summary(news)).count(), 1);
        assert_eq!(bulletin.take(), []);
        bulletin.failed("/a", "h", "refused");
        assert!(is_one(&bulletin.take()), "it is counted once more");
    }

    fn is_one(taken: &[News]) -> bool {
        matches!(taken, [News::Failed { function, .. }] if function == "1 more")
    }

    #[test]
    fn what_nobody_takes_does_not_grow() {
        let mut bulletin = Bulletin::default();
        for index in 0..MAX_WAITING * 2 {
            bulletin.add(News::Filtered {
                object: format!("/{index}"),
            });
            bulletin.failed(&format!("/{index}"), "f", "refused");
        }
        assert_eq!(bulletin.waiting.len(), MAX_WAITING);
        assert!(bulletin.failed.len() <= MAX_WAITING);
        assert_eq!(bulletin.take().len(), MAX_WAITING);
    }
}
