//! Numbers of rules: one for each that is different, over all tables, and how many tables use it.

use profiler_common::unwind::{FIRST_RULE, Rule};
use rustc_hash::FxHashMap;

/// Rules with their numbers.
#[derive(Debug)]
pub(super) struct Rules {
    numbers: FxHashMap<Rule, u32>,
    /// Rule and users, by number less [`FIRST_RULE`].
    entries: Vec<(Rule, u32)>,
    /// Numbers that are free again.
    free: Vec<u32>,
    max: u32,
}

impl Rules {
    /// Rules with numbers below `max`.
    pub(super) fn new(max: u32) -> Rules {
        Rules {
            numbers: FxHashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            max,
        }
    }

    /// The number of a rule, with one user more, and whether it is new; none if there is no room.
    pub(super) fn take(&mut self, rule: Rule) -> Option<(u32, bool)> {
        if let Some(&number) = self.numbers.get(&rule) {
            self.entries[(number - FIRST_RULE) as usize].1 += 1;
            return Some((number, false));
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[(number - FIRST_RULE) as usize] = (rule, 1);
                number
            }
            None => {
                let number = FIRST_RULE + self.entries.len() as u32;
                if number >= self.max {
                    return None;
                }
                self.entries.push((rule, 1));
                number
            }
        };
        self.numbers.insert(rule, number);
        Some((number, true))
    }

    /// Takes a user away. Without any, the number may be given to another rule at once: no program
    /// may be about to use it.
    pub(super) fn give_back(&mut self, number: u32) {
        let Some((rule, users)) = self.entries.get_mut((number - FIRST_RULE) as usize) else {
            return;
        };
        *users = users.saturating_sub(1);
        if *users == 0 && self.numbers.remove(rule).is_some() {
            self.free.push(number);
        }
    }

    /// How many rules have a user.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(cfa_offset: i32) -> Rule {
        Rule {
            cfa_offset,
            ..Rule::default()
        }
    }

    #[test]
    fn a_number_is_free_when_its_last_user_has_gone() {
        let mut rules = Rules::new(FIRST_RULE + 2);
        assert_eq!(rules.take(rule(8)), Some((2, true)));
        assert_eq!(rules.take(rule(16)), Some((3, true)));
        assert_eq!(rules.take(rule(8)), Some((2, false)));
        assert_eq!(rules.take(rule(24)), None);
        rules.give_back(2);
        assert_eq!(rules.take(rule(24)), None);
        rules.give_back(2);
        assert_eq!(rules.take(rule(24)), Some((2, true)));
        assert_eq!(rules.take(rule(8)), None);
        assert_eq!(rules.len(), 2);
    }
}
