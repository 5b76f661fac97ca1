//! Live servers: a session or a capture into a server, whose wishes are carried out.
//!
//! A [`ServeRequest`] -> clients that are served until a signal ends it. Two loops, one for what happens
//! now and one for a capture, feed whatever is a [`Front`]. What does not belong here: sockets and
//! protocols (`serve`).

mod live;
mod machine;
mod replay;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Context, Failure};
use profiler_model::text::printable;
use profiler_model::{Batch, Event};
use profiler_report::view::quantity;
use profiler_serve::machine::{Machine, NoMachine};
use profiler_serve::tcf::{Order, Replay, ServeSummary, Server, TcfOptions};

use super::session::Consumer;
use super::signals::{Signals, hangup};

pub use live::{Adjustable, adjustable};

/// How long clients may take to read that all is over.
const FINISH_DEADLINE: Duration = Duration::from_secs(2);

/// What to serve, and to whom.
pub struct ServeRequest {
    /// Where TCF clients connect.
    pub address: SocketAddr,
    /// How they are served. Whether a capture is shown is filled in.
    pub tcf: TcfOptions,
    /// What they see.
    pub source: ServeSource,
    /// Only errors are said.
    pub quiet: bool,
}

/// What clients see.
pub enum ServeSource {
    /// What happens now, on the whole machine.
    Live(Box<Adjustable>),
    /// A capture.
    Replay {
        /// The file.
        capture: PathBuf,
        /// How much faster than it happened; none: all at once.
        speed: Option<f64>,
    },
}

/// A server, as whoever feeds it sees it.
trait Front: Consumer {
    /// What its clients want next; waits for it. May be dropped while it waits.
    async fn order(&mut self) -> Order;
    /// Waits until a batch finds room. May be dropped while it waits.
    fn room(&self) -> impl Future<Output = ()> + use<Self>;
    /// A question was answered, as far as it will be at once.
    fn acknowledge(&mut self, question: u64);
    /// All processes have been announced.
    fn ready(&mut self);
    /// Nothing is attached any more.
    fn detached(&mut self);
    /// Nothing can be attached, because of this.
    fn trouble(&mut self, text: String);
}

impl Consumer for Server {
    fn wants_new_epoch(&self) -> bool {
        Server::wants_new_epoch(self)
    }

    fn spare(&self) -> Option<Vec<Event>> {
        Server::spare(self)
    }

    fn send(&mut self, batch: Batch) -> u64 {
        Server::send(self, batch)
    }
}

impl Front for Server {
    async fn order(&mut self) -> Order {
        Server::order(self).await
    }

    fn room(&self) -> impl Future<Output = ()> + use<> {
        self.has_room()
    }

    fn acknowledge(&mut self, question: u64) {
        Server::acknowledge(self, question);
    }

    fn ready(&mut self) {
        Server::ready(self);
    }

    fn detached(&mut self) {
        Server::detached(self);
    }

    fn trouble(&mut self, text: String) {
        Server::trouble(self, text);
    }
}

/// Serves until a signal ends it.
pub fn serve(request: ServeRequest) -> Result<(), Failure> {
    super::event_loop()?.block_on(async {
        let mut signals = Signals::listen().context(|| "failed to listen for signals")?;
        let ServeRequest {
            address,
            mut tcf,
            source,
            quiet,
        } = request;
        let say = Say { quiet };
        match source {
            ServeSource::Live(options) => {
                let live = live::Ready::attach(*options, quiet)?;
                let mut server = start(address, tcf, Box::new(machine::Proc::new()), say)?;
                let served = live.run(&mut server, &mut signals).await;
                end(server, served, say).await
            }
            ServeSource::Replay { capture, speed } => {
                tcf.replay = Some(match speed {
                    Some(_) => Replay::Timed,
                    None => Replay::AtOnce,
                });
                let replay = replay::Opened::open(&capture)?;
                let mut server = start(address, tcf, Box::new(NoMachine), say)?;
                let served = replay.run(speed, &mut server, &mut signals, say).await;
                end(server, served, say).await
            }
        }
    })
}

fn start(
    address: SocketAddr,
    options: TcfOptions,
    machine: Box<dyn Machine>,
    say: Say,
) -> Result<Server, Failure> {
    let server = Server::start(address, options, machine)?;
    say.line(&format!(
        "listening for TCF clients on {}",
        server.address()
    ));
    Ok(server)
}

/// Tells clients that it is over.
async fn end(server: Server, served: Result<(), Failure>, say: Say) -> Result<(), Failure> {
    let summary = server.finish(FINISH_DEADLINE).await;
    if served.is_ok() {
        say.line(&summary_text(&summary));
    }
    served
}

fn summary_text(summary: &ServeSummary) -> String {
    let mut text = format!(
        "served {}: {} answered",
        quantity::plural(summary.channels, "client"),
        quantity::plural(summary.commands, "command"),
    );
    for (count, what) in [
        (summary.refused, "turned away"),
        (summary.laggards, "cut off because they did not read"),
    ] {
        if count > 0 {
            text += &format!(", {} {what}", quantity::count(count));
        }
    }
    if summary.dropped_events > 0 {
        text += &format!(
            "; {} lost because the server was too slow",
            quantity::plural(summary.dropped_events, "event")
        );
    }
    text
}

/// What is said to people, one line each, on standard error.
#[derive(Clone, Copy, Debug)]
struct Say {
    quiet: bool,
}

impl Say {
    fn line(self, text: &str) {
        if !self.quiet {
            // A terminal that is gone is no failure.
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }
}

/// Waits for a signal that ends it.
async fn ended(signals: &mut Signals) {
    tokio::select! {
        _ = signals.interrupt.recv() => {}
        _ = signals.terminate.recv() => {}
        () = hangup(&mut signals.hangup) => {}
    }
}
