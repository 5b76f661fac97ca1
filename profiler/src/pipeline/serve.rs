//! Live servers: a session or a capture into a hub of fronts, whose wishes are carried out.
//!
//! A [`ServeRequest`] -> clients that are served until a signal ends it. What happens now (`live`) and what a
//! capture holds (`replay`) feed the same [`Hub`]. What does not belong here: sockets and protocols (`serve`).

mod calls;
mod live;
mod machine;
mod replay;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Context, Failure};
use profiler_model::text::printable;
use profiler_probe::features::check_privileges;
use profiler_serve::FrontOptions;
use profiler_serve::front::{Front, Replay};
use profiler_serve::hub::Hub;
use profiler_serve::machine::{Machine, NoMachine};

use super::renounce::renounce;
use super::signals::Signals;

pub use calls::CallLimits;
pub use live::{Adjustable, adjustable};

/// How long clients may take to read that all is over.
const FINISH_DEADLINE: Duration = Duration::from_secs(2);

/// What to serve, and to whom.
pub struct ServeRequest {
    /// The protocols, each with its clients.
    pub fronts: Vec<FrontOptions>,
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

/// Serves until a signal ends it.
pub fn serve(request: ServeRequest) -> Result<(), Failure> {
    super::block_on(&super::event_loop()?, move || async move {
        let mut signals = Signals::listen().context(|| "failed to listen for signals")?;
        let ServeRequest {
            fronts,
            source,
            quiet,
        } = request;
        let say = Say { quiet };
        match source {
            ServeSource::Live(options) => {
                check_privileges()?;
                let machine = || Box::new(machine::Proc::new()) as Box<dyn Machine>;
                let hub = start(fronts, None, machine)?;
                let (mut hub, live) = ready(hub, live::Ready::attach(*options, quiet), say).await?;
                let served = live.run(&mut hub, &mut signals).await;
                end(hub, served, say).await
            }
            ServeSource::Replay { capture, speed } => {
                let replayed = match speed {
                    Some(_) => Replay::Timed,
                    None => Replay::AtOnce,
                };
                let machine = || Box::new(NoMachine) as Box<dyn Machine>;
                let hub = start(fronts, Some(replayed), machine)?;
                let opened = replay::Opened::open(&capture);
                let (mut hub, opened) = ready(hub, opened, say).await?;
                renounce(&[]);
                let served = opened.run(speed, &mut hub, &mut signals, say).await;
                end(hub, served, say).await
            }
        }
    })
}

/// Starts all fronts: if one can't serve, none does. That an address is taken shows before the work of attaching is begun;
/// who connects meanwhile waits.
fn start(
    fronts: Vec<FrontOptions>,
    replay: Option<Replay>,
    machine: impl Fn() -> Box<dyn Machine>,
) -> Result<Hub, Failure> {
    let fronts = fronts.into_iter();
    let fronts: Vec<Box<dyn Front>> = fronts
        .map(|options| options.start(replay, machine()))
        .collect::<Result<_, _>>()?;
    Ok(Hub::new(fronts))
}

/// Tells people where clients are served, now that there is something to see; if there is not, serves nobody.
async fn ready<T>(hub: Hub, source: Result<T, Failure>, say: Say) -> Result<(Hub, T), Failure> {
    match source {
        Ok(source) => {
            let welcomes = hub.welcomes();
            welcomes.iter().for_each(|welcome| say.line(welcome));
            Ok((hub, source))
        }
        Err(failure) => {
            hub.finish(Duration::ZERO).await;
            Err(failure)
        }
    }
}

/// Tells clients that it is over.
async fn end(hub: Hub, served: Result<(), Failure>, say: Say) -> Result<(), Failure> {
    let summaries = hub.finish(FINISH_DEADLINE).await;
    if served.is_ok() {
        summaries.iter().for_each(|summary| say.line(summary));
    }
    served
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
