//! The capture that is named, as folded stacks on standard output.

use std::error::Error;
use std::path::PathBuf;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_report::export::{self, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("name a capture")?.into();
    let mut reader = Reader::open(&path)?;
    let tables = reader.load_tables()?;
    let settings = Settings::new(export::by_name("folded")?);
    let mut sink = export::open(&settings, Box::new(std::io::stdout()));
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut *sink])?;
    Ok(())
}
