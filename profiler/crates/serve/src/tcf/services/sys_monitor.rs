//! SysMonitor: what processes and threads do now, as `top` shows it.
//!
//! A context -> its properties, arguments, environment. Times are milliseconds, `VSize` bytes, `RSS`
//! pages of `PSize` bytes. Of a recording only what its definitions say is known. Source: the
//! service's specification "TCF System Monitor", and which properties its clients read. What does not
//! belong here: where the kernel tells all that (`machine`).

use serde::Serialize;

use super::processes::may_read_environment;
use super::run_control::living_ids;
use super::{Request, State, answer, machine_error, unsupported};
use crate::machine::MachineError;
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::Context;
use profiler_report::derive::inner_pid;
use profiler_wire::tcf::ErrorReport;

const NS_PER_MS: u64 = 1_000_000;

#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "ParentID", skip_serializing_if = "Option::is_none")]
    parent_id: Option<&'a str>,
    #[serde(rename = "PID")]
    pid: u32,
    #[serde(rename = "PPID", skip_serializing_if = "Option::is_none")]
    ppid: Option<u32>,
    /// Path of its program; a thread's or kernel thread's name.
    file: String,
    /// Since the machine was booted, the time it was suspended not counted.
    start_time: u64,
    #[serde(rename = "UID", skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<&'a str>,
    /// In the process's own namespace.
    #[serde(rename = "NSPID", skip_serializing_if = "Option::is_none")]
    inner_pid: Option<u32>,
    #[serde(flatten)]
    container: Option<ContainerProperties<'a>>,
    #[serde(flatten)]
    now: Option<Now>,
}

/// What a process runs in.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerProperties<'a> {
    /// What it is called.
    container: String,
    /// `docker`, `systemd`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'a str>,
    #[serde(rename = "ContainerID", skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
    /// The pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
}

/// What only the machine can tell.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Now {
    state: char,
    #[serde(rename = "EUID")]
    euid: u32,
    #[serde(rename = "UGID")]
    gid: u32,
    #[serde(rename = "EGID")]
    egid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_name: Option<String>,
    #[serde(rename = "PGRP")]
    group: i64,
    session: i64,
    #[serde(rename = "TTY", skip_serializing_if = "Option::is_none")]
    terminal: Option<i64>,
    #[serde(rename = "UTime")]
    user_ms: u64,
    #[serde(rename = "STime")]
    system_ms: u64,
    priority: i64,
    nice: i64,
    threads: u64,
    #[serde(rename = "VSize")]
    virtual_bytes: u64,
    #[serde(rename = "PSize")]
    page_bytes: u64,
    #[serde(rename = "RSS")]
    resident_pages: u64,
    processor: u32,
    #[serde(rename = "CWD", skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    match request.command {
        "getContext" => answer(get_context(&request.id()?, state), 1),
        "getChildren" => {
            let parent = request.arguments.maybe_text()?;
            answer(get_children(parent.as_deref(), state), 1)
        }
        "getCommandLine" => answer(get_command_line(&request.id()?, state), 1),
        "getEnvironment" => answer(get_environment(&request.id()?, state), 1),
        _ => Ok(Outcome::Unknown),
    }
}

fn get_children(parent: Option<&str>, state: &State) -> Result<Reply, ErrorReport> {
    let children = match parent {
        None => state.world.known_processes(),
        Some(id) => match state.living(id)? {
            (_, context) if context.thread.is_some() => Vec::new(),
            (process, _) => state.world.known_threads(process),
        },
    };
    Ok(Reply::ok().json(&living_ids(&children, state)))
}

fn get_context(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.living(id)?;
    let process = state.process_of(context);
    let mut properties = from_definitions(context, process, state);
    let status = match context.thread {
        None => state.machine.status(process.life),
        Some(tid) => state.machine.thread_status(process.life, tid),
    };
    match status {
        Ok(status) => {
            let page_bytes = rustix::param::page_size() as u64;
            properties.ppid = (status.parent.0 != 0).then_some(status.parent.0);
            properties.uid = Some(status.uids.0);
            if let (None, Some(executable)) = (context.thread, status.executable) {
                properties.file = executable;
            }
            properties.now = Some(Now {
                state: status.state,
                euid: status.uids.1,
                gid: status.gids.0,
                egid: status.gids.1,
                user_name: status.user,
                group: status.group,
                session: status.session,
                terminal: (status.terminal != 0).then_some(status.terminal),
                user_ms: status.user_ns / NS_PER_MS,
                system_ms: status.system_ns / NS_PER_MS,
                priority: status.priority,
                nice: status.nice,
                threads: status.threads,
                virtual_bytes: status.virtual_bytes,
                page_bytes,
                resident_pages: status.resident_bytes / page_bytes.max(1),
                processor: status.processor,
                directory: status.directory,
                root: status.root,
            });
        }
        // It has ended, and clients do not know yet: what is known of it has to do.
        Err(MachineError::Recording | MachineError::Ended) => {}
        Err(error) => return Err(machine_error(error, id)),
    }
    Ok(Reply::ok().json(&properties))
}

fn from_definitions<'s>(
    context: &'s Context,
    process: &'s Context,
    state: &'s State,
) -> Properties<'s> {
    let definition = state.world.process(context.process);
    let executable = definition.and_then(|definition| state.text(definition.executable));
    let parent = process.parent.and_then(|key| state.world.context(key));
    Properties {
        id: &context.id,
        parent_id: context.thread.map(|_| &*process.id),
        pid: context.thread.map_or(context.life.pid.0, |tid| tid.0),
        ppid: parent.map(|parent| parent.life.pid.0),
        file: executable
            .filter(|_| context.thread.is_none())
            .unwrap_or(&context.name)
            .to_owned(),
        start_time: process.life.started.0 / NS_PER_MS,
        uid: definition.and_then(|definition| definition.uid),
        cgroup: definition.and_then(|definition| state.text(definition.cgroup)),
        inner_pid: definition
            .filter(|_| context.thread.is_none())
            .and_then(inner_pid)
            .map(|pid| pid.0),
        container: state
            .world
            .container(context.process)
            .map(|container| ContainerProperties {
                container: state.world.tables().container_label(container),
                engine: state.text(container.engine),
                id: state.text(container.id),
                image: state.text(container.image),
                pod: state.text(container.pod),
                namespace: state.text(container.namespace),
                unit: state.text(container.unit),
            }),
        now: None,
    }
}

fn get_command_line(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.living(id)?;
    match state.machine.command_line(context.life) {
        Ok(arguments) => Ok(Reply::ok().json(&arguments)),
        Err(MachineError::Recording | MachineError::Ended) => {
            let tables = state.world.tables();
            let process = state.world.process(context.process);
            let arguments = process.and_then(|process| tables.arguments(process));
            // Earlier versions have recorded them joined by spaces: one that has spaces in it comes as several.
            let line = process.and_then(|process| tables.command_line(process));
            let parts = line.iter().flat_map(|line| line.split(' '));
            Ok(Reply::ok().json(&arguments.unwrap_or_else(|| parts.collect())))
        }
        Err(error) => Err(machine_error(error, id)),
    }
}

fn get_environment(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.living(id)?;
    if state.options.replay.is_some() {
        return Err(unsupported(
            "this is a recording: environments are not recorded",
        ));
    }
    may_read_environment(state)?;
    let environment = match state.machine.environment(context.life) {
        Err(MachineError::Ended) => Vec::new(),
        environment => environment.map_err(|error| machine_error(error, id))?,
    };
    Ok(Reply::ok().json(&environment))
}
