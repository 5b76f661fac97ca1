//! What can be set for an export, from `name=value` on a command line to typed values.
//!
//! A format declares its options as [`Setting`]s, each with help and a reader of its values, and asks [`Settings`] for
//! them by these. What does not belong here: which options there are (the formats; `collect` for those of folding).

use super::Format;

/// An option of a format whose values are of a type.
pub(super) struct Setting<T: 'static> {
    pub(super) help: OptionHelp,
    /// None: that is no value for it.
    pub(super) read: fn(&str) -> Option<T>,
}

/// One option of a format, for help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHelp {
    /// Its name.
    pub name: &'static str,
    /// What a value looks like.
    pub value: &'static str,
    /// What it does, and what holds without it.
    pub help: &'static str,
}

/// What a [`Setting`] is to those who don't know its type.
pub(super) trait Declared: Sync {
    fn help(&self) -> OptionHelp;
    fn accepts(&self, value: &str) -> bool;
}

impl<T> Declared for Setting<T> {
    fn help(&self) -> OptionHelp {
        self.help
    }

    fn accepts(&self, value: &str) -> bool {
        (self.read)(value).is_some()
    }
}

/// A format, and what was set for it. What was not is what the format does by itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The format.
    pub format: &'static Format,
    values: Vec<(&'static str, String)>,
}

/// A `name=value` that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// The format has no such option.
    #[error("format '{format}' has no option '{name}'; it has: {known}")]
    Unknown {
        /// The format.
        format: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The value can't be read.
    #[error("'{value}' is no value for option '{name}'; give {expected}")]
    Value {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl Settings {
    /// Nothing is set.
    pub fn new(format: &'static Format) -> Settings {
        Settings {
            format,
            values: Vec::new(),
        }
    }

    /// Sets an option of the format from text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadOption> {
        let mut options = self.format.options.iter();
        let Some(option) = options.find(|option| option.help().name == name) else {
            let known: Vec<_> = self.format.options().map(|option| option.name).collect();
            return Err(BadOption::Unknown {
                format: self.format.name,
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        let help = option.help();
        if !option.accepts(value) {
            return Err(BadOption::Value {
                name: help.name,
                value: value.to_owned(),
                expected: help.value,
            });
        }
        self.values.push((help.name, value.to_owned()));
        Ok(())
    }

    /// What an option was set to, the last time.
    pub(super) fn get<T>(&self, setting: &Setting<T>) -> Option<T> {
        let mut values = self.values.iter().rev();
        let (_, value) = values.find(|(name, _)| *name == setting.help.name)?;
        (setting.read)(value)
    }
}

/// Reads a value of an option that is on or off.
pub(super) fn yes(value: &str) -> Option<bool> {
    match value {
        "yes" | "true" | "1" | "" => Some(true),
        "no" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::by_name;

    const NUMBER: Setting<u32> = Setting {
        help: OptionHelp {
            name: "width",
            value: "PIXELS",
            help: "",
        },
        read: |value| value.parse().ok(),
    };

    #[test]
    fn values_are_read_and_checked() {
        let mut settings = Settings::new(by_name("svg").unwrap());
        assert_eq!(settings.get(&NUMBER), None);
        for (name, value) in [("width", "900"), ("min-width", "0.5"), ("width", "1500")] {
            settings.set(name, value).unwrap();
        }
        assert_eq!(settings.get(&NUMBER), Some(1500), "the last one counts");
        for (name, value) in [("width", "3"), ("min-width", "nan"), ("count", "x")] {
            let error = settings.set(name, value).unwrap_err();
            assert!(matches!(error, BadOption::Value { .. }), "{error}");
        }
        assert_eq!(
            settings.get(&NUMBER),
            Some(1500),
            "what is refused is not set"
        );
        let mut settings = Settings::new(by_name("folded").unwrap());
        let error = settings.set("width", "900").unwrap_err().to_string();
        assert!(
            error.contains("'width'") && error.contains("count"),
            "{error}"
        );
    }
}
