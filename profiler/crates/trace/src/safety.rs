//! Whom a return probe can harm.
//!
//! Objects that a process maps, or one function's control flow -> [`Verdict`].
//!
//! A return probe replaces the return address on the stack for as long as the function runs. Who
//! looks at it in this time is misled: an exception finds no way on and ends the process, Go stops
//! when it moves a stack, a coroutine returns on a stack that the kernel doesn't know. So such probes
//! are used only where nobody can look: in functions that call nobody, or only such functions; and in
//! processes that map nothing that unwinds, changes stacks or makes code.
//!
//! What does not belong here: how returns are seen otherwise (`place`).

use std::borrow::Cow;
use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::code::{self, CodeSource, Flow, Outlines, Target, Way, switches_stack};
use serde::{Deserialize, Serialize};

use super::{Function, FunctionKind, Language, NoExits, reason, system_calls};

/// Longest chain of calls that is followed.
const MAX_DEPTH: usize = 12;
/// Most functions of an object whose code is looked at for one answer.
const MAX_VISITS: usize = 200;
/// Bytes of code that are searched at once.
const PIECE_BYTES: u64 = 1 << 18;
/// So many of them again with the next: one less than the longest that is searched for.
const OVERLAP: u64 = 4;

/// Whether a return probe is harmless, and why (not).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// A return probe can't do harm.
    pub uretprobe: bool,
    /// Why, for people.
    #[serde(deserialize_with = "reason::one")]
    pub why: reason::Reason,
}

impl Verdict {
    pub(super) const fn yes(why: &'static str) -> Verdict {
        Verdict {
            uretprobe: true,
            why,
        }
    }

    pub(super) const fn no(why: &'static str) -> Verdict {
        Verdict {
            uretprobe: false,
            why,
        }
    }
}

/// What the objects of one process (or of all processes that are traced) allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSafety {
    verdict: Verdict,
    /// Why not even functions that nobody looks at meanwhile may have one.
    #[serde(deserialize_with = "reason::maybe")]
    none_at_all: Option<reason::Reason>,
}

impl ProcessSafety {
    /// Of a process that maps these objects, and maybe executable memory that is no file
    /// (`anonymous_code`; the kernel's own pages, `[vdso]` and `[uprobes]`, don't count).
    pub fn of<'a>(
        objects: impl IntoIterator<Item = &'a dyn CodeSource>,
        anonymous_code: bool,
    ) -> ProcessSafety {
        let mut safety = ProcessSafety {
            verdict: Verdict::yes("nothing in the process unwinds or changes stacks"),
            none_at_all: None,
        };
        if anonymous_code {
            safety.add_anonymous_code();
        }
        for object in objects {
            safety.add(object);
        }
        safety
    }

    /// Where nothing is known of the process.
    pub fn unknown() -> ProcessSafety {
        ProcessSafety {
            verdict: Verdict::no("what the process maps isn't known"),
            none_at_all: None,
        }
    }

    /// What holds for functions that aren't safe by themselves.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Why no function at all may have a return probe, if that is so.
    pub fn none_at_all(&self) -> Option<&'static str> {
        self.none_at_all
    }

    /// One more object was mapped. Says whether return probes that were harmless no longer are.
    pub fn add(&mut self, object: &dyn CodeSource) -> bool {
        let was_none = self.none_at_all.is_some();
        self.none_at_all = self
            .none_at_all
            .or_else(|| system_calls::watched_by(object));
        self.restrict(|| object_verdict(object)) || self.none_at_all.is_some() != was_none
    }

    /// What `other` forbids is forbidden from now on. Says whether return probes that were harmless no longer
    /// are.
    pub fn restrict_as(&mut self, other: &ProcessSafety) -> bool {
        let was_none = self.none_at_all.is_some();
        self.none_at_all = self.none_at_all.or(other.none_at_all);
        let why = (!other.verdict.uretprobe).then_some(other.verdict.why);
        self.restrict(|| why) || self.none_at_all.is_some() != was_none
    }

    /// Executable memory that is no file was mapped. Says whether return probes that were harmless no
    /// longer are.
    pub fn add_anonymous_code(&mut self) -> bool {
        self.restrict(|| Some("it makes code while it runs"))
    }

    fn restrict(&mut self, reason: impl FnOnce() -> Option<&'static str>) -> bool {
        if !self.verdict.uretprobe {
            return false;
        }
        match reason() {
            Some(why) => {
                self.verdict = Verdict::no(why);
                true
            }
            None => false,
        }
    }
}

/// Parts of the C library: they unwind and change stacks only for those who ask them to.
pub(super) const C_LIBRARY: &[&str] = &[
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "libm.so.6",
    "libmvec.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libanl.so.1",
    "libnsl.so.1",
    "ld-musl-x86_64.so.1",
    "libc.musl-x86_64.so.1",
    "linux-vdso.so.1",
];

/// Functions that set the stack pointer and belong to every C library.
const KNOWN: &[&str] = &[
    "_start",
    "__longjmp",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__libc_siglongjmp",
    "__libc_longjmp",
    "____longjmp_chk",
    "__longjmp_chk",
    "_dl_start_user",
    "__restore_rt",
    "_dl_relocate_static_pie",
];

fn unwinds(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    name.starts_with("_Unwind_") && name != "_Unwind_Find_FDE"
        || matches!(
            name,
            "__cxa_throw"
                | "__cxa_begin_catch"
                | "__gxx_personality_v0"
                | "rust_eh_personality"
                | "unw_step"
                | "unw_resume"
                // The C library loads what unwinds when it is called first: too late to do without.
                | "backtrace"
        )
}

/// Whose frames are left by force: with a return probe pending that skips their cleanups.
fn ends_threads(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    matches!(name, "pthread_cancel" | "pthread_exit" | "thrd_exit")
}

/// Whether an object uses what switches between stacks (contexts, coroutines), as far as names tell.
pub fn changes_stacks(object: &dyn CodeSource) -> bool {
    let defined = || object.functions().iter().map(linkage_name);
    !C_LIBRARY.contains(&object.name())
        && (object.imports().iter().any(|name| switches_stack(name))
            || defined().any(switches_stack))
}

/// Why an object forbids return probes, if it does.
fn object_verdict(object: &dyn CodeSource) -> Option<&'static str> {
    if object.is_go() {
        return Some("Go moves its stacks");
    }
    if C_LIBRARY.contains(&object.name()) {
        return None;
    }
    let imports = object.imports();
    let defined = || object.functions().iter().map(linkage_name);
    if object.has_section(".gcc_except_table")
        || imports.iter().any(|name| unwinds(name))
        || defined().any(unwinds)
    {
        return Some("it may throw or catch exceptions");
    }
    if changes_stacks(object) {
        return Some("it changes stacks");
    }
    if imports.iter().any(|name| ends_threads(name)) {
        return Some("it ends threads, which unwinds their stacks");
    }
    sets_stack_pointer(object).then_some("it may change stacks")
}

pub(super) fn linkage_name(function: &Function) -> &str {
    function.linkage_name.as_deref().unwrap_or(&function.name)
}

/// Whether some code sets the stack pointer to what is no part of its own frame. The code is searched
/// for the bytes of such instructions; only functions that have them are followed. In code that no
/// symbol covers the bytes alone decide.
fn sets_stack_pointer(object: &dyn CodeSource) -> bool {
    let mut followed = HashMap::<u64, bool, FxBuildHasher>::default();
    for (start, len) in pieces(object) {
        let Some(bytes) = object.code(start, len) else {
            return true;
        };
        for (at, four) in bytes.windows(4).enumerate() {
            if !may_set_stack_pointer(four) {
                continue;
            }
            let address = start + at as u64;
            let Some(function) = (match object.function_at(address) {
                Some(function) => Some(Cow::Borrowed(function)),
                None => object
                    .extent(address)
                    .map(|extent| Cow::Owned(nameless(object, extent))),
            }) else {
                return true;
            };
            if KNOWN.contains(&linkage_name(&function)) {
                continue;
            }
            if followed.len() > MAX_VISITS {
                return true;
            }
            let changes = followed
                .entry(function.address)
                .or_insert_with(|| code::recover(object, &function).switches_stack);
            if *changes {
                return true;
            }
        }
    }
    false
}

/// What is loaded as code, in pieces that overlap by less than what is searched for.
pub(super) fn pieces(object: &dyn CodeSource) -> impl Iterator<Item = (u64, u64)> {
    object.code_ranges().into_iter().flat_map(|(start, len)| {
        let piece = move |at| {
            (
                start.saturating_add(at),
                (len - at).min(PIECE_BYTES + OVERLAP),
            )
        };
        (0..len).step_by(PIECE_BYTES as usize).map(piece)
    })
}

/// `mov`, `xchg` to the stack pointer, from anything but the frame pointer.
fn may_set_stack_pointer(bytes: &[u8]) -> bool {
    let &[rex, opcode, modrm, _] = bytes else {
        return false;
    };
    if !(0x48..=0x4f).contains(&rex) {
        return false;
    }
    let (register, operand, direct) = (modrm >> 3 & 7, modrm & 7, modrm >> 6 == 3);
    let (extended_register, extended_operand) = (rex & 4 != 0, rex & 1 != 0);
    match opcode {
        0x89 => direct && operand == 4 && !extended_operand && (register != 5 || extended_register),
        0x8b => {
            register == 4 && !extended_register && !(direct && operand == 5 && !extended_operand)
        }
        0x87 => register == 4 && !extended_register || direct && operand == 4 && !extended_operand,
        0x94 => !extended_operand,
        _ => false,
    }
}

/// A function without a symbol.
pub(super) fn nameless(source: &dyn CodeSource, (address, size): (u64, u64)) -> Function {
    Function {
        name: Box::default(),
        linkage_name: None,
        aliases: Vec::new(),
        offset: source.offset_of(address).unwrap_or_default(),
        address,
        size,
        source: None,
        line: 0,
        kind: FunctionKind::Function,
        language: Language::C,
    }
}

/// What is known of the functions of one object.
pub struct FunctionSafety<'a> {
    source: &'a dyn CodeSource,
    /// Nothing while it is looked at.
    known: HashMap<u64, Option<Verdict>, FxBuildHasher>,
    recursive: HashMap<u64, bool, FxBuildHasher>,
}

impl<'a> FunctionSafety<'a> {
    /// For the functions of one object.
    pub fn of(source: &'a dyn CodeSource) -> FunctionSafety<'a> {
        FunctionSafety {
            source,
            known: HashMap::default(),
            recursive: HashMap::default(),
        }
    }

    /// Whether a function is safe by itself: while it runs, nothing looks at its return address.
    pub fn verdict(&mut self, function: &Function, outlines: &mut Outlines<'_>) -> Verdict {
        let mut visits = 0;
        self.look(function, outlines, 0, &mut visits)
    }

    fn look(
        &mut self,
        function: &Function,
        outlines: &mut Outlines<'_>,
        depth: usize,
        visits: &mut usize,
    ) -> Verdict {
        match self.known.get(&function.address) {
            Some(Some(verdict)) => return *verdict,
            Some(None) => return Verdict::no("it calls itself"),
            None => {}
        }
        *visits += 1;
        if depth > MAX_DEPTH || *visits > MAX_VISITS {
            return Verdict::no("it calls too many functions to look at");
        }
        self.known.insert(function.address, None);
        let flow = outlines.get(function);
        let verdict = self.judge(&flow, function, outlines, depth, visits);
        if *visits > MAX_VISITS && depth > 0 {
            // From elsewhere the chain may be short enough.
            self.known.remove(&function.address);
        } else {
            self.known.insert(function.address, Some(verdict));
        }
        verdict
    }

    fn judge(
        &mut self,
        flow: &Flow,
        function: &Function,
        outlines: &mut Outlines<'_>,
        depth: usize,
        visits: &mut usize,
    ) -> Verdict {
        if self.source.is_go() {
            return Verdict::no("Go moves its stacks");
        }
        if flow.switches_stack {
            return Verdict::no("it changes stacks");
        }
        if flow.system_calls {
            return Verdict::no("it calls the kernel");
        }
        let recovered = matches!(
            flow.problem,
            None | Some(NoExits::ConditionalExit | NoExits::Forbidden)
        );
        if !flow.jumps_known || !recovered {
            return Verdict::no("its control flow isn't known");
        }
        let calls = flow.calls.iter().map(|&(_, target)| target);
        let leaves = flow.exits.iter().filter_map(|exit| match exit.way {
            Way::Return => None,
            Way::TailCall(target) => Some(target),
            Way::Conditional(target) => Some(Target::Direct(target)),
        });
        let targets: Vec<Target> = calls.chain(leaves).collect();
        // What is plain to see comes first: it costs nothing.
        let direct = targets.iter().map(|target| match *target {
            Target::Direct(address) => Some(address),
            Target::Import | Target::Computed => None,
        });
        let Some(direct) = direct.collect::<Option<Vec<u64>>>() else {
            return Verdict::no("it calls what isn't known beforehand");
        };
        if direct.contains(&function.address) {
            return Verdict::no("it calls itself");
        }
        for target in &direct {
            let Some(callee) = self.callee(*target) else {
                return Verdict::no("it calls what isn't known to be a function");
            };
            if !self.look(&callee, outlines, depth + 1, visits).uretprobe {
                return Verdict::no("it calls functions that aren't safe");
            }
        }
        match direct.is_empty() {
            true => Verdict::yes("it calls nobody"),
            false => Verdict::yes("it calls only functions that call nobody else"),
        }
    }

    /// The function that begins at an address, be it one without a name.
    fn callee(&self, address: u64) -> Option<Function> {
        let known = self.source.function_at(address);
        if let Some(function) = known.filter(|known| known.address == address && known.size > 0) {
            return Some(function.clone());
        }
        let extent = self.source.extent(address)?;
        (extent.0 == address).then(|| nameless(self.source, extent))
    }

    /// Whether a function may come to itself again through direct calls.
    pub fn is_recursive(&mut self, function: &Function, outlines: &mut Outlines<'_>) -> bool {
        if let Some(&known) = self.recursive.get(&function.address) {
            return known;
        }
        let mut seen = vec![function.address];
        let mut work = vec![function.clone()];
        let mut found = false;
        while let Some(next) = work.pop() {
            for &(_, target) in &outlines.get(&next).calls {
                let Target::Direct(target) = target else {
                    continue;
                };
                found |= target == function.address;
                if seen.contains(&target) || seen.len() > MAX_DEPTH {
                    continue;
                }
                seen.push(target);
                work.extend(self.callee(target));
            }
        }
        self.recursive.insert(function.address, found);
        found
    }
}
