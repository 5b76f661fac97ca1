//! From a capture into files of other formats.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Context, Failure};
use profiler_capture::{CaptureError, Existing, NewFile, Owner, Reader};
use profiler_model::{Event, Sink, Tables};
use profiler_report::export::{
    self, Folded, Folding, Format, Only, Selection, Settings, Shows, SourceCounts, TimeRange,
};
use profiler_report::view::progress::LiveLine;
use profiler_report::view::quantity;
use profiler_target::user::User;

/// Where debug files of the system's packages lie.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// A file to be written in a format.
pub struct Export {
    /// The format, and what was set for it.
    pub settings: Settings,
    /// Where to; none: standard output.
    pub path: Option<PathBuf>,
    output: Box<dyn Write + Send>,
    file: Option<NewFile>,
}

/// Whose outputs are: those of the user behind sudo, so that what sudo has made can be opened without.
pub fn owner() -> Option<Owner> {
    let user = User::behind_sudo().ok().flatten()?;
    Some(Owner {
        uid: user.uid,
        gid: user.gid,
    })
}

/// Opens the output before any work is done for it; it may be none of `inputs`. A file gets its name when it is complete, for
/// its owner only, as captures are.
pub fn open_export(
    settings: Settings,
    path: Option<&Path>,
    existing: Existing,
    inputs: &[&Path],
) -> Result<Export, Failure> {
    let (output, file) = open_output(path, existing, inputs)?;
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
    existing: Existing,
    inputs: &[&Path],
) -> Result<(Box<dyn Write + Send>, Option<NewFile>), Failure> {
    let named = |output, name| Box::new(Named { output, name });
    let Some(path) = path else {
        let name = "standard output".to_owned();
        return Ok((named(Box::new(io::stdout()), name), None));
    };
    let name = path.display().to_string();
    for input in inputs {
        profiler_capture::refuse_same(by_its_name(input), path)?;
    }
    if let Some(stream) = stream(path)? {
        return Ok((named(Box::new(stream), name), None));
    }
    let file = NewFile::create(path, existing, owner())?;
    let output = file.file().try_clone();
    let output = output.context(|| format!("failed to open {name}"))?;
    Ok((named(Box::new(output), name), Some(file)))
}

/// An output whose errors say which it is: whoever writes a format doesn't know.
struct Named {
    output: Box<dyn Write + Send>,
    name: String,
}

impl Named {
    /// Of the same kind, by which it is told what is to be tried again and what is no error.
    fn error(&self, error: io::Error) -> io::Error {
        let said = format!("failed to write {}: {error}", self.name);
        io::Error::new(error.kind(), said)
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes).map_err(|error| self.error(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush().map_err(|error| self.error(error))
    }
}

/// Where standard input is what `-` means.
pub(super) fn by_its_name(input: &Path) -> &Path {
    match input.as_os_str() == "-" {
        true => Path::new("/dev/stdin"),
        false => input,
    }
}

/// A pipe, a terminal or another device is written to as it is, if it was asked for by its own name: what a link
/// leads to was not.
fn stream(path: &Path) -> Result<Option<File>, Failure> {
    let Ok(found) = path.symlink_metadata() else {
        return Ok(None);
    };
    let opened = || format!("failed to open {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true);
    if found.is_symlink() {
        if !is_descriptor(path) {
            return Ok(None);
        }
        return options.open(path).context(opened).map(Some);
    }
    if found.is_file() || found.is_dir() {
        return Ok(None);
    }
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_CLOEXEC);
    let file = options.open(path).context(opened)?;
    let is = file.metadata().context(opened)?;
    if (is.dev(), is.ino()) != (found.dev(), found.ino()) {
        let path = path.display();
        return Err(Failure::failed(format!(
            "{path} became another file while it was opened"
        )));
    }
    Ok(Some(file))
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
    capture: Reader,
    other: Reader,
    selection: &Selection,
    mut export: Export,
) -> Result<(), Failure> {
    let settings = &export.settings;
    check_difference(settings.format)?;
    let title = format!(
        "{} since {}",
        capture.path().display(),
        other.path().display()
    );
    let whole = Selection {
        range: TimeRange::default(),
        ..selection.clone()
    };
    let before = folded(other, &whole, settings)?;
    let after = folded(capture, selection, settings)?;
    let image = export::difference(settings, [&before, &after], &title);
    let image = image.ok_or_else(no_differences)??;
    export.output.write_all(&image)?;
    export.output.flush()?;
    keep(export.file)
}

pub(super) fn keep(files: impl IntoIterator<Item = NewFile>) -> Result<(), Failure> {
    for mut file in files {
        file.publish_whole()?;
    }
    Ok(())
}

/// The stacks of what is selected of a capture.
fn folded(
    mut capture: Reader,
    selection: &Selection,
    settings: &Settings,
) -> Result<Folded, Failure> {
    let (tables, mut settings) = (capture.load_tables()?, settings.clone());
    selection.check(&tables).map_err(Failure::failed)?;
    let all = [&mut settings].into_iter();
    choose_sources(&mut capture, &tables, selection, all)?;
    let mut folding = Folding::new(&settings);
    let of_samples = [name_of(None)];
    replay(
        capture,
        tables,
        selection,
        &mut [&mut folding],
        [&of_samples, &of_samples],
        (false, true),
    )?;
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

/// Replays what is selected of a capture into all exports at once; a long one shows how far it is, unless it is to be `quiet`.
pub fn export(
    mut capture: Reader,
    selection: &Selection,
    mut exports: Vec<Export>,
    mut quiet: bool,
) -> Result<(), Failure> {
    let tables = capture.load_tables()?;
    selection.check(&tables).map_err(Failure::failed)?;
    let all = exports.iter_mut().map(|export| &mut export.settings);
    choose_sources(&mut capture, &tables, selection, all)?;
    let mut files = Vec::new();
    let mut sinks: Vec<Box<dyn Sink + Send>> = Vec::new();
    let (mut names, mut of_samples, mut declared) = (Vec::new(), Vec::new(), false);
    for Export {
        settings,
        output,
        file,
        path,
    } in exports
    {
        names.push(name_of(path.as_deref()));
        if settings.format.shows == Shows::Samples {
            of_samples.push(name_of(path.as_deref()));
        }
        declared |= settings.format.declared;
        // A line that is drawn again and again is not to be among what is read.
        quiet |= path.is_none() && io::stdout().is_terminal();
        sinks.push(export::open(&settings, Box::new(BufWriter::new(output))));
        files.extend(file);
    }
    let mut borrowed: Vec<&mut dyn Sink> = Vec::new();
    for sink in &mut sinks {
        borrowed.push(sink.as_mut());
    }
    replay(
        capture,
        tables,
        selection,
        &mut borrowed,
        [&names, &of_samples],
        (declared, quiet),
    )?;
    keep(files)
}

/// Chooses what formats show that show samples of one source, where nothing is chosen and there are several.
fn choose_sources<'s>(
    reader: &mut Reader,
    tables: &Tables,
    selection: &Selection,
    all: impl Iterator<Item = &'s mut Settings>,
) -> Result<(), Failure> {
    let needed = |settings: &&mut Settings| SourceCounts::are_needed(settings, selection, tables);
    let open: Vec<&mut Settings> = all.filter(needed).collect();
    if open.is_empty() {
        return Ok(());
    }
    let mut counts = SourceCounts::default();
    let span = Selection {
        range: selection.range,
        ..Selection::default()
    };
    let mut only = Only::new(&mut counts, &span);
    profiler_capture::replay_into(
        reader,
        tables,
        profiler_capture::TimeRange::ALL,
        &mut [&mut only],
    )?;
    let mut said = Vec::new();
    for settings in open {
        let left_out = counts.choose(settings, tables);
        if let Some((samples, names)) = left_out.filter(|left_out| !said.contains(left_out)) {
            log::warn!(
                "{} of other event sources ({names}) left out of {}; `profiler export --source` chooses",
                quantity::plural(samples, "sample"),
                settings.format.name,
            );
            said.push((samples, names));
        }
    }
    Ok(())
}

/// Replays what is selected of a capture into outputs of these names, of which some are empty without samples; `declared` says whether
/// it must be known where functions are declared, `quiet` that no progress is shown.
fn replay(
    mut reader: Reader,
    mut tables: Tables,
    selection: &Selection,
    sinks: &mut [&mut dyn Sink],
    [names, of_samples]: [&[String]; 2],
    (declared, quiet): (bool, bool),
) -> Result<(), Failure> {
    if declared && profiler_resolve::declare_offline(&mut tables, &[DEBUG_FOLDER.into()]) == 0 {
        log::warn!(
            "it is not known where any function is declared, so compilers will find nothing they can use: build with -g, \
             record, and export where the program was built"
        );
    }
    let (mut recorded, selected) = (Kinds::default(), Cell::new(Kinds::default()));
    let mut shown = Shown::new(quiet);
    let mut noted: Vec<Noted<'_>> = sinks
        .iter_mut()
        .map(|sink| Noted(*sink, &selected))
        .collect();
    let mut chosen: Vec<Only<'_>> = noted
        .iter_mut()
        .map(|sink| Only::new(sink, selection))
        .collect();
    let mut borrowed: Vec<&mut dyn Sink> = vec![&mut recorded, &mut shown];
    for sink in &mut chosen {
        borrowed.push(sink);
    }
    let replayed = profiler_capture::replay_into(
        &mut reader,
        &tables,
        profiler_capture::TimeRange::ALL,
        &mut borrowed,
    );
    drop(borrowed);
    shown.line.clear();
    match replayed {
        // It says which output.
        Err(CaptureError::Sink(error)) => return Err(error.into()),
        replayed => replayed?,
    };
    for damage in reader.damage() {
        log::warn!("{}: {damage}", reader.path().display());
    }
    if let Some(complaint) = recorded.complaint(selected.get(), names, of_samples) {
        log::warn!("{complaint}");
    }
    Ok(())
}

/// Events between two looks at the clock.
const LOOK: u64 = 1 << 12;

/// How far a replay is, on the terminal.
struct Shown {
    line: LiveLine,
    events: u64,
    began: std::time::Instant,
}

impl Shown {
    fn new(quiet: bool) -> Shown {
        Shown {
            line: LiveLine::new(quiet),
            events: 0,
            began: std::time::Instant::now(),
        }
    }
}

impl Sink for Shown {
    fn event(&mut self, _: &Event, _: &Tables) -> io::Result<()> {
        self.events += 1;
        if self.events.is_multiple_of(LOOK) {
            self.line.exporting(self.events, self.began.elapsed());
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

/// What a recording has, or what is selected of it.
#[derive(Clone, Copy, Default)]
struct Kinds {
    samples: bool,
    calls: bool,
}

impl Kinds {
    fn note(&mut self, event: &Event) {
        self.samples |= matches!(event, Event::Sample(_));
        self.calls |= matches!(event, Event::Call(_));
    }

    fn is_any(self) -> bool {
        self.samples || self.calls
    }

    /// That outputs have nothing to show, or those `of_samples`.
    fn complaint(self, selected: Kinds, names: &[String], of_samples: &[String]) -> Option<String> {
        let empty = |names: &[String]| {
            let are = if names.len() > 1 { "are" } else { "is" };
            format!("so {} {are} empty", names.join(", "))
        };
        if self.is_any() && !selected.is_any() && !names.is_empty() {
            let empty = empty(names);
            return Some(format!("nothing recorded matches the filters, {empty}"));
        }
        if selected.samples || of_samples.is_empty() {
            return None;
        }
        let instead = match selected.calls {
            true => "; 'profiler report --calls' shows the traced calls",
            false => "",
        };
        let empty = empty(of_samples);
        Some(format!("there are no samples, {empty}{instead}"))
    }
}

impl Sink for Kinds {
    fn event(&mut self, event: &Event, _: &Tables) -> io::Result<()> {
        self.note(event);
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

/// A sink, and what has come to it.
struct Noted<'a>(&'a mut dyn Sink, &'a Cell<Kinds>);

impl Sink for Noted<'_> {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let mut kinds = self.1.get();
        kinds.note(event);
        self.1.set(kinds);
        self.0.event(event, tables)
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.0.finish(tables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_show_nothing_are_named() {
        let kinds = |samples, calls| Kinds { samples, calls };
        let (none, calls, all) = (kinds(false, false), kinds(false, true), kinds(true, true));
        let names = ["a.svg", "b.folded"].map(str::to_owned);
        let [a, b] = [&names[..1], &names[1..]];
        let said = |recorded: Kinds, selected: Kinds, names, of_samples| {
            recorded.complaint(selected, names, of_samples).unwrap()
        };
        assert_eq!(all.complaint(all, a, a), None);
        assert_eq!(calls.complaint(calls, a, &[]), None);
        assert_eq!(
            said(none, none, a, a),
            "there are no samples, so a.svg is empty"
        );
        assert_eq!(
            said(calls, calls, &names, &names),
            "there are no samples, so a.svg, b.folded are empty; 'profiler report --calls' shows the \
             traced calls"
        );
        assert_eq!(
            said(all, none, &names, b),
            "nothing recorded matches the filters, so a.svg, b.folded are empty"
        );
        assert_eq!(
            said(all, calls, &names, b),
            "there are no samples, so b.folded is empty; 'profiler report --calls' shows the traced calls"
        );
    }
}
