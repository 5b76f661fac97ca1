//! Several fronts at one session: TCF's with a client at its socket, and one that only notes what it gets.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::process::{Pid as RawPid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use profiler_serve::admission::Admission;
use profiler_serve::machine::NoMachine;
use profiler_serve::tcf::{Limits, Server, TcfOptions};

/// What TCF clients are given, and what the other front has.
const TCF_HZ: u64 = 500;
const TOY_HZ: u64 = 100;

/// A TCF client that profiles.
struct TcfClient {
    stream: TcpStream,
    read: Vec<u8>,
}

impl TcfClient {
    async fn connect(port: u16) -> TcfClient {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        let mut client = TcfClient {
            stream: stream.unwrap(),
            read: Vec::new(),
        };
        client.send("E\0Locator\0Hello\0[\"Locator\"]\0").await;
        client
    }

    async fn send(&mut self, fields: &str) {
        let mut bytes = fields.as_bytes().to_vec();
        bytes.extend([3, 1]);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The fields of the answer to a command.
    async fn ask(&mut self, command: &str) -> String {
        self.send(&format!("C\0t\0{command}")).await;
        loop {
            if let Some(end) = self.read.windows(2).position(|two| two == [3, 1]) {
                let message: Vec<u8> = self.read.drain(..end + 2).collect();
                let text = String::from_utf8_lossy(&message[..end]).into_owned();
                if let Some(answer) = text.strip_prefix("R\0t\0") {
                    return answer.to_owned();
                }
                continue;
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes).await {
                Ok(0) => panic!("the channel was closed"),
                Ok(count) => self.read.extend_from_slice(&bytes[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
            }
        }
    }

    async fn configure(&mut self, pid: u32, hz: u64) {
        let parameters = format!("{{\"FrameCnt\":4,\"Frequency\":{hz},\"MaxSamples\":100000}}");
        let command = format!("Profiler\0configure\0\"P{pid}\"\0{parameters}\0");
        assert_eq!(self.ask(&command).await, "\0", "no error");
    }

    /// Samples of processes since the last read, which rest by then: until no more of them come, nor any to the other one,
    /// however late they are.
    async fn rest<const N: usize>(&mut self, pids: [u32; N], other: &Client) -> [u64; N] {
        let mut sums = [0; N];
        let mut quiet = 0;
        let mut seen = other.seen().samples().count();
        while quiet < 3 {
            sleep(Duration::from_millis(200)).await;
            let before = std::mem::replace(&mut seen, other.seen().samples().count());
            let mut more = (seen - before) as u64;
            for (sum, pid) in sums.iter_mut().zip(pids) {
                let samples = self.samples(pid).await;
                *sum += samples;
                more += samples;
            }
            quiet = if more == 0 { quiet + 1 } else { 0 };
        }
        sums
    }

    /// Samples since the last read.
    async fn samples(&mut self, pid: u32) -> u64 {
        let answer = self.ask(&format!("Profiler\0read\0\"P{pid}\"\0")).await;
        number_of("Samples", &answer) + number_of("NoStack", &answer)
    }
}

/// A property in an answer; 0 if it has none.
fn number_of(name: &str, answer: &str) -> u64 {
    let from = answer.split(&format!("\"{name}\":")).nth(1);
    let digits = from.map_or("0", |from| {
        let end = from.find(|c: char| !c.is_ascii_digit());
        &from[..end.unwrap_or(from.len())]
    });
    digits.parse().unwrap()
}

fn tcf() -> (Box<dyn Front>, u16) {
    let options = TcfOptions {
        user: "root".to_owned(),
        admission: Admission::new([]),
        control: false,
        environment: false,
        tls: None,
        replay: None,
        limits: Limits::default(),
    };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::start(any, options, Box::new(NoMachine)).unwrap();
    let port = server.address().port();
    (Box::new(server), port)
}

/// Lets processes rest, or go on.
fn signal(pids: &[u32], signal: Signal) {
    for &pid in pids {
        let pid = RawPid::from_raw(pid.cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

/// Time on processors, in ns.
fn cpu_ns(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Samples of a process in what was seen, and the sum of their weights.
fn of_process(seen: &Seen, pid: u32) -> (u64, u64) {
    let samples = seen.samples();
    let own = samples.filter(|sample| seen.process_of(sample.thread).pid.0 == pid);
    own.fold((0, 0), |(count, weight), sample| {
        (count + 1, weight + sample.weight)
    })
}

fn wants(hz: u64, pids: &[u32]) -> Sampling {
    Sampling {
        frequency_hz: hz,
        regular_hz: None,
        kernel_stacks: false,
        processes: pids.iter().map(|&pid| Pid(pid)).collect(),
        threads: [].into(),
        followed: [].into(),
    }
}

/// What so long on processors gives at a frequency, roughly: timers are late on a busy machine.
fn assert_close(what: &str, count: u64, hz: u64, ns: u64) {
    let expected = hz as f64 * ns as f64 / 1e9;
    let difference = (count as f64 - expected).abs();
    assert!(
        difference <= 0.2 * expected + 5.0,
        "{what}: {count} samples, not {expected}"
    );
}

#[test]
fn two_protocols_share_a_session_and_each_gets_its_own() {
    let linger = Duration::from_millis(200);
    with_fronts("two_protocols", linger, || {
        let ((tcf, port), (toy, client)) = (tcf(), toy());
        (vec![tcf, toy], async move || share(port, client).await)
    });
}

async fn share(port: u16, client: Client) {
    let (both, toys, tcfs) = (Running::spin(), Running::spin(), Running::spin());
    let [both, toys, tcfs] = [&both, &toys, &tcfs].map(|running| running.0.id());
    client.until("an end", |seen| seen.detached == 1).await;
    client.demand(true, Some(wants(TOY_HZ, &[both, toys])));
    client.until("a tree", |seen| seen.ready == 1).await;
    let mut tcf = TcfClient::connect(port).await;
    tcf.configure(both, TCF_HZ).await;
    tcf.configure(tcfs, TCF_HZ).await;
    while tcf.samples(both).await == 0 || tcf.samples(tcfs).await == 0 {
        sleep(Duration::from_millis(50)).await;
    }

    // Each has its own of what both want, and nothing of what the other one wants alone.
    let all = [both, toys, tcfs];
    sleep(Duration::from_millis(500)).await;
    signal(&all, Signal::STOP);
    tcf.rest([both, tcfs], &client).await;
    let before = all.map(cpu_ns);
    let toy_before = all.map(|pid| of_process(&client.seen(), pid));
    signal(&all, Signal::CONT);
    sleep(Duration::from_secs(3)).await;
    signal(&all, Signal::STOP);
    let [of_both, own] = tcf.rest([both, tcfs], &client).await;
    let spent: Vec<u64> = all
        .iter()
        .zip(before)
        .map(|(&pid, before)| cpu_ns(pid) - before)
        .collect();
    let toy_after = all.map(|pid| of_process(&client.seen(), pid));
    assert_close("TCF's of both", of_both, TCF_HZ, spent[0]);
    assert_close("TCF's own", own, TCF_HZ, spent[2]);
    for (index, what) in ["the other's of both", "the other's own"]
        .iter()
        .enumerate()
    {
        let count = toy_after[index].0 - toy_before[index].0;
        assert_close(what, count, TOY_HZ, spent[index]);
        // What is left stands for what was taken out.
        let weight = toy_after[index].1 - toy_before[index].1;
        assert!(
            weight.abs_diff(count * 1_000_000_000 / TOY_HZ) <= count,
            "{what}: {weight}"
        );
    }
    assert_eq!(toy_after[2], (0, 0), "TCF's own is nobody else's");
    let told = client.seen().samples().last().unwrap().source;
    let hz = client.seen().tables.sources.get(told).unwrap().frequency_hz;
    assert_eq!(hz, Some(TOY_HZ));

    // One leaves, and the other goes on.
    client.demand(false, None);
    client.calm().await;
    let before = cpu_ns(both);
    signal(&[both], Signal::CONT);
    sleep(Duration::from_secs(1)).await;
    signal(&[both], Signal::STOP);
    let [alone] = tcf.rest([both], &client).await;
    assert_close("TCF's alone", alone, TCF_HZ, cpu_ns(both) - before);
    assert_eq!(client.seen().detached, 1);

    // With the last one everything goes.
    drop(tcf);
    client.until("an end", |seen| seen.detached == 2).await;
    assert_eq!(client.seen().trouble, [""; 0]);
}

#[test]
fn a_front_that_fails_leaves_the_others_alone() {
    with_fronts("a_front_that_fails", LINGER, || {
        let ((failing, one), (other, stays)) = (toy(), toy());
        let clients = async move || {
            one.demand(true, Some(wants(TCF_HZ, &[std::process::id()])));
            one.until("a tree", |seen| seen.ready == 1).await;
            let running = Running::spin();
            one.orders
                .send(Order::Failed("it is broken".to_owned()))
                .unwrap();
            stays.demand(true, Some(wants(TOY_HZ, &[running.0.id()])));
            let samples = |seen: &Seen| seen.samples().count() >= 20;
            stays.until("samples", samples).await;
            let pids = |seen: &Seen| -> Vec<u32> {
                let samples = seen.samples();
                samples
                    .map(|sample| seen.process_of(sample.thread).pid.0)
                    .collect()
            };
            let others = pids(&stays.seen())
                .into_iter()
                .filter(|&pid| pid != running.0.id());
            assert_eq!(others.count(), 0);
        };
        (vec![failing, other], clients)
    });
}
