//! Processors that are online, come and go; what a map has for each.

use std::{fs, io, os::fd::BorrowedFd};

use zerocopy::FromBytes;

use super::{ProbeError, bpf};

const ONLINE: &str = "/sys/devices/system/cpu/online";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Most processors that a Linux kernel can be built for.
const MAX_CPUS: u32 = 8192;

/// Numbers of the processors that are online, ascending.
pub(super) fn online() -> Result<Vec<u32>, ProbeError> {
    read(ONLINE)
}

/// One more than the highest number that a processor can have.
pub(super) fn possible() -> Result<u32, ProbeError> {
    Ok(read(POSSIBLE)?.last().map_or(1, |last| last + 1))
}

/// Numbers of all processors that can ever be online, ascending: the order of values per processor
/// in maps.
pub(super) fn possible_cpus() -> Result<Vec<u32>, ProbeError> {
    read(POSSIBLE)
}

/// The values of a map per processor that has one key, in that order.
pub(super) fn values<V: FromBytes + Clone>(map: BorrowedFd<'_>) -> Result<Vec<V>, ProbeError> {
    let mut values = Vec::new();
    bpf::read_array(map, 0, 1, possible_cpus()?.len(), &mut values)
        .map_err(|error| ProbeError::from_io("read what processors have counted", error))?;
    Ok(values)
}

fn read(path: &str) -> Result<Vec<u32>, ProbeError> {
    let failed = |error| ProbeError::from_io(format!("read {path}"), error);
    let text = fs::read_to_string(path).map_err(failed)?;
    parse(text.trim()).ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidData)))
}

/// Parses `0-3,8,10-11`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "x", "3-1", "0-", "0-4294967295"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
