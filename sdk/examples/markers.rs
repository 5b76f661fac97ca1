//! A program that says itself what is to be traced: `profiler serve --rdp --trace 'main:work'`, a client that is attached
//! to its thread, and this.
//!
//! Each line of the input is a request; each is a trace of its own. Built by `rustc --edition 2024 -O -g markers.rs`.

#[path = "../profiler.rs"]
mod profiler;

fn main() {
    println!("{}", std::process::id());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        profiler::start_trace(Some(c"request"), Some(c"name,time,depth"));
        let mut sum = 0;
        for byte in line.bytes() {
            sum += work(byte);
        }
        profiler::stop_trace(Some(c"request"));
        println!("{sum} {}", u8::from(profiler::is_watched()));
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn work(byte: u8) -> u64 {
    std::hint::black_box(u64::from(byte))
}
