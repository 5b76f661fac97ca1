//! The call tree as text.
//!
//! Input: rows in depth-first order; output: one line per row. A chain of single calls keeps its
//! column, so that only a real fork indents: deep stacks stay readable on a narrow terminal.

use std::io::{self, Write};

use super::data::{Share, TreeRow};
use super::short_name;
use crate::view::quantity::{count, percent};
use crate::view::table::{cut, cut_start};
use crate::view::term::{Paint, Style};
use profiler_model::text::printable;

/// What is left for a name, however deep the tree is.
const LEAST_NAME: usize = 20;
/// A sum of small branches is a line of its own from this share on.
const LEAST_REST_PERCENT: f64 = 0.05;

pub(super) fn write(
    rows: &[TreeRow],
    out: &mut dyn Write,
    width: Option<usize>,
    paint: Paint,
) -> io::Result<()> {
    paint.write(
        out,
        Style::Dim,
        &format!("{:>7} {:>7}  call\n", "total", "self"),
    )?;
    let mut printer = Printer {
        out,
        width,
        paint,
        prefixes: vec![String::new(); rows.len()],
    };
    let children = children(rows);
    // The root is all there is: it says nothing.
    let mut pending: Vec<Line> = Vec::new();
    push_children(&mut pending, rows, &children, 0);
    while let Some(line) = pending.pop() {
        match line {
            Line::Row { index, fork } => {
                let last = innermost(rows, &children, index);
                printer.row(rows, index, last, fork, children[last].is_empty())?;
                push_children(&mut pending, rows, &children, last);
            }
            Line::Rest { parent, fork } => printer.rest(&rows[parent], parent, fork)?,
        }
    }
    Ok(())
}

/// How a line hangs on its caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fork {
    /// In the same column: it is the only one.
    None,
    /// One of several, more follow.
    Middle,
    /// The last of several.
    Last,
}

enum Line {
    Row { index: usize, fork: Fork },
    Rest { parent: usize, fork: Fork },
}

fn children(rows: &[TreeRow]) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); rows.len()];
    for row in rows {
        if let Some(parent) = row.parent {
            children[parent].push(row.id);
        }
    }
    children
}

/// The end of a chain in which a function does nothing but call itself: one line says it all.
fn innermost(rows: &[TreeRow], children: &[Vec<usize>], index: usize) -> usize {
    let mut last = index;
    while let [only] = children[last][..] {
        let (row, callee) = (&rows[last], &rows[only]);
        let same =
            row.kind == callee.kind && row.name == callee.name && row.module == callee.module;
        if !same || row.omitted > 0 || row.share.self_samples > 0 {
            break;
        }
        last = only;
    }
    last
}

fn has_rest(row: &TreeRow) -> bool {
    row.omitted > 0 && row.omitted_percent >= LEAST_REST_PERCENT
}

/// Pushes the lines below a row, the first on top.
fn push_children(
    pending: &mut Vec<Line>,
    rows: &[TreeRow],
    children: &[Vec<usize>],
    parent: usize,
) {
    let Some(row) = rows.get(parent) else {
        return;
    };
    // Where nothing else is shown, the rest is noted on the row itself.
    let rest = has_rest(row) && !children[parent].is_empty();
    let several = children[parent].len() + usize::from(rest) > 1 && row.parent.is_some();
    let fork = |last| match (several, last) {
        (false, _) => Fork::None,
        (true, false) => Fork::Middle,
        (true, true) => Fork::Last,
    };
    if rest {
        let fork = fork(true);
        pending.push(Line::Rest { parent, fork });
    }
    for (position, &index) in children[parent].iter().rev().enumerate() {
        let fork = fork(position == 0 && !rest);
        pending.push(Line::Row { index, fork });
    }
}

struct Printer<'a> {
    out: &'a mut dyn Write,
    width: Option<usize>,
    paint: Paint,
    /// What stands left of the callees of a row.
    prefixes: Vec<String>,
}

impl Printer<'_> {
    fn row(
        &mut self,
        rows: &[TreeRow],
        index: usize,
        last: usize,
        fork: Fork,
        is_leaf: bool,
    ) -> io::Result<()> {
        let row = &rows[index];
        let caller = row.parent.and_then(|parent| rows.get(parent));
        let above = row.parent.map_or("", |parent| &self.prefixes[parent]);
        let (prefix, below) = match fork {
            Fork::None => (above.to_owned(), above.to_owned()),
            Fork::Middle => (format!("{above}├─ "), format!("{above}│  ")),
            Fork::Last => (format!("{above}└─ "), format!("{above}   ")),
        };
        self.prefixes[last] = below;
        self.shares(&rows[last].share)?;
        let (style, note) = match row.kind {
            "process" => (Style::Bold, "  (process)".to_owned()),
            "address" => (Style::Plain, String::new()),
            _ if caller.is_some_and(|caller| caller.module == row.module) => {
                (Style::Plain, String::new())
            }
            _ if row.module.module.is_empty() => (Style::Plain, String::new()),
            _ => (
                Style::Plain,
                format!("  {}", module_note(&row.module.module)),
            ),
        };
        let mut note = match row.inlined {
            true => format!(" (inlined){note}"),
            false => note,
        };
        if last > index {
            note.insert_str(0, &format!(" ×{}", rows[last].depth - row.depth + 1));
        }
        if is_leaf && has_rest(&rows[last]) {
            note += &format!("  … {} more", count(rows[last].omitted));
        }
        self.text(&prefix, &row.name, style, &note)
    }

    fn rest(&mut self, row: &TreeRow, parent: usize, fork: Fork) -> io::Result<()> {
        let above = self.prefixes[parent].clone();
        let prefix = match fork {
            Fork::None => above,
            Fork::Middle | Fork::Last => format!("{above}└─ "),
        };
        self.share_column(row.omitted_percent, Style::Dim)?;
        write!(self.out, " {:7}  ", "")?;
        let text = format!("… {} more", count(row.omitted));
        self.text(&prefix, &text, Style::Dim, "")
    }

    fn shares(&mut self, share: &Share) -> io::Result<()> {
        self.share_column(share.total_percent, Style::Plain)?;
        write!(self.out, " ")?;
        match share.self_samples {
            0 => write!(self.out, "{:7}", "")?,
            _ => self.share_column(share.self_percent, Style::of_share(share.self_percent))?,
        }
        write!(self.out, "  ")
    }

    fn share_column(&mut self, value: f64, style: Style) -> io::Result<()> {
        self.paint
            .write(self.out, style, &format!("{:>7}", percent(value)))
    }

    fn text(&mut self, prefix: &str, name: &str, style: Style, note: &str) -> io::Result<()> {
        let (name, note) = (printable(name), printable(note));
        let used = "100.0% 100.0%     ".len();
        let prefix_room = (self.width).map_or(usize::MAX, |w| w.saturating_sub(used + LEAST_NAME));
        let prefix = cut_start(prefix, prefix_room);
        let used = used + prefix.chars().count();
        let room = self
            .width
            .map_or(usize::MAX, |w| w.saturating_sub(used).max(LEAST_NAME));
        let name_room = room.saturating_sub(note.chars().count()).max(LEAST_NAME);
        let name = cut(&name, name_room);
        let note = cut(&note, room.saturating_sub(name.chars().count()));
        self.paint.write(self.out, Style::Dim, &prefix)?;
        self.paint.write(self.out, style, &name)?;
        self.paint.write(self.out, Style::Dim, &note)?;
        writeln!(self.out)
    }
}

fn module_note(path: &str) -> String {
    match path.starts_with('[') {
        true => path.to_owned(),
        false => format!("[{}]", short_name(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: usize, parent: Option<usize>, depth: usize, name: &str, own: u64) -> TreeRow {
        TreeRow {
            id,
            parent,
            depth,
            kind: "function",
            name: name.into(),
            module: Default::default(),
            inlined: false,
            share: Share {
                self_samples: own,
                self_percent: own as f64,
                total_percent: 100.0,
                ..Share::default()
            },
            omitted: 0,
            omitted_weight: 0,
            omitted_percent: 0.0,
        }
    }

    fn text(rows: &[TreeRow], width: Option<usize>) -> String {
        let mut out = Vec::new();
        write(rows, &mut out, width, Paint::never()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_function_that_only_calls_itself_is_one_line() {
        let rows = [
            row(0, None, 0, "all", 0),
            row(1, Some(0), 1, "walk", 0),
            row(2, Some(1), 2, "walk", 0),
            row(3, Some(2), 3, "walk", 100),
        ];
        let expected = "  total    self  call\n 100.0%  100.0%  walk ×3\n";
        assert_eq!(text(&rows, None), expected);
        // A call that did work of its own is a line of its own.
        let mut rows = rows;
        rows[2].share.self_samples = 1;
        assert_eq!(text(&rows, None).lines().count(), 3);
    }

    #[test]
    fn deep_forks_leave_room_for_names() {
        let mut rows = vec![row(0, None, 0, "all", 0)];
        let mut parent = 0;
        for depth in 1..60 {
            let name = format!("a_function_of_depth_{depth}");
            for _ in 0..2 {
                rows.push(row(rows.len(), Some(parent), depth, &name, 1));
            }
            parent = rows.len() - 2;
        }
        let text = text(&rows, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80));
        assert_eq!(text.matches("a_function_of_depth").count(), 118);
    }
}
