//! Tables of text: aligned columns, cut to a width if there is one.
//!
//! Input: rows of cells (any text: names come from untrusted files); output: lines. Nothing is cut
//! without a width. Control characters never reach the output.

use profiler_model::text::printable;
use std::borrow::Cow;
use std::io::{self, Write};

use super::term::{Paint, Style};

/// How a column is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Numbers.
    Right,
    /// Names; cut at the end where a width asks for it.
    Left,
    /// Names of less interest; cut to half of what the others keep.
    Minor,
}

/// A cell and how it looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with plain text.
    pub fn new(text: impl Into<String>) -> Cell {
        Cell::styled(text, Style::Plain)
    }

    /// A cell with a style.
    pub fn styled(text: impl Into<String>, style: Style) -> Cell {
        let text = text.into();
        let text = match printable(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        };
        Cell { text, style }
    }
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

const GAP: &str = "  ";
/// No column of names is cut below this.
const LEAST_NAME: usize = 8;
/// Without a width, what stands behind names is aligned up to here: one long name is no reason to fill all lines
/// with blanks.
const MOST_ALIGNED: usize = 64;

impl Table {
    /// A table with columns.
    pub fn new(columns: &[(&'static str, Align)]) -> Table {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: as many cells as there are columns.
    pub fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Writes it.
    pub fn write(&self, out: &mut dyn Write, width: Option<usize>, paint: Paint) -> io::Result<()> {
        let widths = self.widths(width);
        let header: Vec<Cell> = (self.columns.iter())
            .map(|(title, _)| Cell::styled(*title, Style::Dim))
            .collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            self.line(out, row, (&widths, width), paint)?;
        }
        Ok(())
    }

    fn line(
        &self,
        out: &mut dyn Write,
        row: &[Cell],
        (widths, limit): (&[usize], Option<usize>),
        paint: Paint,
    ) -> io::Result<()> {
        let mut gap = 0;
        let mut left = limit.unwrap_or(usize::MAX);
        for ((cell, &width), (_, align)) in row.iter().zip(widths).zip(&self.columns) {
            let text = cut(&cell.text, width);
            let length = text.chars().count();
            let (before, after) = match align {
                Align::Right => (width - length, 0),
                Align::Left | Align::Minor => {
                    let aligned = limit.map_or(width.min(MOST_ALIGNED), |_| width);
                    (0, aligned.saturating_sub(length))
                }
            };
            if text.is_empty() {
                gap += before + after + GAP.len();
                continue;
            }
            left = left.saturating_sub(gap + before);
            if left == 0 {
                break;
            }
            let text = cut(&text, left);
            left -= text.chars().count();
            // Blanks are written only before the next cell: no line ends with them.
            write!(out, "{:1$}", "", gap + before)?;
            paint.write(out, cell.style, &text)?;
            gap = after + GAP.len();
        }
        writeln!(out)
    }

    /// Natural widths; names shrink, the widest first, until the line fits.
    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = (self.columns.iter())
            .map(|(title, _)| title.chars().count())
            .collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let Some(limit) = limit else {
            return widths;
        };
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(limit);
        while excess > 0 {
            let names = widths.iter_mut().zip(&self.columns);
            let names =
                names.filter(|(width, (_, align))| *align != Align::Right && **width > LEAST_NAME);
            let claim = |(width, (_, align)): &(&mut usize, &(_, Align))| match align {
                Align::Minor => **width * 2,
                _ => **width,
            };
            match names.max_by_key(claim) {
                Some((widest, _)) => *widest -= 1,
                None => break,
            }
            excess -= 1;
        }
        widths
    }
}

/// `text` cut to `width` characters, the last of them an ellipsis if something is missing.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return Cow::Borrowed(text);
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    Cow::Owned(short)
}

/// `text` cut to `width` characters at its start: of a path, the end says more.
pub fn cut_start(text: &str, width: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= width {
        return Cow::Borrowed(text);
    }
    let rest = text.chars().skip(length + 1 - width.max(1));
    Cow::Owned(std::iter::once('…').chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(width: Option<usize>, name: &str) -> String {
        let mut table = Table::new(&[
            ("self", Align::Right),
            ("function", Align::Left),
            ("module", Align::Minor),
        ]);
        table.row([Cell::new("1.0%"), Cell::new(name), Cell::new("libc")]);
        table.row([Cell::new("-"), Cell::new("x"), Cell::new("")]);
        let mut out = Vec::new();
        table.write(&mut out, width, Paint::never()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_align_and_lines_do_not_end_in_blanks() {
        let expected = "self  function  module\n1.0%  main      libc\n   -  x\n";
        assert_eq!(text(None, "main"), expected);
    }

    #[test]
    fn names_are_cut_only_to_a_width() {
        let long = "a_function_with_a_long_name";
        assert!(text(None, long).contains(long));
        let narrow = text(Some(30), long);
        assert!(narrow.contains("a_function_with…  libc"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 30));
    }

    #[test]
    fn a_long_name_does_not_move_what_stands_behind_others() {
        let long = "f".repeat(500);
        let lines = text(None, &long);
        assert!(lines.contains(&format!("{long}  libc\n")), "{lines}");
        let titles = lines.lines().next().unwrap();
        assert_eq!(
            titles.find("module"),
            Some(4 + 2 + MOST_ALIGNED + 2),
            "{lines}"
        );
    }

    #[test]
    fn no_line_is_wider_than_asked_for() {
        for width in 1..30 {
            let narrow = text(Some(width), "a_function_with_a_long_name");
            let fits = |line: &str| line.chars().count() <= width && !line.ends_with(' ');
            assert!(narrow.lines().all(fits), "{width}: {narrow}");
        }
    }

    #[test]
    fn paths_are_cut_at_their_start() {
        assert_eq!(cut_start("/usr/lib/libc.so", 8), "…libc.so");
        assert_eq!(cut_start("/usr", 4), "/usr");
        assert_eq!(cut_start("/usr", 0), "…");
    }

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert!(matches!(printable("größe<T>"), Cow::Borrowed(_)));
    }
}
