//! From other tools' recordings into a capture.
//!
//! A file or standard input -> a capture, which is there when it is whole. What does not belong here: what files say
//! (`report::import`).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::error::{Context, Failure};
use profiler_capture::{CreateOptions, Writer};
use profiler_report::import::profiles::{self, Imported, Kind};

/// Imports a file; `-` is standard input.
pub fn import(
    from: &Path,
    kind: Option<Kind>,
    to: &Path,
    overwrite: bool,
) -> Result<Imported, Failure> {
    let name = from.display().to_string();
    let opened: Box<dyn Read> = match from.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(from).context(|| format!("failed to open {name}"))?),
    };
    if from.is_dir() {
        return Err(Failure::failed(format!(
            "{name} is a folder, as perf record --threads writes them: perf script -i {name} | profiler import - reads it"
        )));
    }
    let options = CreateOptions {
        existing: profiler_capture::Existing::forced(overwrite),
        owner: super::outputs::owner(),
        whole: true,
        ..CreateOptions::default()
    };
    profiler_capture::refuse_same(super::outputs::by_its_name(from), to)?;
    let mut writer = Writer::create(to, options)?;
    super::renounce(&[to]);
    let mut input = BufReader::with_capacity(profiles::HEAD, opened);
    let mut write = |batch| writer.write(&batch).map_err(io::Error::other);
    let bias = profiler_resolve::file_bias;
    let imported = profiles::import(&mut input, kind, &name, &bias, &mut write)
        .map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    writer.finish()?;
    Ok(imported)
}
