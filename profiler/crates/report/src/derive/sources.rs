//! Which samples a view or an export is about: those of one source, or running and waiting together.
//!
//! Input: which sources there are, and how many samples of each; output: [`Sources`]. Weights of
//! different units do not add up, so a view is about one source. CPU time and waits do, both are
//! nanoseconds of threads: where a recording has both, they are one profile of all time.

use std::cmp::Reverse;

use profiler_model::sorting::InOrder;
use profiler_model::*;

pub use profiler_model::OFF_CPU;

/// What running and waiting together are called.
pub const WALL: &str = "wall";

/// The samples that are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Their source; of [`Sources::waits`] the one of running threads.
    pub main: Option<SourceId>,
    /// The source of waits besides.
    pub waits: Option<SourceId>,
}

impl Sources {
    /// Those of a name among `present` (the ones wanted most first): the name of a source, or
    /// [`WALL`]. Without a name CPU time with waits where there are both, else the first that is not
    /// waits, else the first. None if there is none of that name.
    pub fn choose(present: &[SourceId], wanted: Option<&str>, tables: &Tables) -> Option<Sources> {
        let first = |test: &dyn Fn(&Source) -> bool| {
            let mut present = present.iter().copied();
            present.find(|&id| tables.sources.get(id).is_some_and(test))
        };
        let is_waits = |source: &Source| tables.string(source.name) == OFF_CPU;
        let waits = first(&is_waits);
        let one = |main| Sources { main, waits: None };
        let wall = || {
            let time = |s: &Source| !is_waits(s) && s.unit == Unit::Nanoseconds;
            let main = Some(first(&time)?);
            waits.is_some().then_some(Sources { main, waits })
        };
        match wanted {
            Some(WALL) => wall(),
            Some(wanted) => {
                first(&|source| tables.string(source.name) == wanted).map(|main| one(Some(main)))
            }
            None => {
                let running = first(&|source| !is_waits(source));
                // Waits may be of more interest than cycles, but don't add up with them.
                let best = running.or_else(|| present.first().copied());
                Some(wall().filter(|wall| wall.main == best).unwrap_or(one(best)))
            }
        }
    }

    /// Whether samples of a source are meant.
    pub fn has(&self, source: SourceId, tables: &Tables) -> bool {
        let is_it = |known: Option<SourceId>| known.is_some_and(|it| is_same(it, source, tables));
        is_it(self.main) || is_it(self.waits)
    }

    /// Whether these are running and waiting together.
    pub fn is_wall(&self) -> bool {
        self.waits.is_some()
    }

    /// Whether these are waits and nothing else.
    pub fn is_waits(&self, tables: &Tables) -> bool {
        let main = self.main.and_then(|id| tables.sources.get(id));
        main.is_some_and(|source| tables.string(source.name) == OFF_CPU)
    }

    /// What they are called: what chooses them again.
    pub fn name<'a>(&self, tables: &'a Tables) -> Option<&'a str> {
        let source = tables.sources.get(self.main?)?;
        Some(match self.is_wall() {
            true => WALL,
            false => tables.string(source.name),
        })
    }

    /// The unit of their weights.
    pub fn unit(&self, tables: &Tables) -> Option<Unit> {
        Some(tables.sources.get(self.main?)?.unit)
    }
}

/// Sources with how many samples they have -> those of most samples first, which are of the most interest.
pub fn by_interest(counts: impl Iterator<Item = (SourceId, u64)>) -> Vec<SourceId> {
    let mut counts: Vec<(SourceId, u64)> = counts.collect();
    counts.order_by_key(|&(id, count)| (Reverse(count), id));
    counts.into_iter().map(|(id, _)| id).collect()
}

/// Whether these are one source, at several rates perhaps, as in captures that were merged: its weights add up.
pub fn is_same(one: SourceId, other: SourceId, tables: &Tables) -> bool {
    let named = |id| {
        let source = tables.sources.get(id)?;
        Some((source.name, source.unit))
    };
    one == other || named(one).is_some_and(|one| named(other) == Some(one))
}

/// The first of these sources that is the same.
pub fn first_same(source: SourceId, of: &[SourceId], tables: &Tables) -> Option<SourceId> {
    of.iter().copied().find(|&it| is_same(it, source, tables))
}

/// What stands below the code that waited, where stacks are shown.
pub fn wait_frame(state: WaitState) -> &'static str {
    match state {
        WaitState::Preempted => "[preempted]",
        WaitState::Sleeping => "[sleeping]",
        WaitState::Disk => "[disk]",
        WaitState::Stopped => "[stopped]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_adds_up_and_nothing_else() {
        let mut tables = Tables::default();
        let mut source = |name: &str, unit| {
            let name = tables.intern_string(name).0;
            let source = Source {
                name,
                unit,
                frequency_hz: None,
                period: None,
            };
            tables.sources.intern(source).0
        };
        let clock = source("cpu-clock", Unit::Nanoseconds);
        let cycles = source("cycles", Unit::Cycles);
        let waits = source(OFF_CPU, Unit::Nanoseconds);
        let one = |main| {
            Some(Sources {
                main: Some(main),
                waits: None,
            })
        };
        let all = Sources {
            main: Some(clock),
            waits: Some(waits),
        };
        let wall = Some(all);
        let choose = |present: &[SourceId], wanted| Sources::choose(present, wanted, &tables);
        assert_eq!(choose(&[waits, clock], None), wall);
        assert_eq!(choose(&[waits, cycles], None), one(cycles));
        assert_eq!(choose(&[waits, cycles, clock], None), one(cycles));
        assert_eq!(choose(&[waits, cycles, clock], Some(WALL)), wall);
        assert_eq!(choose(&[waits], None), one(waits));
        assert_eq!(choose(&[waits, clock], Some("cpu-clock")), one(clock));
        assert_eq!(choose(&[waits, clock], Some(OFF_CPU)), one(waits));
        assert_eq!(choose(&[waits, cycles], Some(WALL)), None);
        assert_eq!(choose(&[clock], Some("cycles")), None);
        assert_eq!(choose(&[], None), Some(Sources::default()));
        assert_eq!(all.name(&tables), Some(WALL));
        assert_eq!(all.unit(&tables), Some(Unit::Nanoseconds));
        let faster = Source {
            frequency_hz: Some(9999),
            ..tables.sources.get(clock).unwrap().clone()
        };
        let faster = tables.sources.intern(faster).0;
        assert!(all.has(faster, &tables) && all.has(waits, &tables) && !all.has(cycles, &tables));
        assert_eq!(first_same(faster, &[cycles, clock], &tables), Some(clock));
    }
}
