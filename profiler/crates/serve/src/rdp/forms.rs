//! How clients are told of processes and threads: names of actors, and the forms in which they are listed.
//!
//! The name of an actor says what it is and whose, so that nothing is kept of those that were listed:
//! `server1.conn3.trace1234.987654.1235` is the TraceActor of thread 1235 of process 1234 that began at 987654 ns.
//! What does not belong here: requests (`agent`).

use serde_json::{Map, Value as Json, json};

use crate::machine::Life;
use crate::world::{ThreadKey, World};
use profiler_model::{Pid, Process, Thread, Tid, Timestamp};

/// Who a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    Root,
    /// The descriptor of a process.
    Process(Life),
    /// What there is to look at in a process; a tab for those who know no others.
    Target(Life),
    /// A thread.
    Thread(ThreadKey),
    /// The TraceActor of a thread.
    Trace(ThreadKey),
}

/// Names of the actors of one connection.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// What they begin with.
    pub(super) prefix: String,
}

impl Names {
    pub(super) fn new(connection: u64) -> Names {
        Names {
            prefix: format!("server1.conn{connection}."),
        }
    }

    pub(super) fn of(&self, actor: Actor) -> String {
        let prefix = &self.prefix;
        match actor {
            Actor::Root => "root".to_owned(),
            Actor::Process(life) => format!("{prefix}process{}.{}", life.pid, life.started.0),
            Actor::Target(life) => format!("{prefix}target{}.{}", life.pid, life.started.0),
            Actor::Thread(ThreadKey { process, tid }) => {
                format!("{prefix}thread{}.{}.{tid}", process.pid, process.started.0)
            }
            Actor::Trace(ThreadKey { process, tid }) => {
                format!("{prefix}trace{}.{}.{tid}", process.pid, process.started.0)
            }
        }
    }

    /// Who is called so, if that can be a name.
    pub(super) fn read(&self, name: &str) -> Option<Actor> {
        if name == "root" {
            return Some(Actor::Root);
        }
        let rest = name.strip_prefix(&*self.prefix)?;
        let digits = rest.find(|c: char| c.is_ascii_digit())?;
        let (kind, numbers) = rest.split_at(digits);
        let mut numbers = numbers.split('.');
        let pid = Pid(numbers.next()?.parse().ok()?);
        let started = Timestamp(numbers.next()?.parse().ok()?);
        let process = Life { pid, started };
        let tid = numbers.next().map(str::parse).transpose().ok()?.map(Tid);
        if numbers.next().is_some() {
            return None;
        }
        let actor = match (kind, tid) {
            ("process", None) => Actor::Process(process),
            ("target", None) => Actor::Target(process),
            ("thread", Some(tid)) => Actor::Thread(ThreadKey { process, tid }),
            ("trace", Some(tid)) => Actor::Trace(ThreadKey { process, tid }),
            _ => return None,
        };
        // Not another way to write it.
        (self.of(actor) == name).then_some(actor)
    }

    /// The descriptor of a process.
    pub(super) fn process(&self, world: &World, life: Life, process: &Process) -> Json {
        let mut form = json!({
            "actor": self.of(Actor::Process(life)),
            "id": life.pid.0,
            "isParent": false,
            "isWindowlessParent": false,
            "traits": { "watcher": false, "supportsReloadDescriptor": false },
        });
        self.describe(world, life, process, &mut form);
        form
    }

    /// What there is to look at in a process, with its threads.
    pub(super) fn target(&self, world: &World, life: Life, process: &Process) -> Json {
        let mut form = self.tab(world, life, process);
        form["threads"] = self.threads(world, life);
        form
    }

    /// The same as a tab, without its threads.
    pub(super) fn tab(&self, world: &World, life: Life, process: &Process) -> Json {
        let name = world.tables.string(process.name);
        let executable = process.executable.map(|it| world.tables.string(it));
        let main = self.main(life);
        let mut form = json!({
            "actor": self.of(Actor::Target(life)),
            "title": format!("{name} ({})", life.pid),
            "url": format!("file://{}", executable.unwrap_or_default()),
            "outerWindowID": life.pid.0,
            "browsingContextID": life.pid.0,
            "processID": life.pid.0,
            "selected": false,
            "traits": {},
            "threadActor": self.of(Actor::Thread(main)),
        });
        self.describe(world, life, process, &mut form);
        form
    }

    fn describe(&self, world: &World, life: Life, process: &Process, form: &mut Json) {
        let text = |id| world.tables.string(id);
        form["name"] = text(process.name).into();
        form["traceActor"] = self.of(Actor::Trace(self.main(life))).into();
        let parent = process.parent.and_then(|id| world.tables.process(id));
        if let Some(parent) = parent {
            form["parentID"] = parent.pid.0.into();
        }
        if let Some(executable) = process.executable {
            form["executable"] = text(executable).into();
        }
        if let Some(uid) = process.uid {
            form["uid"] = uid.into();
        }
        let container = process.container.and_then(|id| world.tables.container(id));
        if let Some(container) = container {
            form["container"] = world.tables.container_label(container).into();
        }
    }

    fn main(&self, process: Life) -> ThreadKey {
        ThreadKey {
            process,
            tid: Tid(process.pid.0),
        }
    }

    /// The threads of a process.
    pub(super) fn threads(&self, world: &World, life: Life) -> Json {
        let threads = world.threads(life).into_iter();
        let forms: Vec<Json> = threads
            .map(|(key, thread)| self.thread(world, key, thread))
            .collect();
        forms.into()
    }

    pub(super) fn thread(&self, world: &World, key: ThreadKey, thread: &Thread) -> Json {
        json!({
            "actor": self.of(Actor::Thread(key)),
            "tid": key.tid.0,
            "name": world.tables.string(thread.name),
            "traceActor": self.of(Actor::Trace(key)),
        })
    }
}

/// What `startedTrace` says of a thread.
pub(super) fn about(key: ThreadKey) -> Map<String, Json> {
    let mut about = Map::new();
    about.insert("tid".to_owned(), key.tid.0.into());
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_who_they_are() {
        let names = Names::new(3);
        let process = Life {
            pid: Pid(12),
            started: Timestamp(345),
        };
        let key = ThreadKey {
            process,
            tid: Tid(13),
        };
        for actor in [
            Actor::Root,
            Actor::Process(process),
            Actor::Target(process),
            Actor::Thread(key),
            Actor::Trace(key),
        ] {
            let name = names.of(actor);
            assert!(!name.contains([' ', ':']));
            assert_eq!(names.read(&name), Some(actor));
        }
        assert_eq!(names.of(Actor::Trace(key)), "server1.conn3.trace12.345.13");
        for wrong in [
            "",
            "Root",
            "server1.conn4.process12.345",
            "server1.conn3.process12",
            "server1.conn3.process012.345",
            "server1.conn3.process12.345.6",
            "server1.conn3.trace12.345",
            "server1.conn3.trace12.345.13.1",
            "server1.conn3.trace12.345.x",
            "server1.conn3.other12.345",
            "server1.conn3.12.345",
            "server1.conn3.process99999999999.1",
        ] {
            assert_eq!(names.read(wrong), None, "{wrong}");
        }
    }
}
