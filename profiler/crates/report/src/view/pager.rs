//! Where long text goes: through a pager on a terminal, straight out into a pipe.
//!
//! Input: text written to an [`Output`]; output: standard output, or the standard input of `$PAGER`
//! (`less` if there is none). A reader that goes away is no error.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A place for long text.
pub struct Output {
    target: Target,
    closed: bool,
}

enum Target {
    Stdout(BufWriter<io::Stdout>),
    Pager(Child, BufWriter<ChildStdin>),
}

impl Output {
    /// Standard output; paged if that is a terminal and `page` is set.
    pub fn open(page: bool) -> Output {
        let pager = match page && io::stdout().is_terminal() {
            true => start_pager(std::env::var("PAGER").ok().as_deref()),
            false => None,
        };
        Output {
            target: pager.unwrap_or_else(|| Target::Stdout(BufWriter::new(io::stdout()))),
            closed: false,
        }
    }

    /// Whether the reader has gone: nothing more needs to be written.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes what is left and waits until the pager is left.
    pub fn close(mut self) -> io::Result<()> {
        self.flush()?;
        if let Target::Pager(mut child, input) = self.target {
            // The pager sees the end of its input only when the pipe is closed.
            drop(input);
            child.wait()?;
        }
        Ok(())
    }

    fn attempt<T>(
        &mut self,
        otherwise: T,
        action: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.closed {
            return Ok(otherwise);
        }
        let result = match &mut self.target {
            Target::Stdout(out) => action(out),
            Target::Pager(_, out) => action(out),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(otherwise)
            }
            result => result,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt((), |out| out.flush())
    }
}

/// Starts the pager; none if it is switched off or cannot be started.
fn start_pager(variable: Option<&str>) -> Option<Target> {
    let (program, arguments) = pager_command(variable)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Leave at once if it fits, keep colours, do not clear the screen, do not fold lines.
        command.env("LESS", "FRXS");
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            log::debug!("failed to start the pager: {error}");
            return None;
        }
    };
    let input = child.stdin.take()?;
    leave_interrupts_to_the_pager();
    Some(Target::Pager(child, BufWriter::new(input)))
}

/// Ctrl-C in a pager ends a search, not the pager: it must not end us under it either.
#[allow(unsafe_code)]
fn leave_interrupts_to_the_pager() {
    // SAFETY: sets the disposition of a signal to a constant; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}

/// Program and arguments of a pager; an empty one or `cat` means none.
fn pager_command(variable: Option<&str>) -> Option<(&str, Vec<&str>)> {
    let mut words = variable.unwrap_or("less").split_whitespace();
    let program = words.next()?;
    (program != "cat").then(|| (program, words.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pager_is_chosen_by_the_environment() {
        assert_eq!(pager_command(None), Some(("less", vec![])));
        assert_eq!(
            pager_command(Some("more -d 1")),
            Some(("more", vec!["-d", "1"]))
        );
        assert_eq!(pager_command(Some("")), None);
        assert_eq!(pager_command(Some("cat")), None);
    }

    #[test]
    fn a_closed_pager_is_no_error() {
        let Some(target) = start_pager(Some("true")) else {
            panic!("true cannot be started");
        };
        let mut output = Output {
            target,
            closed: false,
        };
        let line = [b'x'; 4096];
        while !output.is_closed() {
            output.write_all(&line).unwrap();
        }
        output.write_all(&line).unwrap();
        output.close().unwrap();
    }
}
