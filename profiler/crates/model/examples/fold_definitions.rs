//! A process and its thread are announced; tables say what an event's ids mean.

use profiler_model::*;

fn main() {
    let mut tables = Tables::default();
    let (name, _) = tables.intern_string("worker");
    let (process, _) = tables.intern_process(Process {
        pid: Pid(100),
        started: Timestamp(1),
        parent: None,
        name,
        executable: None,
        command: None,
        namespace_pids: Vec::new(),
        uid: None,
        cgroup: None,
        container: None,
    });
    let (thread, is_new) = tables.intern_thread(Thread {
        process,
        tid: Tid(100),
        started: Timestamp(1),
        name,
    });
    assert!(is_new);
    let exit = Event::Process(ProcessEvent {
        at: Timestamp(2),
        thread,
        change: ProcessChange::Exited,
    });
    if let Event::Process(event) = exit
        && let Some(thread) = tables.thread(event.thread)
    {
        println!("{} has ended", tables.string(thread.name));
    }
}
