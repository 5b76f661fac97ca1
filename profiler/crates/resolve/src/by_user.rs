//! What there is of each user of the machine, so that nobody's files hold up the work for others: threads, most often.
//!
//! A user -> theirs, made when they are met; of the first many users. Those of further ones share what these have. How
//! many work at once is for [`turns`](super::turns) to say.

use std::io;

/// Users that have something of their own.
const MOST: usize = 32;

/// Something of each user.
#[derive(Debug)]
pub(crate) struct ByUser<T>(Vec<(u32, T)>);

impl<T> Default for ByUser<T> {
    fn default() -> ByUser<T> {
        ByUser(Vec::new())
    }
}

impl<T> ByUser<T> {
    /// That of a user; none if there is none yet and none can be made.
    pub(crate) fn of(&mut self, user: u32, make: impl FnOnce() -> io::Result<T>) -> Option<&mut T> {
        let ByUser(all) = self;
        let known = all.iter().position(|(known, _)| *known == user);
        let index = match known {
            Some(index) => index,
            None if all.len() < MOST => match make() {
                Ok(made) => {
                    all.push((user, made));
                    all.len() - 1
                }
                Err(error) => {
                    log::debug!("nothing of user {user} alone: {error}");
                    (user as usize).checked_rem(all.len())?
                }
            },
            None => user as usize % all.len(),
        };
        Some(&mut all[index].1)
    }

    /// All there is.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, of)| of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_users_have_theirs_and_others_share_them() {
        let mut all = ByUser::default();
        let refuse = || Err(io::ErrorKind::OutOfMemory.into());
        assert_eq!(all.of(7, refuse), None::<&mut u32>);
        let (first, more) = (1000..1000 + MOST as u32, 1000..1010 + MOST as u32);
        for user in more.chain(first.clone()) {
            all.of(user, || Ok(user)).unwrap();
        }
        let theirs: Vec<u32> = all.all().map(|of| *of).collect();
        assert_eq!(theirs, first.clone().collect::<Vec<_>>());
        for user in first {
            assert_eq!(all.of(user, refuse), Some(&mut { user }));
        }
        // Always the same.
        assert_eq!(all.of(9003, refuse).copied(), all.of(9003, refuse).copied());
        let mut one = ByUser::default();
        one.of(1, || Ok(1)).unwrap();
        assert_eq!(one.of(2, refuse), Some(&mut 1));
    }
}
