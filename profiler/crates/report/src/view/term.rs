//! What a terminal can show: its width, and whether to colour.
//!
//! Input: a file descriptor, the environment, a flag; output: decisions and styled text. A pipe has
//! no width and no colour.

use std::io::{self, Write};
use std::os::fd::AsFd;

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorChoice {
    /// On a terminal that is not dumb, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl std::str::FromStr for ColorChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<ColorChoice, String> {
        match text {
            "auto" => Ok(ColorChoice::Auto),
            "always" => Ok(ColorChoice::Always),
            "never" => Ok(ColorChoice::Never),
            _ => Err("must be auto, always or never".to_owned()),
        }
    }
}

impl ColorChoice {
    /// Whether to colour what goes to `output`.
    pub fn resolve(self, output: impl AsFd) -> bool {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        self.decide(
            rustix::termios::isatty(output),
            set("NO_COLOR").is_some(),
            set("TERM").is_none_or(|term| term == "dumb"),
        )
    }

    fn decide(self, terminal: bool, no_color: bool, dumb: bool) -> bool {
        match self {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !no_color && !dumb,
        }
    }
}

/// Columns of the terminal behind `output`; none if it is not one.
pub fn width(output: impl AsFd) -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(output).ok()?.ws_col;
    // Some terminals on serial lines say 0.
    Some(if columns == 0 { 80 } else { columns.into() })
}

/// What a piece of text is, for its looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As it is.
    Plain,
    /// A heading.
    Bold,
    /// Of less interest.
    Dim,
    /// A large share.
    Hot,
    /// A noticeable share.
    Warm,
    /// Less than before; or all is well.
    Cool,
}

impl Style {
    /// The style of a share in percent.
    pub fn of_share(percent: f64) -> Style {
        match percent {
            p if p >= 10.0 => Style::Hot,
            p if p >= 2.0 => Style::Warm,
            _ => Style::Plain,
        }
    }
}

/// Applies styles, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    /// Colours if `color`.
    pub fn new(color: bool) -> Paint {
        Paint(color)
    }

    /// Plain text.
    pub fn never() -> Paint {
        Paint(false)
    }

    /// Writes `text` in a style.
    pub fn write(self, out: &mut dyn Write, style: Style, text: &str) -> io::Result<()> {
        let code = match style {
            Style::Plain => "",
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Hot => "31;1",
            Style::Warm => "33",
            Style::Cool => "32",
        };
        if !self.0 || code.is_empty() {
            return out.write_all(text.as_bytes());
        }
        write!(out, "\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_is_for_terminals_that_want_it() {
        assert!(ColorChoice::Auto.decide(true, false, false));
        assert!(!ColorChoice::Auto.decide(false, false, false));
        assert!(!ColorChoice::Auto.decide(true, true, false));
        assert!(!ColorChoice::Auto.decide(true, false, true));
        assert!(ColorChoice::Always.decide(false, true, true));
        assert!(!ColorChoice::Never.decide(true, false, false));
    }

    #[test]
    fn a_pipe_has_no_width() {
        let (read, _write) = std::io::pipe().unwrap();
        assert_eq!(width(&read), None);
    }

    #[test]
    fn styles_are_written_only_when_told() {
        let mut out = Vec::new();
        Paint::never().write(&mut out, Style::Hot, "a").unwrap();
        Paint::new(true).write(&mut out, Style::Dim, "b").unwrap();
        assert_eq!(out, b"a\x1b[2mb\x1b[0m");
    }
}
