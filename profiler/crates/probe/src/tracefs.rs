//! tracefs: a tracepoint's name -> its number and the layout of its record.
//!
//! Uses the mount at its usual place, else a private one that ends with the process; nothing is
//! left behind on the machine.

use std::{fs::File, io, io::Read, os::fd::OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::{ProbeError, sys};
use crate::privileges::{CapabilitySet, effective, lacking, remedy};

/// Longest file read: a format file has a few KiB.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// An open tracefs.
pub(super) struct Tracefs(OwnedFd);

impl Tracefs {
    /// The mounted tracefs, if it can be read.
    pub(super) fn mounted() -> io::Result<Tracefs> {
        let mut refused = None;
        for path in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            // An unmounted one is an empty directory.
            let opened = rustix::fs::open(path, flags, Mode::empty()).and_then(|dir| {
                openat(&dir, "events", flags, Mode::empty())?;
                Ok(dir)
            });
            match opened {
                Ok(dir) => return Ok(Tracefs(dir)),
                // Says more than that the other place is empty.
                Err(rustix::io::Errno::ACCESS) => refused = Some(rustix::io::Errno::ACCESS),
                Err(_) => {}
            }
        }
        Err(refused.unwrap_or(rustix::io::Errno::NOENT).into())
    }

    /// Opens the mounted tracefs, or mounts a private one.
    pub(super) fn open() -> Result<Tracefs, ProbeError> {
        let refused = match Tracefs::mounted() {
            Ok(tracefs) => return Ok(tracefs),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        // Mounting is no help to those who may not read what is mounted.
        if refused && !lacking(CapabilitySet::DAC_READ_SEARCH, effective()).is_empty() {
            return Err(unreadable("use tracepoints"));
        }
        sys::mount_tracefs().map(Tracefs).map_err(|error| {
            if error.raw_os_error() == Some(libc::ENODEV) {
                ProbeError::Unsupported {
                    action: "use tracepoints".to_owned(),
                    remedy: "it needs CONFIG_FTRACE and CONFIG_EVENT_TRACING".to_owned(),
                }
            } else if !lacking(CapabilitySet::SYS_ADMIN, effective()).is_empty() {
                ProbeError::Permission {
                    action: "mount tracefs".to_owned(),
                    remedy: format!(
                        "mount -t tracefs tracefs /sys/kernel/tracing, or {}",
                        remedy(CapabilitySet::SYS_ADMIN)
                    ),
                }
            } else {
                ProbeError::from_io(
                    "mount tracefs (or: mount -t tracefs tracefs /sys/kernel/tracing)",
                    error,
                )
            }
        })
    }

    /// The number of a tracepoint.
    pub(super) fn id(&self, category: &str, name: &str) -> Result<u64, ProbeError> {
        let text =
            self.read(&format!("events/{category}/{name}/id"))
                .map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => ProbeError::Request(format!(
                        "no tracepoint {category}:{name} in this kernel; \
                     /sys/kernel/tracing/available_events lists them"
                    )),
                    io::ErrorKind::PermissionDenied => {
                        unreadable(&format!("look up tracepoint {category}:{name}"))
                    }
                    _ => {
                        ProbeError::from_io(format!("look up tracepoint {category}:{name}"), error)
                    }
                })?;
        text.trim().parse().map_err(|_| {
            ProbeError::Request(format!(
                "the kernel gives tracepoint {category}:{name} no number"
            ))
        })
    }

    /// Offset in bytes of a field of a tracepoint's record.
    pub(super) fn field_offset(
        &self,
        category: &str,
        name: &str,
        field: &str,
    ) -> Result<u32, ProbeError> {
        let action = || format!("read the format of tracepoint {category}:{name}");
        let text = self
            .read(&format!("events/{category}/{name}/format"))
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => unreadable(&action()),
                _ => ProbeError::from_io(action(), error),
            })?;
        offset_in_format(&text, field).ok_or_else(|| ProbeError::Unsupported {
            action: action(),
            remedy: format!("it has no field '{field}'; please report the kernel's version"),
        })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, path, flags, Mode::empty())?);
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }
}

/// tracefs is there, and its files are root's.
fn unreadable(action: &str) -> ProbeError {
    ProbeError::Permission {
        action: action.to_owned(),
        remedy: remedy(lacking(CapabilitySet::DAC_READ_SEARCH, effective())),
    }
}

/// Finds `field:TYPE NAME; offset:N; ...`.
fn offset_in_format(format: &str, field: &str) -> Option<u32> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        let declared = parts.next()?.trim().rsplit([' ', '\t']).next()?;
        let declared = declared.split('[').next()?;
        if declared != field {
            return None;
        }
        parts.find_map(|part| part.trim().strip_prefix("offset:")?.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: task_newtask\nID: 172\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\
        \tfield:unsigned long clone_flags;\toffset:32;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"pid=%d\", REC->pid\n";

    #[test]
    fn fields_are_found_by_their_names() {
        assert_eq!(offset_in_format(FORMAT, "pid"), Some(8));
        assert_eq!(offset_in_format(FORMAT, "comm"), Some(12));
        assert_eq!(offset_in_format(FORMAT, "clone_flags"), Some(32));
        assert_eq!(offset_in_format(FORMAT, "flags"), None);
    }
}
