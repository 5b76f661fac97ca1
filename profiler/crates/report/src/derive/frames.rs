//! Display frames: a sample's two stacks as one sequence of named places, leaf first.
//!
//! Input: the stack ids of a sample; output: kernel leaf ... kernel root, user leaf ... user root,
//! each frame expanded into the functions that were inlined there. Without a name a frame is
//! `module+0xaddress`. How frames are written in a format does not belong here.

use std::borrow::Cow;

use profiler_model::*;

/// One function of a stack, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisplayFrame<'a> {
    /// Name of the function, or `module+0xaddress`.
    pub name: Cow<'a, str>,
    /// The function; none without a name.
    pub function: Option<FunctionId>,
    /// Where the code lives; none if the address is in no known mapping.
    pub module: Option<ModuleId>,
    /// Source file, if known.
    pub file: Option<&'a str>,
    /// Source line; 0 if not known.
    pub line: u32,
    /// What kind of code.
    pub kind: FrameKind,
    /// Whether this function was inlined into the next display frame.
    pub inlined: bool,
    /// The frame it comes from; several display frames share one where code was inlined.
    pub frame: FrameId,
}

/// The display frames of a sample, leaf first: the kernel's stack lies on top of the user's.
pub fn stack_frames(
    tables: &Tables,
    kernel: Option<StackId>,
    user: Option<StackId>,
) -> impl Iterator<Item = DisplayFrame<'_>> {
    tables
        .frames_of_both(kernel, user)
        .flat_map(|frame| frame_lines(tables, frame))
}

/// The display frames of one frame, innermost inlined function first. Never empty.
pub fn frame_lines(tables: &Tables, frame: FrameId) -> impl Iterator<Item = DisplayFrame<'_>> {
    let lines = tables.lines(frame);
    let place = tables.frames.get(frame);
    let kind = place.map_or(FrameKind::Native, |place| place.kind);
    let module = place.and_then(|place| place.module);
    (0..lines.len().max(1)).map(move |index| {
        let line = lines.get(index);
        let function = line.and_then(|line| tables.functions.get(line.function));
        DisplayFrame {
            name: function.map_or_else(
                || Cow::Owned(tables.frame_location(frame)),
                |function| Cow::Borrowed(tables.string(function.name)),
            ),
            function: function.and(line.map(|line| line.function)),
            module,
            file: function
                .and_then(|function| function.file)
                .map(|file| tables.string(file)),
            line: line.map_or(0, |line| line.line),
            kind,
            inlined: index + 1 < lines.len(),
            frame,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_functions_come_before_their_callers() {
        let mut tables = Tables::default();
        let path = tables.intern_string("/bin/a").0;
        let module = Some(
            tables
                .modules
                .intern(Module {
                    kind: ModuleKind::File,
                    path,
                    build_id: None,
                    address_bias: 0,
                })
                .0,
        );
        let mut lines = Vec::new();
        for (name, line) in [("inner", 3), ("outer", 7)] {
            let name = tables.intern_string(name).0;
            let function = Function {
                name,
                linkage_name: None,
                module,
                file: None,
                line: 0,
                start: None,
                size: None,
            };
            let function = tables.functions.intern(function).0;
            lines.push(Line { function, line });
        }
        let mut stack_of = |address, kind| {
            let frame = tables
                .frames
                .intern(Frame {
                    kind,
                    module,
                    address,
                })
                .0;
            let stack = Stack {
                parent: None,
                frame,
            };
            (frame, tables.stacks.intern(stack).0)
        };
        let (user_frame, user) = stack_of(0x10, FrameKind::Native);
        let (_, kernel) = stack_of(0x20, FrameKind::Kernel);
        tables.set_symbol(user_frame, Symbol::Lines(lines.into()));

        let shown: Vec<(String, u32, bool, bool)> = stack_frames(&tables, Some(kernel), Some(user))
            .map(|f| (f.name.into_owned(), f.line, f.inlined, f.function.is_some()))
            .collect();
        let expected = [
            ("a+0x20".to_owned(), 0, false, false),
            ("inner".to_owned(), 3, true, true),
            ("outer".to_owned(), 7, false, true),
        ];
        assert_eq!(shown, expected);
        assert_eq!(stack_frames(&tables, None, None).count(), 0);
    }
}
