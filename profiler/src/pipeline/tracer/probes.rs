//! The probes of a recording, by number: which sites make up each at its present level, and whether its
//! hits count.
//!
//! Plans and levels -> [`CallSite`]s, and what the kernel side is told. What does not belong here:
//! attaching (`links`), deciding on levels (`budget`), which functions (`plans`).

use std::ops::{Index, IndexMut};

use profiler_common::call::{
    CallCounters, EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_JUMP, EDGE_LAND, EDGE_SELF_JUMP,
    EDGE_SELF_JUMP_IF, EDGE_TAIL, EDGE_THROW, MAX_SITES, PROBE_CXX, PROBE_FETCHES, PROBE_GO,
    PROBE_OFF, PROBE_SELF_JUMPS, ProbeControl,
};

use super::gap;
use super::load::{DUTY_PERIOD_NS, Level, Load};
use profiler_model::raw::RawEvent;
use profiler_model::{GapReason, ReturnMode, Timestamp};
use profiler_probe::{CallSite, Probe, ProbeError};
use profiler_resolve::Role;
use profiler_trace::cost::CostTable;
use profiler_trace::{Exits, FunctionKind, Language, Plan, When};

/// All probes.
#[derive(Debug)]
pub(super) struct Probes {
    states: Vec<ProbeState>,
    /// Most that fit into this recording.
    pub(super) most: u32,
    /// Nothing is recorded any more, whatever comes up.
    closed: bool,
}

impl Index<u32> for Probes {
    type Output = ProbeState;

    fn index(&self, number: u32) -> &ProbeState {
        &self.states[number as usize]
    }
}

impl IndexMut<u32> for Probes {
    fn index_mut(&mut self, number: u32) -> &mut ProbeState {
        &mut self.states[number as usize]
    }
}

impl Default for Probes {
    fn default() -> Probes {
        Probes {
            states: Vec::new(),
            most: u32::MAX,
            closed: false,
        }
    }
}

impl Probes {
    pub(super) fn len(&self) -> u32 {
        self.states.len() as u32
    }

    pub(super) fn push(&mut self, state: ProbeState) {
        self.states.push(state);
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut ProbeState> {
        self.states.get_mut(number as usize)
    }

    /// With their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &ProbeState)> {
        (0..).zip(&self.states)
    }

    /// With their numbers.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut ProbeState)> {
        (0..).zip(&mut self.states)
    }

    /// Functions and markers that were asked for.
    pub(super) fn calls(&self) -> impl Iterator<Item = &ProbeState> {
        self.states.iter().filter(|state| state.role == Role::Call)
    }

    /// Whether a probe is one of those that were asked for.
    pub(super) fn is_call(&self, number: u32) -> bool {
        let state = self.states.get(number as usize);
        state.is_some_and(|state| state.role == Role::Call)
    }

    /// All numbers.
    pub(super) fn all(&self) -> Vec<u32> {
        (0..self.len()).collect()
    }

    /// The sites of some, at their present levels.
    pub(super) fn sites(&self, probes: impl IntoIterator<Item = u32>) -> Vec<CallSite> {
        let mut sites = Vec::new();
        for number in probes {
            if let Some(state) = self.states.get(number as usize) {
                state.sites(number, &mut sites);
            }
        }
        sites
    }

    /// Tells the kernel side of probes as they are now.
    pub(super) fn tell(&self, probe: &mut Probe, probes: &[u32]) -> Result<(), ProbeError> {
        let controls: Vec<_> = probes
            .iter()
            .map(|&number| {
                let state = &self[number];
                (number, state.control(), state.plan.fetches.as_slice())
            })
            .collect();
        probe.set_probes(&controls)
    }

    /// Has the hits of probes count from now on.
    pub(super) fn arm(&mut self, probe: &mut Probe, probes: &[u32]) -> Result<(), ProbeError> {
        if self.closed {
            return Ok(());
        }
        for &number in probes {
            self[number].armed = true;
        }
        self.tell(probe, probes)
    }

    /// No hit counts from now on, of any probe; all that counted have been recorded.
    pub(super) fn disarm(&mut self, probe: &mut Probe) {
        for state in &mut self.states {
            state.armed = false;
        }
        if let Err(error) = self.tell(probe, &self.all()) {
            log::warn!("{error}");
        }
        if let Err(error) = probe.settle_calls() {
            log::warn!("{error}");
        }
    }

    /// Whether no hit counts any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// No hit counts from now on, for good, and all that counted have been recorded.
    pub(super) fn close_and_settle(&mut self, probe: &mut Probe) {
        self.closed = true;
        self.disarm(probe);
    }

    /// Hits of links that are attached up to now count no more once the kernel side is told.
    pub(super) fn turn(&mut self, probes: impl IntoIterator<Item = u32>) {
        for number in probes {
            let state = &mut self[number];
            state.generation = state.generation.wrapping_add(1);
        }
    }

    /// What was decided came into force between these times: until its links had gone, a probe was hit as before, or not at all.
    /// So one that has no returns, or had none, was hit without them.
    pub(super) fn changed(
        &mut self,
        probes: &[u32],
        (from, to): (Timestamp, Timestamp),
        out: &mut Vec<RawEvent>,
    ) {
        for &number in probes {
            let state = &mut self[number];
            let without = state.gap_reason() == Some(GapReason::NoReturns);
            let was_without = std::mem::take(&mut state.was_without_returns);
            if let Some(since) = state.away_since.take() {
                out.push(gap(from, since, Some(number), None, GapReason::DutyCycle));
                state.since = from;
                continue;
            }
            if without || was_without {
                let since = state.since;
                out.push(gap(to, since, Some(number), None, GapReason::NoReturns));
            }
            state.since = to;
        }
    }
}

/// One probe: a traced function or marker, or a place that tells of exceptions and jumps.
#[derive(Debug)]
pub(super) struct ProbeState {
    /// Where its sites are.
    pub(super) plan: Plan,
    /// What it is for.
    pub(super) role: Role,
    /// Index of its object.
    pub(super) object: usize,
    /// How much of it is watched.
    pub(super) level: Level,
    /// On duty: whether it is attached now, and since when that is so.
    pub(super) on_duty: bool,
    /// See `on_duty`; also since when it is at its level.
    pub(super) since: Timestamp,
    /// Its returns were not watched before what was decided last.
    pub(super) was_without_returns: bool,
    /// On duty, and about to be attached: since when it was not, as far as that is untold.
    pub(super) away_since: Option<Timestamp>,
    /// Until when its gap was told, if that goes on.
    pub(super) gap_told: Timestamp,
    /// On duty: how long it stays attached, or not.
    pub(super) wait_ns: u64,
    /// Its hits count. Not before all its sites are attached: an exit without its entry says nothing.
    pub(super) armed: bool,
    /// Of the links whose hits count.
    pub(super) generation: u8,
    /// What a hit of its entry and of its exits costs.
    pub(super) entry_ns: u32,
    /// See `entry_ns`.
    pub(super) exit_ns: u32,
    /// What a jump to its own beginning costs: the probe of the jump, and the entry that it leads to.
    self_jump_ns: u32,
    /// What the kernel counted.
    pub(super) counted: CallCounters,
    /// The same, as far as it has been told.
    pub(super) told: CallCounters,
    /// What of that was before time counted.
    pub(super) before: CallCounters,
    /// The same, as far as the budget has seen it.
    pub(super) budgeted: CallCounters,
    /// Hits while it was on duty the last time.
    pub(super) last_duty: u64,
}

impl ProbeState {
    pub(super) fn new(
        plan: Plan,
        role: Role,
        object: usize,
        costs: &CostTable,
        now: Timestamp,
    ) -> ProbeState {
        ProbeState {
            entry_ns: costs.entry_ns(plan.entry.kind),
            exit_ns: exit_ns(&plan.exits, costs),
            self_jump_ns: self_jump_ns(&plan, costs),
            plan,
            role,
            object,
            level: Level::Full,
            on_duty: true,
            since: now,
            was_without_returns: false,
            away_since: None,
            gap_told: Timestamp(0),
            wait_ns: 0,
            armed: false,
            generation: 0,
            counted: CallCounters::default(),
            told: CallCounters::default(),
            before: CallCounters::default(),
            budgeted: CallCounters::default(),
            last_duty: 0,
        }
    }

    /// Its exits are seen in another way from now on.
    pub(super) fn replan(&mut self, plan: Plan, costs: &CostTable) {
        self.exit_ns = exit_ns(&plan.exits, costs);
        self.plan = plan;
    }

    /// Whether exits are watched at the present level.
    pub(super) fn has_exits(&self) -> bool {
        self.level == Level::Full && self.plans_exits()
    }

    fn plans_exits(&self) -> bool {
        !matches!(self.plan.exits, Exits::None(_))
    }

    /// Whether anything of it is attached at the present level.
    pub(super) fn is_on(&self) -> bool {
        match self.level {
            Level::Full | Level::Entries => true,
            Level::Duty => self.on_duty,
            Level::Off => false,
        }
    }

    /// How its exits are seen at the present level.
    pub(super) fn returns(&self) -> ReturnMode {
        match (&self.plan.exits, self.level) {
            (Exits::Uretprobe, Level::Full) => ReturnMode::Uretprobe,
            (Exits::Instructions(_), Level::Full) => ReturnMode::Instructions,
            _ => ReturnMode::None,
        }
    }

    /// Lines of its exits, by the number of the site less 1; empty if none is known.
    pub(super) fn exit_lines(&self) -> Box<[u32]> {
        match &self.plan.exits {
            Exits::Instructions(sites) if sites.iter().any(|site| site.line != 0) => {
                let told_apart = sites.iter().take(MAX_SITES.into());
                told_apart.map(|site| site.line).collect()
            }
            _ => Box::default(),
        }
    }

    /// What a call costs at the present level.
    pub(super) fn call_ns(&self) -> u32 {
        self.entry_ns + if self.has_exits() { self.exit_ns } else { 0 }
    }

    /// What the kernel side is told of it.
    pub(super) fn control(&self) -> ProbeControl {
        let mut flags = 0;
        if !self.armed || !self.is_on() {
            flags |= PROBE_OFF;
        }
        if self.plan.function.language == Language::Go {
            flags |= PROBE_GO;
        }
        if !self.plan.fetches.is_empty() {
            flags |= PROBE_FETCHES;
        }
        if self.role == Role::CxxThrow {
            flags |= PROBE_CXX;
        }
        if !self.plan.self_jumps.is_empty() {
            flags |= PROBE_SELF_JUMPS;
        }
        ProbeControl {
            generation: self.generation,
            flags,
            reserved: [0; 6],
        }
    }

    /// Its sites at the present level, as probe number `probe`.
    pub(super) fn sites(&self, probe: u32, out: &mut Vec<CallSite>) {
        if !self.is_on() {
            return;
        }
        let semaphore = match self.plan.function.kind {
            FunctionKind::Marker { semaphore, .. } => semaphore,
            FunctionKind::Function => None,
        };
        let site = |offset, edge, return_probe| CallSite {
            offset,
            probe,
            site: 0,
            edge,
            generation: self.generation,
            return_probe,
            semaphore,
        };
        let edge = match self.role {
            Role::CxxThrow | Role::UnwindThrow | Role::Rethrow | Role::Unwind => EDGE_THROW,
            Role::Land => EDGE_LAND,
            Role::Jump => EDGE_JUMP,
            Role::Call if self.has_exits() => EDGE_ENTER,
            Role::Call => EDGE_HIT,
        };
        let entry = site(self.plan.entry.offset, edge, false);
        // Where one instruction is the entry and something else as well, the kernel tells of the site
        // that was attached last first (consumer_add in kernel/events/uprobes.c): the entry is last.
        out.extend(self.plan.self_jumps.iter().map(|jump| {
            let edge = match jump.when {
                When::Always => EDGE_SELF_JUMP,
                When::If(condition) => EDGE_SELF_JUMP_IF + u32::from(condition),
            };
            site(jump.site.offset, edge, false)
        }));
        if self.role != Role::Call || !self.has_exits() {
            out.push(entry);
            return;
        }
        match &self.plan.exits {
            Exits::None(_) => {}
            Exits::Uretprobe => out.push(site(self.plan.entry.offset, EDGE_EXIT, true)),
            Exits::Instructions(sites) => {
                out.extend(sites.iter().zip(1_usize..).map(|(exit, number)| {
                    let edge = if exit.tail { EDGE_TAIL } else { EDGE_EXIT };
                    let number = u8::try_from(number).ok();
                    CallSite {
                        site: number.filter(|&number| number <= MAX_SITES).unwrap_or(0),
                        ..site(exit.offset, edge, false)
                    }
                }));
            }
        }
        out.push(entry);
    }

    /// The gap of its present level, which ends now; none if nothing is missing, or it has begun since
    /// this tick did. What was told of it already is not told again.
    pub(super) fn gap(&self, number: u32, at: Timestamp) -> Option<RawEvent> {
        let (reason, since) = (self.gap_reason()?, self.untold_since());
        (at > since).then(|| gap(at, since, Some(number), None, reason))
    }

    /// Since when nothing was told of the gap of its present level.
    pub(super) fn untold_since(&self) -> Timestamp {
        self.since.max(self.gap_told)
    }

    /// The same when it begins, without a length: calls that are open now are not watched to their end.
    pub(super) fn gap_begins(&self, number: u32, at: Timestamp) -> Option<RawEvent> {
        self.gap_reason()
            .map(|reason| gap(at, at, Some(number), None, reason))
    }

    pub(super) fn gap_reason(&self) -> Option<GapReason> {
        match self.level {
            Level::Full => None,
            Level::Entries => Some(GapReason::NoReturns),
            Level::Duty if self.on_duty => self.plans_exits().then_some(GapReason::NoReturns),
            Level::Duty => Some(GapReason::DutyCycle),
            Level::Off => Some(GapReason::Detached),
        }
    }

    /// Hits of its entry since the budget last looked; self jumps count by what they cost.
    pub(super) fn hits(&self) -> u64 {
        let counted = &self.counted;
        let entries = counted.entries.saturating_sub(self.budgeted.entries);
        let self_jumps = counted.self_jumps.saturating_sub(self.budgeted.self_jumps);
        let cost = self_jumps.saturating_mul(u64::from(self.self_jump_ns));
        entries.saturating_add(cost / u64::from(self.entry_ns.max(1)))
    }

    /// What it did since the budget last looked, `elapsed_ns` ago.
    pub(super) fn load(&self, probe: u32, elapsed_ns: u64) -> Load {
        let counted = &self.counted;
        let entries = match self.level {
            Level::Duty => {
                let share = u128::from(self.last_duty) * u128::from(elapsed_ns);
                (share / u128::from(DUTY_PERIOD_NS)) as u64
            }
            _ => counted.entries.saturating_sub(self.budgeted.entries),
        };
        Load {
            probe,
            level: self.level,
            has_exits: self.plans_exits(),
            entries,
            exits: counted.exits.saturating_sub(self.budgeted.exits),
            self_jumps: match self.level {
                Level::Duty => 0,
                _ => counted.self_jumps.saturating_sub(self.budgeted.self_jumps),
            },
            entry_ns: self.entry_ns,
            exit_ns: self.exit_ns,
            self_jump_ns: self.self_jump_ns,
        }
    }
}

/// What one self jump costs: of several, the dearest.
fn self_jump_ns(plan: &Plan, costs: &CostTable) -> u32 {
    let jumps = plan
        .self_jumps
        .iter()
        .map(|jump| costs.entry_ns(jump.site.kind));
    let jump = jumps
        .max()
        .map(|jump| jump.saturating_add(costs.entry_ns(plan.entry.kind)));
    jump.unwrap_or(0)
}

/// What one exit costs: of several instructions, the dearest.
fn exit_ns(exits: &Exits, costs: &CostTable) -> u32 {
    match exits {
        Exits::None(_) => 0,
        Exits::Uretprobe => costs.return_ns(),
        Exits::Instructions(sites) => {
            let costs = sites.iter().map(|site| costs.entry_ns(site.kind));
            costs.max().unwrap_or(0)
        }
    }
}
