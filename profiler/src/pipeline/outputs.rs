//! From a capture into files of other formats.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::{self, Reader, TimeRange};
use crate::error::{Context, Failure};
use crate::export::{self, Count, ExportOptions, Format};
use crate::model::{Sink, Tables};

/// A file to be written in a format.
pub struct Export {
    /// The format.
    pub format: &'static Format,
    /// Its options.
    pub options: ExportOptions,
    /// Where to; none: standard output.
    pub path: Option<PathBuf>,
    output: Box<dyn Write + Send>,
}

/// Opens the output before any work is done for it. A file that exists is replaced only with
/// `force`, and never written through: what was there stays whole for those who have it open.
pub fn open_export(
    format: &'static Format,
    options: ExportOptions,
    path: Option<&Path>,
    force: bool,
) -> Result<Export, Failure> {
    let output: Box<dyn Write + Send> = match path {
        Some(path) => Box::new(create(path, force)?),
        None => Box::new(io::stdout()),
    };
    Ok(Export {
        format,
        options,
        path: path.map(Path::to_owned),
        output,
    })
}

fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let metadata = path.symlink_metadata();
    if let Ok(metadata) = &metadata {
        if !metadata.is_file() && !metadata.is_symlink() {
            // A pipe or terminal is written to as it is.
            return OpenOptions::new()
                .write(true)
                .open(path)
                .context(|| format!("failed to open {}", path.display()));
        }
        if !force {
            let path = path.display();
            return Err(Failure::failed(format!(
                "{path} exists already; use --force to replace it, or -o to name another file"
            )));
        }
        std::fs::remove_file(path).context(|| format!("failed to replace {}", path.display()))?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .context(|| format!("failed to create {}", path.display()))
}

/// Draws the flame graph of a capture, coloured by its difference from another one.
pub fn export_difference(
    capture: &Path,
    other: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    mut export: Export,
) -> Result<(), Failure> {
    let before = folded(other, |_| TimeRange::ALL, &export.options)?;
    let after = folded(capture, range, &export.options)?;
    let title = match &export.options.title {
        Some(title) => title.clone(),
        None => format!("{} since {}", capture.display(), other.display()),
    };
    let image = export::flamegraph_differential(&before, &after, &title, &export.options)?;
    export.output.write_all(&image)?;
    Ok(export.output.flush()?)
}

fn folded(
    capture: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    options: &ExportOptions,
) -> Result<String, Failure> {
    let text = Shared::default();
    let (format, output) = (export::by_name("folded")?, Box::new(text.clone()));
    let options = ExportOptions {
        count: options.count.or(Some(Count::Weight)),
        ..options.clone()
    };
    self::export(
        capture,
        range,
        vec![Export {
            format,
            options,
            path: None,
            output,
        }],
    )?;
    let bytes = std::mem::take(&mut *text.0.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Output that is read again.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replays a capture into all exports at once.
pub fn export(
    capture: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    exports: Vec<Export>,
) -> Result<(), Failure> {
    let mut reader = Reader::open(capture)?;
    let tables = reader.load_tables()?;
    let mut sinks: Vec<Box<dyn Sink + Send>> = exports
        .into_iter()
        .map(|e| export::open(e.format, e.options, Box::new(BufWriter::new(e.output))))
        .collect();
    let mut borrowed: Vec<&mut dyn Sink> = Vec::new();
    for sink in &mut sinks {
        borrowed.push(sink.as_mut());
    }
    capture::replay_into(&mut reader, &tables, range(&tables), &mut borrowed)?;
    for damage in reader.damage() {
        log::warn!("{}: {damage}", capture.display());
    }
    Ok(())
}
