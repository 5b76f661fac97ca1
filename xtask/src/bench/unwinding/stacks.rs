//! What tools put out as text -> stacks, to count the complete ones.
//!
//! Folded lines (`name;name;name count`, root first), `perf script`'s blocks (leaf first), and the JSON
//! of the Firefox Profiler, whose frames have no names before somebody opens it: there the number of
//! frames decides.

use serde_json::Value;

/// One stack and how many samples have it.
#[derive(Debug, Default)]
pub(super) struct Stack {
    /// Leaf first; empty if the tool gives no names.
    pub(super) names: Vec<String>,
    /// How many frames.
    pub(super) depth: usize,
    /// How many samples.
    pub(super) count: u64,
}

/// Functions that nothing calls, and those that they call in the C library, where distributions leave
/// out the names of the former.
const ROOTS: [&str; 11] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_init_first",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__GI___clone3",
    "start_thread",
    "_dl_start_user",
];

impl Stack {
    /// Whether it is a chain of so many frames called `name` below one called `root`.
    pub(super) fn is_chain(&self, name: &str, depth: usize, root: &str) -> bool {
        if self.names.is_empty() {
            // Above `root` are three functions of the C library.
            return self.depth == depth + 4;
        }
        let is =
            |frame: &String, name: &str| frame == name || frame.starts_with(&format!("{name}+"));
        let first = self.names.iter().position(|frame| is(frame, name));
        let chain = self.names.iter().skip(first.unwrap_or(self.names.len()));
        let found = chain.take_while(|frame| is(frame, name)).count();
        let next = self.names.get(first.unwrap_or(0) + found);
        found == depth && next.is_some_and(|frame| is(frame, root))
    }

    /// Whether it reaches the outermost function.
    pub(super) fn is_rooted(&self) -> bool {
        let last = self.names.iter().rev().take(4);
        let mut bare = last.map(|name| name.split(['@', '+']).next().unwrap_or(name));
        bare.any(|name| {
            ROOTS
                .iter()
                .any(|root| name == *root || name.strip_suffix("_impl") == Some(root))
        })
    }
}

/// Folded lines.
pub(super) fn folded(text: &str) -> Vec<Stack> {
    let mut stacks = Vec::new();
    for line in text.lines() {
        let Some((frames, count)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(count) = count.parse() else {
            continue;
        };
        let mut names: Vec<String> = frames.split(';').map(str::to_owned).collect();
        names.reverse();
        stacks.push(Stack {
            depth: names.len(),
            names,
            count,
        });
    }
    stacks
}

/// `perf script`: a block for each sample, with a line for each frame: address, name, module.
pub(super) fn perf_script(text: &str) -> Vec<Stack> {
    let mut stacks = Vec::new();
    let mut stack: Option<Stack> = None;
    for line in text.lines() {
        if line.trim().is_empty() {
            stacks.extend(stack.take());
        } else if !line.starts_with([' ', '\t']) || stack.is_none() {
            stacks.extend(stack.replace(Stack {
                count: 1,
                ..Stack::default()
            }));
        } else if let Some(stack) = &mut stack {
            let name = line.split_whitespace().nth(1).unwrap_or("[unknown]");
            stack.names.push(name.to_owned());
            stack.depth += 1;
        }
    }
    stacks.extend(stack);
    stacks
}

/// The Firefox Profiler's processed profile.
pub(super) fn firefox(profile: &Value) -> Vec<Stack> {
    let mut stacks = Vec::new();
    let threads = profile["threads"].as_array().map_or(&[][..], Vec::as_slice);
    for thread in threads {
        let prefixes = thread["stackTable"]["prefix"].as_array();
        let mut depths: Vec<usize> = Vec::new();
        for prefix in prefixes.map_or(&[][..], Vec::as_slice) {
            let below = prefix.as_u64().and_then(|index| depths.get(index as usize));
            depths.push(below.map_or(1, |depth| depth + 1));
        }
        let samples = &thread["samples"];
        let weights = samples["weight"].as_array();
        let of = samples["stack"].as_array().map_or(&[][..], Vec::as_slice);
        for (index, stack) in of.iter().enumerate() {
            let weight = weights.and_then(|weights| weights.get(index)?.as_u64());
            let depth = stack.as_u64().and_then(|stack| depths.get(stack as usize));
            stacks.push(Stack {
                names: Vec::new(),
                depth: depth.copied().unwrap_or(0),
                count: weight.unwrap_or(1),
            });
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_counted_whole_only() {
        let text = "comm;_start;__libc_start_main;main;known;known 7\ncomm;main;known 2\n";
        let stacks = folded(text);
        assert_eq!((stacks.len(), stacks[0].count), (2, 7));
        assert!(stacks[0].is_chain("known", 2, "main") && stacks[0].is_rooted());
        assert!(!stacks[1].is_chain("known", 2, "main") && !stacks[1].is_rooted());
        let script = "deep 1 2.0: 1 cpu-clock:\n\t  4005 known+0x5 (/x)\n\t  4006 main+0x5 (/x)\n\t 7f known_not (/y)\n\ndeep 1 3.0:\n\t 4005 known+0x5 (/x)\n\n";
        let stacks = perf_script(script);
        assert_eq!(stacks.len(), 2);
        assert!(stacks[0].is_chain("known", 1, "main"));
        assert!(!stacks[1].is_chain("known", 1, "main"));
        let profile = serde_json::json!({"threads": [{
            "stackTable": {"prefix": [null, 0, 1, 0]},
            "samples": {"stack": [2, 3, null], "weight": [4, 1, 1]},
        }]});
        let depths: Vec<_> = firefox(&profile)
            .iter()
            .map(|stack| (stack.depth, stack.count))
            .collect();
        assert_eq!(depths, [(3, 4), (2, 1), (0, 1)]);
    }
}
