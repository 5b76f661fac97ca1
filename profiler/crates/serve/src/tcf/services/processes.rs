//! Processes: those of the machine, all of them attached as far as observing goes.
//!
//! Nothing is started here, and signals are not intercepted. Source: the service's specification "TCF
//! Processes" (version 0), and what its clients do with the answers. What does not belong here:
//! threads (`run_control`), who may send signals (`control`).

use serde::Serialize;

use super::control;
use super::run_control::living_ids;
use super::{Request, State, answer, unsupported};
use crate::machine::Control;
use crate::tcf::reply::{Answer, Outcome, Reply};
use profiler_wire::tcf::{Code, ErrorReport};

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    name: &'a str,
    can_terminate: bool,
    attached: bool,
}

/// A signal, as clients show it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Signal {
    index: i32,
    name: &'static str,
    description: &'static str,
    code: i32,
}

/// The signals of Linux on x86-64 from 1 on, and what they mean.
const SIGNALS: [(&str, &str); 31] = [
    ("SIGHUP", "Hangup"),
    ("SIGINT", "Interrupt"),
    ("SIGQUIT", "Quit"),
    ("SIGILL", "Illegal instruction"),
    ("SIGTRAP", "Trace or breakpoint trap"),
    ("SIGABRT", "Aborted"),
    ("SIGBUS", "Bus error"),
    ("SIGFPE", "Arithmetic error"),
    ("SIGKILL", "Killed"),
    ("SIGUSR1", "User signal 1"),
    ("SIGSEGV", "Segmentation fault"),
    ("SIGUSR2", "User signal 2"),
    ("SIGPIPE", "Broken pipe"),
    ("SIGALRM", "Alarm clock"),
    ("SIGTERM", "Terminated"),
    ("SIGSTKFLT", "Stack fault"),
    ("SIGCHLD", "Child stopped or ended"),
    ("SIGCONT", "Continued"),
    ("SIGSTOP", "Stopped"),
    ("SIGTSTP", "Stopped by the terminal"),
    ("SIGTTIN", "Terminal input"),
    ("SIGTTOU", "Terminal output"),
    ("SIGURG", "Urgent socket data"),
    ("SIGXCPU", "CPU time exceeded"),
    ("SIGXFSZ", "File size exceeded"),
    ("SIGVTALRM", "Virtual timer"),
    ("SIGPROF", "Profiling timer"),
    ("SIGWINCH", "Window size changed"),
    ("SIGIO", "I/O possible"),
    ("SIGPWR", "Power failure"),
    ("SIGSYS", "Bad system call"),
];
/// The highest signal, real-time ones included.
const LAST_SIGNAL: i64 = 64;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGKILL: i32 = 9;

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    let arguments = &mut request.arguments;
    match request.command {
        "getContext" => answer(get_context(&request.id()?, state), 1),
        "getChildren" => {
            let parent = arguments.maybe_text()?;
            // All are attached: both kinds of lists are the same.
            arguments.flag()?;
            answer(get_children(parent.as_deref(), state), 1)
        }
        "attach" => {
            let id = request.id()?;
            let attached = check_process(&id, state).and(Err(ErrorReport::new(
                Code::AlreadyAttached,
                format!("{id} is observed without being attached to"),
            )));
            answer(attached, 0)
        }
        "detach" => {
            let id = request.id()?;
            let detached = check_process(&id, state).and(Err(unsupported(
                "observing attaches to nothing that could be detached",
            )));
            answer(detached, 0)
        }
        "terminate" => {
            let id = request.id()?;
            let known = check_process(&id, state);
            let done = known.and_then(|()| control::terminate(state, request.peer, &id));
            answer(done.map(|()| Reply::ok()), 0)
        }
        "signal" => {
            let id = arguments.maybe_text()?.unwrap_or_default();
            let signal = arguments.signed()?;
            answer(send(&mut request, &id, signal, state), 0)
        }
        "getSignalList" => {
            request.id()?;
            Reply::ok().json(&signals()).done()
        }
        "getSignalMask" => {
            let id = request.id()?;
            // None is intercepted: each goes to its process without stopping it.
            let all: u64 = (1..=SIGNALS.len()).map(|signal| 1 << signal).sum();
            let masks = state.living(&id);
            answer(masks.map(|_| Reply::ok().json(&all).json(&0).json(&0)), 3)
        }
        "setSignalMask" => {
            let id = request.id()?;
            let set = state
                .living(&id)
                .and(Err(unsupported("signals are not intercepted here")));
            answer(set, 0)
        }
        "getEnvironment" => answer(get_environment(state), 1),
        "start" => {
            let started = Err(unsupported(
                "this agent starts no processes: it observes those that run",
            ));
            answer(started, 1)
        }
        _ => Ok(Outcome::Unknown),
    }
}

/// An error unless the id is a living process's.
fn check_process(id: &str, state: &State) -> Result<(), ErrorReport> {
    match state.living(id)?.1.thread {
        None => Ok(()),
        Some(_) => Err(ErrorReport::new(
            Code::InvalidContext,
            format!("Invalid context {id}: it is a thread, not a process"),
        )),
    }
}

fn get_context(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.living(id)?;
    // Clients ask this of threads too, and show an error as one.
    if context.thread.is_some() {
        return Ok(Reply::ok().null());
    }
    Ok(Reply::ok().json(&Properties {
        id: &context.id,
        name: &context.name,
        can_terminate: state.offers_control(),
        attached: true,
    }))
}

/// A flat list: processes have no children in it.
fn get_children(parent: Option<&str>, state: &State) -> Result<Reply, ErrorReport> {
    let children = match parent {
        None => state.world.known_processes(),
        Some(id) => state.living(id).map(|_| Vec::new())?,
    };
    Ok(Reply::ok().json(&living_ids(&children, state)))
}

fn send(
    request: &mut Request<'_>,
    id: &str,
    signal: i64,
    state: &mut State,
) -> Result<Reply, ErrorReport> {
    let valid = i32::try_from(signal).ok();
    let Some(signal) = valid.filter(|&signal| (1..=LAST_SIGNAL).contains(&signal.into())) else {
        return Err(ErrorReport::new(
            Code::InvalidNumber,
            format!("{signal} is no signal: they are 1 to {LAST_SIGNAL}"),
        ));
    };
    if state.living(id)?.1.thread.is_some() {
        return Err(unsupported(format!(
            "{id} is a thread: signals are sent to processes"
        )));
    }
    // What stops a process and what continues it is kept account of.
    match signal {
        SIGSTOP => control::suspend(state, request.channel, request.peer, id)?,
        SIGCONT => {
            let process = control::control(state, request.peer, id, Control::Signal(signal))?;
            control::wake(state, process);
        }
        _ => {
            let process = control::control(state, request.peer, id, Control::Signal(signal))?;
            if signal == SIGKILL {
                control::wake(state, process);
            }
        }
    }
    Ok(Reply::ok())
}

fn signals() -> Vec<Signal> {
    let numbered = (1..).zip(SIGNALS);
    numbered
        .map(|(index, (name, description))| Signal {
            index,
            name,
            description,
            code: index,
        })
        .collect()
}

/// The agent's own, which what it would start would get.
fn get_environment(state: &State) -> Result<Reply, ErrorReport> {
    may_read_environment(state)?;
    let variables = std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
    Ok(Reply::ok().json(&variables.collect::<Vec<_>>()))
}

/// An error that says how environments can be read, if they can't.
pub(super) fn may_read_environment(state: &State) -> Result<(), ErrorReport> {
    match state.options.environment {
        true => Ok(()),
        false => Err(unsupported(
            "environments are not shown here: start the agent with --allow-env",
        )),
    }
}
