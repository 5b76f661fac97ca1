//! Real programs, each with a small load of some seconds that stays on this machine and ends by itself.
//!
//! A [`Program`] is started in a scratch folder; what it keeps running is ended, by its ids, when it is
//! dropped. One that is not installed gives the reason. What becomes of its samples does not belong
//! here.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program under load.
pub struct Program {
    /// All that was started, the program to be sampled and its load.
    children: Vec<Child>,
    /// Processes to sample, with their children.
    pub pids: Vec<u32>,
    /// Files that children will map, whose tables take a while.
    pub files: Vec<PathBuf>,
}

/// Starts a program with its load, which lasts for some seconds.
pub type Start = fn(&Path) -> io::Result<Option<Program>>;

/// Programs that are always there where the tests are built, or cheap to install.
pub const COMMON: &[(&str, Start)] = &[
    ("python3", python),
    ("git", git),
    ("gcc (cc1)", gcc),
    ("perl", perl),
    ("openssl", openssl),
    ("cargo (rustc)", rustc),
];

/// Servers and runtimes.
pub const MORE: &[(&str, Start)] = &[
    ("postgres", postgres),
    ("redis-server", redis),
    ("nginx", nginx),
    ("sshd", sshd),
    ("java -Xint", java_interpreted),
    ("java", java_compiled),
    ("node", node),
    ("node --interpreted-frames-native-stack", node_interpreted),
];

/// A load that begins when there is a file `go` in the folder.
const WAIT: &str = "while ! [ -e $GO ]; do sleep 0.05; done;";

/// How long a load lasts: of most programs thousands of samples.
const SECONDS: u64 = 2;

impl Program {
    fn new(child: Child) -> Program {
        let pids = vec![child.id()];
        Program {
            children: vec![child],
            pids,
            files: Vec::new(),
        }
    }

    /// Lets the load begin, if it waits.
    pub fn go(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join("go"), "")
    }

    /// Whether the load is over.
    pub fn is_over(&mut self) -> bool {
        let last = self.children.last_mut();
        last.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Each was started in a process group of its own: what it started goes with it.
            if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let signal = |signal| rustix::process::kill_process_group(group, signal);
                // Servers end their own children if they are asked to.
                let _ = signal(rustix::process::Signal::INT);
                let until = Instant::now() + Duration::from_secs(3);
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let _ = signal(rustix::process::Signal::KILL);
            }
            let _ = child.wait();
        }
    }
}

/// The first of these that is there.
fn found(paths: &[&str]) -> Option<PathBuf> {
    let mut paths = paths.iter().map(PathBuf::from);
    paths.find(|path| path.is_file())
}

/// Runs in this folder; it is told where it is said that a load may begin.
fn quiet(program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .env("GO", folder.join("go"))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn shell(script: &str, folder: &Path) -> io::Result<Child> {
    quiet("sh", folder).args(["-c", script]).spawn()
}

/// A port of the loopback that nobody listens at.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for_port(port: u16) -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn python(folder: &Path) -> io::Result<Option<Program>> {
    let Some(python) = found(&["/usr/bin/python3"]) else {
        return Ok(None);
    };
    let script = format!(
        "import json, os, re, sqlite3, time, zlib\n\
         while not os.path.exists(os.environ['GO']): time.sleep(0.05)\n\
         end = time.time() + {SECONDS}\n\
         def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n\
         class Key:\n    def __init__(self, n): self.n = n\n    def __lt__(self, other): return self.n < other.n\n\
         base = sqlite3.connect(':memory:')\n\
         base.create_function('twice', 1, lambda x: sum(range(x % 50)))\n\
         base.execute('create table t (a integer, b text)')\n\
         while time.time() < end:\n\
         \x20   fib(16)\n\
         \x20   sorted([Key(i * 7919 % 1009) for i in range(2000)])\n\
         \x20   text = json.dumps({{str(i): [i] * 5 for i in range(1000)}})\n\
         \x20   json.loads(text)\n\
         \x20   re.sub(r'(\\d+)', lambda m: m.group(1)[::-1], text)\n\
         \x20   zlib.compress(text.encode())\n\
         \x20   base.executemany('insert into t values (?, ?)', [(i, text[i:i+9]) for i in range(500)])\n\
         \x20   base.execute('select sum(twice(a)), max(b) from t group by a % 7').fetchall()\n"
    );
    let child = quiet(python, folder).args(["-c", &script]).spawn()?;
    Ok(Some(Program::new(child)))
}

fn git(folder: &Path) -> io::Result<Option<Program>> {
    let Some(git) = found(&["/usr/bin/git", "/usr/local/bin/git"]) else {
        return Ok(None);
    };
    // A repository of 400 commits, as a stream for fast-import.
    let repository = folder.join("repository");
    let mut stream = String::new();
    for commit in 1..=400_u32 {
        use std::fmt::Write;
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter T <t@example.org> {} +0000\ndata 5\nwork\n\n",
            1_600_000_000 + commit
        );
        for file in 0..20_u32 {
            let line = format!("line {} of {file}\n", commit * 31 % (file + 7));
            let text = line.repeat((commit % 40 + file) as usize + 1);
            let name = format!("d{}/f{}", file % 4, file);
            let _ = write!(stream, "M 644 inline {name}\ndata {}\n{text}\n", text.len());
        }
    }
    fs::write(folder.join("stream"), stream)?;
    let made = quiet(&git, folder)
        .args(["init", "-q"])
        .arg(&repository)
        .status()?;
    let import = quiet(&git, &repository)
        .args(["fast-import", "--quiet"])
        .stdin(fs::File::open(folder.join("stream"))?)
        .status()?;
    if !made.success() || !import.success() {
        return Err(io::Error::other("git makes no repository"));
    }
    let script = format!(
        "{WAIT} cd repository; end=$(($(date +%s) + {SECONDS})); while [ $(date +%s) -lt $end ]; do \
         {0} log -p --stat -M HEAD | cat; {0} repack -adfq --window=50; {0} blame d1/f5 | cat; \
         {0} fsck --full; {0} rev-list --objects --all | cat; done",
        git.display()
    );
    Ok(Some(Program::new(shell(&script, folder)?)))
}

fn gcc(folder: &Path) -> io::Result<Option<Program>> {
    if found(&["/usr/bin/gcc"]).is_none() {
        return Ok(None);
    }
    let mut source = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for number in 0..1500 {
        use std::fmt::Write;
        let _ = writeln!(
            source,
            "int f{number}(int *p, int n) {{ int s = {number}; for (int i = 0; i < n; i++) {{ \
             if (p[i] % {} == 0) s += p[i] * i; else s ^= p[n - i - 1]; \
             switch (s & 7) {{ case 1: s += n; break; case 3: printf(\"%d\", s); break; \
             case 5: p[i] = s; }} }} return s; }}",
            number % 13 + 2
        );
    }
    fs::write(folder.join("large.c"), source)?;
    let script = format!(
        "{WAIT} end=$(($(date +%s) + {SECONDS})); while [ $(date +%s) -lt $end ]; do \
         timeout {SECONDS} gcc -O2 -c large.c -o large.o; done"
    );
    let mut program = Program::new(shell(&script, folder)?);
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1").output()?;
    program.files = vec![String::from_utf8_lossy(&compiler.stdout).trim().into()];
    Ok(Some(program))
}

fn perl(folder: &Path) -> io::Result<Option<Program>> {
    let Some(perl) = found(&["/usr/bin/perl"]) else {
        return Ok(None);
    };
    let script = format!(
        "select(undef, undef, undef, 0.05) until -e $ENV{{GO}}; my $end = time + {SECONDS}; sub f {{ my $n = shift; $n < 2 ? $n : f($n-1) + f($n-2) }} \
         while (time < $end) {{ f(15); my %h = map {{ $_ => $_ * 2 }} 1..2000; \
         my @s = sort {{ $h{{$a}} <=> $h{{$b}} }} keys %h; my $t = join ',', @s; \
         $t =~ s/(\\d+)/length($1)/ge; sprintf('%s %d', $t, $#s); }}"
    );
    let child = quiet(perl, folder).args(["-e", &script]).spawn()?;
    Ok(Some(Program::new(child)))
}

fn openssl(folder: &Path) -> io::Result<Option<Program>> {
    let Some(openssl) = found(&["/usr/bin/openssl"]) else {
        return Ok(None);
    };
    // Mostly assembly written by hand.
    let names = [
        "sha256",
        "aes-128-cbc",
        "rsa2048",
        "ecdsap256",
        "chacha20-poly1305",
    ];
    let openssl = openssl.display();
    let speeds = names.map(|name| {
        let evp = if name.contains('-') { "-evp " } else { "" };
        format!("{openssl} speed -seconds 1 {evp}{name}")
    });
    Ok(Some(Program::new(shell(&speeds.join("; "), folder)?)))
}

fn rustc(folder: &Path) -> io::Result<Option<Program>> {
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let cargo = cargo.or_else(|| found(&[&format!("{home}/.cargo/bin/cargo")]));
    let Some(cargo) = cargo else {
        return Ok(None);
    };
    let package = folder.join("package");
    fs::create_dir_all(package.join("src"))?;
    fs::write(
        package.join("Cargo.toml"),
        "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    let mut source = String::from("use std::collections::BTreeMap;\n");
    for number in 0..300 {
        use std::fmt::Write;
        let _ = writeln!(
            source,
            "pub fn f{number}(v: &[u32]) -> BTreeMap<String, Vec<u64>> {{ let mut m = \
             BTreeMap::new(); for x in v.iter().filter(|x| **x % {} == 0) {{ \
             m.entry(format!(\"{{x}}\")).or_insert_with(Vec::new).push(u64::from(*x)); }} m }}",
            number % 17 + 2
        );
    }
    fs::write(package.join("src/lib.rs"), source)?;
    let script = format!(
        "{WAIT} cd package; {} build --release --offline -q",
        cargo.display()
    );
    let mut program = Program::new(shell(&script, folder)?);
    let library = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()?;
    let library = PathBuf::from(String::from_utf8_lossy(&library.stdout).trim()).join("lib");
    for entry in fs::read_dir(library)? {
        program.files.push(entry?.path());
    }
    Ok(Some(program))
}

fn postgres(folder: &Path) -> io::Result<Option<Program>> {
    let bin = ["/usr/local/bin", "/usr/lib/postgresql/15/bin"];
    let Some(bin) = bin
        .iter()
        .find(|bin| Path::new(bin).join("postgres").is_file())
    else {
        return Ok(None);
    };
    // It does not run as root.
    let data = folder.join("data");
    fs::create_dir_all(&data)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    let nobody = |program: &str| {
        let mut command = quiet("setpriv", folder);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(format!("{bin}/{program}")).env("TZ", "UTC");
        command
    };
    std::os::unix::fs::chown(&data, Some(65534), Some(65534))?;
    let made = nobody("initdb")
        .args(["--no-sync", "-A", "trust", "-U", "test", "-D"])
        .arg(&data)
        .status()?;
    if !made.success() {
        return Err(io::Error::other("initdb fails"));
    }
    // In single-user mode: the executor and the planner without a client.
    let mut script = String::from(
        "create table t as select g as a, md5(g::text) as b from generate_series(1, 30000) g;\n\
         create index on t (b);\nanalyze t;\n",
    );
    for _ in 0..40 {
        script.push_str(
            "select count(*), max(x.b) from t x join t y on x.a = y.a % 1000 where x.b like '%a%' group by x.a % 10;\n\
             with recursive r(n) as (select 1 union all select n + 1 from r where n < 20000) select sum(n) from r;\n\
             select count(*) from (select b, row_number() over (partition by a % 100 order by b desc) from t) s;\n\
             update t set b = md5(b) where a % 50 = 0;\n",
        );
    }
    fs::write(folder.join("script"), script)?;
    let child = nobody("postgres")
        .args(["--single", "-D"])
        .arg(&data)
        .arg("postgres")
        .stdin(fs::File::open(folder.join("script"))?)
        .spawn()?;
    Ok(Some(Program::new(child)))
}

fn redis(folder: &Path) -> io::Result<Option<Program>> {
    let (server, load) = ("/usr/bin/redis-server", "/usr/bin/redis-benchmark");
    if found(&[server]).is_none() || found(&[load]).is_none() {
        return Ok(None);
    }
    let port = free_port()?.to_string();
    let child = quiet(server, folder)
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port])
        .spawn()?;
    let mut program = Program::new(child);
    wait_for_port(port.parse().map_err(io::Error::other)?)?;
    let load = format!(
        "end=$(($(date +%s) + {SECONDS})); while [ $(date +%s) -lt $end ]; do \
         {load} -q -p {port} -n 20000 -r 1000 -t set,get,lpush,zadd,sadd,lrange_300; \
         {load} -q -p {port} -n 300 eval 'local t = {{}} for i = 1, 500 do t[i] = tostring(i) end \
         return table.concat(t)' 0; done"
    );
    program.children.push(shell(&load, folder)?);
    Ok(Some(program))
}

fn nginx(folder: &Path) -> io::Result<Option<Program>> {
    let Some(nginx) = found(&["/usr/sbin/nginx"]) else {
        return Ok(None);
    };
    let port = free_port()?;
    fs::write(folder.join("page.html"), "text ".repeat(4000))?;
    fs::write(
        folder.join("nginx.conf"),
        format!(
            "daemon off; user root; worker_processes 1; pid {0}/nginx.pid; error_log {0}/error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log {0}/access.log; gzip on; gzip_min_length 1; gzip_types text/html;\n\
             server {{ listen 127.0.0.1:{port}; root {0}; rewrite ^/x/(.*)$ /page.html; }} }}\n",
            folder.display()
        ),
    )?;
    let child = quiet(nginx, folder)
        .arg("-c")
        .arg(folder.join("nginx.conf"))
        .arg("-p")
        .arg(folder)
        .spawn()?;
    let mut program = Program::new(child);
    wait_for_port(port)?;
    let script = format!(
        "import socket, time\n\
         end = time.time() + {SECONDS}\n\
         while time.time() < end:\n\
         \x20   s = socket.create_connection(('127.0.0.1', {port}))\n\
         \x20   for i in range(50):\n\
         \x20       s.sendall(b'GET /x/%d HTTP/1.1\\r\\nHost: x\\r\\nAccept-Encoding: gzip\\r\\n\\r\\n' % i)\n\
         \x20       s.recv(65536)\n\
         \x20   s.close()\n"
    );
    let load = quiet("/usr/bin/python3", folder)
        .args(["-c", &script])
        .spawn()?;
    program.children.push(load);
    Ok(Some(program))
}

fn sshd(folder: &Path) -> io::Result<Option<Program>> {
    let Some(sshd) = found(&["/usr/sbin/sshd"]) else {
        return Ok(None);
    };
    fs::create_dir_all("/run/sshd")?;
    let port = free_port()?;
    for name in ["host", "user"] {
        let made = quiet("ssh-keygen", folder)
            .args(["-q", "-t", "ed25519", "-N", "", "-f", name])
            .status()?;
        if !made.success() {
            return Err(io::Error::other("ssh-keygen fails"));
        }
    }
    let at = folder.display();
    let child = quiet(sshd, folder)
        .args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string()])
        .args(["-o", "ListenAddress=127.0.0.1", "-o", "StrictModes=no"])
        .args([
            "-o",
            "PermitRootLogin=yes",
            "-o",
            "UsePAM=no",
            "-o",
            "MaxStartups=100",
        ])
        .args(["-o", &format!("HostKey={at}/host"), "-o", "PidFile=none"])
        .args(["-o", &format!("AuthorizedKeysFile={at}/user.pub")])
        .spawn()?;
    let mut program = Program::new(child);
    wait_for_port(port)?;
    let load = format!(
        "end=$(($(date +%s) + {SECONDS})); while [ $(date +%s) -lt $end ]; do \
         ssh -q -p {port} -i {at}/user -o BatchMode=yes -o StrictHostKeyChecking=no \
         -o UserKnownHostsFile=/dev/null root@127.0.0.1 'head -c 40000000 /dev/zero'; done"
    );
    program.children.push(shell(&load, folder)?);
    Ok(Some(program))
}

const JAVA: &str = "import java.util.*;\n\
    public class Load {\n\
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n\
    public static void main(String[] a) {\n\
    long end = System.currentTimeMillis() + 1000L * Long.parseLong(a[0]);\n\
    long sum = 0; List<byte[]> kept = new ArrayList<>();\n\
    while (System.currentTimeMillis() < end) {\n\
    sum += fib(18);\n\
    Map<String, Integer> m = new TreeMap<>();\n\
    for (int i = 0; i < 2000; i++) m.merge(\"k\" + (i * 7919 % 503), i, Integer::sum);\n\
    kept.add(new byte[200000]); if (kept.size() > 100) kept.subList(0, 50).clear();\n\
    Object[] o = m.values().stream().sorted(Comparator.reverseOrder()).toArray(); sum += o.length;\n\
    try { throw new IllegalStateException(\"x\" + sum); } catch (IllegalStateException e) { sum += e.getStackTrace().length; }\n\
    } System.out.println(sum); } }\n";

fn java(folder: &Path, flags: &[&str]) -> io::Result<Option<Program>> {
    if found(&["/usr/bin/java"]).is_none() {
        return Ok(None);
    }
    fs::write(folder.join("Load.java"), JAVA)?;
    let child = quiet("java", folder)
        .args(flags)
        .args(["-Xmx200m", "Load.java", &SECONDS.to_string()])
        .spawn()?;
    Ok(Some(Program::new(child)))
}

fn java_interpreted(folder: &Path) -> io::Result<Option<Program>> {
    java(folder, &["-Xint"])
}

fn java_compiled(folder: &Path) -> io::Result<Option<Program>> {
    java(folder, &["-XX:+PreserveFramePointer"])
}

fn node_with(folder: &Path, flags: &[&str]) -> io::Result<Option<Program>> {
    let Some(node) = found(&["/usr/bin/node"]) else {
        return Ok(None);
    };
    let script = format!(
        "const zlib = require('zlib'), fs = require('fs'), nobody = new Int32Array(new SharedArrayBuffer(4));\n\
         while (!fs.existsSync(process.env.GO)) Atomics.wait(nobody, 0, 0, 50);\n\
         const end = Date.now() + {SECONDS}000;\n\
         function fib(n) {{ return n < 2 ? n : fib(n - 1) + fib(n - 2); }}\n\
         while (Date.now() < end) {{ fib(20);\n\
         const text = JSON.stringify(Array.from({{length: 2000}}, (_, i) => ({{i, s: 'x' + i}})));\n\
         JSON.parse(text); text.replace(/\\d+/g, d => d.length); zlib.gzipSync(text);\n\
         Array.from({{length: 3000}}, (_, i) => i * 7919 % 1009).sort((a, b) => a - b);\n\
         new Map(Object.entries(JSON.parse(text))); }}"
    );
    let child = quiet(node, folder)
        .args(flags)
        .args(["-e", &script])
        .spawn()?;
    Ok(Some(Program::new(child)))
}

fn node(folder: &Path) -> io::Result<Option<Program>> {
    node_with(folder, &[])
}

fn node_interpreted(folder: &Path) -> io::Result<Option<Program>> {
    node_with(folder, &["--interpreted-frames-native-stack"])
}
