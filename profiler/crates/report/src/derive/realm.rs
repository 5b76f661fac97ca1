//! What of a stack a session may see: stacks -> frames as scripts know them, outermost first, without those that are
//! withheld.
//!
//! A program, code that is made at run time and source that an interpreter runs are what scripts are to a page. What
//! libraries, the kernel and its vDSO do is built in: such a function belongs to the code that called it, and is withheld
//! with that. Objects can be marked private; their frames are withheld. What nobody called is nobody's secret: the frames
//! of a library at the root of a stack are shown. What does not belong here: who may look at a process at all, how
//! frames are written.

use std::borrow::Cow;

use super::frames::stack_frames;
use profiler_model::text::Glob;
use profiler_model::*;
use profiler_wire::self_profiling::Frame;

/// A function of a stack, as a session tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RealmFrame<'a> {
    /// Name of the function, or `module+0xaddress`.
    pub name: Cow<'a, str>,
    /// Source file, else the object's path; none outside of all that is mapped.
    pub resource: Option<&'a str>,
    /// The line that the function is defined in, if that is known.
    pub line: Option<u32>,
    /// Path of the object that it is in; empty outside of all that is mapped.
    pub object: &'a str,
    /// It belongs to whoever called it.
    pub is_built_in: bool,
}

/// The functions of a sample, outermost first.
pub fn realm_frames(
    tables: &Tables,
    kernel: Option<StackId>,
    user: Option<StackId>,
) -> Vec<RealmFrame<'_>> {
    let mut frames: Vec<RealmFrame<'_>> = stack_frames(tables, kernel, user)
        .map(|frame| {
            let module = frame.module.and_then(|id| tables.modules.get(id));
            let object = module.map_or("", |module| tables.string(module.path));
            let line = frame.function.and_then(|id| tables.line_of(id));
            RealmFrame {
                resource: frame.file.or((!object.is_empty()).then_some(object)),
                name: frame.name,
                line,
                object,
                is_built_in: is_built_in(module.map(|module| module.kind), object),
            }
        })
        .collect();
    frames.reverse();
    frames
}

impl RealmFrame<'_> {
    /// As a trace has it.
    pub fn as_frame(&self) -> Frame<'_> {
        Frame {
            name: &self.name,
            resource: self.resource,
            line: self.line,
            column: None,
        }
    }
}

fn is_built_in(kind: Option<ModuleKind>, object: &str) -> bool {
    match kind {
        Some(ModuleKind::Jit | ModuleKind::Interpreted) => false,
        Some(ModuleKind::File) => {
            let name = object.rsplit_once('/').map_or(object, |(_, name)| name);
            name.ends_with(".so") || name.contains(".so.")
        }
        Some(ModuleKind::Kernel | ModuleKind::KernelModule | ModuleKind::Vdso) => true,
        Some(ModuleKind::Unknown) | None => true,
    }
}

/// Where a frame is.
pub trait Placed {
    /// Path of the object; empty outside of all that is mapped.
    fn object(&self) -> &str;
    /// It belongs to whoever called it.
    fn is_built_in(&self) -> bool;
}

impl Placed for RealmFrame<'_> {
    fn object(&self) -> &str {
        self.object
    }

    fn is_built_in(&self) -> bool {
        self.is_built_in
    }
}

/// Objects whose frames are withheld.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realm {
    private: Vec<Glob>,
}

impl Realm {
    /// Without what is in these objects: paths, or globs of them (`/opt/secret/*`).
    pub fn without<'p>(private: impl IntoIterator<Item = &'p str>) -> Realm {
        Realm {
            private: private.into_iter().map(Glob::plain).collect(),
        }
    }

    /// Whether all is shown.
    pub fn is_all(&self) -> bool {
        self.private.is_empty()
    }

    /// Which of the frames of a stack are shown; they come outermost first.
    pub fn shown<'s, F: Placed + 's>(
        &'s self,
        frames: impl IntoIterator<Item = &'s F>,
    ) -> impl Iterator<Item = &'s F> {
        let mut is_theirs = false;
        frames.into_iter().filter(move |frame| {
            let object = frame.object();
            if self.private.iter().any(|private| private.matches(object)) {
                is_theirs = true;
            } else if !frame.is_built_in() {
                is_theirs = false;
            }
            !is_theirs
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_functions_go_with_those_who_called_them() {
        let realm = Realm::without(["/opt/secret/*", "/lib/libkeys.so.1", "/usr/bin/vault"]);
        let shown = |stack: &str| {
            let frames: Vec<&str> = stack.split_whitespace().collect();
            let kind = |object: &str| match object {
                "[kernel]" => ModuleKind::Kernel,
                "[jit 7]" => ModuleKind::Jit,
                "app.py" => ModuleKind::Interpreted,
                _ => ModuleKind::File,
            };
            let frame = |object| RealmFrame {
                name: "f".into(),
                resource: None,
                line: None,
                object,
                is_built_in: is_built_in(Some(kind(object)), object),
            };
            let frames: Vec<RealmFrame<'_>> = frames.into_iter().map(frame).collect();
            let shown: Vec<&str> = realm.shown(&frames).map(|frame| frame.object).collect();
            shown.join(" ")
        };
        for (stack, expected) in [
            ("/bin/a /lib/libc.so.6", "/bin/a /lib/libc.so.6"),
            (
                "/lib/libc.so.6 /opt/secret/a /lib/libc.so.6 [kernel]",
                "/lib/libc.so.6",
            ),
            (
                "/bin/a /opt/secret/a /lib/libc.so.6 /bin/a /lib/libc.so.6",
                "/bin/a /bin/a /lib/libc.so.6",
            ),
            ("/bin/a /lib/libkeys.so.1 [kernel]", "/bin/a"),
            (
                "/bin/a /lib/libkeys.so.1.2 [kernel]",
                "/bin/a /lib/libkeys.so.1.2 [kernel]",
            ),
            ("/usr/bin/vault /lib/libc.so.6", ""),
            (
                "/usr/bin/vaults /lib/libc.so.6",
                "/usr/bin/vaults /lib/libc.so.6",
            ),
            (
                "/opt/secret/python /lib/libpython3.so app.py [kernel]",
                "app.py [kernel]",
            ),
            ("/opt/secret/node [jit 7]", "[jit 7]"),
            ("[kernel]", "[kernel]"),
        ] {
            assert_eq!(shown(stack), expected, "{stack}");
        }
        assert!(Realm::default().is_all() && !realm.is_all());
    }
}
