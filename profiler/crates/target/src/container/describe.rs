//! Describes containers on a thread of its own, so that no engine can hold up a session.
//!
//! [`Identity`]s in, [`Container`]s out, and a descriptor that says when. Engines write down what they
//! start only a while after its cgroup is made: who has no name yet is asked for again at growing
//! intervals.
//!
//! What does not belong here: who knows what (`engines`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Container, Engine, Engines, Identity};

/// Most questions that wait.
const MAX_WAITING: usize = 4096;
/// Most containers of which it is remembered that they were asked for.
const MAX_ASKED: usize = 1 << 16;
/// Asked for again within this time, a container is not looked at again.
const ASKED_FOR: Duration = Duration::from_secs(10);
/// First pause before what has no name is looked at again; each further one is half as long again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// When nothing more is to be expected.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Answers what containers are. Each is asked for once; what is not known yet is asked again for a while.
#[derive(Debug)]
pub struct Describer {
    questions: SyncSender<Question>,
    answers: Arc<Answers>,
    asked: HashMap<String, Instant>,
}

#[derive(Debug)]
enum Question {
    Identity(Identity),
    /// A cgroup whose path says nothing.
    Path(String),
}

/// What is on its way to whoever polls.
#[derive(Debug)]
struct Answers {
    waiting: Mutex<VecDeque<Container>>,
    wake: OwnedFd,
}

impl Describer {
    /// Starts the thread. It ends when this value is dropped.
    pub fn start(engines: Engines) -> io::Result<Describer> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let answers = Arc::new(Answers {
            waiting: Mutex::default(),
            wake: rustix::event::eventfd(0, flags)?,
        });
        let (questions, received) = sync_channel(MAX_WAITING);
        let worker = Worker {
            engines,
            answers: Arc::clone(&answers),
            nameless: Vec::new(),
        };
        thread::Builder::new()
            .name("containers".to_owned())
            .spawn(move || worker.run(&received))?;
        Ok(Describer {
            questions,
            answers,
            asked: HashMap::new(),
        })
    }

    /// Asks. The queue is bounded: what finds no room is answered by its identity alone.
    pub fn ask(&mut self, identity: &Identity) {
        if self.is_new(&identity.cgroup) {
            let question = Question::Identity(identity.clone());
            if self.questions.try_send(question).is_err() {
                self.answers.add([Container::new(identity.clone())]);
            }
        }
    }

    /// Asks what a cgroup is whose path says nothing: it may be the container of a runtime without an
    /// engine. If it is none, there is no answer.
    pub fn ask_about(&mut self, path: &str) {
        if self.is_new(path) {
            // One that finds no room stays what it is: a cgroup.
            let _ = self.questions.try_send(Question::Path(path.to_owned()));
        }
    }

    /// Answers since the last call. One container may be answered again, when more is known.
    pub fn poll(&mut self) -> Vec<Container> {
        let mut count = [0; 8];
        // Read before what is waiting is taken: what comes meanwhile wakes again.
        let _ = rustix::io::read(&self.answers.wake, &mut count);
        self.answers.lock().drain(..).collect()
    }

    /// Becomes readable when there are answers; [`Describer::poll`] makes it unreadable again.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.answers.wake.as_fd()
    }

    fn is_new(&mut self, cgroup: &str) -> bool {
        let now = Instant::now();
        if self.asked.len() >= MAX_ASKED {
            self.asked
                .retain(|_, at| now.duration_since(*at) < ASKED_FOR);
            if self.asked.len() >= MAX_ASKED {
                self.asked.clear();
            }
        }
        let before = self.asked.insert(cgroup.to_owned(), now);
        before.is_none_or(|at| now.duration_since(at) >= ASKED_FOR)
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Container>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, containers: impl IntoIterator<Item = Container>) {
        let mut waiting = self.lock();
        let before = waiting.len();
        waiting.extend(containers);
        if waiting.len() > before {
            // It can fail only by being readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// What the thread has.
struct Worker {
    engines: Engines,
    answers: Arc<Answers>,
    nameless: Vec<Nameless>,
}

/// One that is looked at again.
struct Nameless {
    answered: Container,
    since: Instant,
    pause: Duration,
    at: Instant,
}

impl Worker {
    fn run(mut self, questions: &Receiver<Question>) {
        loop {
            let first = match self.nameless.iter().map(|nameless| nameless.at).min() {
                Some(at) => {
                    match questions.recv_timeout(at.saturating_duration_since(Instant::now())) {
                        Ok(question) => Some(question),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
                None => match questions.recv() {
                    Ok(question) => Some(question),
                    Err(_) => return,
                },
            };
            // All that wait are answered by one look.
            let asked: Vec<Question> = first.into_iter().chain(questions.try_iter()).collect();
            self.answer(asked);
            self.look_again();
        }
    }

    fn answer(&mut self, asked: Vec<Question>) {
        let identities = asked.into_iter().filter_map(|question| match question {
            Question::Identity(identity) => Some(identity),
            Question::Path(path) => self.engines.identify(&path),
        });
        let identities: Vec<Identity> = identities.collect();
        if identities.is_empty() {
            return;
        }
        let described = self.engines.describe_all(&identities);
        let now = Instant::now();
        let nameless = described.iter().filter(|container| !is_settled(container));
        let room = MAX_WAITING.saturating_sub(self.nameless.len());
        self.nameless
            .extend(nameless.take(room).map(|container| Nameless {
                answered: container.clone(),
                since: now,
                pause: FIRST_PAUSE,
                at: now + FIRST_PAUSE,
            }));
        self.answers.add(described);
    }

    fn look_again(&mut self) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            (self.nameless.drain(..)).partition(|nameless| nameless.at <= now);
        self.nameless = later;
        if due.is_empty() {
            return;
        }
        let identities = due
            .iter()
            .map(|nameless| nameless.answered.identity.clone());
        let identities: Vec<Identity> = identities.collect();
        let described = self.engines.describe_all(&identities);
        let now = Instant::now();
        for (mut nameless, container) in due.into_iter().zip(described) {
            if container != nameless.answered {
                self.answers.add([container.clone()]);
            }
            if !is_settled(&container) && nameless.since.elapsed() < GIVE_UP_AFTER {
                nameless.answered = container;
                nameless.pause = nameless.pause * 3 / 2;
                nameless.at = now + nameless.pause;
                self.nameless.push(nameless);
            }
        }
    }
}

/// Whether nothing more is to be expected.
fn is_settled(container: &Container) -> bool {
    let identity = &container.identity;
    let is_pod = identity.id.is_none() && identity.pod_uid.is_some();
    match container.engine {
        Engine::Systemd | Engine::Lxc | Engine::Nspawn => true,
        _ if is_pod => container.pod.is_some(),
        _ => container.name.is_some() && container.image.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::container::identify;

    fn answers(describer: &mut Describer, count: usize) -> Vec<Container> {
        let began = Instant::now();
        let mut found = Vec::new();
        while found.len() < count && began.elapsed() < Duration::from_secs(10) {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                describer.wake_fd(),
                rustix::event::PollFlags::IN,
            )];
            let second = rustix::event::Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            rustix::event::poll(&mut fds, Some(&second)).unwrap();
            found.extend(describer.poll());
        }
        found
    }

    #[test]
    fn a_name_that_comes_late_is_told_later() {
        let name = format!("profiler-describe-{}", std::process::id());
        let root: PathBuf = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&root);
        let id = "ab".repeat(32);
        let folder = root.join("var/lib/docker/containers").join(&id);
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.join("run/runc/rc1")).unwrap();
        let state = r#"{"cgroup_paths":{"":"/sys/fs/cgroup/mine/rc1"}}"#;
        fs::write(root.join("run/runc/rc1/state.json"), state).unwrap();

        let mut describer = Describer::start(Engines::at(&root)).unwrap();
        let identity = identify(&format!("/docker/{id}")).unwrap();
        describer.ask(&identity);
        describer.ask(&identity);
        let first = answers(&mut describer, 1);
        assert_eq!(first, [Container::new(identity)]);

        let file = format!(r#"{{"ID":"{id}","Name":"/web","Config":{{"Image":"nginx"}}}}"#);
        fs::write(folder.join("config.v2.json"), file).unwrap();
        let second = answers(&mut describer, 1);
        assert_eq!(second[0].name.as_deref(), Some("web"));
        assert_eq!(second[0].image.as_deref(), Some("nginx"));

        describer.ask_about("/mine/other");
        describer.ask_about("/mine/rc1/below");
        let third = answers(&mut describer, 1);
        assert_eq!(third[0].identity.cgroup, "/mine/rc1");
        assert_eq!(third[0].identity.id.as_deref(), Some("rc1"));
        assert_eq!(third.len(), 1);
        fs::remove_dir_all(&root).unwrap();
    }
}
