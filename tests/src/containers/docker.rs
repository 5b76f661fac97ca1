//! A dockerd of our own, with a containerd of our own, below one scratch folder.
//!
//! One shell supervises both and ends them in order when its standard input ends: so they end even if
//! the test is killed. Storage is overlay2, or vfs where that can't be had.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::leftovers::{self, Marks};
use super::{Root, missing, run};
use crate::process::Running;
use crate::setting::Setting;
use crate::skip::skip;
use crate::workload;

use rustix::fs::{FlockOperation, flock};

/// How long the daemons may take to start, and to end.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);

/// Folder, storage driver -> both daemons, until standard input or dockerd ends. A system's own
/// containerd would be used if dockerd were not told of this one.
const SUPERVISOR: &str = r#"
exec 3<&0 </dev/null
containerd --config "$1/containerd.toml" 3<&- >"$1/containerd.log" 2>&1 &
containerd=$!
until [ -S "$1/containerd.sock" ]; do kill -0 $containerd || exit 1; sleep 0.02; done
dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/dockerd.pid" \
    --host "unix://$1/docker.sock" --containerd "$1/containerd.sock" \
    --iptables=false --ip6tables=false --bridge=none --shutdown-timeout 1 --storage-driver "$2" \
    3<&- >"$1/dockerd.log" 2>&1 &
dockerd=$!
(read line <&3; kill $dockerd) &
reader=$!
wait $dockerd
status=$?
kill $reader $containerd 2>/dev/null
wait $containerd
exit $status
"#;

/// An engine that runs.
pub struct Docker {
    folder: PathBuf,
    supervisor: Option<Running>,
    /// Ids of all its containers.
    ids: RefCell<Vec<String>>,
    _turn: fs::File,
}

impl Docker {
    /// Starts one for `test`; none if it is not installed, and then says so.
    ///
    /// There is but one at a time: others wait here.
    pub fn start(_setting: &Setting, test: &str) -> io::Result<Option<Docker>> {
        if let Some(why) = missing(&["dockerd", "docker", "containerd", "runc"]) {
            skip(test, &why);
            return Ok(None);
        }
        let turn = fs::File::create(workload::folder().join(".docker"))?;
        flock(&turn, FlockOperation::LockExclusive)?;
        // Not below the setting's folder, whose name is long: the paths of sockets must be short.
        let folder = std::env::temp_dir().join(format!("profiler-docker-{}", std::process::id()));
        let mut failed = String::new();
        for storage in ["overlay2", "vfs"] {
            fs::create_dir_all(&folder)?;
            let mut docker = Docker {
                folder: folder.clone(),
                supervisor: None,
                ids: RefCell::default(),
                _turn: turn.try_clone()?,
            };
            match docker.supervise(storage) {
                Ok(()) => return Ok(Some(docker)),
                Err(error) => {
                    failed = format!("{failed} {storage}: {error}");
                    for log in ["containerd.log", "dockerd.log"] {
                        let text = fs::read_to_string(folder.join(log)).unwrap_or_default();
                        let last: Vec<&str> = text.lines().rev().take(3).collect();
                        failed = format!("{failed}; {log}: {}", last.join(" | "));
                    }
                }
            }
            drop(docker);
        }
        Err(io::Error::other(format!("no dockerd: {failed}")))
    }

    fn supervise(&mut self, storage: &str) -> io::Result<()> {
        let folder = &self.folder;
        let at = folder.display();
        fs::write(
            folder.join("containerd.toml"),
            format!(
                "version = 2\nroot = \"{at}/containerd\"\nstate = \"{at}/containerd-state\"\n\
                 disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
                 [grpc]\naddress = \"{at}/containerd.sock\"\n"
            ),
        )?;
        let mut command = Command::new("sh");
        command
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(folder)
            .arg(storage)
            .current_dir(folder)
            .stdin(Stdio::piped())
            // Ctrl-C is the test's, which then ends this in order.
            .process_group(0);
        let running = self
            .supervisor
            .insert(Running::start(&mut command, folder, "supervisor")?);
        let socket = self.folder.join("docker.sock");
        running.wait_until("starting dockerd", START_LIMIT, |_| {
            UnixStream::connect(&socket).is_ok()
        })
    }

    /// The folder that all of it is below.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its address, as DOCKER_HOST has it.
    pub fn host(&self) -> String {
        format!("unix://{}/docker.sock", self.folder.display())
    }

    /// Where its data are: elsewhere /var/lib/docker.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Runs `docker` with these arguments; it must succeed. Gives its output without the last newline.
    pub fn command(&self, arguments: &[&str]) -> io::Result<String> {
        let mut command = self.docker(arguments);
        let ended = run(&mut command, &self.folder, "docker")?;
        // For whoever looks into a failure.
        eprint!("{}", ended.stderr);
        Ok(ended.stdout.trim_end().to_owned())
    }

    /// Makes an image of a container's files.
    pub fn image(&self, name: &str, root: &Root) -> io::Result<()> {
        let archive = self.folder.join("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(root.folder()).arg("-cf").arg(&archive);
        run(tar.arg("."), &self.folder, "tar")?;
        self.command(&["import", &archive.to_string_lossy(), name])?;
        fs::remove_file(archive)
    }

    /// Starts a container of an image without network; gives its id. `options` are those of
    /// `docker run`.
    pub fn run(
        &self,
        name: &str,
        options: &[&str],
        image: &str,
        command: &[&str],
    ) -> io::Result<String> {
        let mut arguments = vec!["run", "--detach", "--network", "none", "--name", name];
        arguments.extend(options);
        arguments.push(image);
        arguments.extend(command);
        let id = self.command(&arguments)?;
        self.ids.borrow_mut().push(id.clone());
        Ok(id)
    }

    /// Runs a container of an image to its end and removes it; gives what it said.
    pub fn run_to_end(&self, name: &str, image: &str, command: &[&str]) -> io::Result<String> {
        let file = self.folder.join(format!("{name}.id"));
        let path = file.to_string_lossy();
        let mut arguments = vec!["run", "--rm", "--network", "none", "--name", name];
        arguments.extend(["--cidfile", &path, image]);
        arguments.extend(command);
        let output = self.command(&arguments);
        if let Ok(id) = fs::read_to_string(&file) {
            self.ids.borrow_mut().push(id.trim().to_owned());
            fs::remove_file(&file)?;
        }
        output
    }

    /// The first process of a container, as the host sees it.
    pub fn pid(&self, name: &str) -> io::Result<u32> {
        let text = self.command(&["inspect", "--format", "{{.State.Pid}}", name])?;
        match text.parse() {
            Ok(pid) if pid > 0 => Ok(pid),
            _ => Err(io::Error::other(format!("{name} does not run"))),
        }
    }

    /// What a container has said in all its lives.
    pub fn logs(&self, name: &str) -> io::Result<String> {
        self.command(&["logs", name])
    }

    /// Waits for the end of a container, which must be a success; gives what it said.
    pub fn end(&self, name: &str) -> io::Result<String> {
        let status = self.command(&["wait", name])?;
        let output = self.logs(name)?;
        if status == "0" {
            Ok(output)
        } else {
            Err(io::Error::other(format!(
                "{name} ended with {status}: {output}"
            )))
        }
    }

    fn docker(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .args(arguments)
            .env("DOCKER_HOST", self.host())
            // Neither contexts nor plugins of the user.
            .env("DOCKER_CONFIG", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// Ends all of it; gives what it left behind.
    fn finish(&mut self) -> io::Result<Vec<String>> {
        let Some(mut supervisor) = self.supervisor.take() else {
            return Ok(Vec::new());
        };
        let mut left = Vec::new();
        if !supervisor.has_ended()? {
            // Killed at once, where the end of the engine would ask each and wait.
            let all = self.command(&["ps", "--all", "--quiet", "--no-trunc"])?;
            if !all.is_empty() {
                let mut arguments = vec!["rm", "--force", "--volumes"];
                arguments.extend(all.lines());
                self.command(&arguments)?;
            }
        }
        drop(supervisor.stdin());
        if let Err(error) = supervisor.end(END_LIMIT) {
            left.push(error.to_string());
        }
        let ids = self.ids.take();
        let marks = Marks {
            folder: &self.folder,
            cgroups: &ids,
        };
        left.extend(leftovers::clear(&marks, Duration::from_secs(5)));
        // The parent of all containers of Docker. It is not empty if another engine has some.
        for hierarchy in leftovers::hierarchies() {
            let _ = fs::remove_dir(hierarchy.join("docker"));
        }
        // Kept for whoever looks into a failure.
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.folder)?;
        }
        Ok(left)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let left = match self.finish() {
            Ok(left) => left,
            Err(error) => vec![error.to_string()],
        };
        if !left.is_empty() && !std::thread::panicking() {
            panic!("left by dockerd: {}", left.join("; "));
        }
    }
}
