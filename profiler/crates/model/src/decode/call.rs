//! Records of traced calls: a [`CallHead`] and its items -> a raw call.
//!
//! Most records are heads and nothing else; these are decoded where they lie, without allocating.
//! Items are checked to be whole, but not read: what they mean depends on what was asked for. The
//! first ones, which flags and edges announce (the caller, when a whole call began), are taken off.

use profiler_common::call::{
    CALL_AFTER_LOSS, CALL_HAS_CALLER, CallHead, Cookie, EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_JUMP,
    EDGE_LAND, EDGE_THROW, EDGE_WHOLE, ITEM_OK, split_item,
};
use zerocopy::FromBytes;

use super::{Bad, read};
use crate::raw::{Items, RawBody, RawCall, RawEdge, RawEvent};
use crate::{Cpu, Pid, Tid, Timestamp};

/// Decodes a record; nothing if its edge is not known. `keep` makes the items outlive the record.
#[inline]
pub(super) fn decode(
    cpu: Cpu,
    record: &[u8],
    keep: impl FnOnce(&[u8]) -> Items,
) -> Result<Option<RawEvent>, Bad> {
    let (head, mut items): (CallHead, _) = read(record)?;
    let Some(edge) = edge(head.what >> 24 & 0xf) else {
        return Ok(None);
    };
    let flags = head.what >> 28;
    let place = Cookie::from_bits(Cookie::place(head.what.into()).into());
    let mut call = RawCall {
        pid: Pid(head.tgid),
        tid: Tid(head.tid),
        probe: place.probe,
        site: place.site,
        edge,
        after_loss: flags & CALL_AFTER_LOSS != 0,
        stack: head.stack,
        sp: head.sp,
        caller: 0,
        began: Timestamp(0),
        values: None,
    };
    if edge == RawEdge::Whole {
        call.began = Timestamp(word(&mut items)?.ok_or(Bad)?);
    }
    if flags & CALL_HAS_CALLER != 0 {
        call.caller = word(&mut items)?.unwrap_or(0);
    }
    if !items.is_empty() {
        check_items(items)?;
        call.values = Some(keep(items));
    }
    Ok(Some(RawEvent {
        at: Timestamp(head.at_ns),
        cpu,
        body: RawBody::Call(call),
    }))
}

#[inline]
fn edge(code: u32) -> Option<RawEdge> {
    Some(match code {
        EDGE_ENTER => RawEdge::Enter,
        EDGE_EXIT => RawEdge::Exit,
        EDGE_HIT => RawEdge::Hit,
        EDGE_THROW => RawEdge::Throw,
        EDGE_LAND => RawEdge::Land,
        EDGE_JUMP => RawEdge::Jump,
        EDGE_WHOLE => RawEdge::Whole,
        _ => return None,
    })
}

/// Takes an item that must be a word off the front; nothing if the kernel side could not read it.
fn word(items: &mut &[u8]) -> Result<Option<u64>, Bad> {
    let (status, payload, rest) = split_item(items).ok_or(Bad)?;
    let word = u64::read_from_bytes(payload).map_err(|_| Bad)?;
    *items = rest;
    Ok((status == ITEM_OK).then_some(word))
}

/// Whether `items` is made of whole items.
fn check_items(mut items: &[u8]) -> Result<(), Bad> {
    while !items.is_empty() {
        (_, _, items) = split_item(items).ok_or(Bad)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use profiler_common::call::{ITEM_BAD_MEMORY, ITEM_CUT};
    use proptest::prelude::*;

    use super::*;

    /// Writes a record as the kernel side does.
    fn record(edge: u32, flags: u32, items: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(1000_u64.to_ne_bytes());
        bytes.extend(0x7fff_0000_1000_u64.to_ne_bytes());
        for value in [10, 11, 77 | 9 << 18 | edge << 24 | flags << 28, 5_u32] {
            bytes.extend(value.to_ne_bytes());
        }
        assert_eq!(bytes.len(), size_of::<CallHead>());
        for (status, payload) in items {
            bytes.extend(status.to_ne_bytes());
            bytes.extend((payload.len() as u16).to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(*payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }

    fn decoded(record: &[u8]) -> Result<Option<RawCall>, Bad> {
        let event = decode(Cpu(3), record, |items| items.into())?;
        Ok(event.map(|event| match event.body {
            RawBody::Call(call) => {
                assert_eq!(event.cpu, Cpu(3));
                call
            }
            other => panic!("{other:?}"),
        }))
    }

    #[test]
    fn all_fields_of_a_head_arrive() {
        let record = record(EDGE_EXIT, CALL_AFTER_LOSS, &[]);
        let event = decode(Cpu(3), &record, |_| panic!("nothing to copy"));
        let call = RawCall {
            pid: Pid(10),
            tid: Tid(11),
            probe: 77,
            site: 9,
            edge: RawEdge::Exit,
            after_loss: true,
            stack: 5,
            sp: 0x7fff_0000_1000,
            caller: 0,
            began: Timestamp(0),
            values: None,
        };
        let expected = RawEvent {
            at: Timestamp(1000),
            cpu: Cpu(3),
            body: RawBody::Call(call),
        };
        assert_eq!(event, Ok(Some(expected)));
    }

    #[test]
    fn announced_items_are_taken_off_and_others_kept() {
        let word = |value: u64| value.to_ne_bytes();
        let (began, caller) = (word(900), word(0x40_1000));
        let text: &[u8] = b"twelve bytes";
        let items = [(ITEM_OK, &began[..]), (ITEM_OK, &caller), (ITEM_CUT, text)];
        let call = decoded(&record(EDGE_WHOLE, CALL_HAS_CALLER, &items))
            .unwrap()
            .unwrap();
        assert_eq!((call.began, call.caller), (Timestamp(900), 0x40_1000));
        assert_eq!(call.items(), &record(0, 0, &[(ITEM_CUT, text)])[32..]);
        assert_eq!(call.items().len(), 24);

        // A return address on a page that is not there.
        let items = [(ITEM_BAD_MEMORY, &caller[..])];
        let call = decoded(&record(EDGE_ENTER, CALL_HAS_CALLER, &items))
            .unwrap()
            .unwrap();
        assert_eq!((call.caller, call.items().len()), (0, 0));
    }

    #[test]
    fn announced_items_that_are_not_there_are_bad() {
        assert_eq!(decoded(&record(EDGE_WHOLE, 0, &[])), Err(Bad));
        assert_eq!(decoded(&record(EDGE_ENTER, CALL_HAS_CALLER, &[])), Err(Bad));
        let short = record(EDGE_WHOLE, 0, &[(ITEM_OK, &[1, 2])]);
        assert_eq!(decoded(&short), Err(Bad));
    }

    #[test]
    fn unknown_edges_are_no_errors() {
        for edge in 7..16 {
            assert_eq!(decoded(&record(edge, 0, &[])), Ok(None));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Some(call)) = decoded(&bytes) {
                prop_assert!(call.items().len() + size_of::<CallHead>() <= bytes.len());
            }
        }

        #[test]
        fn any_items_behind_a_sound_head(
            edge in 0_u32..8,
            flags in 0_u32..16,
            items in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = record(edge, flags, &[]);
            bytes.extend(&items);
            if let Ok(Some(call)) = decoded(&bytes) {
                prop_assert!(items.ends_with(call.items()));
            }
        }

        #[test]
        fn any_truncation_is_bad(payload in prop::collection::vec(any::<u8>(), 0..64), cut in 1_usize..200) {
            let whole = record(EDGE_ENTER, 0, &[(ITEM_OK, &payload)]);
            let keep = whole.len().saturating_sub(cut);
            // Cut exactly behind the head, the record is whole again, without items.
            prop_assume!(keep != size_of::<CallHead>());
            prop_assert_eq!(decoded(&whole[..keep]), Err(Bad));
        }
    }
}
