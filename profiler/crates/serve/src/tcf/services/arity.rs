//! How many arguments each command takes.
//!
//! A command and its arguments -> whether their number is right: a message with more or less is none, as the
//! specification has it. Fewer than the most are taken where clients of older versions leave some out. Source: the
//! services' specifications. What does not belong here: what arguments are (`arguments`).

use std::ops::RangeInclusive;

use crate::tcf::arguments::Malformed;

/// An error unless a command has as many arguments as it takes. Of one that is not known nothing is said.
pub(in crate::tcf) fn check(service: &str, command: &str, count: usize) -> Result<(), Malformed> {
    let Some(takes) = takes(service, command) else {
        return Ok(());
    };
    if takes.contains(&count) {
        return Ok(());
    }
    let (least, most) = takes.into_inner();
    let number = match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    };
    let given = match count {
        0 => "none".to_owned(),
        count => count.to_string(),
    };
    Err(Malformed::new(format!(
        "number of arguments: {service} {command} takes {number}, {given} given"
    )))
}

fn takes(service: &str, command: &str) -> Option<RangeInclusive<usize>> {
    Some(match (service, command) {
        ("Locator", "sync" | "getAgentID" | "getPeers")
        | ("Diagnostics", "getTestList")
        | ("Processes", "getEnvironment") => 0..=0,
        ("Locator", "redirect")
        | ("Diagnostics", "echo" | "echoFP" | "echoERR")
        | ("Profiler", "getCapabilities" | "read")
        | (
            "RunControl",
            "getContext" | "getChildren" | "getState" | "suspend" | "terminate" | "detach",
        )
        | (
            "Processes",
            "getContext" | "attach" | "detach" | "terminate" | "getSignalList" | "getSignalMask",
        )
        // An event, of which the same holds.
        | ("Locator", "Hello")
        | ("SysMonitor", "getContext" | "getChildren" | "getCommandLine" | "getEnvironment")
        | ("MemoryMap", "get")
        | ("Symbols", "getContext" | "getChildren" | "list") => 1..=1,
        ("Diagnostics", "echoINT")
        | ("Profiler", "configure")
        | ("Processes", "getChildren" | "signal")
        | ("MemoryMap", "set")
        | ("Symbols", "findByAddr") => 2..=2,
        // An instruction's address may be left out.
        ("Symbols", "find" | "findByName") => 2..=3,
        ("Processes", "setSignalMask") | ("LineNumbers", "mapToSource") => 3..=3,
        // Parameters of a range to step through are newer.
        ("RunControl", "resume") => 3..=4,
        ("LineNumbers", "mapToMemory") => 4..=4,
        // Directory, file, arguments, environment, whether to attach.
        ("Processes", "start") => 5..=5,
        _ => return None,
    })
}
