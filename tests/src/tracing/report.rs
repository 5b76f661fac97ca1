//! What `profiler report --calls` says of traced functions.

use std::io;

use serde_json::Value;

use crate::setting::Setting;

/// The report of a recording, `out.cap`.
pub struct CallReport {
    rows: Vec<Value>,
}

impl CallReport {
    /// Asks for it.
    pub fn of(setting: &Setting) -> Result<CallReport, Box<dyn std::error::Error>> {
        let report = setting
            .run(&["report", "out.cap", "--calls", "--format", "json"])?
            .success()?
            .json()?;
        let rows = report["calls"]["functions"].as_array();
        let rows = rows.ok_or("no table of calls")?.clone();
        Ok(CallReport { rows })
    }

    /// The row of a function.
    pub fn row(&self, function: &str) -> io::Result<&Value> {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row["name"] == function);
        row.ok_or_else(|| io::Error::other(format!("no row of {function}")))
    }
}
