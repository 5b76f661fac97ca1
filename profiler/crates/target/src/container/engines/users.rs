//! Engines of users: who may speak about which cgroup.
//!
//! A cgroup's path -> whose it is; questions about the containers of a user -> what that user's engines say. A user's
//! word counts for the user's own cgroups: those below the slice that systemd gives the user, and those whose
//! directory belongs to the user, who may put nobody else's processes there.
//!
//! What does not belong here: what they say (`book`), who reads it (`apart`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Facts;
use super::apart::{self, Answer, Question, Reader};
use super::book::{Book, LISTS_FOR};
use super::files::Root;
use super::places::Whose;
use crate::container::Identity;

/// Hierarchies below the mount that all are in: of version 2, or one of those that all containers are in.
const HIERARCHIES: [&str; 5] = ["", "unified", "systemd", "pids", "memory"];
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same when several users are silent already.
const LESS_PATIENCE: Duration = Duration::from_millis(250);
/// So many are several.
const SEVERAL: usize = 3;
/// How long a user is left alone who has too much, or did not answer; twice as long each further time.
const FIRST_REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(600);
/// How long all answers of a user may take at first, and of which part of the time that passes.
const ALLOWANCE: Duration = Duration::from_secs(2);
const ALLOWED: u32 = 5;
/// Most processes that answer, and most that don't.
const MAX_READERS: usize = 16;
const MAX_SILENT: usize = 64;
/// Nobody.
const NOBODY: u32 = u32::MAX;

/// The engines of users.
#[derive(Debug)]
pub(super) struct Users {
    root: PathBuf,
    /// Whether a process apart reads what they say.
    apart: bool,
    known: HashMap<u32, Known>,
    /// What there is to say about them, for which there is one line.
    said: HashSet<(u32, &'static str)>,
    none: HashMap<String, String>,
}

/// What is known of a user.
#[derive(Debug)]
struct Known {
    reader: Option<Reader>,
    /// What is read in this process.
    book: Option<Book>,
    /// It has not answered in time.
    silent: bool,
    rests_until: Option<Instant>,
    rest: Duration,
    /// What is left of the time for answers, and when that was so.
    allowance: (Duration, Instant),
    runtimes: Option<(Instant, HashMap<String, String>)>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            reader: None,
            book: None,
            silent: false,
            rests_until: None,
            rest: Duration::ZERO,
            allowance: (ALLOWANCE, Instant::now()),
            runtimes: None,
        }
    }
}

impl Known {
    /// Whether there is time left for an answer.
    fn is_allowed(&mut self, now: Instant) -> bool {
        let (left, at) = self.allowance;
        let more = now.saturating_duration_since(at) / ALLOWED;
        self.allowance = ((left + more).min(ALLOWANCE), now);
        !self.allowance.0.is_zero()
    }

    /// Leaves the user alone for a while.
    fn rest(&mut self) {
        self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
        self.rests_until = Some(Instant::now() + self.rest);
    }
}

impl Users {
    pub(super) fn at(root: &Path) -> Users {
        Users {
            root: root.to_owned(),
            apart: apart::is_offered(),
            known: HashMap::new(),
            said: HashSet::new(),
            none: HashMap::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn reading_apart(mut self) -> Users {
        self.apart = true;
        self
    }

    /// Ids by cgroup, of containers of a user's runtimes.
    pub(super) fn runtimes(&mut self, user: u32) -> &HashMap<String, String> {
        let known = self.known.entry(user).or_default();
        let is_young = |(at, _): &(Instant, _)| at.elapsed() < LISTS_FOR;
        if !known.runtimes.as_ref().is_some_and(is_young) {
            let answer = self.ask(user, &Question::Runtimes);
            let runtimes = answer.unwrap_or_default().runtimes;
            let known = self.known.entry(user).or_default();
            known.runtimes = Some((Instant::now(), runtimes));
        }
        let known = self.known.get(&user);
        let runtimes = known.and_then(|known| known.runtimes.as_ref());
        runtimes.map_or(&self.none, |(_, runtimes)| runtimes)
    }

    /// What a user's engines say of containers in the user's cgroups, each in its place.
    pub(super) fn look(&mut self, user: u32, identities: Vec<Identity>) -> Vec<Facts> {
        let asked = identities.len();
        let answer = self.ask(user, &Question::Look(identities));
        let facts = answer.unwrap_or_default().facts;
        // What it says is believed as little as the user.
        match facts.len() == asked {
            true => facts,
            false => vec![Facts::default(); asked],
        }
    }

    fn ask(&mut self, user: u32, question: &Question) -> Option<Answer> {
        let now = Instant::now();
        let known = self.known.entry(user).or_default();
        if known.rests_until.is_some_and(|until| now < until) || !known.is_allowed(now) {
            return None;
        }
        if known.silent {
            if !known.reader.as_ref().is_none_or(Reader::has_ended) {
                known.rests_until = Some(now + known.rest);
                return None;
            }
            (known.reader, known.silent) = (None, false);
        }
        let answer = match self.apart {
            true => self.ask_reader(user, question),
            false => {
                let book = || Book::new(Root::new(&self.root), Whose::User(user));
                Ok(apart::answer(known.book.get_or_insert_with(book), question))
            }
        };
        let known = self.known.entry(user).or_default();
        known.allowance.0 = known.allowance.0.saturating_sub(now.elapsed());
        match answer {
            Ok(answer) => {
                if answer.over {
                    known.rest();
                    self.say(user, "keeps more files about containers than are read");
                } else {
                    known.rest = Duration::ZERO;
                    known.rests_until = None;
                }
                Some(answer)
            }
            Err(error) => {
                known.silent = error.kind() == io::ErrorKind::TimedOut;
                match (&known.reader, known.silent) {
                    (Some(reader), true) => reader.give_up(),
                    _ => known.reader = None,
                }
                known.rest();
                log::debug!("containers of user {user}: {error}");
                self.say(
                    user,
                    "keeps files about containers where reading does not end",
                );
                None
            }
        }
    }

    /// Asks the process of a user, which is started if there is none.
    fn ask_reader(&mut self, user: u32, question: &Question) -> io::Result<Answer> {
        let silent = self.known.values().filter(|known| known.silent).count();
        if silent >= MAX_SILENT {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let patience = match silent >= SEVERAL {
            true => LESS_PATIENCE,
            false => PATIENCE,
        };
        let known = self.known.entry(user).or_default();
        if let Some(reader) = &mut known.reader {
            match reader.ask(question, patience) {
                // It may have ended since it was asked last.
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
                done => return done,
            }
        }
        self.make_room();
        let mut reader = Reader::start(&self.root, user)?;
        let answer = reader.ask(question, patience);
        self.known.entry(user).or_default().reader = Some(reader);
        answer
    }

    /// Ends the processes of those who have not been asked for longest.
    fn make_room(&mut self) {
        let answers = |known: &&mut Known| known.reader.is_some() && !known.silent;
        while self.known.values_mut().filter(answers).count() >= MAX_READERS {
            let readers = self.known.values_mut().filter(answers);
            if let Some(oldest) = readers.min_by_key(|known| known.allowance.1) {
                oldest.reader = None;
            }
        }
    }

    fn say(&mut self, user: u32, what: &'static str) {
        if self.said.insert((user, what)) {
            log::warn!("user {user} {what}: containers of theirs may have no names");
        }
    }
}

/// The user that a cgroup belongs to; none if it is root's.
pub(super) fn whose(root: &Path, cgroup: &str) -> Option<u32> {
    let mounts = root.join("sys/fs/cgroup");
    let of_slice = of_slice(cgroup);
    let user = of_slice.or_else(|| {
        let below = cgroup.strip_prefix('/').filter(|below| !below.is_empty())?;
        let mut hierarchies = HIERARCHIES.iter().map(|one| mounts.join(one).join(below));
        hierarchies.find_map(|directory| Some(fs::symlink_metadata(directory).ok()?.uid()))
    });
    user.filter(|user| ![0, NOBODY].contains(user))
}

/// The user whose slice a cgroup is in.
fn of_slice(cgroup: &str) -> Option<u32> {
    let below = cgroup.strip_prefix("/user.slice/user-")?;
    let (user, _) = below.split_once(".slice")?;
    let rest = &below[user.len() + ".slice".len()..];
    (rest.is_empty() || rest.starts_with('/')).then_some(())?;
    user.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{A, B, Machine, Silence, docker_file, is_root};
    use super::*;
    use crate::container::identify;

    const EVE: u32 = 54_321;
    const BOB: u32 = 54_322;

    /// A machine with two users, who have a container each.
    fn machine(name: &str) -> Machine {
        let machine = Machine::new(name);
        let users =
            format!("eve:x:{EVE}:{EVE}::/home/eve:/bin/sh\nbob:x:{BOB}:{BOB}::/home/bob:/bin/sh\n");
        machine.file("etc/passwd", &users);
        for (user, home) in [(EVE, "eve"), (BOB, "bob")] {
            let file = format!("home/{home}/.local/share/docker/containers/{A}/config.v2.json");
            machine.users_file(user, &file, &docker_file(A, home));
        }
        machine
    }

    fn names(users: &mut Users, user: u32, ids: &[&str]) -> Vec<Option<String>> {
        let cgroup = |id| format!("/user.slice/user-{user}.slice/docker-{id}.scope");
        let identities = ids.iter().map(|id| identify(&cgroup(id)).unwrap());
        let facts = users.look(user, identities.collect());
        facts.into_iter().map(|facts| facts.name).collect()
    }

    #[test]
    fn what_a_user_has_is_read_by_a_process_that_is_the_user() {
        if !is_root("what_a_user_has_is_read_by_a_process_that_is_the_user") {
            return;
        }
        let machine = machine("apart");
        // What only root may read, and a way there in a user's folder.
        let secret = format!("secret/{B}/config.v2.json");
        machine.users_file(0, &secret, &docker_file(B, "secret"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(machine.0.join("secret"), mode).unwrap();
        let containers = machine.0.join("home/eve/.local/share/docker/containers");
        std::os::unix::fs::symlink(format!("../../../../../../secret/{B}"), containers.join(B))
            .unwrap();
        let mut users = Users::at(&machine.0);
        let eve = Some("eve".to_owned());
        let found = names(&mut users, EVE, &[A, B]);
        assert_eq!(found, [eve.clone(), Some("secret".to_owned())]);
        let mut users = Users::at(&machine.0).reading_apart();
        assert_eq!(names(&mut users, EVE, &[A, B]), [eve.clone(), None]);
        // It is there still, and ends with who asks.
        assert_eq!(names(&mut users, EVE, &[A]), [eve]);
        assert!(!users.known[&EVE].silent && users.known[&EVE].reader.is_some());
        assert_eq!(names(&mut users, BOB, &[A]), [Some("bob".to_owned())]);
    }

    #[test]
    fn a_folder_that_never_answers_costs_its_user_alone() {
        let test = "a_folder_that_never_answers_costs_its_user_alone";
        if !is_root(test) {
            return;
        }
        let machine = machine("silent");
        let Some(silence) = Silence::at(&machine.0.join("home/eve/.local"), test) else {
            return;
        };
        let mut users = Users::at(&machine.0).reading_apart();
        let began = Instant::now();
        assert_eq!(names(&mut users, EVE, &[A]), [None]);
        assert!(users.known[&EVE].silent);
        assert_eq!(names(&mut users, BOB, &[A]), [Some("bob".to_owned())]);
        assert!(began.elapsed() < PATIENCE * 3, "{:?}", began.elapsed());
        // Nobody asks again, neither in a while nor as long as its process waits.
        let began = Instant::now();
        assert_eq!(names(&mut users, EVE, &[A]), [None]);
        users.known.get_mut(&EVE).unwrap().rests_until = None;
        assert_eq!(names(&mut users, EVE, &[A]), [None]);
        assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
        drop(silence);
        let began = Instant::now();
        while !users.known[&EVE].reader.as_ref().unwrap().has_ended() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "it has not ended"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        users.known.get_mut(&EVE).unwrap().rests_until = None;
        assert_eq!(names(&mut users, EVE, &[A]), [Some("eve".to_owned())]);
    }

    #[test]
    fn who_has_too_much_is_left_alone() {
        let machine = machine("much");
        let state = machine
            .0
            .join("run/user")
            .join(EVE.to_string())
            .join("runc");
        for id in 0..600 {
            fs::create_dir_all(state.join(id.to_string())).unwrap();
        }
        let mut users = Users::at(&machine.0);
        assert!(
            users
                .ask(EVE, &Question::Runtimes)
                .is_some_and(|answer| answer.over)
        );
        assert!(users.ask(EVE, &Question::Runtimes).is_none());
        assert_eq!(names(&mut users, BOB, &[A]), [Some("bob".to_owned())]);
        let known = users.known.get_mut(&EVE).unwrap();
        let first = known.rest;
        known.rests_until = None;
        let _ = users.ask(EVE, &Question::Runtimes);
        assert_eq!(users.known[&EVE].rest, first * 2);
    }

    #[test]
    fn whose_answers_take_long_is_asked_less() {
        let now = Instant::now();
        let mut known = Known::default();
        assert!(known.is_allowed(now));
        known.allowance.0 = Duration::ZERO;
        assert!(!known.is_allowed(now));
        assert!(known.is_allowed(now + Duration::from_secs(1)));
        assert_eq!(known.allowance.0, Duration::from_secs(1) / ALLOWED);
        assert!(known.is_allowed(now + Duration::from_secs(1000)));
        assert_eq!(known.allowance.0, ALLOWANCE);
    }

    #[test]
    fn slices_of_users() {
        assert_eq!(of_slice("/user.slice/user-1000.slice"), Some(1000));
        let service = "/user.slice/user-7.slice/user@7.service/app.slice/a.scope";
        assert_eq!(of_slice(service), Some(7));
        for other in [
            "/user.slice",
            "/user.slice/user-.slice",
            "/user.slice/user-1000.slices/a",
            "/user.slice/user-1000/a.slice",
            "/docker/a/user.slice/user-1000.slice/b",
        ] {
            assert_eq!(of_slice(other), None, "{other}");
        }
    }
}
