//! The terminal of a live view: keys one by one, a screen of its own, and all of it given back.
//!
//! Input: keys; output: frames of text. Ctrl-C stays a signal. The terminal is restored when the
//! guard is dropped and when the program panics; signals are for the caller, who ends its loop and
//! drops the guard.
//!
//! What does not belong here: what is shown (`top`).

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, Once, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::time::Timespec;

/// A screen of its own, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// How the terminal was, while it is not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// While it lives, standard input gives keys without waiting for a line or showing them, and
/// standard output shows a screen of its own.
#[derive(Debug)]
pub struct RawMode {
    _private: (),
}

impl RawMode {
    /// None if standard input or output is no terminal.
    pub fn enter() -> io::Result<Option<RawMode>> {
        let input = io::stdin();
        if !termios::isatty(&input) || !termios::isatty(io::stdout()) {
            return Ok(None);
        }
        let before = termios::tcgetattr(&input)?;
        let raw = raw(&before);
        // What a panic says must be seen.
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                next(info);
            }));
        });
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // From here on dropping it restores, whatever fails.
        let guard = RawMode { _private: () };
        termios::tcsetattr(&input, OptionalActions::Flush, &raw)?;
        let mut output = io::stdout();
        output.write_all(ENTER)?;
        output.flush()?;
        Ok(Some(guard))
    }

    /// The next key, if one comes within `wait`; none also if a signal comes.
    pub fn key(&self, wait: std::time::Duration) -> io::Result<Option<u8>> {
        key_from(io::stdin(), wait)
    }

    /// Draws a frame in place of the last.
    pub fn draw(&self, frame: &str) -> io::Result<()> {
        let mut output = io::stdout().lock();
        output.write_all(b"\x1b[H")?;
        for line in frame.lines() {
            output.write_all(line.as_bytes())?;
            // The rest of the line may be of the frame before.
            output.write_all(b"\x1b[K\n")?;
        }
        output.write_all(b"\x1b[J")?;
        output.flush()
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        match termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A terminal that has gone away needs nothing.
        let _ = io::stdout().write_all(LEAVE);
        let _ = io::stdout().flush();
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

/// Keys come one by one and unseen; stopping (Ctrl-Z) and quitting (Ctrl-\) by key are off, since
/// they would leave the terminal like this.
fn raw(before: &Termios) -> Termios {
    let mut raw = before.clone();
    raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    raw.special_codes[SpecialCodeIndex::VMIN] = 0;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
    raw.special_codes[SpecialCodeIndex::VQUIT] = 0;
    raw
}

fn key_from(input: impl AsFd, wait: std::time::Duration) -> io::Result<Option<u8>> {
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut key = [0];
    match rustix::io::read(&input, &mut key) {
        Ok(1) => Ok(Some(key[0])),
        // The terminal is gone: as if it had asked to quit.
        Ok(_) if fds[0].revents().contains(PollFlags::HUP) => Ok(Some(b'q')),
        Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_come_one_by_one_and_the_end_is_quit() {
        let (read, mut write) = io::pipe().unwrap();
        assert_eq!(key_from(&read, Duration::from_millis(1)).unwrap(), None);
        write.write_all(b"sp").unwrap();
        let next = || key_from(&read, Duration::from_secs(5)).unwrap();
        assert_eq!((next(), next()), (Some(b's'), Some(b'p')));
        drop(write);
        assert_eq!(next(), Some(b'q'));
    }

    #[test]
    fn a_pipe_is_no_terminal() {
        // Under a test runner at least one of the two is no terminal.
        if !termios::isatty(io::stdin()) || !termios::isatty(io::stdout()) {
            assert!(RawMode::enter().unwrap().is_none());
        }
    }
}
