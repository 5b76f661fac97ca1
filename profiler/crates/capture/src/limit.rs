//! Limits as people write them: `10m` and `1h` are times, `512M` and `1G` sizes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use profiler_model::text::parse_duration;

/// How much a ring keeps, or when the next file is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many bytes of files.
    Bytes(u64),
    /// So much recorded time.
    Time(Duration),
}

/// Each unit with its size: seconds in lower case, bytes in upper case.
const TIMES: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86400)];
const SIZES: [(char, u64); 4] = [
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let wrong = || {
            format!(
                "{text:?} is no limit: a number with s, m, h or d is a time, \
                 with K, M, G or T (powers of 1024) a size, such as 10m or 1G"
            )
        };
        let unit = text.chars().last().ok_or_else(wrong)?;
        if unit.is_ascii_lowercase() {
            let time = parse_duration(text).ok().filter(|time| !time.is_zero());
            return time.map(Limit::Time).ok_or_else(wrong);
        }
        let (_, size) = SIZES
            .into_iter()
            .find(|&(name, _)| name == unit)
            .ok_or_else(wrong)?;
        let number = text.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
        let bytes = number.filter(|&n| n > 0).and_then(|n| n.checked_mul(size));
        bytes.map(Limit::Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, units) = match self {
            Limit::Bytes(bytes) => (*bytes, SIZES),
            Limit::Time(time) => (time.as_secs(), TIMES),
        };
        let fits = |&&(_, size): &&(char, u64)| number >= size && number % size == 0;
        match units.iter().rev().find(fits) {
            Some((name, size)) => write!(f, "{}{name}", number / size),
            None => write!(f, "{number} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_whether_it_is_a_time() {
        assert_eq!("10m".parse(), Ok(Limit::Time(Duration::from_secs(600))));
        assert_eq!("10M".parse(), Ok(Limit::Bytes(10 << 20)));
        assert_eq!("1G".parse(), Ok(Limit::Bytes(1 << 30)));
        for wrong in [
            "",
            "m",
            "10",
            "0s",
            "-1s",
            "1x",
            "99999999999999999999T",
            "1ü",
            "1.5G",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_prints_as_it_is_written() {
        for text in ["10m", "1h", "90s", "2d", "1G", "1536M"] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
    }
}
