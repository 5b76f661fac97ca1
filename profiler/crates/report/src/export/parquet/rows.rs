//! Rows of a table, in groups: columns of cells -> a file of Parquet.
//!
//! Cells one after another, row by row -> bytes. Each row has the machine and the beginning of its recording before its own cells,
//! so that tables of many recordings can be one. Memory is that of a group of rows. What does not belong here: which tables there are.

use std::io::{self, BufWriter};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use super::super::Output;
use super::super::about::About;
use profiler_model::text::TextMap;
use profiler_model::*;

/// Rows of a group.
const GROUP: usize = 1 << 16;
/// Of the file: what tables of one recording have in common.
const COMMON: [Column; 2] = [("host", Kind::Text), ("recorded", Kind::Time)];

/// What a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    /// Nanoseconds since 1970.
    Time,
    Text,
}

/// A column's name, and what is in it.
pub(super) type Column = (&'static str, Kind);

/// A value in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Empty,
    Number(i64),
    Time(Timestamp),
    Text(&'a str),
}

/// The cells of a column; texts by their number.
struct Cells {
    kind: Kind,
    values: Vec<i64>,
    /// 1 where there is one, 0 where there is none.
    there: Vec<i16>,
}

type Writer = SerializedFileWriter<BufWriter<Output>>;

pub(super) struct Rows {
    schema: String,
    columns: Vec<Cells>,
    /// The column of the next cell.
    at: usize,
    texts: TextMap<String, i64>,
    bytes: Vec<ByteArray>,
    output: Option<Output>,
    writer: Option<Writer>,
}

/// What went wrong with the file below is told as itself: a closed pipe is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

impl Rows {
    pub(super) fn new(name: &str, columns: &[Column], output: Output) -> Rows {
        let mut schema = format!("message {name} {{\n");
        for (name, kind) in COMMON.iter().chain(columns) {
            schema += &match kind {
                Kind::Number => format!("optional int64 {name};\n"),
                Kind::Time => format!("optional int64 {name} (TIMESTAMP(NANOS,true));\n"),
                Kind::Text => format!("optional binary {name} (UTF8);\n"),
            };
        }
        let cells = |&(_, kind): &Column| Cells {
            kind,
            values: Vec::new(),
            there: Vec::new(),
        };
        Rows {
            schema: schema + "}",
            columns: columns.iter().map(cells).collect(),
            at: 0,
            texts: TextMap::default(),
            bytes: Vec::new(),
            output: Some(output),
            writer: None,
        }
    }

    /// The next cell of a row.
    pub(super) fn put(&mut self, cell: Cell<'_>) {
        let value = match cell {
            Cell::Empty => None,
            Cell::Number(number) => Some(number),
            // Made wall time when the group is written: what ties both may come later than a row.
            Cell::Time(at) => i64::try_from(at.0).ok(),
            Cell::Text(text) => Some(self.text(text)),
        };
        if let Some(column) = self.columns.get_mut(self.at) {
            column.there.push(i16::from(value.is_some()));
            column.values.extend(value);
        }
        self.at += 1;
    }

    /// The number of a text, in this group of rows.
    fn text(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let number = self.bytes.len() as i64;
        self.texts.insert(text.to_owned(), number);
        self.bytes.push(ByteArray::from(text));
        number
    }

    /// A row has all its cells.
    pub(super) fn end(&mut self, about: &About, tables: &Tables) -> io::Result<()> {
        debug_assert_eq!(self.at, self.columns.len());
        self.at = 0;
        match self.rows() >= GROUP {
            true => self.write(about, tables),
            false => Ok(()),
        }
    }

    fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.there.len())
    }

    fn write(&mut self, about: &About, tables: &Tables) -> io::Result<()> {
        let rows = self.rows();
        let session = &tables.session;
        // Never nothing: rows of tables are joined by these, and nothing is like nothing in SQL.
        let host = self.text(&session.host);
        let started = about.wall_ns(session.started).unwrap_or(session.started.0);
        let of_all = |kind, value| Cells {
            kind,
            values: vec![value; rows],
            there: vec![1; rows],
        };
        let common = [
            of_all(Kind::Text, host),
            of_all(Kind::Number, i64::try_from(started).unwrap_or(i64::MAX)),
        ];
        let own = self.columns.iter_mut().map(|column| Cells {
            kind: column.kind,
            values: std::mem::take(&mut column.values),
            there: std::mem::take(&mut column.there),
        });
        let cells: Vec<Cells> = common.into_iter().chain(own).collect();
        let writer = opened(&mut self.writer, &mut self.output, &self.schema)?;
        let mut group = writer.next_row_group().map_err(failed)?;
        for cells in cells {
            let Some(mut column) = group.next_column().map_err(failed)? else {
                return Err(io::Error::other("a table has fewer columns than its rows"));
            };
            write_cells(&mut column, cells, &self.bytes, about).map_err(failed)?;
            column.close().map_err(failed)?;
        }
        group.close().map_err(failed)?;
        self.texts.clear();
        self.bytes.clear();
        Ok(())
    }

    /// Writes the rest, and what is to be said of all.
    pub(super) fn finish(&mut self, about: &About, tables: &Tables) -> io::Result<()> {
        if self.rows() > 0 {
            self.write(about, tables)?;
        }
        let writer = opened(&mut self.writer, &mut self.output, &self.schema)?;
        let notes = about.notes(tables, 0).join("\n");
        writer.append_key_value_metadata(KeyValue::new("profiler".to_owned(), notes));
        writer.finish().map_err(failed)?;
        io::Write::flush(writer.inner_mut())
    }
}

/// The writer, which begins with the first row, or without any at the end.
fn opened<'w>(
    writer: &'w mut Option<Writer>,
    output: &mut Option<Output>,
    schema: &str,
) -> io::Result<&'w mut Writer> {
    if writer.is_none() {
        let output = output.take().ok_or(io::ErrorKind::WriteZero)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("profiler ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = parse_message_type(schema).map_err(failed)?;
        let opened = Writer::new(
            BufWriter::new(output),
            Arc::new(schema),
            Arc::new(properties),
        );
        *writer = Some(opened.map_err(failed)?);
    }
    writer.as_mut().ok_or(io::ErrorKind::WriteZero.into())
}

fn write_cells(
    column: &mut SerializedColumnWriter<'_>,
    mut cells: Cells,
    bytes: &[ByteArray],
    about: &About,
) -> Result<(), ParquetError> {
    if cells.kind == Kind::Text {
        let text = |&number: &i64| bytes.get(number as usize).cloned();
        let texts: Vec<ByteArray> = cells.values.iter().filter_map(text).collect();
        let column = column.typed::<ByteArrayType>();
        column.write_batch(&texts, Some(&cells.there), None)?;
        return Ok(());
    }
    if cells.kind == Kind::Time {
        let mut walls = Vec::with_capacity(cells.values.len());
        let mut times = cells.values.iter();
        for there in cells.there.iter_mut().filter(|there| **there == 1) {
            let at = times.next().and_then(|at| u64::try_from(*at).ok());
            let wall = at.and_then(|at| about.wall_ns(Timestamp(at)));
            match wall.and_then(|ns| i64::try_from(ns).ok()) {
                Some(ns) => walls.push(ns),
                // Nothing tells when that was.
                None => *there = 0,
            }
        }
        cells.values = walls;
    }
    let column = column.typed::<Int64Type>();
    column.write_batch(&cells.values, Some(&cells.there), None)?;
    Ok(())
}
