//! The agent without sockets: bytes of clients and batches in, bytes and orders out.
//!
//! Time is what the caller says it is. A channel ends with a report when what comes is no message, no
//! JSON, or an answer that nothing was asked for; what its client does not read is bounded. What does
//! not belong here: sockets, threads (`server`).

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::arguments::{Arguments, Malformed};
use super::channel::{Channel, Output, Pending};
use super::options::{Peer, TcfOptions};
use super::reply::{Answer, Outcome, Reply};
use super::server::ServeSummary;
use super::services::{self, Request, SERVICES, State, TcfEvent, locator::Locator};
use super::warnings::Warnings;
use crate::front::{Order, Replay};
use crate::machine::Machine;
use profiler_model::{Batch, Cpu, Definition, Demand, Event, Lost, LostReason, Timestamp};
use profiler_wire::tcf::{Code, ErrorReport, Frame, Incoming, Message};

/// Commands of a channel that are carried out at a time, so that others get their turn.
const COMMANDS_AT_A_TIME: usize = 64;
/// How much longer it is waited while a session is being attached.
const ATTACHING: Duration = Duration::from_secs(30);
/// As much time is given to one channel until others get their turn, or one command if that is longer.
const TURN: Duration = Duration::from_millis(5);
/// Demands that are formed between two ticks. Each may look at all configurations, and change what is
/// in the kernel; those beyond come with the tick.
const DEMANDS: u32 = 4;

/// Configurations whose answers wait; those of more are not waited for.
const MAX_CONFIGURED: usize = 1024;

/// A client's channel. Never given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// There are too many channels already. It is told the client by these bytes; then it is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooMany(pub Vec<u8>);

/// Whether what clients see is what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum View {
    /// Commands wait.
    Awaited,
    /// It is.
    Ready,
    /// There will be nothing, and why.
    Trouble(String),
}

/// The protocol of all channels, without their sockets.
pub struct Agent {
    state: State,
    locator: Locator,
    channels: BTreeMap<ChannelId, Channel>,
    opened: u64,
    view: View,
    /// The last one that was ordered.
    demand: Demand,
    /// It may be another one now.
    demand_is_due: bool,
    /// Formed since the last tick.
    demands: u32,
    /// Whether what was ordered last is so already; none: nobody tells.
    in_force: Option<bool>,
    /// Answers to configurations, until what they want is sampled.
    configured: VecDeque<Configured>,
    /// Counts changes of it.
    views: u64,
    /// The channel whose pending commands were tried last.
    retried: ChannelId,
    commands: u64,
    laggards: u64,
    heavy: u64,
    /// What the world had left out when that was told last.
    left_out: u64,
    warnings: Warnings,
}

/// What is answered when it is sampled what a configuration wants: its client counts from then on.
struct Configured {
    channel: ChannelId,
    token: Box<[u8]>,
    reply: Reply,
    until: Instant,
}

/// A command of a client.
struct Command<'a> {
    channel: ChannelId,
    token: &'a [u8],
    service: &'a str,
    command: &'a str,
    arguments: &'a [Cow<'a, [u8]>],
}

impl Command<'_> {
    /// Whether it says what is to be sampled.
    fn configures(&self) -> bool {
        (self.service, self.command) == ("Profiler", "configure")
    }
}

impl Agent {
    /// An agent without channels.
    pub fn new(options: TcfOptions, machine: Box<dyn Machine>) -> Agent {
        let transport = match options.tls {
            Some(_) => "SSL",
            None => "TCP",
        };
        Agent {
            locator: Locator::new(transport, options.user.clone()),
            channels: BTreeMap::new(),
            opened: 0,
            view: View::Awaited,
            demand: Demand::default(),
            demand_is_due: false,
            demands: 0,
            in_force: None,
            configured: VecDeque::new(),
            views: 0,
            retried: ChannelId(0),
            commands: 0,
            laggards: 0,
            heavy: 0,
            left_out: 0,
            warnings: Warnings::default(),
            state: State::new(options, machine),
        }
    }

    /// Whoever carries out demands tells when that is done ([`Agent::adjusted`]).
    pub fn is_told(&mut self) {
        self.in_force = Some(true);
    }

    /// How it serves.
    pub fn options(&self) -> &TcfOptions {
        &self.state.options
    }

    /// Where clients find it, as they are told.
    pub fn listens(&mut self, address: SocketAddr) {
        self.locator.listens(address);
    }

    /// Opens a channel. Our Hello waits in its output.
    pub fn open(&mut self, peer: Peer) -> Result<ChannelId, TooMany> {
        if self.is_full() {
            self.make_room();
        }
        let limits = &self.state.options.limits;
        if self.is_full() {
            let text = format!("there are {} channels already", limits.channels);
            let report = ErrorReport::new(Code::Other, text);
            let mut bytes = Vec::new();
            Frame::encode_end(&report.encode(), &mut bytes);
            return Err(TooMany(bytes));
        }
        let mut channel = Channel::new(peer, limits);
        let services = serde_json::to_vec(SERVICES).unwrap_or_default();
        let hello = Message::Event {
            service: "Locator".into(),
            event: "Hello".into(),
            arguments: vec![services.into()],
        };
        let id = ChannelId(self.opened);
        self.opened += 1;
        // An empty output has room.
        let _ = channel.output.push(&hello);
        self.channels.insert(id, channel);
        Ok(id)
    }

    /// Whether there are as many channels as may be.
    fn is_full(&self) -> bool {
        let open = self.channels.values().filter(|it| it.is_open());
        open.count() >= self.state.options.limits.channels
    }

    /// Takes bytes of a client; how many. The others are to be given again: at once, unless much
    /// waits to be sent to it (see [`Output::is_crowded`]).
    pub fn receive(&mut self, id: ChannelId, bytes: &[u8], now: Instant) -> usize {
        let mut rest = bytes;
        // Not `now`, which is whatever the caller says: this is what it costs.
        let begun = Instant::now();
        for _ in 0..COMMANDS_AT_A_TIME {
            if rest.len() < bytes.len() && begun.elapsed() >= TURN {
                break;
            }
            let Some(channel) = self.channels.get_mut(&id) else {
                return bytes.len();
            };
            if !channel.is_open() {
                return bytes.len();
            }
            if channel.output.is_crowded() {
                break;
            }
            match channel.decoder.advance(&mut rest) {
                Ok(None) => break,
                Ok(Some(Incoming::End)) => self.end(id, None),
                Ok(Some(Incoming::Message(frame))) => self.message(id, frame, now),
                Err(error) => self.end(id, Some(protocol(&error))),
            }
        }
        bytes.len() - rest.len()
    }

    /// Logs what could not be shown.
    fn tell_left_out(&mut self, now: Instant) {
        let left_out = self.state.world.undefined() + self.state.world.refused();
        let more = left_out - std::mem::replace(&mut self.left_out, left_out);
        if more > 0 {
            self.warnings.warn(now, || {
                format!("{more} contexts, mappings or events are not shown to TCF clients: there are too many, or they are not defined")
            });
        }
    }

    /// Nothing will come of a client any more, without a word of it. It gets what it has asked for.
    pub fn end_of_input(&mut self, id: ChannelId) {
        self.end(id, None);
    }

    /// What is to be sent to a client; none once the channel was closed.
    pub fn output(&mut self, id: ChannelId) -> Option<&mut Output> {
        Some(&mut self.channels.get_mut(&id)?.output)
    }

    /// The channels that are there.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.channels.keys().copied()
    }

    /// A channel is no more: its connection has gone.
    pub fn close(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.remove(&id)
            && channel.is_open()
        {
            self.forget(id);
        }
    }

    /// The client of a channel does not read.
    pub fn give_up(&mut self, id: ChannelId, now: Instant) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        let was_open = channel.is_open();
        channel.output.give_up();
        self.lags(id, was_open, now);
    }

    /// Ends all channels: nothing is served any more.
    pub fn finish(&mut self) {
        for id in self.channels().collect::<Vec<_>>() {
            self.end(id, None);
        }
    }

    /// Takes a batch; gives back the list of events, to be used again.
    pub fn batch(&mut self, mut batch: Batch, now: Instant) -> Vec<Event> {
        let at_once = self.state.options.replay == Some(Replay::AtOnce);
        let is_empty = batch.definitions.is_empty() && batch.events.is_empty();
        if !at_once && !is_empty {
            self.view(View::Ready);
        }
        self.define(batch.epoch, batch.definitions);
        for event in batch.events.drain(..) {
            self.event(event);
        }
        self.retry(now);
        batch.events
    }

    /// Events found no room on the way here.
    pub fn dropped(&mut self, count: u64, to: Timestamp, now: Instant) {
        self.event(Event::Lost(Lost {
            cpu: None::<Cpu>,
            from: to,
            to,
            count,
            reason: LostReason::SlowOutput,
        }));
        self.retry(now);
    }

    /// A question was answered, as far as it is at once.
    pub fn acknowledge(&mut self, question: u64, now: Instant) {
        self.state.world.acknowledged(question);
        self.retry(now);
    }

    /// It is sampled what was demanded so.
    pub fn adjusted(&mut self, demand: &Demand, now: Instant) {
        if *demand == self.demand {
            self.in_force = Some(true);
            self.answer_configured(now);
        }
    }

    /// All processes have been announced.
    pub fn ready(&mut self, now: Instant) {
        self.view(View::Ready);
        self.retry(now);
    }

    /// What clients see is old, until batches come.
    pub fn detached(&mut self) {
        self.view(View::Awaited);
    }

    /// There will be nothing to see, until batches come.
    pub fn trouble(&mut self, text: String, now: Instant) {
        self.view(View::Trouble(text));
        self.retry(now);
    }

    /// Time passes: tells events, ends what is waited for too long.
    pub fn tick(&mut self, now: Instant) {
        self.demand_is_due = true;
        self.demands = 0;
        // Those that have waited too long.
        self.answer_configured(now);
        self.end_silent(now);
        self.keep_within(now);
        self.state.world.tick(now);
        self.state.profiles.tick(now, &mut self.state.world);
        for event in services::events(&mut self.state, now) {
            self.tell(&event, now);
        }
        self.tell_left_out(now);
        self.retry(now);
    }

    /// Ends channels whose clients have not said who they are: others want to be served.
    fn end_silent(&mut self, now: Instant) {
        let limit = self.state.options.limits.greeting;
        let mut silent = Vec::new();
        for (&id, channel) in &mut self.channels {
            if channel.greeted || !channel.is_open() {
                continue;
            }
            let since = *channel.silent_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= limit {
                silent.push((id, channel.peer.address));
            }
        }
        for (id, address) in silent {
            let text = format!("no Hello came within {} s", limit.as_secs());
            self.warnings.warn(now, || {
                format!("the TCF client at {address} is sent away: {text}")
            });
            self.end(id, Some(ErrorReport::new(Code::Protocol, text)));
        }
    }

    /// Whoever has been silent longest gives way to a client that comes.
    fn make_room(&mut self) {
        let mut channels = self.channels.iter();
        let silent = channels.find(|(_, channel)| channel.is_open() && !channel.greeted);
        if let Some((&id, _)) = silent {
            let text = "no Hello has come, and others want to be served".to_owned();
            self.end(id, Some(ErrorReport::new(Code::Protocol, text)));
        }
    }

    /// Gives up those who make us keep most, if all clients together make us keep too much.
    fn keep_within(&mut self, now: Instant) {
        let kept = self.channels.iter().map(|(&id, it)| (it.bytes(), id));
        let mut kept: Vec<(usize, ChannelId)> = kept.collect();
        let mut bytes: usize = kept.iter().map(|(bytes, _)| bytes).sum();
        let limit = self.state.options.limits.channel_bytes;
        if bytes <= limit {
            return;
        }
        kept.sort_unstable();
        while bytes > limit
            && let Some((most, id)) = kept.pop()
        {
            bytes -= most;
            let Some(channel) = self.channels.get_mut(&id) else {
                continue;
            };
            let was_open = channel.is_open();
            let peer = channel.peer.address;
            channel.output.give_up();
            self.heavy += 1;
            self.warnings.warn(now, || {
                format!(
                    "the channel of the TCF client at {peer} is closed: {most} bytes are kept for it, \
                     most of more than {limit} for all clients"
                )
            });
            self.broken(id, was_open);
        }
    }

    /// Whether ids should start anew: much was defined.
    pub fn wants_new_epoch(&self) -> bool {
        self.state.world.wants_new_epoch()
    }

    /// What is wanted of whoever runs the session, since the last call.
    pub fn orders(&mut self) -> Vec<Order> {
        let mut orders = Vec::new();
        if self.demands < DEMANDS && std::mem::take(&mut self.demand_is_due) {
            self.demands += 1;
            let sampling = self.state.profiles.sampling(&self.state.world);
            let attached = self.channels.values().any(|it| it.greeted && it.is_open());
            let lives = sampling.map_or(0, |_| self.state.profiles.lives());
            // It can be long, and seldom changes.
            let last = &self.demand;
            if (attached, lives, sampling) != (last.attached, last.lives, last.sampling.as_ref()) {
                self.demand = Demand {
                    attached,
                    lives,
                    sampling: sampling.cloned(),
                    ..Demand::default()
                };
                orders.push(Order::Demand(self.demand.clone()));
                self.in_force = self.in_force.map(|_| false);
            }
        }
        self.answer_configured(Instant::now());
        orders.extend(self.state.world.questions().into_iter().map(Order::Ask));
        orders
    }

    /// What serving came to up to now, as far as it is known here.
    pub fn summary(&self) -> ServeSummary {
        ServeSummary {
            channels: self.opened,
            laggards: self.laggards,
            heavy: self.heavy,
            commands: self.commands,
            ..ServeSummary::default()
        }
    }

    fn define(&mut self, epoch: u32, definitions: Vec<Definition>) {
        self.state.world.define(epoch, definitions);
    }

    fn event(&mut self, event: Event) {
        let State {
            world, profiles, ..
        } = &mut self.state;
        match world.event(event) {
            Some(Event::Sample(sample)) => profiles.sample(&sample, world),
            Some(Event::Lost(lost)) => profiles.lost(&lost),
            _ => {}
        }
    }

    fn message(&mut self, id: ChannelId, frame: Frame, now: Instant) {
        let message = match Message::decode(&frame) {
            Ok(message) => message,
            Err(error) => return self.end(id, Some(protocol(&error))),
        };
        match &message {
            Message::Command {
                token,
                service,
                command,
                arguments,
            } => {
                let command = Command {
                    channel: id,
                    token,
                    service,
                    command,
                    arguments,
                };
                if self.attempt(&command, false, now) {
                    return;
                }
                let Some(channel) = self.channels.get_mut(&id) else {
                    return;
                };
                if channel.has_room(&frame) {
                    let until = now + self.state.options.limits.patience;
                    channel.keep(Pending { frame, until });
                } else {
                    // Too many wait: what is known at present has to do.
                    self.attempt(&command, true, now);
                }
            }
            Message::Event {
                service,
                event,
                arguments,
            } => {
                if service == "Locator" && event == "Hello" {
                    self.hello(id, arguments);
                }
            }
            Message::Result { .. } | Message::Progress { .. } | Message::Unknown { .. } => {
                self.end(id, Some(protocol(&"an answer, but nothing was asked for")));
            }
            Message::FlowControl { .. } => {}
        }
    }

    /// A client has come, with the names of its services.
    fn hello(&mut self, id: ChannelId, arguments: &[Cow<'_, [u8]>]) {
        let checked = services::arity::check("Locator", "Hello", arguments.len());
        if let Err(Malformed { report, .. }) =
            checked.and_then(|()| Arguments::new(arguments).texts())
        {
            return self.end(id, Some(report));
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.greeted = true;
            self.demand_is_due = true;
        }
    }

    /// Tries to carry out a command; whether that is over.
    fn attempt(&mut self, command: &Command<'_>, last_try: bool, now: Instant) -> bool {
        let id = command.channel;
        let Some(channel) = self.channels.get(&id) else {
            return true;
        };
        let answer = match channel.greeted {
            true => self.call(channel.peer, command, last_try, now),
            false => Ok(Outcome::Unknown),
        };
        match answer {
            Ok(Outcome::Done(reply)) if self.is_awaited(command) => {
                self.configured.push_back(Configured {
                    channel: id,
                    token: command.token.into(),
                    reply,
                    until: now + self.state.options.limits.patience,
                });
            }
            Ok(Outcome::Done(reply)) => self.answer(id, command.token, reply, now),
            Ok(Outcome::Unknown) => {
                let token = command.token.into();
                self.say(id, &Message::Unknown { token }, now);
            }
            Ok(Outcome::Later) if last_try => {
                let reply = Reply::error(Code::Other, "that is not known yet");
                self.answer(id, command.token, reply, now);
            }
            Ok(Outcome::Later) => return false,
            Err(Malformed { report, ends: true }) => self.end(id, Some(report)),
            Err(Malformed { report, .. }) => {
                self.answer(id, command.token, Reply::report(report), now);
            }
        }
        true
    }

    /// Whether a command that is carried out is answered when it is sampled so.
    fn is_awaited(&self, command: &Command<'_>) -> bool {
        command.configures() && self.in_force.is_some() && self.configured.len() < MAX_CONFIGURED
    }

    /// Answers configurations, if what they want is sampled, or was waited for long enough.
    fn answer_configured(&mut self, now: Instant) {
        let is_so = self.in_force != Some(false) && !self.demand_is_due;
        while let Some(first) = self.configured.front()
            && (is_so || first.until <= now)
            && let Some(first) = self.configured.pop_front()
        {
            self.answer(first.channel, &first.token, first.reply, now);
        }
    }

    fn call(&mut self, peer: Peer, command: &Command<'_>, last_try: bool, now: Instant) -> Answer {
        services::arity::check(command.service, command.command, command.arguments.len())?;
        let needs_view = !matches!(command.service, "Locator" | "Diagnostics");
        if needs_view && !last_try && self.view == View::Awaited {
            return match SERVICES.contains(&command.service) {
                true => Ok(Outcome::Later),
                false => Ok(Outcome::Unknown),
            };
        }
        let trouble = match &self.view {
            View::Trouble(text) if needs_view => Some(text),
            _ => None,
        };
        let request = Request {
            channel: command.channel,
            peer,
            command: command.command,
            arguments: Arguments::new(command.arguments),
            last_try: last_try || trouble.is_some(),
            now,
        };
        self.demand_is_due |= command.configures();
        let outcome = match command.service {
            "Locator" => self.locator.call(request)?,
            service => services::call(service, request, &mut self.state)?,
        };
        Ok(match (outcome, trouble) {
            // A client that can't configure ends its channel; it is told when it reads.
            (outcome, Some(_)) if command.configures() => outcome,
            (Outcome::Done(reply), Some(text)) => Outcome::Done(reply.failed(Code::Other, text)),
            (outcome, _) => outcome,
        })
    }

    fn answer(&mut self, id: ChannelId, token: &[u8], reply: Reply, now: Instant) {
        self.commands += 1;
        let message = Message::Result {
            token: token.into(),
            arguments: reply.fields.into_iter().map(Cow::Owned).collect(),
        };
        self.say(id, &message, now);
    }

    fn say(&mut self, id: ChannelId, message: &Message<'_>, now: Instant) {
        if let Some(channel) = self.channels.get_mut(&id)
            && channel.is_open()
            && !channel.output.push(message)
        {
            self.lags(id, true, now);
        }
    }

    /// Tells all clients.
    fn tell(&mut self, event: &TcfEvent, now: Instant) {
        let bytes = encoded(event);
        let mut broken = Vec::new();
        for (&id, channel) in &mut self.channels {
            let listens = channel.greeted && channel.is_open();
            if listens && !channel.output.push_encoded(&bytes) {
                broken.push(id);
            }
        }
        for id in broken {
            self.lags(id, true, now);
        }
    }

    /// Tries pending commands again, if something has changed or their time is over.
    ///
    /// All of those of a channel, and those of others while there is time: they get theirs next.
    fn retry(&mut self, now: Instant) {
        let known = (self.state.world.generation(), self.views);
        let begun = Instant::now();
        // What is known only when a session is attached is worth more than a wrong answer: clients
        // remember for ever that an id has no profile.
        let longer = match self.view {
            View::Awaited => ATTACHING,
            View::Ready | View::Trouble(_) => Duration::ZERO,
        };
        let (before, behind): (Vec<ChannelId>, Vec<ChannelId>) =
            self.channels().partition(|&id| id <= self.retried);
        for id in behind.into_iter().chain(before) {
            if begun.elapsed() >= TURN {
                break;
            }
            let Some(channel) = self.channels.get_mut(&id) else {
                continue;
            };
            self.retried = id;
            let has_changed = std::mem::replace(&mut channel.tried, known) != known;
            // Those that have waited longest are in front.
            let is_due = channel
                .pending
                .front()
                .is_some_and(|it| it.until + longer <= now);
            if !has_changed && !is_due {
                continue;
            }
            for pending in channel.take_pending() {
                let is_last = pending.until + longer <= now;
                let is_over =
                    (has_changed || is_last) && self.try_again(id, &pending, is_last, now);
                if let Some(channel) = self.channels.get_mut(&id)
                    && channel.is_open()
                    && !is_over
                {
                    channel.keep(pending);
                }
            }
        }
    }

    fn try_again(&mut self, id: ChannelId, pending: &Pending, is_last: bool, now: Instant) -> bool {
        let is_open = self.channels.get(&id).is_some_and(Channel::is_open);
        match Message::decode(&pending.frame) {
            Ok(Message::Command {
                token,
                service,
                command,
                arguments,
            }) if is_open => {
                let command = Command {
                    channel: id,
                    token: &token,
                    service: &service,
                    command: &command,
                    arguments: &arguments,
                };
                self.attempt(&command, is_last, now)
            }
            _ => true,
        }
    }

    /// Ends a channel from our side.
    fn end(&mut self, id: ChannelId, report: Option<ErrorReport>) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        if !channel.is_open() {
            return;
        }
        // What was asked for is answered, late or not.
        let (own, others) = std::mem::take(&mut self.configured)
            .into_iter()
            .partition(|it| it.channel == id);
        self.configured = others;
        let own: VecDeque<Configured> = own;
        for one in own {
            self.answer(id, &one.token, one.reply, Instant::now());
        }
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        if let Some(report) = &report {
            log::debug!("channel of {}: {}", channel.peer.address, report.text());
        }
        let report = report.map(|report| report.encode()).unwrap_or_default();
        channel.output.end(&report);
        channel.take_pending();
        self.forget(id);
    }

    /// A channel has been broken off, because its client does not read.
    fn lags(&mut self, id: ChannelId, was_open: bool, now: Instant) {
        let Some(channel) = self.channels.get(&id) else {
            return;
        };
        let peer = channel.peer.address;
        self.laggards += 1;
        self.warnings.warn(now, || {
            format!("the TCF client at {peer} does not read: its channel is closed")
        });
        self.broken(id, was_open);
    }

    /// A channel has been broken off.
    fn broken(&mut self, id: ChannelId, was_open: bool) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.take_pending();
        }
        if was_open {
            self.forget(id);
        }
    }

    /// A channel asks for nothing any more.
    fn forget(&mut self, id: ChannelId) {
        self.configured.retain(|it| it.channel != id);
        self.state.profiles.close(id, &mut self.state.world);
        services::closed(id, &mut self.state);
        self.demand_is_due = true;
    }

    fn view(&mut self, view: View) {
        if self.view != view {
            self.view = view;
            self.views += 1;
        }
    }
}

fn encoded(event: &TcfEvent) -> Vec<u8> {
    let mut bytes = Vec::new();
    let arguments = event.arguments.iter();
    let message = Message::Event {
        service: event.service.into(),
        event: event.event.into(),
        arguments: arguments.map(Cow::from).collect(),
    };
    message.encode(&mut bytes);
    bytes
}

/// The report of something that is no message.
fn protocol(error: &dyn std::fmt::Display) -> ErrorReport {
    ErrorReport::new(Code::Protocol, format!("protocol error: {error}"))
}
