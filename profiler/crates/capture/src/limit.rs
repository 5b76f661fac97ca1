//! Limits as people write them: `10m` and `1h` are times, `512M` and `1G` sizes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use profiler_model::text::parse_duration;

/// How much a ring keeps, or when the next file is started: whichever is reached first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// So many bytes of files.
    pub bytes: Option<u64>,
    /// So much recorded time.
    pub time: Option<Duration>,
}

impl Limit {
    /// So many bytes of files.
    pub fn of_bytes(bytes: u64) -> Limit {
        Limit {
            bytes: Some(bytes),
            time: None,
        }
    }

    /// So much recorded time.
    pub fn of_time(time: Duration) -> Limit {
        Limit {
            bytes: None,
            time: Some(time),
        }
    }
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
        let mut limit = Limit::default();
        for part in text.split(',') {
            let twice = match one(part)? {
                One::Bytes(bytes) => limit.bytes.replace(bytes).is_some(),
                One::Time(time) => limit.time.replace(time).is_some(),
            };
            if twice {
                return Err(format!(
                    "{text:?} has two limits of one kind: give a time, a size, or one of each, such as 1h,2G"
                ));
            }
        }
        Ok(limit)
    }
}

enum One {
    Bytes(u64),
    Time(Duration),
}

fn one(text: &str) -> Result<One, String> {
    let wrong = || {
        format!(
            "{text:?} is no limit: a number with s, m, h or d is a time, \
             with K, M, G or T (powers of 1024) a size, such as 10m or 1G, or both: 1h,2G"
        )
    };
    let unit = text.chars().last().ok_or_else(wrong)?;
    if unit.is_ascii_lowercase() {
        let time = parse_duration(text).ok().filter(|time| !time.is_zero());
        return time.map(One::Time).ok_or_else(wrong);
    }
    let (_, size) = SIZES
        .into_iter()
        .find(|&(name, _)| name == unit)
        .ok_or_else(wrong)?;
    let number = text.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
    let bytes = number.filter(|&n| n > 0).and_then(|n| n.checked_mul(size));
    bytes.map(One::Bytes).ok_or_else(wrong)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time.map(|time| written(time.as_secs(), TIMES));
        let bytes = self.bytes.map(|bytes| written(bytes, SIZES));
        let parts: Vec<String> = time.into_iter().chain(bytes).collect();
        f.write_str(&parts.join(","))
    }
}

fn written(number: u64, units: [(char, u64); 4]) -> String {
    let fits = |&&(_, size): &&(char, u64)| number >= size && number.is_multiple_of(size);
    match units.iter().rev().find(fits) {
        Some((name, size)) => format!("{}{name}", number / size),
        None => format!("{number} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_whether_it_is_a_time() {
        assert_eq!("10m".parse(), Ok(Limit::of_time(Duration::from_secs(600))));
        assert_eq!("10M".parse(), Ok(Limit::of_bytes(10 << 20)));
        assert_eq!("1G".parse(), Ok(Limit::of_bytes(1 << 30)));
        let both = Limit {
            bytes: Some(2 << 30),
            time: Some(Duration::from_secs(3600)),
        };
        assert_eq!("1h,2G".parse(), Ok(both));
        assert_eq!("2G,1h".parse(), Ok(both));
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
            "1h,",
            "1h,2m",
            "1G,1h,1G",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_prints_as_it_is_written() {
        for text in ["10m", "1h", "90s", "2d", "1G", "1536M", "1h,2G"] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
    }
}
