//! What the kernel side is to fetch, told to another process: as the numbers that it is made of.
//!
//! What does not belong here: what they mean ([`Fetch`]).

use profiler_common::call::{Fetch, MAX_FETCHES};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

type Numbers = (u8, u8, u8, u8, u16, [i32; 3]);

pub(crate) fn serialize<S: Serializer>(fetches: &[Fetch], to: S) -> Result<S::Ok, S::Error> {
    let numbers = fetches.iter().map(|fetch| -> Numbers {
        let Fetch {
            kind,
            register,
            derefs,
            at_exit,
            size,
            offsets,
            ..
        } = *fetch;
        (kind, register, derefs, at_exit, size, offsets)
    });
    numbers.collect::<Vec<Numbers>>().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Fetch>, D::Error> {
    let numbers = Vec::<Numbers>::deserialize(from)?;
    if numbers.len() > MAX_FETCHES {
        return Err(D::Error::custom("more than is fetched"));
    }
    let fetches = numbers.into_iter();
    let fetches = fetches.map(|(kind, register, derefs, at_exit, size, offsets)| Fetch {
        kind,
        register,
        derefs,
        at_exit,
        size,
        offsets,
        ..Fetch::default()
    });
    Ok(fetches.collect())
}
