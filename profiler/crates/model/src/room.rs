//! Room of lists that were long once: given back, so that memory is that of what there is.
//!
//! A list -> the same with fewer places, and how many fewer. What does not belong here: how much there may be.

/// Places that a list keeps when it has few elements.
pub const KEPT: usize = 16;

/// Gives room back that was for many more elements; how many places.
#[inline]
pub fn give_back<T>(list: &mut Vec<T>) -> usize {
    let room = list.capacity();
    if room <= KEPT || list.len() >= room / 4 {
        return 0;
    }
    list.shrink_to(room / 2);
    room - list.capacity()
}
