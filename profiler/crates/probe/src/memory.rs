//! Memory that BPF maps take in the kernel, in bytes, as the kernel accounts it.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::maps::Map;

/// The descriptor of a map of our object.
pub(super) fn map_fd(map: &Map) -> Option<BorrowedFd<'_>> {
    let data = match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::CgroupArray(data)
        | Map::ArrayOfMaps(data)
        | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd())
}

/// What the kernel says that a map takes; 0 if it doesn't.
pub(super) fn locked_bytes(fd: BorrowedFd<'_>) -> u64 {
    let fd = fd.as_raw_fd();
    let Ok(info) = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) else {
        return 0;
    };
    info.lines()
        .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
        .unwrap_or(0)
}
