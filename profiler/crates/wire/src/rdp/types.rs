//! Trace types: what a client wants to know of each frame.
//!
//! Names <-> a set. The first eight are the specification's; `location`, `depth`, `hitCount` and `blackBoxed` came
//! later, and are offered as well.

use serde::ser::{Serialize, SerializeSeq, Serializer};

/// One piece of information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum TraceType {
    /// The function's name.
    Name = 1 << 0,
    /// Where it was called from.
    Callsite = 1 << 1,
    /// When, in milliseconds.
    Time = 1 << 2,
    /// Names of its parameters.
    ParameterNames = 1 << 3,
    /// Values of its arguments.
    Arguments = 1 << 4,
    /// What it returned.
    Return = 1 << 5,
    /// What it threw.
    Throw = 1 << 6,
    /// What it yielded.
    Yield = 1 << 7,
    /// Where it is in the source.
    Location = 1 << 8,
    /// How many frames enclose it.
    Depth = 1 << 9,
    /// How often it was entered.
    HitCount = 1 << 10,
    /// Whether its source is of no interest.
    BlackBoxed = 1 << 11,
}

impl TraceType {
    /// All, in the order in which they are told.
    pub const ALL: [TraceType; 12] = [
        TraceType::Name,
        TraceType::Callsite,
        TraceType::Time,
        TraceType::ParameterNames,
        TraceType::Arguments,
        TraceType::Return,
        TraceType::Throw,
        TraceType::Yield,
        TraceType::Location,
        TraceType::Depth,
        TraceType::HitCount,
        TraceType::BlackBoxed,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            TraceType::Name => "name",
            TraceType::Callsite => "callsite",
            TraceType::Time => "time",
            TraceType::ParameterNames => "parameterNames",
            TraceType::Arguments => "arguments",
            TraceType::Return => "return",
            TraceType::Throw => "throw",
            TraceType::Yield => "yield",
            TraceType::Location => "location",
            TraceType::Depth => "depth",
            TraceType::HitCount => "hitCount",
            TraceType::BlackBoxed => "blackBoxed",
        }
    }
}

/// There is no such trace type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no trace type '{0}'")]
pub struct NoSuchTraceType(pub String);

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTypes(u16);

impl TraceTypes {
    /// None.
    pub const NONE: TraceTypes = TraceTypes(0);
    /// All that there are.
    pub const ALL: TraceTypes = TraceTypes((1 << TraceType::ALL.len()) - 1);

    /// Those that the specification names.
    pub const SPECIFIED: TraceTypes = TraceTypes((1 << 8) - 1);

    /// With one more.
    #[must_use]
    pub fn with(self, one: TraceType) -> TraceTypes {
        TraceTypes(self.0 | one as u16)
    }

    /// Those of both.
    #[must_use]
    pub fn union(self, other: TraceTypes) -> TraceTypes {
        TraceTypes(self.0 | other.0)
    }

    /// Whether one is among them.
    pub fn has(self, one: TraceType) -> bool {
        self.0 & one as u16 != 0
    }

    /// Those of these names.
    pub fn read<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<TraceTypes, NoSuchTraceType> {
        names.into_iter().try_fold(TraceTypes::NONE, |set, name| {
            let one = TraceType::ALL.into_iter().find(|it| it.name() == name);
            let one = one.ok_or_else(|| NoSuchTraceType(name.to_owned()))?;
            Ok(set.with(one))
        })
    }

    /// Their names, in the order in which they are told.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = TraceType::ALL.into_iter();
        all.filter(move |one| self.has(*one)).map(TraceType::name)
    }
}

impl Serialize for TraceTypes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for name in self.names() {
            list.serialize_element(name)?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_what_they_are() {
        let all = TraceTypes::read(TraceTypes::ALL.names());
        assert_eq!(all, Ok(TraceTypes::ALL));
        assert_eq!(TraceTypes::ALL.names().count(), 12);
        let some = TraceTypes::read(["time", "name", "time"]).unwrap();
        assert_eq!(some.names().collect::<Vec<_>>(), ["name", "time"]);
        assert_eq!(TraceTypes::read([]), Ok(TraceTypes::NONE));
        let specified: Vec<_> = TraceTypes::SPECIFIED.names().collect();
        assert_eq!(
            (specified[0], specified[7], specified.len()),
            ("name", "yield", 8)
        );
        assert_eq!(
            TraceTypes::read(["name", "Name"]),
            Err(NoSuchTraceType("Name".into()))
        );
    }
}
