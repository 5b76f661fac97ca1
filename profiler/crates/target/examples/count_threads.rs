//! The processes of the machine, with their names and how many threads they have.

use profiler_target::proc_fs::{self, Stat};

fn main() {
    for pid in proc_fs::processes() {
        // It may have ended meanwhile.
        let Some(stat) = proc_fs::process_stat(pid) else {
            continue;
        };
        let state = Stat::parse(&stat).and_then(|stat| stat.state());
        let threads = proc_fs::threads(pid).len();
        println!("{pid}: {} with {threads} threads", state.unwrap_or('?'));
    }
}
