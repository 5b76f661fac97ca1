//! Markers: text that `profiler mark` puts into recordings that run.
//!
//! Each recording listens on a Unix datagram socket of its own, mode 0600, in a folder that only its
//! user can write to; who may write to the socket may mark. The text is untrusted: bounded, and
//! control characters are replaced.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Longest marker, in bytes.
pub const MAX_BYTES: usize = 4096;

/// The listening end; the socket's file goes with it.
#[derive(Debug)]
pub struct Marks {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Marks {
    /// Listens for markers to this process.
    pub fn listen() -> io::Result<Marks> {
        Marks::listen_in(&folder())
    }

    fn listen_in(folder: &Path) -> io::Result<Marks> {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check(folder)?,
            Err(error) => return Err(error),
        }
        let path = folder.join(format!("{}.sock", std::process::id()));
        // Left over from a process that had our id.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        Ok(Marks { socket, path })
    }

    /// The next marker that has come, if any.
    pub fn next(&self) -> Option<Box<str>> {
        let mut bytes = [0; MAX_BYTES];
        let len = self.socket.recv(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes[..len]);
        Some(
            text.chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect(),
        )
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        // What can't be removed is removed by the next `mark`.
        let _ = fs::remove_file(&self.path);
    }
}

/// Sends a marker to every recording of this user; returns how many there are.
pub fn send(text: &str) -> io::Result<usize> {
    send_in(&folder(), text)
}

fn send_in(folder: &Path, text: &str) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    check(folder)?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let mut sent = 0;
    for entry in entries {
        let path = entry?.path();
        match socket.send_to(text.as_bytes(), &path) {
            Ok(_) => sent += 1,
            // Its recording was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            Err(error) => log::warn!("{}: marker not sent: {error}", path.display()),
        }
    }
    Ok(sent)
}

/// A folder that another user could have put there is not used.
fn check(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && ours && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} is not a folder that only you can write to",
            folder.display()
        ),
    ))
}

fn folder() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/profiler");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => Path::new(&folder).join("profiler"),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("profiler-{uid}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("profiler-marks-{name}-{}", std::process::id()))
    }

    #[test]
    fn markers_reach_recordings_and_dead_sockets_go() {
        let folder = scratch("send");
        assert_eq!(send_in(&folder, "nobody hears").unwrap(), 0);
        let marks = Marks::listen_in(&folder).unwrap();
        let dead = folder.join("1.sock");
        drop(UnixDatagram::bind(&dead).unwrap());
        assert_eq!(send_in(&folder, "phase\n2").unwrap(), 1);
        assert!(!dead.exists());
        assert_eq!(marks.next().as_deref(), Some("phase 2"));
        assert_eq!(marks.next(), None);
        let path = marks.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(marks);
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let folder = scratch("open");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Marks::listen_in(&folder).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(folder).unwrap();
    }
}
