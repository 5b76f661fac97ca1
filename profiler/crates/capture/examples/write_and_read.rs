//! A mark is written into a capture and read back.

use std::error::Error;

use profiler_capture::{CreateOptions, Reader, TimeRange, Writer};
use profiler_model::{Batch, Definition, EpochId, Event, Mark, StringId, Timestamp};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join("example.cap");
    let text = StringId::from_index(0);
    let mut writer = Writer::create(&path, CreateOptions::default())?;
    writer.write(&Batch {
        epoch: 0,
        definitions: vec![Definition::String(text, "load test starts".into())],
        events: vec![Event::Mark(Mark {
            at: Timestamp(1),
            text,
        })],
    })?;
    writer.finish()?;

    let mut reader = Reader::open(&path)?;
    // Names may come behind the events that use them: definitions are read first.
    let tables = reader.load_tables()?;
    reader.replay(&tables, TimeRange::ALL, &mut |event, tables| {
        if let Event::Mark(mark) = event {
            println!("{}: {}", mark.at.0, tables.string(mark.text));
        }
        Ok(())
    })?;
    Ok(())
}
