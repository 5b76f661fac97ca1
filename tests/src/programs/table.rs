//! The programs, and what is done with each: one entry reads from top to bottom as what happens.
//!
//! Input: none. Output: [`PROGRAMS`]. All that is done to make inputs is repeatable, and two runs without
//! the profiler must be equal under the entry's filter.
//!
//! A command's first program is traced from its first instruction; what a script starts gets its probes some
//! milliseconds later. So programs that are over sooner are commands of their own.

use super::{Program, When};

/// What an entry does not say.
const PLAIN: Program = Program {
    name: "",
    when: When::Long,
    packages: &[],
    builds: &[],
    prepare: "",
    command: &[],
    client: "",
    results: "",
    filter: &[],
};

/// 20,000 lines: `text`.
const TEXT: &str = r#"
    seq 20000 | awk '{ print $1, $1 * 7919 % 10007, "line number " $1 " of the text" }' > text
"#;

/// A small project in C, with a makefile.
const PROJECT: &str = r#"
    cat > main.c <<'END'
#include <stdio.h>
int twice(int number);
int main(void) {
    int sum = 0;
    for (int i = 0; i < 1000; i++)
        sum += twice(i);
    printf("%d\n", sum);
    return 0;
}
END
    echo 'int twice(int number) { return 2 * number; }' > twice.c
    printf 'prog: main.o twice.o\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -g -O1 -c -o $@ $<\n' > Makefile
"#;

/// A repository of git with six commits: `repository`.
const REPOSITORY: &str = r#"
    git init -q -b trunk repository && cd repository
    git config user.name name && git config user.email name@example.org
    for i in 1 2 3 4 5 6; do
        seq $((i * 300)) > file$i && sed -i "s/7/$i/" file1 && git add .
        GIT_AUTHOR_DATE="2020-01-0${i}T00:00:00Z" GIT_COMMITTER_DATE="2020-01-0${i}T00:00:00Z" \
            git commit -q -m "commit $i"
    done
"#;

/// A tree of 300 files: `tree`.
const TREE: &str = r#"
    for i in $(seq 30); do
        mkdir -p tree/$((i % 3))/$i
        for j in $(seq 10); do seq $((i * j)) > tree/$((i % 3))/$i/$j.txt; done
    done
    find tree -exec touch -h -d @86400 {} +
"#;

/// A program with debug information: `main`.
const DEBUGGED: &str = r#"
    echo 'int twice(int number) { return 2 * number; }' > twice.c
    echo 'int twice(int number);' > main.c
    echo 'int main(void) { int sum = 1; for (int i = 0; i < 9; i++) sum += twice(i); return sum; }' >> main.c
    gcc -g -O0 -o main main.c twice.c
"#;

const POSTGRES: &str = r#"
    chown postgres .
    setpriv --reuid postgres --regid postgres --clear-groups \
        /usr/lib/postgresql/15/bin/initdb -D data -A trust --no-sync > /dev/null
    cat > queries.sql <<'END'
create table numbers (n int primary key, t text);
insert into numbers select n, md5(n::text) from generate_series(1, 5000) n;
create index on numbers (t);
analyze numbers;
select count(*), sum(n), min(t), max(t) from numbers;
select n, t from numbers where t like 'ab%' order by t;
select n % 7 as rest, count(*), avg(n)::numeric(10, 2) from numbers group by 1 order by 1;
begin; delete from numbers where n % 2 = 0; savepoint s; select 1 / 0; rollback to s; commit;
select count(*) from numbers;
do $$ begin raise exception 'raised'; exception when others then raise notice 'caught'; end $$;
with recursive f(a, b) as (select 0::numeric, 1::numeric union all select b, a + b from f where b < 1e30)
    select max(a) from f;
select to_char(timestamp '2020-02-29 12:34:56', 'Day DD Month YYYY'), regexp_replace('abcabc', '(b)', '[\1]', 'g');
explain (costs off) select * from numbers a join numbers b using (n) where a.t < 'b';
END
"#;

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "ls",
        when: When::Always,
        prepare: TREE,
        command: &["ls", "-lR", "tree"],
        filter: &[("total \\d+", "total N")],
        ..PLAIN
    },
    Program {
        name: "sort",
        when: When::Always,
        prepare: TEXT,
        command: &["sort", "-k2n", "text"],
        ..PLAIN
    },
    Program {
        name: "sha256sum",
        prepare: TEXT,
        command: &["sha256sum", "text"],
        ..PLAIN
    },
    Program {
        name: "wc",
        prepare: TEXT,
        command: &["wc", "text"],
        ..PLAIN
    },
    Program {
        name: "date",
        command: &["date", "-d", "@86400", "+%c %j %V"],
        ..PLAIN
    },
    Program {
        name: "cp",
        prepare: TREE,
        command: &["cp", "-a", "tree", "copy"],
        results: "diff -r tree copy && echo equal",
        ..PLAIN
    },
    Program {
        name: "timeout",
        command: &["timeout", "0.5", "sleep", "9"],
        ..PLAIN
    },
    Program {
        name: "bash",
        when: When::Always,
        command: &[
            "bash",
            "-c",
            r#"
                sum=0
                for i in {1..100}; do sum=$((sum + i)); last=$(echo $i); done
                for i in {1..20}; do (exit 3); [ $? = 3 ] || echo "wrong in $i"; done
                trap 'echo a signal' USR1; kill -USR1 $$
                trap 'echo the end' EXIT
                declare -A names=([a]=1 [b]=2); echo ${#names[@]} ${names[b]}
                echo $sum $last ${last//0/7} $(seq 3 | tr '\n' ,) > out; cat out
                (kill $BASHPID); echo $?
                exit 4
            "#,
        ],
        filter: &[(r"line \d+: +\d+ Terminated", "Terminated")],
        ..PLAIN
    },
    Program {
        name: "dash",
        command: &[
            "dash",
            "-c",
            r#"
                i=0
                while [ $i -lt 100 ]; do i=$((i + 1)); last=$(echo $i); (exit 3); done
                trap 'echo a signal' USR1; kill -USR1 $$
                echo $last | sed 's/1/x/'; exit 4
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "gzip",
        prepare: TEXT,
        command: &["gzip", "-nk", "text"],
        results: "sha256sum text.gz; gzip -dc text.gz | cmp - text",
        ..PLAIN
    },
    Program {
        name: "gunzip",
        prepare: "seq 30000 > text; gzip -n text",
        command: &["gzip", "-d", "text.gz"],
        results: "sha256sum text",
        ..PLAIN
    },
    Program {
        name: "xz",
        packages: &["xz-utils"],
        prepare: TEXT,
        command: &["xz", "-k1", "-T2", "text"],
        results: "sha256sum text.xz; xz -dc text.xz | cmp - text",
        ..PLAIN
    },
    Program {
        name: "zstd",
        packages: &["zstd"],
        prepare: TEXT,
        command: &["zstd", "-qk", "text"],
        results: "sha256sum text.zst; zstd -dc text.zst | cmp - text",
        ..PLAIN
    },
    Program {
        name: "tar",
        prepare: TREE,
        command: &["tar", "--sort=name", "--owner=0", "-czf", "out.tgz", "tree"],
        results: "gzip -dc out.tgz | sha256sum; tar -tf out.tgz",
        ..PLAIN
    },
    Program {
        name: "sqlite3",
        when: When::Always,
        packages: &["sqlite3"],
        command: &[
            "sqlite3",
            "base",
            r#"
                create table t(a int, b text);
                with recursive c(x) as (values(1) union all select x + 1 from c where x < 2000)
                    insert into t select x, hex(x * 7919 % 10007) from c;
                create index i on t(b);
                select count(*), sum(a), max(b) from t;
                select b, count(*) from t group by b order by 1 limit 5;
                select strftime('%Y-%m-%d', 86400, 'unixepoch'), printf('%.3f', 2.0 / 3);
                select * from nothing;
            "#,
        ],
        results: "sqlite3 base 'pragma integrity_check; select sum(a) from t'",
        ..PLAIN
    },
    Program {
        name: "postgres",
        packages: &["postgresql-15", "postgresql-client-15"],
        prepare: POSTGRES,
        command: &[
            "bash",
            "-c",
            r#"exec setpriv --reuid postgres --regid postgres --clear-groups \
                /usr/lib/postgresql/15/bin/postgres -D data -k "$PWD" -c listen_addresses= \
                -c fsync=off -c log_destination=stderr -c log_min_messages=fatal"#,
        ],
        client: r#"
            export PGHOST="$PWD" PGUSER=postgres PATH="/usr/lib/postgresql/15/bin:$PATH"
            for i in $(seq 600); do pg_isready -q && break; sleep 0.1; done
            psql -q -f queries.sql
            pgbench -q -i -s 1 postgres 2> /dev/null
            pgbench -n -c 4 -j 2 -t 25 postgres | grep processed
            psql -qAt -c 'select count(*) from pgbench_history'
            setpriv --reuid postgres --regid postgres --clear-groups pg_ctl stop -s -D data -m fast
        "#,
        filter: &[(r"(?m)^\d{4}-\d\d-\d\d .*\n", "")],
        ..PLAIN
    },
    Program {
        name: "nginx",
        packages: &["nginx"],
        prepare: r#"
            seq 5000 > text; echo small > small
            cat > nginx.conf <<'END'
                user root; worker_processes 2; daemon off; pid nginx.pid; error_log stderr crit;
                events {}
                http { access_log off; gzip on; gzip_types text/plain; default_type text/plain;
                    server { listen unix:socket; location / { root .; } location /no { return 404; } } }
END
        "#,
        command: &["nginx", "-p", ".", "-c", "nginx.conf", "-e", "stderr"],
        client: r#"
            get() { curl -sS -m 60 --unix-socket socket "$@"; }
            for i in $(seq 600); do get -o /dev/null http://x/small 2> /dev/null && break; sleep 0.1; done
            for i in $(seq 20); do get http://x/text | sha256sum; get --compressed http://x/text | sha256sum; done
            get http://x/no; get -r 10-20 http://x/text
            kill -QUIT $(cat nginx.pid)
        "#,
        ..PLAIN
    },
    Program {
        name: "redis",
        packages: &["redis-server", "redis-tools"],
        command: &[
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            "socket",
            "--save",
            "",
            "--loglevel",
            "warning",
        ],
        client: r#"
            ask() { redis-cli -s socket "$@"; }
            for i in $(seq 600); do [ -S socket ] && ask ping > /dev/null 2>&1 && break; sleep 0.1; done
            ask eval 'local sum = 0; for i = 1, 1000 do redis.call("set", "k" .. i, i); sum = sum + i end return sum' 0
            ask eval 'return redis.call("no such command")' 0
            for i in $(seq 50); do echo "rpush list $i"; echo "zadd set $((i * 7919 % 101)) m$i"; done | ask | tail -1
            ask lrange list 0 5; ask zrange set 0 3 withscores; ask dbsize; ask get k500
            redis-benchmark -s socket -n 500 -c 5 -q -t set,get,lpush > /dev/null; ask llen mylist
            ask bgrewriteaof
            while ask info persistence | grep -q aof_rewrite_in_progress:1; do sleep 0.1; done
            ask shutdown nosave
        "#,
        filter: &[(r"(?m)^\d+:[A-Z] .*\n", "")],
        ..PLAIN
    },
    Program {
        name: "cc1",
        packages: &["gcc"],
        prepare: PROJECT,
        command: &[
            "/usr/lib/gcc/x86_64-linux-gnu/12/cc1",
            "-quiet",
            "-O2",
            "-imultiarch",
            "x86_64-linux-gnu",
            "main.c",
            "-o",
            "main.s",
        ],
        results: "cat main.s",
        ..PLAIN
    },
    Program {
        name: "ld",
        packages: &["gcc"],
        prepare: r#"echo 'int puts(const char *); int main(void) { return puts("linked") < 0; }' > l.c; gcc -c l.c"#,
        command: &[
            "ld",
            "-o",
            "linked",
            "-dynamic-linker",
            "/lib64/ld-linux-x86-64.so.2",
            "/usr/lib/x86_64-linux-gnu/crt1.o",
            "/usr/lib/x86_64-linux-gnu/crti.o",
            "l.o",
            "-lc",
            "/usr/lib/x86_64-linux-gnu/crtn.o",
        ],
        results: "./linked; sha256sum linked",
        ..PLAIN
    },
    Program {
        name: "make",
        packages: &["make", "gcc"],
        prepare: PROJECT,
        command: &["make", "-j2"],
        results: "./prog; objdump -d prog | sha256sum",
        filter: &[("(?m)^gcc .*\n", "")],
        ..PLAIN
    },
    Program {
        name: "python3",
        when: When::Always,
        packages: &["python3"],
        command: &[
            "python3",
            "-c",
            r#"
import hashlib, json, re, signal, subprocess, sys, threading, zlib
def f(n): return n if n < 2 else f(n - 1) + f(n - 2)
def deep(n): return deep(n + 1)
for wrong in (lambda: 1 / 0, lambda: int("x"), lambda: {}["no"], lambda: deep(0)):
    try: wrong()
    except Exception as error: print(type(error).__name__, error)
print(f(15), re.sub("a+", "b", "caaat" * 10), hashlib.sha256(b"x").hexdigest())
print(json.loads(json.dumps({"a": [1, 2.5, None, "ü"]})), len(zlib.compress(b"abc" * 1000)))
sums = []
threads = [threading.Thread(target=lambda n=n: sums.append(sum(range(n)))) for n in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(sums))
signal.signal(signal.SIGALRM, lambda *_: print("a signal"))
signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()
print(subprocess.run(["sh", "-c", "echo child; exit 3"], capture_output=True))
def generator():
    got = yield 1
    yield got * 2
g = generator(); next(g); print(g.send(21))
sys.exit(5)
"#,
        ],
        ..PLAIN
    },
    Program {
        name: "python3's own tests",
        packages: &["python3", "libpython3.11-testsuite"],
        command: &[
            "python3",
            "-m",
            "test",
            "-q",
            "test_json",
            "test_re",
            "test_exceptions",
            "test_generators",
            "test_struct",
            "test_zlib",
            "test_signal",
            "test_threading_local",
        ],
        filter: &[(r"(?m)^.*(duration|Total|Run tests|^0:\d\d:).*\n", "")],
        ..PLAIN
    },
    Program {
        name: "perl",
        when: When::Always,
        command: &[
            "perl",
            "-e",
            r#"
                $| = 1;
                my %h; $h{$_ % 17} .= "$_," for 1 .. 2000;
                print "$_: ", length $h{$_}, "\n" for sort { $a <=> $b } keys %h;
                for (1 .. 30) { eval { die { n => $_ } }; print $@->{n}, " " }
                my $text = "line number 7"; $text =~ s/(\w+) (\w+)/$2 $1/; print "$text\n";
                printf "%.5f %s\n", sqrt(2), join ",", map { sprintf "%02x", $_ } unpack "C*", pack "d", 1.5;
                local $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 1; sleep 9 }; print $@;
                open my $pipe, "-|", "echo child; exit 3"; print <$pipe>; close $pipe; print $? >> 8, "\n";
                if (my $pid = fork) { waitpid $pid, 0; print $? >> 8, "\n" } else { exit 7 }
                exit 5;
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "ruby",
        packages: &["ruby"],
        command: &[
            "ruby",
            "-e",
            r#"
                fiber = Fiber.new { 3.times { |i| Fiber.yield i }; :done }
                4.times { p fiber.resume }
                begin; raise "raised"; rescue => error; p error; end
                p (1..2000).map { |x| x * x }.select(&:even?).sum, catch(:found) { throw :found, 5 }
                p [3, 1, 2].each_slice(2).to_a, "text".gsub(/t/) { |c| c.upcase }
                p (1..4).map { |n| Thread.new { (1..n * 1000).sum } }.map(&:value)
                def deep(n) = deep(n + 1)
                begin; deep(0); rescue SystemStackError; puts "too deep"; end
                enumerator = Enumerator.new { |y| 5.times { |i| y << i } }; p enumerator.next, enumerator.next
                GC.start; puts `echo child`; exit 5
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "node",
        packages: &["nodejs"],
        command: &[
            "node",
            "-e",
            r#"
                let sum = 0;
                for (let i = 0; i < 200000; i++) sum += i % 7;
                try { null.x } catch (error) { console.log(sum, error.message) }
                const wait = (ms) => new Promise((done) => setTimeout(done, ms));
                function* count() { yield 1; yield 2 }
                (async () => {
                    await wait(10);
                    console.log(JSON.stringify({ a: [...count()] }), "text".replace(/t/g, "T"));
                    console.log(require("crypto").createHash("sha256").update("x").digest("hex"));
                    console.log(require("zlib").gzipSync(Buffer.alloc(10000)).length > 10);
                    process.exit(5);
                })();
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "java",
        packages: &["openjdk-17-jdk-headless"],
        prepare: r#"
            cat > Main.java <<'END'
import java.util.*;
import java.util.stream.*;
public class Main {
    static int deep(int n) { return n == 0 ? new int[1][0].length : 1 + deep(n - 1); }
    static int forever(int n) { return 1 + forever(n + 1); }
    public static void main(String[] args) throws Exception {
        int caught = 0;
        for (int i = 0; i < 5000; i++) try { Object o = i % 2 == 0 ? null : "x"; o.hashCode(); ((Integer) o).intValue(); }
            catch (NullPointerException | ClassCastException e) { caught++; }
        try { forever(0); } catch (StackOverflowError e) { System.out.println("too deep"); }
        long sum = IntStream.range(0, 100000).parallel().mapToLong(x -> x * 3L).sum();
        Thread[] threads = new Thread[4]; int[] sums = new int[4];
        for (int t = 0; t < 4; t++) { int me = t; threads[t] = new Thread(() -> { for (int i = 0; i < 1000; i++) sums[me] += i; }); threads[t].start(); }
        for (Thread t : threads) t.join();
        System.gc();
        System.out.println(caught + " " + sum + " " + deep(100) + " " + Arrays.toString(sums));
        System.out.println(Stream.of("c", "a", "b").sorted().collect(Collectors.joining(",")));
        System.exit(5);
    }
}
END
            javac Main.java
        "#,
        command: &["java", "-XX:TieredStopAtLevel=4", "Main"],
        ..PLAIN
    },
    Program {
        name: "goroutines (Go)",
        when: When::Always,
        builds: &["goroutines"],
        command: &["../goroutines"],
        ..PLAIN
    },
    Program {
        name: "panics (Rust)",
        when: When::Always,
        builds: &["panics"],
        command: &["../panics"],
        ..PLAIN
    },
    Program {
        name: "throws (C++)",
        when: When::Always,
        builds: &["throws"],
        command: &["../throws"],
        ..PLAIN
    },
    Program {
        name: "throws beside C programs of the same recording",
        builds: &["throws", "calls"],
        command: &[
            "bash",
            "-c",
            r#"
                (for i in {1..30}; do ../calls > /dev/null; done) &
                sort -R <(seq 300000) > /dev/null &
                for i in {1..30}; do ../throws > out; echo $?; done; wait
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "calls (C)",
        when: When::Always,
        builds: &["calls"],
        command: &["../calls"],
        ..PLAIN
    },
    Program {
        name: "calls (static)",
        builds: &["calls-static"],
        command: &["../calls-static"],
        ..PLAIN
    },
    Program {
        name: "calls (static-pie)",
        builds: &["calls-static-pie"],
        command: &["../calls-static-pie"],
        ..PLAIN
    },
    Program {
        name: "calls (musl)",
        packages: &["musl-tools"],
        builds: &["calls-musl"],
        command: &["../calls-musl"],
        ..PLAIN
    },
    Program {
        name: "calls (preloaded)",
        builds: &["calls", "preloaded.so"],
        command: &["env", "LD_PRELOAD=../preloaded.so", "../calls"],
        ..PLAIN
    },
    Program {
        name: "spawns",
        builds: &["spawns"],
        command: &["../spawns"],
        ..PLAIN
    },
    Program {
        name: "sandboxed",
        builds: &["sandboxed"],
        command: &["../sandboxed"],
        ..PLAIN
    },
    Program {
        name: "traces its child",
        builds: &["traces"],
        command: &["../traces"],
        ..PLAIN
    },
    Program {
        name: "git clone",
        packages: &["git"],
        prepare: REPOSITORY,
        command: &["git", "clone", "-q", "--no-local", "repository", "copy"],
        results: "git -C copy fsck --full 2>&1; git -C copy log --format='%H %s'",
        ..PLAIN
    },
    Program {
        name: "git gc",
        packages: &["git"],
        prepare: REPOSITORY,
        command: &["git", "-C", "repository", "gc", "-q", "--prune=now"],
        results: "cd repository; git fsck --full 2>&1; git count-objects -v | grep -v size; git log --format=%H",
        ..PLAIN
    },
    Program {
        name: "git log",
        packages: &["git"],
        prepare: REPOSITORY,
        command: &["git", "-C", "repository", "log", "--stat", "-p"],
        ..PLAIN
    },
    Program {
        name: "ssh-keygen",
        packages: &["openssh-client"],
        command: &[
            "ssh-keygen",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "name",
            "-f",
            "key",
        ],
        results: r#"
            ssh-keygen -y -f key | diff - key.pub && cut -d ' ' -f 1,3 key.pub
            echo text > text; ssh-keygen -q -Y sign -n file -f key text
            echo "name $(cat key.pub)" > allowed
            ssh-keygen -Y verify -n file -f allowed -I name -s text.sig < text | cut -d ' ' -f 1-7
        "#,
        filter: &[(r"(?s)The key fingerprint.*", ""), ("SHA256:.*", "SHA256")],
        ..PLAIN
    },
    Program {
        name: "ssh to sshd",
        packages: &["openssh-client", "openssh-server"],
        prepare: r#"
            ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f key
            mkdir -p /run/sshd
            printf '%s\n' "HostKey $PWD/host" "AuthorizedKeysFile $PWD/key.pub" 'StrictModes no' \
                'PermitRootLogin yes' 'LogLevel QUIET' 'UsePAM no' > sshd_config
        "#,
        command: &[
            "bash",
            "-c",
            r#"
                for i in 1 2 3 4 5; do
                    ssh -F none -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
                        -o LogLevel=ERROR -o ProxyCommand="/usr/sbin/sshd -i -f $PWD/sshd_config" \
                        root@nowhere "seq 3 | tr '\n' ' '; exit $i"; echo $?
                done
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "openssl dgst",
        packages: &["openssl"],
        prepare: TEXT,
        command: &["openssl", "dgst", "-sha256", "text"],
        ..PLAIN
    },
    Program {
        name: "openssl speed",
        packages: &["openssl"],
        command: &[
            "openssl",
            "speed",
            "-mr",
            "-seconds",
            "1",
            "-bytes",
            "1024",
            "sha256",
            "aes-128-cbc",
        ],
        filter: &[(r"[\d.]+", "N"), (r"(?m)^\+DT.*|^\+R:.*|built on.*", "")],
        ..PLAIN
    },
    Program {
        name: "openssl s_server",
        packages: &["openssl"],
        prepare: r#"
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out cert -days 9 \
                -subj /CN=name 2> /dev/null
        "#,
        // It writes a line of its errors in many pieces, and the profiler has its own to say meanwhile.
        command: &[
            "bash",
            "-c",
            "exec openssl s_server -unix socket -key key -cert cert -rev -naccept 3 -quiet 2> errors",
        ],
        client: r#"
            for i in $(seq 600); do [ -S socket ] && break; sleep 0.1; done
            # It has its name a moment before it can be connected to.
            sleep 2
            for version in tls1_2 tls1_3 tls1_3; do
                : > answers
                (
                    seq 100
                    for i in $(seq 600); do [ $(wc -l < answers) -lt 100 ] || break; sleep 0.1; done
                ) | openssl s_client -unix socket -$version -quiet -no_ign_eof > answers 2> /dev/null
                sha256sum answers
            done
        "#,
        results: "cat errors",
        filter: &[(
            r"(?m)^ERROR\n|^shutting down SSL\n|^CONNECTION CLOSED\n|[0-9A-F]{12,16}:error.*\n",
            "",
        )],
        ..PLAIN
    },
    Program {
        name: "openssl s_client",
        packages: &["openssl"],
        prepare: r#"
            openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 9 -subj /CN=name 2> /dev/null
        "#,
        command: &[
            "bash",
            "-c",
            r#"
                openssl s_server -unix socket -key key -cert cert -www -naccept 5 -quiet 2> /dev/null &
                while ! [ -S socket ]; do sleep 0.1; done
                for i in 1 2 3 4 5; do
                    (echo 'GET / HTTP/1.0'; echo; sleep 1) |
                        openssl s_client -unix socket -CAfile cert -verify_return_error -quiet 2>&1 |
                        grep -a 'verify return\|Cipher    :\|TLSv1'
                done; wait
            "#,
        ],
        ..PLAIN
    },
    Program {
        name: "curl",
        packages: &["curl"],
        prepare: TEXT,
        command: &[
            "bash",
            "-c",
            r#"exec curl -sS "file://$PWD/text" "file://$PWD/nothing""#,
        ],
        ..PLAIN
    },
    Program {
        name: "vim",
        packages: &["vim"],
        prepare: TEXT,
        command: &[
            "vim",
            "-es",
            "-u",
            "NONE",
            "-i",
            "NONE",
            "-c",
            "%s/line/LINE/g",
            "-c",
            "g/7/normal dd",
            "-c",
            "sort n",
            "-c",
            "w! out",
            "-c",
            "q!",
            "text",
        ],
        results: "sha256sum out",
        ..PLAIN
    },
    Program {
        name: "gdb",
        packages: &["gdb", "gcc"],
        prepare: DEBUGGED,
        command: &[
            "gdb",
            "-q",
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-ex",
            "break twice",
            "-ex",
            "run",
            "-ex",
            "bt",
            "-ex",
            "finish",
            "-ex",
            "info locals",
            "-ex",
            "delete",
            "-ex",
            "continue",
            "./main",
        ],
        filter: &[(r"process \d+", "process N")],
        ..PLAIN
    },
    Program {
        name: "strace",
        packages: &["strace"],
        command: &[
            "strace",
            "-e",
            "trace=write,openat,exit_group",
            "-o",
            "trace",
            "seq",
            "10",
        ],
        results: "cat trace",
        ..PLAIN
    },
    Program {
        name: "ps",
        packages: &["procps"],
        command: &["ps", "-o", "pid,ppid,uid,comm", "-p", "1"],
        ..PLAIN
    },
    Program {
        name: "find",
        prepare: TREE,
        command: &[
            "find",
            "tree",
            "-name",
            "*1*",
            "-size",
            "-2k",
            "-printf",
            "%p %s %m\n",
        ],
        ..PLAIN
    },
    Program {
        name: "grep",
        prepare: TEXT,
        command: &["grep", "-En", "(9.*7|\\b42)$|number .9+ ", "text"],
        ..PLAIN
    },
    Program {
        name: "mawk",
        packages: &["mawk"],
        prepare: TEXT,
        command: &[
            "mawk",
            "{ sum += $2; seen[$2 % 100]++ } END { print sum, length(seen); exit 3 }",
            "text",
        ],
        ..PLAIN
    },
    Program {
        name: "gawk",
        packages: &["gawk"],
        prepare: TEXT,
        command: &[
            "gawk",
            "{ sum += $2; seen[$2 % 100]++ } END { print sum, length(seen); exit 3 }",
            "text",
        ],
        ..PLAIN
    },
    Program {
        name: "sed",
        prepare: TEXT,
        command: &[
            "sed",
            "-E",
            "s/([0-9]+) ([0-9]+)/\\2 \\1/; /7$/d; 100q9",
            "text",
        ],
        ..PLAIN
    },
    Program {
        name: "jq",
        packages: &["jq"],
        command: &[
            "jq",
            "-n",
            "[range(2000) | {a: ., b: (. * 3 % 7)}] | group_by(.b) | map(length), error(\"e\")",
        ],
        ..PLAIN
    },
    Program {
        name: "setpriv",
        command: &[
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "id",
        ],
        ..PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_are_always_tried_and_names_are_unique() {
        let always = PROGRAMS.iter().filter(|p| p.when == When::Always);
        assert_eq!(always.count(), 10);
        let names: std::collections::BTreeSet<&str> = PROGRAMS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
    }

    #[test]
    fn packages_of_programs_are_installed_by_the_runner() {
        let setup = include_str!("../../../xtask/src/setup.rs");
        for package in PROGRAMS.iter().flat_map(|program| program.packages) {
            assert!(
                setup.contains(&format!("\"{package}\"")),
                "xtask/src/setup.rs does not install {package}"
            );
        }
    }
}
