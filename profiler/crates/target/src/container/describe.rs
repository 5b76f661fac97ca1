//! Describes containers on threads of its own, so that no engine can hold up a session, and no user's engines what root's
//! say.
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

/// Answers what containers are: what root's engines say first, and what a user's say of the user's own as it comes. Each is asked for once; what is not known yet is asked again for a while.
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
    /// Starts the threads. They end when this value is dropped.
    pub fn start(engines: Engines) -> io::Result<Describer> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let answers = Arc::new(Answers {
            waiting: Mutex::default(),
            wake: rustix::event::eventfd(0, flags)?,
        });
        let (own, all) = engines.split();
        let of_users = Worker::start("users-engines", all, Arc::clone(&answers), None)?;
        let questions = Worker::start("containers", own, Arc::clone(&answers), Some(of_users))?;
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
    /// Who is to be asked about what is in users' cgroups; none: users are asked here.
    of_users: Option<SyncSender<Question>>,
}

/// One that is looked at again.
struct Nameless {
    answered: Container,
    since: Instant,
    pause: Duration,
    at: Instant,
}

impl Worker {
    fn start(
        name: &str,
        engines: Engines,
        answers: Arc<Answers>,
        of_users: Option<SyncSender<Question>>,
    ) -> io::Result<SyncSender<Question>> {
        let (questions, received) = sync_channel(MAX_WAITING);
        let worker = Box::new(Worker {
            engines,
            answers,
            nameless: Vec::new(),
            of_users,
        });
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || worker.run(&received))?;
        Ok(questions)
    }

    /// Whether a cgroup is a user's, about whom another worker is to be asked.
    fn forwards(&self, cgroup: &str) -> Option<&SyncSender<Question>> {
        let of_users = self.of_users.as_ref()?;
        self.engines.whose(cgroup).map(|_| of_users)
    }

    fn run(mut self: Box<Self>, questions: &Receiver<Question>) {
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
            Question::Path(path) => {
                let found = self.engines.identify(&path);
                if found.is_none()
                    && let Some(of_users) = self.forwards(&path)
                {
                    // What finds no room stays what it is.
                    let _ = of_users.try_send(Question::Path(path));
                }
                found
            }
        });
        let identities: Vec<Identity> = identities.collect();
        if identities.is_empty() {
            return;
        }
        let described = self.engines.describe_all(&identities);
        let now = Instant::now();
        let (mut nameless, mut of_users) = (Vec::new(), Vec::new());
        let mut room = MAX_WAITING.saturating_sub(self.nameless.len());
        for container in described.iter().filter(|container| !is_settled(container)) {
            if self.forwards(&container.identity.cgroup).is_some() {
                of_users.push(Question::Identity(container.identity.clone()));
            } else if room > 0 {
                room -= 1;
                nameless.push(Nameless {
                    answered: container.clone(),
                    since: now,
                    pause: FIRST_PAUSE,
                    at: now + FIRST_PAUSE,
                });
            }
        }
        self.nameless.append(&mut nameless);
        // Before others can say more of them.
        self.answers.add(described);
        if let Some(to) = &self.of_users {
            // What finds no room has been answered as far as root's engines know it.
            let sent = of_users
                .into_iter()
                .map(|question| to.try_send(question).is_ok());
            sent.take_while(|sent| *sent).for_each(drop);
        }
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

    #[test]
    fn what_users_have_holds_up_nothing_of_roots() {
        use crate::container::engines::tests::{A, B, Machine, Silence, docker_file, is_root};
        let test = "what_users_have_holds_up_nothing_of_roots";
        if !is_root(test) {
            return;
        }
        let machine = Machine::new("holds");
        machine.file("etc/passwd", "eve:x:54321:54321::/home/eve:/bin/sh\n");
        let file = format!("var/lib/docker/containers/{A}/config.v2.json");
        machine.file(&file, &docker_file(A, "web"));
        let Some(_silence) = Silence::at(&machine.0.join("home/eve"), test) else {
            return;
        };
        let engines = Engines::at(&machine.0).reading_apart();
        let mut describer = Describer::start(engines).unwrap();
        let hers = identify(&format!("/user.slice/user-54321.slice/{B}")).unwrap();
        let roots = identify(&format!("/docker/{A}")).unwrap();
        let began = Instant::now();
        describer.ask(&hers);
        describer.ask_about("/user.slice/user-54321.slice/other");
        let first = answers(&mut describer, 1);
        assert_eq!(first, [Container::new(hers)]);
        describer.ask(&roots);
        let second = answers(&mut describer, 1);
        assert_eq!(second[0].name.as_deref(), Some("web"));
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    }
}
