//! The life cycle of a run: what an HQ says -> orders that make sense in the present phase.
//!
//! What comes out is always a sensible sequence: `Configure`s, perhaps `Suspend`s and `Unsuspend`s,
//! `Start`, pairs of `Pause` and `Unpause` and of `Suspend` and `Unsuspend` that do not overlap,
//! `Stop`. A suspension that began before the start is passed on before it. Orders that overtook the
//! configuration (HQs have one thread that sends it and others that order) are kept for it. What
//! makes no sense is said and dropped.
//!
//! Source: "Life cycle" in docs/formats/bytefrog.md. What does not belong here: sockets, carrying
//! orders out.

use super::Order;
use super::error::{AgentError, shown};
use profiler_wire::bytefrog::{Configuration, HqMessage};

/// Where a run is, as HQ sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Hello was said.
    Greeting,
    /// Configured; HQ has not started it.
    Waiting {
        /// It will begin suspended.
        suspended: bool,
    },
    /// Traced.
    Tracing,
    /// The program stands still.
    Paused,
    /// The program runs, and is not traced.
    Suspended,
    /// HQ wants it to end.
    Stopped,
    /// HQ sent an error.
    Dead,
}

impl Phase {
    /// When that is, for people.
    fn when(self) -> &'static str {
        match self {
            Phase::Greeting => "before a configuration",
            Phase::Waiting { .. } => "before the run is started",
            Phase::Tracing => "while the program runs and is traced",
            Phase::Paused => "while the program stands still",
            Phase::Suspended => "while tracing is suspended",
            Phase::Stopped => "behind a stop",
            Phase::Dead => "behind an error",
        }
    }
}

/// Orders that are kept for a configuration.
const MAX_EARLY: usize = 16;

/// The state of a run.
#[derive(Debug)]
pub(super) struct Life {
    phase: Phase,
    started: bool,
    /// What came before the configuration.
    early: Vec<HqMessage>,
}

/// What an order of HQ comes to.
pub(super) type Orders = Vec<Order>;

impl Life {
    /// A run that begins.
    pub(super) fn new() -> Life {
        Life {
            phase: Phase::Greeting,
            started: false,
            early: Vec::new(),
        }
    }

    /// Whether HQ has started a run that it has not configured.
    pub(super) fn lacks_configuration(&self) -> bool {
        self.phase == Phase::Greeting && self.early.contains(&HqMessage::Start)
    }

    /// Takes defaults for the configuration that does not come.
    pub(super) fn take_defaults(&mut self) -> Orders {
        log::warn!("HQ started the run and sent no configuration; defaults are used");
        let mut orders = vec![Order::Configure(Configuration::default())];
        orders.extend(self.configured());
        orders
    }

    /// A configuration is there: what came before it counts now.
    fn configured(&mut self) -> Orders {
        self.phase = Phase::Waiting { suspended: false };
        let early = std::mem::take(&mut self.early);
        early
            .into_iter()
            .flat_map(|early| self.take(early))
            .collect()
    }

    /// Where it is.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether HQ has started it, and so expects data connections.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// Takes what came on the control connection.
    pub(super) fn take(&mut self, message: HqMessage) -> Orders {
        use Phase::*;
        let (phase, orders) = match (self.phase, message) {
            (_, HqMessage::Error(text)) => {
                let error = AgentError::Refused(shown(&text));
                (Dead, vec![Order::Lost(error)])
            }
            (Greeting, HqMessage::Configuration(bytes)) => {
                let mut orders = vec![configure(&bytes)];
                orders.extend(self.configured());
                (self.phase, orders)
            }
            (
                Greeting,
                message @ (HqMessage::Start
                | HqMessage::Pause
                | HqMessage::Unpause
                | HqMessage::Suspend
                | HqMessage::Unsuspend),
            ) => {
                if self.early.len() < MAX_EARLY {
                    self.early.push(message);
                }
                (Greeting, vec![])
            }
            (phase @ Waiting { .. }, HqMessage::Configuration(bytes)) => {
                (phase, vec![configure(&bytes)])
            }
            (Waiting { suspended }, HqMessage::Start) => {
                self.started = true;
                let next = if suspended { Suspended } else { Tracing };
                (next, vec![Order::Start])
            }
            (Waiting { suspended: false }, HqMessage::Suspend) => {
                (Waiting { suspended: true }, vec![Order::Suspend])
            }
            (Waiting { suspended: true }, HqMessage::Unsuspend) => {
                (Waiting { suspended: false }, vec![Order::Unsuspend])
            }
            (Tracing, HqMessage::Pause) => (Paused, vec![Order::Pause]),
            (Paused, HqMessage::Unpause) => (Tracing, vec![Order::Unpause]),
            (Tracing, HqMessage::Suspend) => (Suspended, vec![Order::Suspend]),
            (Suspended, HqMessage::Unsuspend) => (Tracing, vec![Order::Unsuspend]),
            // HQ means what it says last: it may have seen by the mode that a pause was refused.
            (Paused, HqMessage::Suspend) => (Suspended, vec![Order::Unpause, Order::Suspend]),
            (Suspended, HqMessage::Pause) => (Paused, vec![Order::Unsuspend, Order::Pause]),
            // A target that stands still could not be ended.
            (Paused, HqMessage::Stop) => (Stopped, vec![Order::Unpause, Order::Stop]),
            (Greeting | Waiting { .. } | Tracing | Suspended, HqMessage::Stop) => {
                (Stopped, vec![Order::Stop])
            }
            // The answer to the last heartbeat, although HQ had said it before.
            (Stopped, HqMessage::Stop) => (Stopped, vec![]),
            (phase, message) => {
                let name = name(&message);
                log::warn!(
                    "HQ sent {name}, which has no meaning {}; ignored",
                    phase.when()
                );
                (phase, vec![])
            }
        };
        self.phase = phase;
        orders
    }
}

fn configure(bytes: &[u8]) -> Order {
    Order::Configure(Configuration::decode(bytes).unwrap_or_else(|error| {
        log::warn!("the configuration of HQ is not understood ({error}); defaults are used");
        Configuration::default()
    }))
}

fn name(message: &HqMessage) -> &'static str {
    match message {
        HqMessage::Configuration(_) => "a configuration",
        HqMessage::Start => "start",
        HqMessage::Stop => "stop",
        HqMessage::Pause => "pause",
        HqMessage::Unpause => "unpause",
        HqMessage::Suspend => "suspend",
        HqMessage::Unsuspend => "unsuspend",
        HqMessage::DataHelloReply => "a reply to a data hello",
        HqMessage::Error(_) => "an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HqMessage::{Pause, Start, Stop, Suspend, Unpause, Unsuspend};

    fn configuration() -> HqMessage {
        HqMessage::Configuration(Configuration::default().encode())
    }

    fn text(order: &Order) -> String {
        match order {
            Order::Configure(_) => "Configure".into(),
            Order::Lost(error) => format!("Lost({error})"),
            other => format!("{other:?}"),
        }
    }

    /// What `messages` come to, after a configuration, and where the run is then.
    #[track_caller]
    fn check(messages: &[HqMessage], expected: &str, phase: Phase) {
        let mut life = Life::new();
        assert_eq!(life.take(configuration()).len(), 1);
        let orders: Vec<Order> = messages
            .iter()
            .flat_map(|message| life.take(message.clone()))
            .collect();
        let orders: Vec<String> = orders.iter().map(text).collect();
        assert_eq!(orders.join(" "), expected);
        assert_eq!(life.phase(), phase);
    }

    const WAITING: Phase = Phase::Waiting { suspended: false };
    const WAITING_SUSPENDED: Phase = Phase::Waiting { suspended: true };

    #[test]
    fn a_plain_run() {
        check(&[], "", WAITING);
        check(&[Start], "Start", Phase::Tracing);
        check(&[Start, Stop], "Start Stop", Phase::Stopped);
    }

    #[test]
    fn configurations_come_again_until_the_start() {
        let again = configuration;
        check(&[again(), again()], "Configure Configure", WAITING);
        check(
            &[Suspend, again(), Start],
            "Suspend Configure Start",
            Phase::Suspended,
        );
        check(&[Start, again()], "Start", Phase::Tracing);
        check(&[Stop, again()], "Stop", Phase::Stopped);
    }

    #[test]
    fn the_last_configuration_is_understood() {
        let mut life = Life::new();
        let wanted = Configuration {
            run: 200,
            data_senders: 3,
            exclusions: vec!["java/.*".into()],
            ..Configuration::default()
        };
        life.take(configuration());
        for (bytes, wanted) in [
            (wanted.encode(), wanted),
            (vec![1, 2, 3], Configuration::default()),
        ] {
            match &life.take(HqMessage::Configuration(bytes))[..] {
                [Order::Configure(configuration)] => assert_eq!(*configuration, wanted),
                other => panic!("{other:?}"),
            }
        }
    }

    /// What `messages` before a configuration come to: nothing until `take` is called.
    #[track_caller]
    fn check_early(
        messages: &[HqMessage],
        take: impl Fn(&mut Life) -> Orders,
        expected: &str,
        phase: Phase,
    ) {
        let mut life = Life::new();
        for message in messages {
            assert!(life.take(message.clone()).is_empty());
            assert_eq!(life.phase(), Phase::Greeting);
            assert!(!life.started());
        }
        assert_eq!(life.lacks_configuration(), messages.contains(&Start));
        let orders: Vec<String> = take(&mut life).iter().map(text).collect();
        assert_eq!(orders.join(" "), expected);
        assert_eq!(life.phase(), phase);
        assert_eq!(life.started(), messages.contains(&Start));
        assert!(!life.lacks_configuration());
    }

    #[test]
    fn orders_that_overtake_the_configuration_are_kept_for_it() {
        let configured = |life: &mut Life| life.take(configuration());
        check_early(&[Start], configured, "Configure Start", Phase::Tracing);
        let orders = "Configure Suspend Start";
        check_early(&[Suspend, Start], configured, orders, Phase::Suspended);
        let orders = "Configure Suspend";
        check_early(&[Suspend], configured, orders, WAITING_SUSPENDED);
        check_early(&[Pause, Unpause], configured, "Configure", WAITING);
        let mut life = Life::new();
        assert!(matches!(&life.take(Stop)[..], [Order::Stop]));
    }

    #[test]
    fn a_configuration_that_does_not_come_is_done_without() {
        let defaults = Life::take_defaults;
        check_early(&[Start], defaults, "Configure Start", Phase::Tracing);
        let orders = "Configure Suspend Start";
        check_early(&[Suspend, Start], defaults, orders, Phase::Suspended);
    }

    #[test]
    fn what_overtakes_a_configuration_is_bounded() {
        let mut life = Life::new();
        for _ in 0..1000 {
            life.take(Suspend);
        }
        assert_eq!(life.early.len(), MAX_EARLY);
    }

    #[test]
    fn suspended_before_the_start() {
        check(&[Suspend], "Suspend", WAITING_SUSPENDED);
        check(&[Suspend, Start], "Suspend Start", Phase::Suspended);
        check(
            &[Suspend, Unsuspend, Start],
            "Suspend Unsuspend Start",
            Phase::Tracing,
        );
        check(&[Unsuspend, Start], "Start", Phase::Tracing);
        check(
            &[Suspend, Suspend, Start, Unsuspend],
            "Suspend Start Unsuspend",
            Phase::Tracing,
        );
    }

    #[test]
    fn stopped_before_the_start() {
        check(&[Stop], "Stop", Phase::Stopped);
        check(&[Suspend, Stop], "Suspend Stop", Phase::Stopped);
        let mut life = Life::new();
        life.take(configuration());
        life.take(Stop);
        assert!(!life.started());
        life.take(Start);
        assert!(!life.started());
    }

    #[test]
    fn paused() {
        check(&[Start, Pause], "Start Pause", Phase::Paused);
        check(&[Start, Pause, Pause], "Start Pause", Phase::Paused);
        let whole = [Start, Pause, Unpause, Pause, Unpause, Unpause];
        let orders = "Start Pause Unpause Pause Unpause";
        check(&whole, orders, Phase::Tracing);
        check(&[Pause, Start], "Start", Phase::Tracing);
    }

    #[test]
    fn stopped_while_paused() {
        let orders = "Start Pause Unpause Stop";
        check(&[Start, Pause, Unpause, Stop], orders, Phase::Stopped);
        // Without the unpause that comes first usually.
        check(&[Start, Pause, Stop], orders, Phase::Stopped);
    }

    #[test]
    fn stopped_while_suspended() {
        let orders = "Start Suspend Unsuspend Stop";
        check(&[Start, Suspend, Unsuspend, Stop], orders, Phase::Stopped);
        check(
            &[Start, Suspend, Stop],
            "Start Suspend Stop",
            Phase::Stopped,
        );
    }

    #[test]
    fn suspended_from_paused_and_back() {
        check(
            &[Start, Pause, Unpause, Suspend],
            "Start Pause Unpause Suspend",
            Phase::Suspended,
        );
        check(
            &[Start, Suspend, Unsuspend, Pause],
            "Start Suspend Unsuspend Pause",
            Phase::Paused,
        );
        // What no HQ sends: a change without the one that undoes the other.
        check(
            &[Start, Pause, Suspend],
            "Start Pause Unpause Suspend",
            Phase::Suspended,
        );
        check(
            &[Start, Suspend, Pause],
            "Start Suspend Unsuspend Pause",
            Phase::Paused,
        );
        check(&[Start, Pause, Unsuspend], "Start Pause", Phase::Paused);
        check(
            &[Start, Suspend, Unpause],
            "Start Suspend",
            Phase::Suspended,
        );
    }

    #[test]
    fn after_a_stop_nothing_counts() {
        for message in [Start, Pause, Unpause, Suspend, Unsuspend, Stop] {
            check(&[Start, Stop, message], "Start Stop", Phase::Stopped);
        }
        check(&[Start, Start], "Start", Phase::Tracing);
        let reply = HqMessage::DataHelloReply;
        check(&[Start, reply], "Start", Phase::Tracing);
    }

    #[test]
    fn an_error_ends_it_in_every_phase() {
        let ways: [&[HqMessage]; 6] = [
            &[],
            &[Suspend],
            &[Start],
            &[Start, Pause],
            &[Start, Suspend],
            &[Start, Stop],
        ];
        for way in ways {
            let mut life = Life::new();
            life.take(configuration());
            for message in way {
                life.take(message.clone());
            }
            check_error(&mut life);
        }
        check_error(&mut Life::new());
    }

    fn check_error(life: &mut Life) {
        match &life.take(HqMessage::Error("Unknown\u{7} run".into()))[..] {
            [Order::Lost(AgentError::Refused(text))] => assert_eq!(text, "Unknown  run"),
            other => panic!("{other:?}"),
        }
        assert_eq!(life.phase(), Phase::Dead);
        assert!(life.take(Start).is_empty() && life.take(Stop).is_empty());
    }
}
