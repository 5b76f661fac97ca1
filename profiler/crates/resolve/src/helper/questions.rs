//! Questions about files that a crate above has, answered by its own code in a process behind the walls.
//!
//! Bytes and open files -> bytes. What is in them is that crate's affair ([`Answering`]): here it is started, asked, and
//! ended when its time is over.
//!
//! What does not belong here: names and unwind tables, which have questions of their own (`client`).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use super::client::{Client, Death, Limits};
use super::one_user::{Loss, OneUser};

/// Answers in the process: a question and its files -> the answer; none if it makes no sense.
pub type Answering = Box<dyn FnMut(&[u8], Vec<OwnedFd>) -> Option<Vec<u8>>>;

/// Asks.
pub struct Questions(OneUser);

impl std::fmt::Debug for Questions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Questions(..)")
    }
}

impl Questions {
    /// For a process that answers like this.
    pub fn new(answering: fn() -> Answering) -> Questions {
        let mut client = Client::new(Limits::large());
        client.answering = answering;
        Questions(OneUser::new(client))
    }

    /// With a process, whatever was offered.
    #[cfg(test)]
    pub(crate) fn with_process(limits: Limits) -> Questions {
        Questions(OneUser::new(Client::with_process(limits)))
    }

    /// So much time was lost over a user's files.
    #[cfg(test)]
    pub(crate) fn charge(&mut self, owner: u32, time: Duration) {
        self.0.owners.charge(Some(owner), time);
    }

    /// Asks about files of this user; the answer, or what became of it, for people.
    pub fn ask(
        &mut self,
        owner: u32,
        question: &[u8],
        files: &[BorrowedFd<'_>],
        patience: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, &'static str> {
        let answer = self.0.ask(owner, false, patience, |client, until| {
            client.question(question, files, until, given_up)
        });
        answer.map_err(|loss| match loss {
            Loss::LeftAlone => "files of its owner take too much time",
            Loss::NotStarted | Loss::Died(Death::NotStarted) => {
                "no process can be started to read it"
            }
            Loss::Died(Death::TooSlow) => "reading it took too long",
            Loss::Died(Death::TooLarge) => "reading it needed too much memory",
            Loss::Died(Death::Crashed) => "reading it failed",
            Loss::Died(Death::Killed) => "the process that reads it was killed",
        })
    }
}
