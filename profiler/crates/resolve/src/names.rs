//! Which addresses have names, which wait for one.
//!
//! Frames -> requests to the symbolizer, and its answers, remembered beyond the end of an epoch: of
//! each epoch and the one before it, so that what goes on being used need not be asked again and the
//! rest is forgotten. A request holds its file open until it is answered.
//!
//! What does not belong here: how an address is looked up (`symbolize`), ids (`intern`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::files::TargetFile;
use super::mapping::CodeModule;
use super::symbolize::{Answer, CodeBytes, Reply, Request, Symbolizer, owner_of};
use profiler_model::UnknownReason;

/// Most bytes of code kept for one epoch.
const MAX_CODE_BYTES: usize = 4 << 20;
/// After how long an address without an answer is asked again.
const AGAIN: Duration = Duration::from_millis(600);
/// How often an address is asked again before it is given up.
const MAX_TRIES: u32 = 100;
/// Most addresses that wait for a name.
const MAX_WAITING: usize = 200_000;
/// Most of them in files and code of one user, whatever their samples say: others find room.
const MAX_OF_USER: usize = MAX_WAITING / 2;
/// Most addresses in one request.
const MAX_ADDRESSES: usize = 256;

/// A module's uid and a frame address in it.
type Place = (u64, u64);

/// What is known of an address.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// What it means.
    pub(super) answer: Answer,
    /// Its function's code, if that is kept.
    pub(super) code: Option<CodeBytes>,
}

#[derive(Debug)]
struct Waiting {
    module: Arc<CodeModule>,
    file: Option<Arc<TargetFile>>,
    /// Whose it is, if not root's alone.
    owner: Option<u32>,
    wants_code: bool,
    state: State,
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be sent.
    Unsent,
    /// With the symbolizer.
    Sent,
    /// To be sent again at that time.
    Later(Instant),
}

/// An answer that has come.
#[derive(Debug)]
pub(super) struct Answered {
    /// Of which module.
    pub(super) module: Arc<CodeModule>,
    /// Of which frame address.
    pub(super) address: u64,
    /// What it is.
    pub(super) known: Known,
}

/// Names and open questions.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: FxHashMap<Place, Known>,
    before: FxHashMap<Place, Known>,
    waiting: FxHashMap<Place, Waiting>,
    /// How many of these are of files and code of a user.
    of_users: FxHashMap<u32, usize>,
    unsent: Vec<Place>,
    later: Vec<Place>,
    code: FxHashMap<Place, Arc<[u8]>>,
    code_bytes: usize,
    abandoned: FxHashSet<u64>,
    /// How often the symbolizer's queue was full.
    pub(super) refused: u64,
}

impl Names {
    /// What is known of an address.
    pub(super) fn get(&mut self, module: u64, address: u64) -> Option<Known> {
        let place = (module, address);
        if let Some(known) = self.known.get(&place) {
            return Some(known.clone());
        }
        let mut known = self.before.remove(&place)?;
        known.code = known
            .code
            .and_then(|(start, bytes)| self.keep_code(module, start, bytes));
        self.known.insert(place, known.clone());
        Some(known)
    }

    /// Whether an address waits for a name.
    pub(super) fn is_waiting(&self, module: u64, address: u64) -> bool {
        self.waiting.contains_key(&(module, address))
    }

    /// Notes that an address needs a name; false if too many do, or its module was given up.
    pub(super) fn want(
        &mut self,
        module: &Arc<CodeModule>,
        address: u64,
        wants_code: bool,
        file: Option<Arc<TargetFile>>,
    ) -> bool {
        if self.waiting.len() >= MAX_WAITING || self.abandoned.contains(&module.uid) {
            return false;
        }
        let owner = owner_of(module, file.as_deref());
        if let Some(owner) = owner {
            let theirs = self.of_users.entry(owner).or_default();
            if *theirs >= MAX_OF_USER {
                return false;
            }
            *theirs += 1;
        }
        let place = (module.uid, address);
        let waiting = Waiting {
            module: module.clone(),
            file,
            owner,
            wants_code,
            state: State::Unsent,
            tries: 0,
        };
        self.waiting.insert(place, waiting);
        self.unsent.push(place);
        true
    }

    /// How many addresses wait for a name.
    pub(super) fn left(&self) -> usize {
        self.waiting.len()
    }

    /// Sends what can be sent, without waiting.
    pub(super) fn send(&mut self, symbolizer: &mut Symbolizer) {
        self.wake(false);
        if self.unsent.is_empty() {
            return;
        }
        let mut requests: FxHashMap<u64, Request> = FxHashMap::default();
        let mut ready = Vec::new();
        let mut kept = Vec::new();
        for place in std::mem::take(&mut self.unsent) {
            let Some(waiting) = self.waiting.get_mut(&place) else {
                continue;
            };
            let request = requests.entry(place.0).or_insert_with(|| Request {
                module: waiting.module.clone(),
                file: waiting.file.clone(),
                addresses: Vec::new(),
            });
            waiting.state = State::Sent;
            request.addresses.push((place.1, waiting.wants_code));
            if request.addresses.len() >= MAX_ADDRESSES {
                ready.extend(requests.remove(&place.0));
            }
        }
        ready.extend(requests.into_values());
        ready.sort_by_cached_key(Request::order);
        for request in ready {
            if let Err(request) = symbolizer.ask(request) {
                self.refused += 1;
                for (address, _) in request.addresses {
                    let place = (request.module.uid, address);
                    if let Some(waiting) = self.waiting.get_mut(&place) {
                        waiting.state = State::Unsent;
                        kept.push(place);
                    }
                }
            }
        }
        self.unsent = kept;
    }

    /// Asks again for what has no answer yet, at once, and counts anew how often.
    pub(super) fn hurry(&mut self) {
        for waiting in self.waiting.values_mut() {
            waiting.tries = 0;
        }
        self.wake(true);
    }

    /// Asks for mere names of all that waits.
    pub(super) fn ask_names(&mut self, symbolizer: &mut Symbolizer) {
        let mut requests: FxHashMap<u64, Request> = FxHashMap::default();
        for (place, waiting) in &self.waiting {
            if waiting.file.is_some() {
                let request = requests.entry(place.0).or_insert_with(|| Request {
                    module: waiting.module.clone(),
                    file: waiting.file.clone(),
                    addresses: Vec::new(),
                });
                request.addresses.push((place.1, waiting.wants_code));
            }
        }
        let mut requests: Vec<Request> = requests.into_values().collect();
        requests.sort_by_cached_key(Request::order);
        for request in requests {
            if symbolizer.ask_names(request).is_err() {
                self.refused += 1;
            }
        }
    }

    /// Takes an answer; none if it answers nothing that is waited for.
    pub(super) fn take(&mut self, reply: Reply) -> Option<Answered> {
        let place = (reply.module, reply.address);
        let waiting = self.waiting.get_mut(&place)?;
        let mut answer = reply.answer;
        if answer == Answer::NotYet {
            waiting.tries += 1;
            if waiting.tries < MAX_TRIES {
                waiting.state = State::Later(Instant::now() + AGAIN);
                self.later.push(place);
                return None;
            }
            answer = Answer::Unknown(match waiting.module.jit {
                Some(_) => UnknownReason::NoSymbol,
                None => UnknownReason::GaveUp,
            });
        }
        let code = reply
            .code
            .and_then(|(start, bytes)| self.keep_code(place.0, start, bytes));
        let known = Known { answer, code };
        self.known.insert(place, known.clone());
        let waiting = self.waiting.remove(&place)?;
        leave(&mut self.of_users, waiting.owner);
        Some(Answered {
            module: waiting.module,
            address: place.1,
            known,
        })
    }

    /// Gives up all that waits: run-time code has no name yet, for the rest there was no time.
    pub(super) fn give_up(&mut self) -> Vec<Answered> {
        self.unsent.clear();
        self.later.clear();
        self.of_users.clear();
        let waiting = self.waiting.drain();
        let answered = waiting.map(|((_, address), waiting)| {
            let reason = match waiting.state {
                State::Later(_) if waiting.module.jit.is_some() => UnknownReason::NoSymbol,
                _ => UnknownReason::GaveUp,
            };
            unanswered(address, waiting.module, reason)
        });
        answered.collect()
    }

    /// Gives up a module that the symbolizer got stuck at, and asks for all others again.
    pub(super) fn abandon(&mut self, module: u64) -> Vec<Answered> {
        self.abandoned.insert(module);
        let (unsent, mut given_up) = (&mut self.unsent, Vec::new());
        let of_users = &mut self.of_users;
        self.waiting.retain(|&place, waiting| {
            if place.0 == module {
                leave(of_users, waiting.owner);
                given_up.push(unanswered(
                    place.1,
                    waiting.module.clone(),
                    UnknownReason::GaveUp,
                ));
                return false;
            }
            if waiting.state == State::Sent {
                waiting.state = State::Unsent;
                unsent.push(place);
            }
            true
        });
        given_up
    }

    /// Whether only run-time code waits, all of which was asked for again already.
    pub(super) fn is_hopeless(&self) -> bool {
        let mut waiting = self.waiting.values();
        waiting.all(|waiting| {
            waiting.module.jit.is_some()
                && waiting.tries > 1
                && matches!(waiting.state, State::Later(_))
        })
    }

    /// Forgets what was not used in the epoch that ends.
    pub(super) fn end_epoch(&mut self) {
        self.before = std::mem::take(&mut self.known);
        self.code.clear();
        self.code_bytes = 0;
    }

    fn wake(&mut self, all: bool) {
        if self.later.is_empty() {
            return;
        }
        let now = Instant::now();
        let (waiting, unsent) = (&mut self.waiting, &mut self.unsent);
        self.later.retain(|place| match waiting.get_mut(place) {
            Some(waiting) => match waiting.state {
                State::Later(at) if all || at <= now => {
                    waiting.state = State::Unsent;
                    unsent.push(*place);
                    false
                }
                State::Later(_) => true,
                State::Unsent | State::Sent => false,
            },
            None => false,
        });
    }

    fn keep_code(&mut self, module: u64, start: u64, bytes: Arc<[u8]>) -> Option<CodeBytes> {
        if let Some(known) = self.code.get(&(module, start)) {
            return Some((start, known.clone()));
        }
        if self.code_bytes + bytes.len() > MAX_CODE_BYTES {
            return None;
        }
        self.code_bytes += bytes.len();
        self.code.insert((module, start), bytes.clone());
        Some((start, bytes))
    }
}

/// One less waits.
fn leave(of_users: &mut FxHashMap<u32, usize>, owner: Option<u32>) {
    if let Some(owner) = owner
        && let Some(theirs) = of_users.get_mut(&owner)
    {
        *theirs -= 1;
        if *theirs == 0 {
            of_users.remove(&owner);
        }
    }
}

fn unanswered(address: u64, module: Arc<CodeModule>, reason: UnknownReason) -> Answered {
    Answered {
        module,
        address,
        known: Known {
            answer: Answer::Unknown(reason),
            code: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::tests::module;

    /// However many addresses samples of one user bring, others' find room; what has its answer makes room again.
    #[test]
    fn one_user_does_not_take_all_the_room() {
        let mut names = Names::default();
        let file = |owner| {
            let made = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC);
            let made = std::fs::File::from(made.unwrap());
            let stat = rustix::fs::fstat(&made).unwrap();
            let mut file = TargetFile::new(made, &stat, "/f", None, true);
            file.owner = owner;
            Some(Arc::new(file))
        };
        let (theirs, others) = (module("/theirs"), module("/others"));
        let user = file(Some(1001));
        let want = |names: &mut Names, at| names.want(&theirs, at, false, user.clone());
        let wanted = (0..2 * MAX_WAITING as u64).filter(|&at| want(&mut names, at));
        assert_eq!(wanted.count(), MAX_OF_USER);
        assert!(names.want(&others, 1, false, file(Some(1002))));
        assert!(names.want(&others, 2, false, file(None)));
        let answer = Answer::Unknown(UnknownReason::NoSymbol);
        let reply = Reply {
            module: theirs.uid,
            address: 7,
            answer,
            code: None,
        };
        assert!(names.take(reply).is_some());
        assert!(want(&mut names, 7) && !want(&mut names, u64::MAX));
        assert_eq!(names.abandon(theirs.uid).len(), MAX_OF_USER);
        assert_eq!(names.of_users.len(), 1);
        names.give_up();
        assert!(names.of_users.is_empty());
    }
}
