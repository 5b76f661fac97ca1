//! What the session is asked: once each, and again only when the answer may have changed.
//!
//! Addresses that mean nothing yet -> [`Question`]s. What was answered, and what nobody has answered, is
//! remembered for a short while. What does not belong here: what is known already (`lookup`).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::ContextKey;
use crate::front::{Place, Question};
use crate::machine::Life;

/// Most addresses that are asked for and remembered.
const MAX_ASKED: usize = 65_536;
/// Most addresses of one question.
const MAX_ADDRESSES: usize = 4096;
/// How long an answer, or that there is none, counts.
const COUNTS: Duration = Duration::from_secs(10);

/// How long an answer that is on its way is waited for: less than a command is kept at most, so that it
/// is seen here that none came.
const NAME: Duration = Duration::from_millis(2500);
/// How long where there is a rough one.
const EXACT: Duration = Duration::from_secs(1);
/// How long a name of run-time code where one of the same process was waited for in vain: clients that
/// find new addresses with every read would never be done.
const UNLIKELY: Duration = Duration::from_millis(500);
/// How long it is remembered that one was waited for: names of run-time code come late or never, and
/// clients ask for all they need again and again.
const WAITED: Duration = Duration::from_secs(60);

/// A process, or the kernel, and an address there.
type Asked = (Option<ContextKey>, u64);

/// What is hoped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hope {
    /// An exact answer where there is a rough one.
    Exact,
    /// A name of a file's code.
    Name,
    /// A name of run-time code, which may have no map.
    RunTimeName,
}

/// How it is with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has to be waited for.
    Waits,
    /// All that will come at once has come.
    Answered,
    /// Too much is asked for already.
    Refused,
}

/// Addresses that the session is asked about, and when they were.
#[derive(Debug, Default)]
pub(super) struct Questions {
    asked: FxHashMap<Asked, bool>,
    unsent: BTreeMap<Option<ContextKey>, Vec<u64>>,
    sent: FxHashMap<u64, Vec<Asked>>,
    /// What was asked, in order; when, if a tick has come since.
    ages: VecDeque<(Option<Instant>, Asked)>,
    last: u64,
    /// Since when an answer is waited for, once a tick has come.
    waits: FxHashMap<Asked, Option<Instant>>,
    /// Processes with run-time code that a name was waited for in vain, and when.
    unnamed: FxHashMap<ContextKey, Instant>,
    now: Option<Instant>,
}

impl Questions {
    /// Whether an answer that is on its way is still worth being waited for.
    pub(super) fn is_worth_waiting(
        &mut self,
        process: ContextKey,
        address: u64,
        hope: Hope,
    ) -> bool {
        let patience = match hope {
            Hope::Exact => EXACT,
            Hope::RunTimeName if self.unnamed.contains_key(&process) => UNLIKELY,
            Hope::Name | Hope::RunTimeName => NAME,
        };
        if self.waits.len() >= MAX_ASKED {
            return false;
        }
        let since = self.waits.entry((Some(process), address)).or_default();
        match (*since, self.now) {
            (Some(since), Some(now)) if now.saturating_duration_since(since) >= patience => {
                if hope == Hope::RunTimeName {
                    self.unnamed.entry(process).or_insert(now);
                }
                false
            }
            _ => true,
        }
    }

    /// Asks for an address, unless that was done.
    pub(super) fn ask(&mut self, process: Option<ContextKey>, address: u64) -> State {
        match self.asked.get(&(process, address)) {
            Some(true) => return State::Answered,
            Some(false) => return State::Waits,
            None => {}
        }
        if self.asked.len() >= MAX_ASKED {
            return State::Refused;
        }
        self.asked.insert((process, address), false);
        self.ages.push_back((None, (process, address)));
        self.unsent.entry(process).or_default().push(address);
        State::Waits
    }

    /// What is to be sent now. `life` says which life a process is.
    pub(super) fn take(&mut self, life: impl Fn(ContextKey) -> Option<Life>) -> Vec<Question> {
        let mut questions = Vec::new();
        for (process, addresses) in std::mem::take(&mut self.unsent) {
            for addresses in addresses.chunks(MAX_ADDRESSES) {
                let place = match process {
                    None => Place::Kernel(addresses.to_vec()),
                    Some(key) => match life(key) {
                        Some(life) => Place::Process(life, addresses.to_vec()),
                        None => continue,
                    },
                };
                self.last += 1;
                let asked = addresses.iter().map(|&address| (process, address));
                self.sent.insert(self.last, asked.collect());
                questions.push(Question {
                    id: self.last,
                    place,
                });
            }
        }
        questions
    }

    /// A question was answered; whether it was one.
    pub(super) fn answered(&mut self, question: u64) -> bool {
        let Some(asked) = self.sent.remove(&question) else {
            return false;
        };
        for asked in asked {
            if let Some(answered) = self.asked.get_mut(&asked) {
                *answered = true;
            }
        }
        true
    }

    /// Forgets what was asked long ago; whether there was anything, or something was waited for long
    /// enough.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        for (at, _) in self.ages.iter_mut().rev() {
            if at.is_some() {
                break;
            }
            *at = Some(now);
        }
        let before = self.now.replace(now).unwrap_or(now);
        let mut any = false;
        self.waits.retain(|_, since| {
            let since = *since.get_or_insert(now);
            let age = now.saturating_duration_since(since);
            let aged = before.saturating_duration_since(since);
            any |= [UNLIKELY, EXACT, NAME]
                .iter()
                .any(|&patience| aged < patience && patience <= age);
            age < WAITED
        });
        self.unnamed
            .retain(|_, since| now.saturating_duration_since(*since) < WAITED);
        let mut is_old = false;
        while let Some(&(Some(at), asked)) = self.ages.front()
            && now.saturating_duration_since(at) >= COUNTS
        {
            self.ages.pop_front();
            self.asked.remove(&asked);
            is_old = true;
        }
        if is_old {
            // What nobody has answered by now nobody will.
            let asked = &self.asked;
            self.sent
                .retain(|_, sent| sent.iter().any(|one| asked.contains_key(one)));
            self.unsent.retain(|&process, unsent| {
                unsent.retain(|&address| asked.contains_key(&(process, address)));
                !unsent.is_empty()
            });
        }
        any || is_old
    }
}
