//! Very many containers, as far as a profiler can tell: cgroups with a process each, and the files in which
//! Docker keeps what it knows of its containers. No engine runs them.
//!
//! The files are seen in a mount namespace of their own, where they lie in Docker's usual place, so that an
//! engine of the machine is not touched.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Cgroup, Processes, hierarchies};

/// Where Docker keeps its data.
const DATA: &str = "/var/lib/docker";

/// The containers.
pub(super) struct ManyContainers {
    ids: Vec<String>,
    // The order in which they go: processes, then their cgroups.
    _processes: Processes,
    _cgroups: Vec<Cgroup>,
    place: Place,
}

/// A mount namespace in which `data` is Docker's; it lives as long as the process that holds it.
struct Place {
    holder: Child,
    data: PathBuf,
    /// Whether we made the folder that is covered.
    made: bool,
}

impl ManyContainers {
    /// So many containers; their files are kept below `folder`.
    pub(super) fn new(count: usize, folder: &Path) -> io::Result<ManyContainers> {
        let data = folder.join("docker");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        fs::create_dir_all(data.join("containers"))?;
        let mut many = ManyContainers {
            ids: (0..count).map(id).collect(),
            _processes: Processes::default(),
            _cgroups: Vec::new(),
            place: Place::new(data)?,
        };
        // The parent goes last; it stays if an engine of the machine uses it.
        let mounts = hierarchies()?;
        for index in 0..count {
            let child = Command::new("sleep").arg("1000000").spawn()?;
            let pid = child.id();
            many._processes.0.push(child);
            many.write(index, pid)?;
            for (mount, _) in &mounts {
                let cgroup = Cgroup::new(mount.join("docker").join(&many.ids[index]))?;
                // That of a set of processors takes none before it is told which.
                if cgroup.add(pid).is_err() && !mount.ends_with("cpuset") {
                    return Err(io::Error::other(format!(
                        "{} takes no process",
                        cgroup.0.display()
                    )));
                }
                many._cgroups.push(cgroup);
            }
        }
        for (mount, _) in mounts {
            many._cgroups.push(Cgroup(mount.join("docker")));
        }
        Ok(many)
    }

    /// Name of one of them.
    pub(super) fn name(index: usize) -> String {
        format!("service-{index}")
    }

    /// Their ids.
    pub(super) fn ids(&self) -> &[String] {
        &self.ids
    }

    /// A command that is run where Docker's files are those of these containers.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.place.holder.id());
        command.args([&namespace, "--"]).arg(program);
        command
    }

    /// Writes what Docker 20.10 writes of a container, as far as it says what the container is.
    fn write(&self, index: usize, pid: u32) -> io::Result<()> {
        let id = &self.ids[index];
        let folder = self.place.data.join("containers").join(id);
        fs::create_dir(&folder)?;
        let environment: Vec<String> = (0..20)
            .map(|index| format!("SETTING_{index}=a value of about forty characters, as usual"))
            .collect();
        let text = serde_json::json!({
            "StreamConfig": {},
            "State": {
                "Running": true, "Paused": false, "Restarting": false, "Pid": pid, "ExitCode": 0,
                "StartedAt": "2024-01-01T00:00:00.000000000Z",
            },
            "ID": id,
            "Created": "2024-01-01T00:00:00.000000000Z",
            "Path": "/bin/sleep",
            "Args": ["1000000"],
            "Config": {
                "Hostname": &id[..12],
                "Env": environment,
                "Image": format!("registry.example/team/service:{}", index % 50),
                "Labels": { "com.example.team": "a team" },
            },
            "Image": format!("sha256:{id}"),
            "Name": format!("/{}", ManyContainers::name(index)),
            "Driver": "overlay2",
        });
        fs::write(folder.join("config.v2.json"), text.to_string())
    }
}

impl Place {
    fn new(data: PathBuf) -> io::Result<Place> {
        let made = !Path::new(DATA).exists();
        fs::create_dir_all(DATA)?;
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg("mount --bind \"$0\" \"$1\" && echo ready && read end")
            .arg(&data)
            .arg(DATA)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = holder.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let place = Place { holder, data, made };
        match line.trim() {
            "ready" => Ok(place),
            _ => Err(io::Error::other("no mount namespace for Docker's files")),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        if self.made {
            let _ = fs::remove_dir(DATA);
        }
        let _ = fs::remove_dir_all(&self.data);
    }
}

/// An id of 64 digits, of which no two begin alike.
fn id(index: usize) -> String {
    let mut state = index as u64;
    let mut text = String::new();
    for _ in 0..4 {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        text.push_str(&format!("{:016x}", mixed ^ (mixed >> 31)));
    }
    text
}
