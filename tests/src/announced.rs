//! Sessions made by hand, as what a recording hands on: definitions, then events.
//!
//! Tables and events -> one [`Batch`] of one epoch, or a capture. What does not belong here: making sessions up
//! (`canonical`, `arbitrary`).

use std::path::Path;

use profiler_capture::{CaptureError, CreateOptions, Writer};
use profiler_model::*;

/// Writes a session as a capture that has no other epoch.
pub fn write(path: &Path, session: (Tables, Vec<Event>)) -> Result<(), CaptureError> {
    let mut writer = Writer::create(path, CreateOptions::default())?;
    writer.write(&announced(session))?;
    writer.finish()?;
    Ok(())
}

/// All definitions of a session, and its events.
pub fn announced((tables, events): (Tables, Vec<Event>)) -> Batch {
    let mut definitions = vec![Definition::Session(tables.session.clone())];
    let strings = (0..).map(StringId::from_index);
    let strings = strings.map(|id| (id, tables.string(id)));
    // Behind the last, a text is none or another's.
    let strings = strings.take_while(|&(id, text)| tables.find_string(text) == Some(id));
    definitions.extend(strings.map(|(id, text)| Definition::String(id, text.into())));
    definitions.extend(
        tables
            .sources
            .iter()
            .map(|(id, it)| Definition::Source(id, it.clone())),
    );
    definitions.extend(
        tables
            .containers()
            .map(|(id, it)| Definition::Container(id, it.clone())),
    );
    definitions.extend(
        tables
            .processes()
            .map(|(id, it)| Definition::Process(id, it.clone())),
    );
    definitions.extend(
        tables
            .threads()
            .map(|(id, it)| Definition::Thread(id, it.clone())),
    );
    definitions.extend(
        tables
            .threads()
            .flat_map(|(id, _)| tables.names_of(id))
            .map(Definition::Named),
    );
    definitions.extend(
        tables
            .modules
            .iter()
            .map(|(id, it)| Definition::Module(id, it.clone())),
    );
    definitions.extend(
        tables
            .mappings
            .iter()
            .map(|(id, it)| Definition::Mapping(id, it.clone())),
    );
    definitions.extend(
        tables
            .functions
            .iter()
            .map(|(id, it)| Definition::Function(id, it.clone())),
    );
    definitions.extend(
        tables
            .frames
            .iter()
            .map(|(id, it)| Definition::Frame(id, *it)),
    );
    definitions.extend(
        tables
            .stacks
            .iter()
            .map(|(id, it)| Definition::Stack(id, *it)),
    );
    let symbols = tables.frames.iter();
    let symbols = symbols.filter_map(|(id, _)| Some((id, tables.symbol(id)?.clone())));
    definitions.extend(symbols.map(|(id, symbol)| Definition::Symbol(id, symbol)));
    let mut traced: Vec<_> = tables.all_traced().collect();
    traced.sort_unstable_by_key(|(id, _)| *id);
    definitions.extend(
        traced
            .iter()
            .map(|(id, it)| Definition::Traced(*id, (*it).clone())),
    );
    let code = tables.code().map(|(module, address, bytes)| Code {
        module,
        address,
        bytes: bytes.clone(),
    });
    definitions.extend(code.map(Definition::Code));
    Batch {
        definitions,
        events,
        ..Batch::default()
    }
}
