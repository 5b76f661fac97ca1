//! A process that reads the files of one user at a time.
//!
//! A question about a file -> its answer, or why there is none. What the process has read is one user's: another one's
//! files are read by another process. Time that is lost is charged to the owner of the file, who is left alone for a
//! while when that was much; so is the processor time that answers take, of which there may be more.
//!
//! What does not belong here: what is asked, and what becomes of a file without an answer.

use std::time::{Duration, Instant};

use super::client::{Client, Death};
use crate::owners::Owners;
use crate::warnings::warn_once;

/// How much processor time answers about files of one user may take.
const MOST: Duration = Duration::from_secs(120);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Too much time was lost over this user's files, or went into them.
    LeftAlone,
    /// No process can be started.
    NotStarted,
    /// What became of the process.
    Died(Death),
}

/// Asks a process, which is started when there is something to ask.
pub(crate) struct OneUser {
    pub(crate) client: Client,
    pub(crate) owners: Owners,
    /// Processor time of answers.
    pub(crate) worked: Owners,
    /// Whose files the process has read.
    of: Option<u32>,
}

impl OneUser {
    pub(crate) fn new(client: Client) -> OneUser {
        OneUser {
            client,
            owners: Owners::default(),
            worked: Owners::default(),
            of: None,
        }
    }

    /// Whether there is a process.
    pub(crate) fn is_busy(&self) -> bool {
        self.of.is_some()
    }

    /// Ends the process.
    pub(crate) fn rest(&mut self) {
        self.client.rest();
        self.of = None;
    }

    /// Asks about a file of this user, for so long; `alone`: of a process that has read nothing before.
    pub(crate) fn ask<T>(
        &mut self,
        owner: u32,
        alone: bool,
        patience: Duration,
        mut ask: impl FnMut(&mut Client, Instant) -> Result<T, Death>,
    ) -> Result<T, Loss> {
        if !self.owners.may_ask(Some(owner)) || self.worked.so_far(owner) >= MOST {
            return Err(Loss::LeftAlone);
        }
        if alone || self.of.is_some_and(|of| of != owner) {
            self.rest();
        }
        let mut began = Instant::now();
        let death = loop {
            let is_fresh = self.of.replace(owner).is_none();
            // What it takes to start it is nobody's fault.
            if self.client.start().is_err() {
                self.of = None;
                return Err(Loss::NotStarted);
            }
            if is_fresh {
                began = Instant::now();
            }
            let (asked, before) = (Instant::now(), self.client.worked());
            match ask(&mut self.client, began + patience) {
                Ok(answer) => {
                    let worked = self.client.worked_since(before, asked.elapsed());
                    self.charge(owner, worked);
                    return Ok(answer);
                }
                // What it had read before may have been too much.
                Err(Death::TooLarge | Death::Crashed | Death::Killed) if !is_fresh => self.rest(),
                Err(death) => break death,
            }
        };
        self.rest();
        self.owners.charge(Some(owner), began.elapsed());
        Err(Loss::Died(death))
    }

    /// An answer about a file of this user has taken so much.
    pub(crate) fn charge(&mut self, owner: u32, worked: Duration) {
        self.worked.add(owner, worked);
        if self.worked.so_far(owner) >= MOST {
            warn_once(
                "users",
                format_args!(
                    "files of user {owner} keep their reader busy: neither unwind tables nor functions to trace for a while"
                ),
            );
        }
    }
}
