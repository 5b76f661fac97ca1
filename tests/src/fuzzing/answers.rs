//! Fuzzing of what the process that reads others' files answers: it may be anybody's by then.
//!
//! Input: a byte that says what the rest is (an answer about addresses, or a table), and that; output: none. Not
//! reached: answers about functions to trace, which are JSON (serde).

use profiler_resolve::is_understood;
use profiler_unwind::cache::{decode, encode};

/// Reads bytes as an answer of that process.
pub fn answers(data: &[u8]) {
    let [kind, rest @ ..] = data else { return };
    if *kind != 0 {
        is_understood(rest, usize::from(*kind));
    } else if let Some((table, report)) = decode(rest) {
        // What was understood means the same when it is told again.
        let again = decode(&encode(&table, &report));
        assert_eq!(again, Some((table, report)));
    }
}

/// Tables, and answers of each kind.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![1, 1, 0], vec![2, 1, 0, 2, 0]];
    // One function with two names, the line that it is defined at and one within, and its code.
    let mut one = vec![1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
    for text in [&b"inner"[..], b"_Z5innerv", b"a.c"] {
        if text != b"inner" {
            one.push(1);
        }
        one.extend((text.len() as u32).to_ne_bytes());
        one.extend(text);
    }
    one.extend(3_u32.to_ne_bytes());
    one.extend([1, 16, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0]);
    one.extend([1, 16, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x90, 0xc3]);
    seeds.push(one);
    let program = std::fs::File::open("/proc/self/exe");
    let small = std::fs::File::open("/bin/true");
    for file in [small, program].into_iter().flatten() {
        if let Ok((table, report)) = profiler_unwind::build_file(&file, None) {
            let bytes = encode(&table, &report);
            if bytes.len() < 1 << 16 {
                seeds.push([&[0], bytes.as_slice()].concat());
            }
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_understood() {
        let seeds = seeds();
        let understood = |seed: &Vec<u8>| match seed[0] {
            0 => decode(&seed[1..]).is_some(),
            count => is_understood(&seed[1..], usize::from(count)),
        };
        assert!(seeds.len() > 3 && seeds.iter().all(understood));
    }
}
