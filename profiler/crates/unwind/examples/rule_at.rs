//! What the unwind table of an object file says at one of its addresses.

use std::error::Error;
use std::fs::File;

use profiler_unwind::{Entry, build_file};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name an object file")?;
    let address: u64 = arguments.next().ok_or("name an address")?.parse()?;
    let (table, report) = build_file(&File::open(path)?, None)?;
    println!("{} rows, {} rules", report.rows, report.rules);
    match table.entry_at(address) {
        Entry::None => println!("nothing is known: the frame pointer is followed"),
        Entry::End => println!("the outermost function"),
        Entry::Rule(rule) => println!("{rule:?}"),
    }
    Ok(())
}
