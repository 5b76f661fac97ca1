//! The control connection: what HQ says -> orders; heartbeats.
//!
//! HQ writes a byte at a time; what has come is kept until it is a whole message. What does not
//! belong here: what makes sense when (`life`), writing (`outbox`).

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Order;
use super::error::AgentError;
use super::life::{Life, Orders, Phase};
use super::shared::{Progress, Shared};
use profiler_wire::bytefrog::HqMessage;

const NAME: &str = "the control connection";
/// How long after the start of the run a configuration may come.
const CONFIGURATION: Duration = Duration::from_secs(1);
/// Time of one message, in the long run. An order costs both sides much, and one without meaning a
/// line of the log.
const PACE: Duration = Duration::from_millis(100);
/// How far messages may be ahead of their pace.
const BURST: Duration = Duration::from_secs(2);

/// Reads orders until HQ closes the connection, which is an error before the run has ended.
pub(super) async fn read(
    socket: &TcpStream,
    shared: &Shared,
    orders: &mpsc::Sender<Order>,
) -> Result<(), AgentError> {
    let mut life = Life::new();
    let mut pace = Pace(Instant::now());
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let readable = socket.readable();
        let readable = if life.lacks_configuration() {
            match tokio::time::timeout(CONFIGURATION, readable).await {
                Ok(readable) => readable,
                Err(_) => {
                    let found = life.take_defaults();
                    pass_on(found, &life, shared, orders).await?;
                    continue;
                }
            }
        } else {
            readable.await
        };
        readable.map_err(|error| AgentError::broken(NAME, &error))?;
        match socket.try_read(&mut chunk) {
            Ok(0) if may_close(shared) => return Ok(()),
            Ok(0) => return Err(AgentError::closed(NAME)),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // HQ may be gone before all was closed.
            Err(_) if may_close(shared) => return Ok(()),
            Err(error) => return Err(AgentError::broken(NAME, &error)),
        }
        let mut at = 0;
        while let Some((message, len)) =
            HqMessage::decode(&bytes[at..]).map_err(|error| AgentError::Protocol {
                connection: NAME.to_owned(),
                reason: error.to_string(),
            })?
        {
            at += len;
            sleep_until(pace.next(Instant::now())).await;
            take(message, &mut life, shared, orders).await?;
        }
        bytes.drain(..at);
    }
}

/// When so much will have been said as is by now: what is faster for long has to wait.
struct Pace(Instant);

impl Pace {
    /// When the next message may be taken; most often at once.
    fn next(&mut self, now: Instant) -> Instant {
        self.0 = self.0.max(now) + PACE;
        // Before the start of the clock nobody has to wait either.
        self.0.checked_sub(BURST).map_or(now, |at| at.max(now))
    }
}

async fn take(
    message: HqMessage,
    life: &mut Life,
    shared: &Shared,
    orders: &mpsc::Sender<Order>,
) -> Result<(), AgentError> {
    log::debug!("HQ: {}", kind(&message));
    let found = life.take(message);
    pass_on(found, life, shared, orders).await
}

/// Lets everybody know what an order of HQ came to.
async fn pass_on(
    found: Orders,
    life: &Life,
    shared: &Shared,
    orders: &mpsc::Sender<Order>,
) -> Result<(), AgentError> {
    // Before anybody acts on it.
    for order in &found {
        if let Order::Configure(configuration) = order {
            shared.configure(configuration);
        }
    }
    let (started, stopped) = (life.started(), life.phase() == Phase::Stopped);
    shared.said.send_if_modified(|said| {
        let news = (said.started, said.stopped) != (started, stopped);
        (said.started, said.stopped) = (started, stopped);
        news
    });
    for order in found {
        if let Order::Lost(error) = order {
            return Err(error);
        }
        // Nobody listens any more when the run is being ended.
        let _ = orders.send(order).await;
    }
    Ok(())
}

fn kind(message: &HqMessage) -> String {
    match message {
        HqMessage::Configuration(bytes) => format!("Configuration ({} bytes)", bytes.len()),
        other => format!("{other:?}"),
    }
}

/// Whether HQ may close the connection now.
fn may_close(shared: &Shared) -> bool {
    match *shared.progress.borrow() {
        Progress::Running | Progress::Translated => false,
        Progress::Leaving => shared.said.borrow().stopped,
        Progress::Closing => true,
    }
}

/// Heartbeats: each interval after the first configuration (which brings one itself). For ever.
pub(super) async fn heartbeats(shared: &Shared) {
    let mut said = shared.said.subscribe();
    loop {
        let interval = said
            .borrow_and_update()
            .configured
            .as_ref()
            .map(|(_, settings)| settings.heartbeat);
        let Some(interval) = interval else {
            // The sender lives as long as `shared`.
            let _ = said.changed().await;
            continue;
        };
        if tokio::time::timeout(interval, said.changed())
            .await
            .is_err()
        {
            shared.heartbeat();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_orders_too_much_for_long_waits() {
        let mut now = Instant::now() + BURST;
        let mut pace = Pace(now);
        let at_once = (0..1000).take_while(|_| pace.next(now) == now).count();
        assert_eq!(at_once as u128, BURST.as_millis() / PACE.as_millis());
        // The first one that had to wait.
        now += PACE;
        for _ in 0..10 {
            let next = pace.next(now);
            assert_eq!(next - now, PACE);
            now = next;
        }
        now += BURST;
        assert!((0..10).all(|_| pace.next(now) == now));
    }
}
