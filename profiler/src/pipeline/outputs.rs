//! From a capture into files of other formats.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Context, Failure};
use profiler_capture::{Reader, TimeRange};
use profiler_model::{Event, Sink, Tables};
use profiler_report::derive::Target;
use profiler_report::export::{self, Folded, Folding, Format, Only, Settings, Shows};

/// A file to be written in a format.
pub struct Export {
    /// The format, and what was set for it.
    pub settings: Settings,
    /// Where to; none: standard output.
    pub path: Option<PathBuf>,
    output: Box<dyn Write + Send>,
    file: Option<NewFile>,
}

/// A file that was made for an output. It goes again unless it is kept, so that work that fails
/// leaves nothing, and what it was to replace stays as it was.
pub(super) struct NewFile {
    made: PathBuf,
    /// The name it gets when it is complete.
    path: PathBuf,
    kept: bool,
}

impl NewFile {
    fn keep(mut self) -> io::Result<()> {
        if self.made != self.path {
            std::fs::rename(&self.made, &self.path)?;
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            // What can't be removed is at worst an incomplete file.
            let _ = std::fs::remove_file(&self.made);
        }
    }
}

/// Opens the output before any work is done for it. A file that exists is replaced only with
/// `force`, when the new one is complete, and never written through: what was there stays whole for
/// those who have it open.
pub fn open_export(
    settings: Settings,
    path: Option<&Path>,
    force: bool,
) -> Result<Export, Failure> {
    let (output, file) = open_output(path, force)?;
    Ok(Export {
        settings,
        path: path.map(Path::to_owned),
        output,
        file,
    })
}

/// What [`open_export`] opens; without a path standard output.
pub(super) fn open_output(
    path: Option<&Path>,
    force: bool,
) -> Result<(Box<dyn Write + Send>, Option<NewFile>), Failure> {
    Ok(match path {
        Some(path) => {
            let (output, file) = create(path, force)?;
            (Box::new(output), file)
        }
        None => (Box::new(io::stdout()), None),
    })
}

fn create(path: &Path, force: bool) -> Result<(File, Option<NewFile>), Failure> {
    let mut made = path.to_owned();
    if let Ok(metadata) = path.symlink_metadata() {
        let link = metadata.is_symlink();
        if (link && is_descriptor(path)) || (!link && !metadata.is_file()) {
            // A pipe or terminal is written to as it is.
            let file = OpenOptions::new().write(true).open(path);
            return Ok((
                file.context(|| format!("failed to open {}", path.display()))?,
                None,
            ));
        }
        if !force {
            let path = path.display();
            return Err(Failure::failed(format!(
                "{path} exists already; use --force to replace it, or -o to name another file"
            )));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        made.set_file_name(name);
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&made)
        .context(|| format!("failed to create {}", made.display()))?;
    let path = path.to_owned();
    let kept = false;
    Ok((file, Some(NewFile { made, path, kept })))
}

/// Whether a path is one of the links that stand for open files, such as /dev/stdout. These are
/// the machine's and are not to be replaced.
fn is_descriptor(path: &Path) -> bool {
    path.parent().is_some_and(|folder| {
        ["/dev", "/dev/fd", "/proc/self/fd"].contains(&folder.to_string_lossy().as_ref())
    })
}

/// Shows what has changed in a capture since another one, in a format that can.
pub fn export_difference(
    capture: &Path,
    other: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    target: &Target,
    mut export: Export,
) -> Result<(), Failure> {
    let settings = &export.settings;
    check_difference(settings.format)?;
    let before = folded(other, |_| TimeRange::ALL, target, settings)?;
    let after = folded(capture, range, target, settings)?;
    let title = format!("{} since {}", capture.display(), other.display());
    let image = export::difference(settings, [&before, &after], &title);
    let image = image.ok_or_else(no_differences)??;
    export.output.write_all(&image)?;
    export.output.flush()?;
    keep(export.file)
}

pub(super) fn keep(files: impl IntoIterator<Item = NewFile>) -> Result<(), Failure> {
    for file in files {
        let path = file.path.clone();
        file.keep()
            .context(|| format!("failed to replace {}", path.display()))?;
    }
    Ok(())
}

/// The stacks of what a target did in a capture.
fn folded(
    capture: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    target: &Target,
    settings: &Settings,
) -> Result<Folded, Failure> {
    let mut folding = Folding::new(settings);
    let of_samples = [name_of(None)];
    replay(capture, range, target, &mut [&mut folding], &of_samples)?;
    Ok(folding.folded())
}

/// Refuses a format that can't show what has changed.
pub fn check_difference(format: &Format) -> Result<(), Failure> {
    match format.shows_differences() {
        true => Ok(()),
        false => Err(no_differences()),
    }
}

fn no_differences() -> Failure {
    let can = export::formats()
        .iter()
        .filter(|format| format.shows_differences());
    let names: Vec<&str> = can.map(|format| format.name).collect();
    Failure::usage(format!(
        "--diff draws a flame graph: give --format {}",
        names.join(" or ")
    ))
}

fn name_of(path: Option<&Path>) -> String {
    path.map_or("the output".to_owned(), |path| path.display().to_string())
}

/// Replays what a target did in a capture into all exports at once.
pub fn export(
    capture: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    target: &Target,
    exports: Vec<Export>,
) -> Result<(), Failure> {
    let mut files = Vec::new();
    let mut sinks: Vec<Box<dyn Sink + Send>> = Vec::new();
    let mut of_samples = Vec::new();
    for Export {
        settings,
        output,
        file,
        path,
    } in exports
    {
        if settings.format.shows == Shows::Samples {
            of_samples.push(name_of(path.as_deref()));
        }
        sinks.push(export::open(&settings, Box::new(BufWriter::new(output))));
        files.extend(file);
    }
    let mut borrowed: Vec<&mut dyn Sink> = Vec::new();
    for sink in &mut sinks {
        borrowed.push(sink.as_mut());
    }
    replay(capture, range, target, &mut borrowed, &of_samples)?;
    keep(files)
}

/// Replays what a target did in a capture; `of_samples` are outputs that are empty without samples.
fn replay(
    capture: &Path,
    range: impl Fn(&Tables) -> TimeRange,
    target: &Target,
    sinks: &mut [&mut dyn Sink],
    of_samples: &[String],
) -> Result<(), Failure> {
    let mut reader = Reader::open(capture)?;
    let tables = reader.load_tables()?;
    let mut samples = Samples::default();
    let mut chosen: Vec<Only<'_>> = sinks
        .iter_mut()
        .map(|sink| Only::new(*sink, target))
        .collect();
    let mut borrowed: Vec<&mut dyn Sink> = vec![&mut samples];
    for sink in &mut chosen {
        borrowed.push(sink);
    }
    profiler_capture::replay_into(&mut reader, &tables, range(&tables), &mut borrowed)?;
    for damage in reader.damage() {
        log::warn!("{}: {damage}", capture.display());
    }
    if let Some(complaint) = samples.complaint(of_samples) {
        log::warn!("{complaint}");
    }
    Ok(())
}

/// What a recording has.
#[derive(Clone, Copy, Default)]
struct Samples {
    seen: bool,
    calls: bool,
}

impl Samples {
    /// That outputs which show samples have nothing to show.
    fn complaint(self, of_samples: &[String]) -> Option<String> {
        if self.seen || of_samples.is_empty() {
            return None;
        }
        let are = if of_samples.len() > 1 { "are" } else { "is" };
        let instead = match self.calls {
            true => "; 'profiler report --calls' shows the traced calls",
            false => "",
        };
        let outputs = of_samples.join(", ");
        Some(format!(
            "there are no samples, so {outputs} {are} empty{instead}"
        ))
    }
}

impl Sink for Samples {
    fn event(&mut self, event: &Event, _: &Tables) -> io::Result<()> {
        self.seen |= matches!(event, Event::Sample(_));
        self.calls |= matches!(event, Event::Call(_));
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_show_nothing_are_named() {
        let [none, calls] = [false, true].map(|calls| Samples { seen: false, calls });
        let seen = Samples {
            seen: true,
            calls: true,
        };
        let [a, b] = ["a.svg", "b.folded"].map(str::to_owned);
        assert_eq!(seen.complaint(std::slice::from_ref(&a)), None);
        assert_eq!(calls.complaint(&[]), None);
        assert_eq!(
            none.complaint(std::slice::from_ref(&a)).unwrap(),
            "there are no samples, so a.svg is empty"
        );
        assert_eq!(
            calls.complaint(&[a, b]).unwrap(),
            "there are no samples, so a.svg, b.folded are empty; 'profiler report --calls' shows the \
             traced calls"
        );
    }
}
