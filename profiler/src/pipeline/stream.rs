//! A stream to an HQ of Bytefrog: a session or a capture into an agent, whose orders are carried out.
//!
//! A [`StreamRequest`] -> a run at HQ, and what came of it. Everything is made ready before anything
//! is connected: what is wrong with what was asked for shows at once, and nothing has been started
//! then. What does not belong here: sockets and messages (`serve::bytefrog`).

mod live;
mod replay;

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Context, Failure};
use profiler_serve::bytefrog::{Agent, AgentError, AgentOptions, Order, StreamSummary};
use profiler_wire::bytefrog::Filter;

use super::prepare::Watch;
use super::signals::{INTERRUPTED, Signals, hangup};
use super::tracer::TraceSummary;

/// How long HQ may take to accept what is left at the end.
const FINISH_DEADLINE: Duration = Duration::from_secs(60);
/// How often it is looked whether the targets are still there while HQ is waited for.
const LOOK: Duration = Duration::from_secs(1);
/// At which of these looks it is said that HQ is waited for: one to two seconds after HQ was reached.
const LOOKS: u32 = 2;
/// Exit status when a command was to be run, and never was.
const NEVER_RAN: u8 = 125;

/// What to stream, and where to.
pub struct StreamRequest {
    /// The agent.
    pub agent: AgentOptions,
    /// Where events come from.
    pub source: StreamSource,
    /// When to end by itself, counted from the start.
    pub duration: Option<Duration>,
    /// No live line.
    pub quiet: bool,
}

/// Where events come from.
pub enum StreamSource {
    /// What happens now.
    Live(Box<LiveSource>),
    /// A capture.
    Replay {
        /// The file.
        capture: PathBuf,
        /// How much faster than it happened; none: as fast as HQ takes it.
        speed: Option<f64>,
    },
}

/// What happens now.
pub struct LiveSource {
    /// Whom to watch, and what of them.
    pub watch: Box<Watch>,
    /// Whether a command goes on when HQ stops the run.
    pub stop_detaches: bool,
    /// Whether HQ may pause what we did not start.
    pub allow_control: bool,
}

/// What came of a stream.
#[derive(Debug)]
pub struct Streamed {
    /// The command's exit status, 125 if it never ran; without a command 0.
    pub status: u8,
    /// What HQ got; none if it never started the run.
    pub sent: Option<StreamSummary>,
    /// HQ stopped the run before it began.
    pub stopped: bool,
    /// Events lost before they reached the agent, for whatever reason.
    pub lost: u64,
    /// How long it went on.
    pub elapsed: Duration,
    /// What became of the tracing, if there was any.
    pub trace: Option<TraceSummary>,
}

impl Streamed {
    /// HQ never started the run.
    fn nothing() -> Streamed {
        Streamed {
            status: 0,
            sent: None,
            stopped: false,
            lost: 0,
            elapsed: Duration::ZERO,
            trace: None,
        }
    }
}

/// Streams until HQ, a signal, or the end of what is streamed ends it.
pub fn stream(request: Box<StreamRequest>) -> Result<Box<Streamed>, Failure> {
    super::block_on(&super::event_loop()?, move || async move {
        let signals = Signals::listen().context(|| "failed to listen for signals")?;
        let (agent, duration, quiet) = (request.agent, request.duration, request.quiet);
        let streamed = match request.source {
            StreamSource::Live(source) => {
                live::stream(agent, *source, duration, quiet, signals).await
            }
            StreamSource::Replay { capture, speed } => {
                replay::stream(agent, &capture, speed, duration, signals).await
            }
        };
        streamed.map(Box::new)
    })
}

/// Starts the agent's threads.
fn start_agent(options: AgentOptions) -> Result<Agent, Failure> {
    Agent::start(options).map_err(|error| match error {
        AgentError::Address(_) => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

/// What comes of waiting for HQ.
enum Waited {
    Started(Start),
    /// HQ wants no run.
    Stopped,
    /// A person does not.
    Left,
}

impl Waited {
    /// What comes of a run that has not begun.
    fn nothing(&self) -> Streamed {
        Streamed {
            stopped: matches!(self, Waited::Stopped),
            ..Streamed::nothing()
        }
    }
}

/// How HQ wants a run to begin.
struct Start {
    /// None: everything.
    filter: Option<Filter>,
    suspended: bool,
}

/// What waits for HQ.
struct Waiter {
    /// Where HQ is, as it was given.
    hq: String,
    /// What is not done until HQ starts the run.
    until_then: &'static str,
    /// What was not done if it never does.
    never: &'static str,
}

/// Waits for HQ to start the run. `there` fails when there is nothing left
/// to stream.
async fn wait_for_start(
    agent: &mut Agent,
    waiter: &Waiter,
    signals: &mut Signals,
    there: impl Fn() -> Result<(), Failure>,
) -> Result<Waited, Failure> {
    // An HQ that starts runs by itself does so at once; of another a person may not know.
    let mut configured = false;
    let mut looks = 0;
    let mut start = Start {
        filter: None,
        suspended: false,
    };
    let mut look = tokio::time::interval(LOOK);
    loop {
        let order = tokio::select! {
            order = agent.order() => order,
            _ = look.tick() => {
                there()?;
                looks += u32::from(configured);
                if looks == LOOKS {
                    let Waiter { hq, until_then, .. } = waiter;
                    log::warn!("waiting for HQ at {hq} to start the run; {until_then} until then");
                }
                continue;
            }
            () = signals.interrupt.recv() => return Ok(Waited::Left),
            () = signals.terminate.recv() => return Ok(Waited::Left),
            () = hangup(&mut signals.hangup) => return Ok(Waited::Left),
        };
        match order {
            Order::Configure(configuration) => {
                let (filter, warnings) = Filter::new(&configuration);
                for warning in warnings {
                    log::warn!("{warning}");
                }
                configured = true;
                start.filter = (!filter.is_trivial()).then_some(filter);
            }
            Order::Suspend => start.suspended = true,
            Order::Unsuspend => start.suspended = false,
            Order::Start => return Ok(Waited::Started(start)),
            Order::Stop => return Ok(Waited::Stopped),
            Order::Lost(error) => return Err(failed_before(error, waiter.never)),
            // Nothing runs that could be paused.
            Order::Pause | Order::Unpause => {}
        }
    }
}

/// HQ is lost before anything has begun.
fn failed_before(error: AgentError, never: &str) -> Failure {
    let failure = Failure::from(error);
    Failure {
        message: format!("{}; {never}", failure.message),
        ..failure
    }
}

/// Waits for HQ to take what is left, unless a person who has `asked` for the end already, or asks
/// meanwhile, does not want to. Ctrl-C on a terminal reaches a command too, which may end first: that
/// is asked once.
async fn unless_interrupted<T>(
    finishing: impl Future<Output = T>,
    mut asked: bool,
    signals: &mut Signals,
) -> Result<T, Failure> {
    tokio::pin!(finishing);
    loop {
        tokio::select! {
            finished = &mut finishing => return Ok(finished),
            () = signals.interrupt.recv() => {}
            () = signals.terminate.recv() => {}
        }
        if asked {
            return Err(Failure {
                status: INTERRUPTED,
                message: "interrupted: HQ may not have got everything".to_owned(),
            });
        }
        asked = true;
        log::info!("HQ takes what is left; a second signal leaves at once");
    }
}
