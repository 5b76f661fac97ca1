//! What `profiler report --calls` says of traced functions.

use std::io;

use serde_json::Value;

use crate::setting::Setting;

/// The report of a recording, `out.cap`.
pub struct CallReport {
    rows: Vec<Value>,
    /// The tree of traced calls, a row each.
    pub tree: Vec<Value>,
}

impl CallReport {
    /// Asks for it.
    pub fn of(setting: &Setting) -> Result<CallReport, Box<dyn std::error::Error>> {
        let report = setting
            .run(&["report", "out.cap", "--calls", "--format", "json"])?
            .success()?
            .json()?;
        let table = |name: &str| {
            let rows = report["calls"][name].as_array();
            rows.cloned().ok_or("no table of calls")
        };
        Ok(CallReport {
            rows: table("functions")?,
            tree: table("tree")?,
        })
    }

    /// The row of a function.
    pub fn row(&self, function: &str) -> io::Result<&Value> {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row["name"] == function);
        row.ok_or_else(|| io::Error::other(format!("no row of {function}")))
    }
}
