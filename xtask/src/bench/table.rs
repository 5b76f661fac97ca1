//! Markdown tables.

/// Rows under a head.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub(crate) fn new(head: &[&str]) -> Table {
        Table {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it to standard output under a title.
    pub(crate) fn print(&self, title: &str) {
        println!("### {title}\n");
        for (index, row) in self.rows.iter().enumerate() {
            println!("| {} |", row.join(" | "));
            if index == 0 {
                println!("|{}", "---|".repeat(row.len()));
            }
        }
        println!();
    }
}

/// Milliseconds of nanoseconds.
pub(crate) fn ms(ns: f64) -> String {
    format!("{:.0}", ns / 1e6)
}

/// MiB of bytes.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1_048_576.0)
}

/// `a / b` with two digits, or a dash.
pub(crate) fn per(a: f64, b: f64) -> String {
    if b > 0.0 {
        format!("{:.2}", a / b)
    } else {
        "-".to_owned()
    }
}
