//! The command line: flags, help, and what each command calls.
//!
//! One file per command. Data go to standard output or a file, talk to standard error; errors are
//! one line and a [`Failure`]'s status.

/// Writes a line to standard error. A reader that has gone away must not turn what was done into a
/// failure, as `eprintln!` would. Names of files may hold what would move a terminal's cursor.
macro_rules! say {
    ($($words:tt)*) => {{
        let line = format!($($words)*);
        let line = profiler_model::text::printable(&line).into_owned() + "\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}

#[cfg(feature = "fronts")]
mod activation;
mod analyse;
mod anew;
mod convert;
mod doctor;
mod files;
#[cfg(feature = "bytefrog")]
mod hq;
mod import;
mod list;
mod name_notes;
mod record;
#[cfg(feature = "fronts")]
mod serve;
mod stack_notes;
mod stacks;
#[cfg(feature = "bytefrog")]
mod stream;
mod target;
mod target_words;
mod top;
mod trace;
pub mod values;

use std::ffi::OsString;
use std::io;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Failure;
use profiler_report::view::term::ColorChoice;

/// Sees every process of a machine: records stacks with eBPF, shows what is hot.
#[derive(Debug, Parser)]
#[command(name = "profiler", version, about, max_term_width = 100)]
#[command(after_help = "\
Examples:
  profiler record                           the whole machine, until Ctrl-C
  profiler record -d 10 -o hot.cap -o hot.svg
  profiler record -p 1234 -F 999            a process and children it starts
  profiler record -- cargo build            a command, as the user behind sudo
  profiler report                           what is hot in profile.cap
  profiler doctor                           what this machine allows")]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Where flags of all commands are in help: behind the command's own.
const LAST: usize = 900;

/// Flags of all commands.
#[derive(Debug, clap::Args)]
struct Common {
    /// Say more on standard error; twice: the kernel side too (RUST_LOG overrides)
    #[arg(short, long, global = true, display_order = LAST, action = clap::ArgAction::Count)]
    verbose: u8,
    /// No progress and no summary on standard error
    #[arg(short, long, global = true, display_order = LAST)]
    quiet: bool,
    /// Colour: auto, always or never
    #[arg(
        long,
        global = true,
        display_order = LAST,
        default_value = "auto",
        value_name = "WHEN"
    )]
    color: ColorChoice,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record samples into a capture and other files
    Record(Box<record::RecordArgs>),
    /// Show what is hot now, or calls of traced functions, in a table that refreshes
    Top(Box<top::TopArgs>),
    #[cfg(feature = "bytefrog")]
    /// Send what happens, or a capture, to another program while it goes on
    Stream(stream::StreamArgs),
    #[cfg(feature = "fronts")]
    /// Let other tools watch this machine, or a capture, through a server of theirs
    Serve(Box<serve::ServeArgs>),
    /// Show what is hot in a capture
    Report(Box<analyse::ReportArgs>),
    /// Write a capture in another tool's format
    Export(Box<files::ExportArgs>),
    /// List the formats of export
    Formats,
    /// Read what another tool recorded into a capture
    Import(import::ImportArgs),
    /// Turn an execution trace of Go from bytes into text, or back
    Convert(convert::ConvertArgs),
    /// Show what is in a capture: times, sources, counts, losses
    Info(analyse::InfoArgs),
    /// Join captures into one
    Merge(files::MergeArgs),
    /// Add names to a capture that was recorded elsewhere
    Symbolize(files::SymbolizeArgs),
    #[cfg(feature = "bytefrog")]
    /// Receive what Bytefrog agents trace: calls of any program, live, into captures
    Hq(Box<hq::HqArgs>),
    /// List functions and markers that can be traced, and processes
    List(list::ListArgs),
    /// Put a marker into the recordings that run
    Mark(record::MarkArgs),
    /// Tell what this kernel, these privileges and this machine allow
    Doctor,
    /// Print completions for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder
    Man {
        /// The folder
        folder: std::path::PathBuf,
    },
}

impl Command {
    /// Whether it may load programs into the kernel.
    fn loads_programs(&self) -> bool {
        match self {
            Command::Record(_) | Command::Top(_) | Command::Doctor => true,
            #[cfg(feature = "bytefrog")]
            Command::Stream(_) => true,
            #[cfg(feature = "fronts")]
            Command::Serve(_) => true,
            _ => false,
        }
    }
}

/// Runs the program with these arguments; returns its exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // A recording has started it, to hold its probes.
    if arguments
        .first()
        .is_some_and(|name| name == profiler_probe::KEEPER)
    {
        return profiler_probe::keep();
    }
    // To read symbols.
    if arguments
        .first()
        .is_some_and(|name| profiler_resolve::is_for_names(name))
    {
        let limit = arguments.get(1).map(OsString::as_os_str);
        return profiler_resolve::serve_names(limit, crate::pipeline::answering());
    }
    // To read what users' engines have.
    if arguments
        .first()
        .is_some_and(|name| profiler_target::container::is_for_users(name))
    {
        let root = arguments.get(1).map(OsString::as_os_str);
        return profiler_target::container::serve_users(root);
    }
    profiler_probe::offer();
    profiler_resolve::offer_names();
    profiler_target::container::offer_reading();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for: they go to standard output and are no failure.
            let status = if error.use_stderr() {
                crate::error::USAGE
            } else {
                0
            };
            // A closed pipe is no error.
            let _ = error.print();
            return status;
        }
    };
    start_logging(&cli.common);
    if lacks_command(&arguments) {
        say!("profiler: no command behind '--': name one, or leave '--' out");
        return crate::error::USAGE;
    }
    if cli.command.loads_programs() {
        anew::start_if(profiler_probe::is_kernel_misjudged, &arguments);
    }
    let work = work(cli.command);
    match work(&cli.common) {
        Ok(status) => status,
        Err(failure) => {
            if !failure.message.is_empty() {
                say!("profiler: {failure}");
            }
            failure.status
        }
    }
}

/// Whether there is nothing behind the `--` that goes before a command: variables of scripts may be empty.
fn lacks_command(arguments: &[OsString]) -> bool {
    let place = arguments.iter().position(|argument| argument == "--");
    place.is_some_and(|place| place + 1 == arguments.len())
}

/// What a command does; its exit status.
type Work = Box<dyn FnOnce(&Common) -> Result<u8, Failure>>;

/// One function for each command: in one for all of them, what the others need would lie on the stack too.
fn work(command: Command) -> Work {
    match command {
        Command::Record(args) => Box::new(|common| record::record(args, common)),
        Command::Top(args) => Box::new(|common| top::top(args, common)),
        #[cfg(feature = "bytefrog")]
        Command::Stream(args) => Box::new(|common| stream::stream(args, common)),
        #[cfg(feature = "fronts")]
        Command::Serve(args) => done(|common| serve::serve(args, common)),
        Command::Report(args) => done(|common| analyse::report(*args, common)),
        Command::Export(args) => done(|common| files::export(*args, common)),
        Command::Formats => done(|_| Ok(files::formats(&mut io::stdout())?)),
        Command::Info(args) => done(move |_| analyse::info(&args)),
        Command::Convert(args) => done(|_| convert::convert(args)),
        Command::Import(args) => done(|common| import::import(args, common)),
        Command::Merge(args) => done(move |common| files::merge(&args, common)),
        Command::Symbolize(args) => done(|common| files::symbolize(args, common)),
        #[cfg(feature = "bytefrog")]
        Command::Hq(args) => Box::new(|common| hq::hq(*args, common)),
        Command::List(args) => Box::new(|common| list::list(args, common)),
        Command::Mark(args) => done(move |common| record::mark(&args, common)),
        Command::Doctor => Box::new(|common| doctor::doctor(common, &mut io::stdout())),
        Command::Completions { shell } => done(move |_| {
            let mut command = Cli::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "profiler", &mut script);
            Ok(io::Write::write_all(&mut io::stdout(), &script)?)
        }),
        Command::Man { folder } => done(move |_| {
            std::fs::create_dir_all(&folder)?;
            Ok(clap_mangen::generate_to(Cli::command(), &folder)?)
        }),
    }
}

/// Of a command that has done what it should if it has not failed.
fn done(does: impl FnOnce(&Common) -> Result<(), Failure> + 'static) -> Work {
    Box::new(|common| does(common).map(|()| 0))
}

fn start_logging(common: &Common) {
    // Libraries' own talk is for who asks for it by RUST_LOG.
    let filter = match (common.quiet, common.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "warn,profiler=info",
        (false, _) => "warn,profiler=debug,profiler_kernel=debug",
    };
    let env = env_logger::Env::default().default_filter_or(filter);
    env_logger::Builder::from_env(env)
        .format(|out, record| {
            use std::io::Write;
            // Targets choose the names of their files.
            let line = record.args().to_string();
            let line = profiler_model::text::printable(&line);
            match record.level() {
                log::Level::Error | log::Level::Warn => writeln!(out, "profiler: {line}"),
                _ => writeln!(out, "profiler: [{}] {line}", record.target()),
            }
        })
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_is_behind_its_dashes() {
        let lacks = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            lacks_command(&words)
        };
        assert!(lacks("profiler record -d 1 --"));
        assert!(!lacks("profiler record -d 1"));
        assert!(!lacks("profiler record -- make"));
        // What follows is the command's.
        assert!(!lacks("profiler record -- make --"));
    }

    /// What stands below the options: examples fit a terminal of 80 columns, paragraphs are left to be wrapped.
    fn check_help(command: &clap::Command) {
        let name = command.get_name();
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        for line in help.lines() {
            let is_example = line.starts_with(' ');
            assert!(!is_example || line.chars().count() <= 80, "{name}: {line}");
        }
        let lines: Vec<&str> = help.lines().collect();
        for two in lines.windows(2) {
            let is_broken = |line: &str| !line.is_empty() && !line.ends_with(['.', ':']);
            assert!(
                two[0].starts_with(' ') || !is_broken(two[0]),
                "{name}: this is wrapped already: {}",
                two[0]
            );
        }
        for under in command.get_subcommands() {
            check_help(under);
        }
    }

    #[test]
    fn help_fits_terminals() {
        check_help(&Cli::command());
        let mut all = Cli::command().term_width(80);
        all.build();
        for command in all.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            // A command's own options come first.
            let common = help.find("--verbose").unwrap_or(help.len());
            let own = help.find("--output").or(help.find("--replay"));
            assert!(own.is_none_or(|own| own < common), "{help}");
        }
    }
}
