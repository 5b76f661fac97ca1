//! Quantities as people read them: durations, counts, bytes, shares, dates.
//!
//! Input: nanoseconds, counts, bytes, fractions; output: short text with a unit. Dates are UTC, so
//! that a report is the same wherever it is made.

use profiler_model::Unit;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// A duration with three significant digits: `870 ns`, `30.0 ms`, `12.3 s`, `2 min 03 s`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..US => format!("{ns} ns"),
        US..MS => scaled(ns, US, "us"),
        MS..S => scaled(ns, MS, "ms"),
        _ if ns / S < 100 => scaled(ns, S, "s"),
        _ => {
            let seconds = ns / S;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            match hours {
                0 => format!("{minutes} min {seconds:02} s"),
                _ => format!("{hours} h {minutes:02} min"),
            }
        }
    }
}

fn scaled(value: u64, unit: u64, name: &str) -> String {
    let value = value as f64 / unit as f64;
    format!("{} {name}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A count in full, in groups of three: `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A large count with three significant digits: `950`, `12.3 k`, `4.56 M`.
pub fn short_count(value: u64) -> String {
    match value {
        0..10_000 => count(value),
        10_000..1_000_000 => scaled(value, 1_000, "k"),
        1_000_000..1_000_000_000 => scaled(value, 1_000_000, "M"),
        _ => scaled(value, 1_000_000_000, "G"),
    }
}

/// A size: `512 B`, `1.50 MiB`.
pub fn bytes(value: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match value {
        0..KIB => format!("{value} B"),
        KIB..MIB => scaled(value, KIB, "KiB"),
        MIB..GIB => scaled(value, MIB, "MiB"),
        _ => scaled(value, GIB, "GiB"),
    }
}

/// A weight in the unit of its source.
pub fn weight(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds => duration(value),
        Unit::Cycles | Unit::Events => short_count(value),
    }
}

/// A share: `12.3%`, `<0.1%` for what is there but rounds to nothing, `-` for nothing.
pub fn percent(value: f64) -> String {
    match value {
        0.0 => "-".to_owned(),
        v if v > 0.0 && v < 0.05 => "<0.1%".to_owned(),
        v => format!("{v:.1}%"),
    }
}

/// `part` of `whole` in percent; 0 of nothing.
pub fn percent_of(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}

/// `1 sample`, `2 samples`.
pub fn plural(value: u64, one: &str) -> String {
    let end = if value == 1 { "" } else { "s" };
    format!("{} {one}{end}", count(value))
}

/// A date and time of day in UTC: `2023-11-14 22:13:20`.
pub fn date_utc(realtime_ns: u64) -> String {
    let seconds = realtime_ns / S;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month, day of a day counted from 1970-01-01 (proleptic Gregorian calendar).
fn civil(day: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // 400 years always have the same number of days.
    let mut year = 1970 + day / 146_097 * 400;
    let mut rest = day % 146_097;
    loop {
        let days = if leap(year) { 366 } else { 365 };
        if rest < days {
            break;
        }
        rest -= days;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < days {
            break;
        }
        rest -= days;
        month += 1;
    }
    (year, month, rest + 1)
}

/// So many times of functions and processes, which may be at the same time: how long there was any.
pub fn gaps(count: u64, ns: u64) -> String {
    match count {
        1 => format!("1 gap of {}", duration(ns)),
        n => format!("{} in {} of the time", plural(n, "gap"), duration(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (30_030_030, "30.0 ms"),
            (999_600_000, "1000 ms"),
            (1_230_000_000, "1.23 s"),
            (99_000_000_000, "99.0 s"),
            (123_000_000_000, "2 min 03 s"),
            (3_725_000_000_000, "1 h 02 min"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn counts_and_sizes() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(short_count(9_999), "9,999");
        assert_eq!(short_count(12_345), "12.3 k");
        assert_eq!(bytes(1_572_864), "1.50 MiB");
        assert_eq!(plural(1, "sample"), "1 sample");
        assert_eq!(plural(2_000, "sample"), "2,000 samples");
    }

    #[test]
    fn shares() {
        assert_eq!(percent(percent_of(1, 3)), "33.3%");
        assert_eq!(percent(0.01), "<0.1%");
        assert_eq!(percent(percent_of(0, 0)), "-");
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date_utc(seconds * S), text);
        }
    }
}
