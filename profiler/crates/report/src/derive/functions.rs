//! Which functions are one, and how those of one name are told apart.
//!
//! Input: all functions of a recording; output: for each the one that stands for it, and a name that no other
//! function of its module has. The same function is met in several forms: its own code, parts that the compiler
//! moved away or cloned, copies inlined elsewhere (without a start), code that a JIT compiler made anew. Two
//! functions of one name are two: what starts at two places of an object, unless a linker's name says that it is a
//! part; what is declared at two places of a source, where a runtime makes code, or has two places and no more of a name than a word. So `static work()` of a header is one
//! for each file that includes it, and the instances of a generic function are several. What
//! stacks are made of ([`DisplayFrame`](super::DisplayFrame)) and how names are written do not belong here.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use profiler_model::*;

/// What compilers append to the name of a part or a clone of a function. What they append to tell functions of one
/// name apart (`.lto_priv.0`, `.llvm.123`, `.0`) is not among it.
const PARTS: [&str; 5] = [".cold", ".part.", ".constprop.", ".isra.", ".localalias"];

/// The functions of a recording, told apart.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    /// The one that stands for each.
    same: Vec<FunctionId>,
    /// Of those that share their name: what it takes to tell them apart.
    labels: FxHashMap<FunctionId, Box<str>>,
}

/// Forms of one function.
struct Form<'a> {
    start: Option<u64>,
    file: Option<StringId>,
    /// Where it is declared there; 0: not known.
    line: u32,
    column: u32,
    /// Its name as linkers or its runtime know it.
    symbol: &'a str,
    functions: Vec<FunctionId>,
}

impl<'a> Form<'a> {
    fn of(tables: &'a Tables, id: FunctionId, function: &Function, start: Option<u64>) -> Form<'a> {
        let symbol = tables.string(function.linkage_name.unwrap_or(function.name));
        Form {
            start,
            file: function.file,
            line: function.line,
            column: column(symbol, function.line),
            symbol,
            functions: vec![id],
        }
    }

    /// One more form, which does not say anything else.
    fn add(&mut self, form: Form<'a>) {
        self.file = self.file.or(form.file);
        if self.line == 0 {
            (self.line, self.column) = (form.line, form.column);
        }
        if last_part(self.symbol).is_none() && last_part(form.symbol).is_some() {
            self.symbol = form.symbol;
        }
        self.functions.extend(form.functions);
    }

    /// Where it is declared.
    fn place(&self) -> (Option<StringId>, u32, u32) {
        (self.file, self.line, self.column)
    }
}

impl Functions {
    /// Tells the functions of a recording apart.
    pub fn of(tables: &Tables) -> Functions {
        let mut functions = Functions {
            same: (tables.functions.iter()).map(|(id, _)| id).collect(),
            labels: FxHashMap::default(),
        };
        let mut by_name: FxHashMap<_, Vec<FunctionId>> = FxHashMap::default();
        for (id, function) in tables.functions.iter() {
            let name = (function.module, function.name);
            by_name.entry(name).or_default().push(id);
        }
        for ((module, _), ids) in by_name.iter().filter(|(_, ids)| ids.len() > 1) {
            let module = module.and_then(|id| tables.modules.get(id));
            let forms = forms(tables, module, ids);
            for form in &forms {
                for id in &form.functions {
                    functions.same[id.index()] = form.functions[0];
                }
            }
            if forms.len() > 1 {
                let ids = forms.iter().map(|form| form.functions[0]);
                let labels = ids.zip(labels(tables, module, &forms));
                let labels = labels.filter_map(|(id, label)| Some((id, label?)));
                functions.labels.extend(labels);
            }
        }
        functions
    }

    /// How many functions there were.
    pub fn len(&self) -> usize {
        self.same.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.same.is_empty()
    }

    /// The one that stands for a function.
    pub fn same(&self, id: FunctionId) -> FunctionId {
        self.same.get(id.index()).copied().unwrap_or(id)
    }

    /// A name that no other function of the module has: its own, with the end of its file's path, its address
    /// or a word behind where it shares that.
    pub fn name<'a>(&self, tables: &'a Tables, id: FunctionId) -> Cow<'a, str> {
        let function = tables.functions.get(id);
        let name = function.map_or("[undefined]", |function| tables.string(function.name));
        match self.labels.get(&self.same(id)) {
            Some(label) => Cow::Owned(format!("{name} ({label})")),
            None => Cow::Borrowed(name),
        }
    }
}

/// The name of what a part or a clone was made of, if it is one: of `f.part.0.cold` it is `f.part.0`.
fn last_part(symbol: &str) -> Option<&str> {
    let parts = PARTS.iter().filter_map(|part| symbol.rfind(part));
    symbol.get(..parts.max()?).filter(|whole| !whole.is_empty())
}

/// The column that a runtime writes behind the line of what it compiled: `JS:*work a.js:2:15`.
fn column(symbol: &str, line: u32) -> u32 {
    let column = || {
        let (rest, column) = symbol.rsplit_once(':')?;
        let (_, before) = rest.rsplit_once(':')?;
        (before.parse() == Ok(line)).then(|| column.parse().ok())?
    };
    match line {
        0 => 0,
        _ => column().unwrap_or(0),
    }
}

/// Whether code of a module stays where it is: what is made at run time is made anew, and elsewhere, as often as its
/// runtime likes.
fn is_placed(module: Option<&Module>) -> bool {
    !module.is_some_and(|module| matches!(module.kind, ModuleKind::Jit | ModuleKind::Interpreted))
}

/// Whether code that was made at run time has a name without any sign of whose it is, so that nothing but its address tells
/// it from others: of a class, a file or a signature it would be known that code made anew is the same function.
fn is_bare(tables: &Tables, module: Option<&Module>, function: &Function) -> bool {
    let is_word = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    module.is_some_and(|module| module.kind == ModuleKind::Jit)
        && function.linkage_name.is_none()
        && function.file.is_none()
        && is_word(tables.string(function.name))
}

/// Functions of one name and module, the forms of one together.
fn forms<'a>(tables: &'a Tables, module: Option<&Module>, ids: &[FunctionId]) -> Vec<Form<'a>> {
    let placed = is_placed(module);
    let known = |id: &FunctionId| {
        let function = tables.functions.get(*id)?;
        let is_told = placed || is_bare(tables, module, function);
        let start = function.start.filter(|_| is_told);
        Some(Form::of(tables, *id, function, start))
    };
    let (whole_ones, others): (Vec<_>, Vec<_>) =
        (ids.iter().filter_map(known)).partition(|form| form.start.is_some());
    let mut forms = with_parts(one_each(whole_ones, |form| form.start));
    // The rest has no place in the object: it is told by where it is declared. Those of which that is known best come
    // first, so that others find them.
    let alone = match &forms[..] {
        [only] => Some(only.file),
        _ => None,
    };
    let (mut others, vague): (Vec<_>, Vec<_>) = one_each(others, Form::place)
        .into_iter()
        .partition(|form| form.line != 0);
    others.extend(vague);
    let mut known = Places::default();
    for (index, form) in forms.iter().enumerate() {
        known.add(form, index);
    }
    for form in others {
        let is_its = |file: &Option<StringId>| form.file.is_none() || file.is_none();
        let only = known.only_one(&form);
        match only.or_else(|| alone.filter(is_its).map(|_| 0)) {
            Some(owner) => forms[owner].functions.extend(form.functions),
            None => {
                known.add(&form, forms.len());
                forms.push(form);
            }
        }
    }
    forms
}

/// How many forms have something, and the first of them.
type Counted<K> = FxHashMap<K, (usize, usize)>;

fn count<K: std::hash::Hash + Eq>(counted: &mut Counted<K>, key: K, index: usize) {
    counted.entry(key).or_insert((0, index)).0 += 1;
}

/// Forms by where they are declared.
#[derive(Default)]
struct Places(Counted<Place>);

/// A file, a line of it, a column there; none: whichever. A line or column of 0 is not known.
type Place = (Option<StringId>, Option<u32>, Option<u32>);

impl Places {
    fn add(&mut self, form: &Form<'_>, index: usize) {
        let (file, line, column) = form.place();
        for place in [
            (file, None, None),
            (file, Some(line), None),
            (file, Some(line), Some(column)),
        ] {
            count(&mut self.0, place, index);
        }
    }

    /// The form that can be declared where this one is, as far as that is known of both, if it is the only one.
    fn only_one(&self, form: &Form<'_>) -> Option<usize> {
        let (file, line, column) = form.place();
        let places: &[Place] = match (line, column) {
            (0, _) => &[(file, None, None)],
            (_, 0) => &[(file, Some(line), None), (file, Some(0), None)],
            _ => &[
                (file, Some(line), Some(column)),
                (file, Some(line), Some(0)),
                (file, Some(0), None),
            ],
        };
        let mut found = places.iter().filter_map(|place| self.0.get(place));
        match (found.next(), found.next()) {
            (Some(&(1, index)), None) => Some(index),
            _ => None,
        }
    }
}

/// One of those that have the same key, in their order.
fn one_each<'a, K: std::hash::Hash + Eq>(
    all: Vec<Form<'a>>,
    key: impl Fn(&Form<'a>) -> K,
) -> Vec<Form<'a>> {
    let mut forms: Vec<Form> = Vec::new();
    let mut known: FxHashMap<K, usize> = FxHashMap::default();
    for form in all {
        match known.get(&key(&form)) {
            Some(&index) => forms[index].add(form),
            None => {
                known.insert(key(&form), forms.len());
                forms.push(form);
            }
        }
    }
    forms
}

/// Parts and clones put to what they were made of, where that is one function; else those together that no two
/// functions can have.
fn with_parts(mut forms: Vec<Form<'_>>) -> Vec<Form<'_>> {
    if forms.iter().all(|form| last_part(form.symbol).is_none()) {
        return forms;
    }
    // At all, and in a file.
    let mut by_symbol: Counted<(&str, Option<Option<StringId>>)> = Counted::default();
    for (index, form) in forms.iter().enumerate() {
        for file in [None, Some(form.file)] {
            count(&mut by_symbol, (form.symbol, file), index);
        }
    }
    let mut owner_of: Vec<usize> = (0..forms.len()).collect();
    let mut orphans: FxHashMap<(&str, Option<StringId>), Vec<usize>> = FxHashMap::default();
    for (index, part) in forms.iter().enumerate() {
        let wholes = || std::iter::successors(last_part(part.symbol), |whole| last_part(whole));
        let Some(whole) = wholes().find(|&whole| by_symbol.contains_key(&(whole, None))) else {
            if let Some(whole) = wholes().last() {
                orphans.entry((whole, part.file)).or_default().push(index);
            }
            continue;
        };
        let in_file = by_symbol.get(&(whole, Some(part.file)));
        if let Some(&(1, owner)) = in_file.or_else(|| by_symbol.get(&(whole, None))) {
            owner_of[index] = owner;
        }
    }
    for parts in orphans.values() {
        let mut symbols = FxHashSet::default();
        let mut all = parts.iter().map(|&index| without_unit(forms[index].symbol));
        if all.all(|symbol| symbols.insert(symbol)) {
            parts.iter().for_each(|&index| owner_of[index] = parts[0]);
        }
    }
    // An owner can be a part itself.
    let root = |mut index: usize| {
        while owner_of[index] != index {
            index = owner_of[index];
        }
        index
    };
    let roots: Vec<usize> = (0..forms.len()).map(root).collect();
    for index in (0..forms.len()).filter(|&index| roots[index] != index) {
        let functions = std::mem::take(&mut forms[index].functions);
        forms[roots[index]].functions.extend(functions);
    }
    forms.retain(|form| !form.functions.is_empty());
    forms
}

/// A symbol without what tells the units apart that it is from.
fn without_unit(symbol: &str) -> &str {
    let marks = [".lto_priv.", ".llvm.", ".__uniq."];
    let marks = marks.iter().filter_map(|mark| symbol.find(mark));
    &symbol[..marks.min().unwrap_or(symbol.len())]
}

/// What tells forms of one name apart: the ends of their files' paths, with where they are declared if that is needed,
/// else addresses. None for one of which nothing is known but that its runtime made it.
fn labels(tables: &Tables, module: Option<&Module>, forms: &[Form<'_>]) -> Vec<Option<Box<str>>> {
    let mut counts: FxHashMap<(StringId, Option<u32>), usize> = FxHashMap::default();
    for form in forms {
        if let Some(file) = form.file {
            *counts.entry((file, None)).or_default() += 1;
            *counts.entry((file, Some(form.line))).or_default() += 1;
        }
    }
    let files = counts.keys().filter(|(_, line)| line.is_none());
    let paths: FxHashMap<StringId, &str> =
        (files.map(|&(file, _)| (file, tables.string(file)))).collect();
    let ends = Ends::of(paths.values().copied());
    let is_only = |file, line| counts.get(&(file, line)) == Some(&1);
    let place = |form: &Form| -> Option<(String, bool)> {
        let file = form.file?;
        let end = ends.distinct(paths.get(&file)?);
        if is_only(file, None) {
            return Some((end.to_owned(), true));
        }
        let (line, column) = (form.line, form.column);
        Some(match (line, column) {
            (0, _) => (end.to_owned(), false),
            _ if is_only(file, Some(line)) || column == 0 => {
                (format!("{end}:{line}"), is_only(file, Some(line)))
            }
            _ => (format!("{end}:{line}:{column}"), true),
        })
    };
    let placed = is_placed(module);
    let bias = module.map_or(0, |module| module.address_bias);
    let inlined = |form: &Form| placed && form.start.is_none();
    let inlined_ones = forms.iter().filter(|form| inlined(form));
    let vague = inlined_ones.filter(|form| !place(form).is_some_and(|(_, only)| only));
    let is_one = vague.count() == 1;
    let label = |form: &Form| -> Option<Box<str>> {
        let start = form.start.map(|start| start.wrapping_add(bias));
        let label = match (place(form), start) {
            (Some((place, true)), _) => place,
            (_, Some(start)) => format!("{start:#x}"),
            (Some((place, _)), None) if !placed => place,
            (Some((place, _)), None) if !is_one => format!("{place}, inlined"),
            (_, None) if placed => "inlined".to_owned(),
            _ => return None,
        };
        Some(label.into())
    };
    forms.iter().map(label).collect()
}

/// Ends of paths, in whole parts.
pub(crate) struct Ends<'a>(FxHashMap<&'a str, usize>);

impl<'a> Ends<'a> {
    /// Of different paths.
    pub(crate) fn of(paths: impl IntoIterator<Item = &'a str>) -> Ends<'a> {
        let mut ends: FxHashMap<&str, usize> = FxHashMap::default();
        for end in paths.into_iter().flat_map(ends_of) {
            *ends.entry(end).or_default() += 1;
        }
        Ends(ends)
    }

    /// The shortest end of a path that none of the other paths has.
    pub(crate) fn distinct(&self, path: &'a str) -> &'a str {
        let is_distinct = |end: &&str| self.0.get(end).is_none_or(|&count| count <= 1);
        ends_of(path).find(is_distinct).unwrap_or(path)
    }
}

/// What is behind each of a path's slashes, the shortest first, and the path.
fn ends_of(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.rmatch_indices('/').map(|(at, _)| &path[at + 1..]);
    ends.chain([path])
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        tables: Tables,
        module: ModuleId,
    }

    impl Fixture {
        fn new(kind: ModuleKind) -> Fixture {
            let mut tables = Tables::default();
            let path = tables.intern_string("/bin/a").0;
            let module = Module {
                kind,
                path,
                build_id: None,
                address_bias: 0x1000,
            };
            let module = tables.modules.intern(module).0;
            Fixture { tables, module }
        }

        fn add(&mut self, name: &str, linkage: &str, file: &str, start: u64) -> FunctionId {
            self.declared(name, linkage, (file, 0), start)
        }

        fn declared(
            &mut self,
            name: &str,
            linkage: &str,
            (file, line): (&str, u32),
            start: u64,
        ) -> FunctionId {
            let mut text =
                |text: &str| (!text.is_empty()).then(|| self.tables.intern_string(text).0);
            let function = Function {
                name: text(name).unwrap(),
                linkage_name: text(linkage),
                module: Some(self.module),
                file: text(file),
                line,
                start: (start != 0).then_some(start),
                size: None,
            };
            self.tables.functions.intern(function).0
        }

        fn names(&self, ids: &[FunctionId]) -> Vec<String> {
            let functions = Functions::of(&self.tables);
            let name = |id: &FunctionId| {
                let name = functions.name(&self.tables, *id);
                assert_eq!(name, functions.name(&self.tables, functions.same(*id)));
                name.into_owned()
            };
            ids.iter().map(name).collect()
        }
    }

    #[test]
    fn statics_of_two_files_are_two() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let a = fixture.add("work", "", "/src/x/a.c", 0x10);
        let b = fixture.add("work", "", "/src/x/b.c", 0x20);
        let in_b = fixture.add("work", "", "/src/x/b.c", 0);
        let other = fixture.add("main", "", "/src/x/a.c", 0x30);
        let names = fixture.names(&[a, b, in_b, other]);
        assert_eq!(names, ["work (a.c)", "work (b.c)", "work (b.c)", "main"]);
        let deeper = fixture.add("work", "", "/src/y/a.c", 0x50);
        let names = fixture.names(&[a, b, deeper]);
        assert_eq!(names, ["work (x/a.c)", "work (b.c)", "work (y/a.c)"]);
    }

    #[test]
    fn without_files_addresses_tell_them_apart() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let a = fixture.add("work", "", "", 0x10);
        let b = fixture.add("work", "", "", 0x20);
        let inlined = fixture.add("work", "", "", 0);
        let names = fixture.names(&[a, b, inlined]);
        assert_eq!(names, ["work (0x1010)", "work (0x1020)", "work (inlined)"]);
    }

    #[test]
    fn parts_clones_and_inlined_copies_are_their_function() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let all = [
            fixture.add("A::f()", "_ZN1A1fEv", "a.cc", 0x10),
            fixture.add("A::f()", "_ZN1A1fEv.cold", "a.cc", 0x20),
            fixture.add("A::f()", "_ZN1A1fEv.constprop.0", "a.cc", 0x30),
            fixture.add("A::f()", "", "a.cc", 0),
            // Its first sampled instruction came from a header.
            fixture.add("A::f()", "_ZN1A1fEv", "a.h", 0x10),
        ];
        assert_eq!(fixture.names(&all), ["A::f()"; 5]);
    }

    #[test]
    fn statics_of_a_header_are_one_for_each_unit() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let header = ("/src/w.h", 2);
        let all = [
            fixture.declared("work", "", header, 0x10),
            fixture.declared("work", "work.llvm.123", header, 0x20),
            fixture.declared("work", "work.lto_priv.0", header, 0x30),
            fixture.declared("work", "", header, 0),
            // One of them is what each of these is a part of, but which?
            fixture.declared("work", "work.lto_priv.0.cold", header, 0x40),
            fixture.declared("work", "work.constprop.0", header, 0x50),
            fixture.declared("work", "work.constprop.0.cold", header, 0x60),
            fixture.declared("work", "work.isra.0", header, 0x70),
        ];
        let names = fixture.names(&all);
        let expected = [
            "work (0x1010)",
            "work (0x1020)",
            "work (0x1030)",
            "work (inlined)",
            "work (0x1030)",
            "work (0x1010)",
            "work (0x1010)",
            "work (0x1010)",
        ];
        assert_eq!(names, expected);
        let second = fixture.declared("work", "", header, 0x80);
        let names = fixture.names(&[all[0], second, all[5], all[6], all[7]]);
        let expected = [
            "work (0x1010)",
            "work (0x1080)",
            "work (0x1050)",
            "work (0x1050)",
            "work (0x1070)",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn parts_without_their_function_are_one_unless_units_share_them() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let all = [
            fixture.add("f", "f.constprop.0", "a.h", 0x10),
            fixture.add("f", "f.part.0", "a.h", 0x20),
            fixture.add("g", "g.constprop.0", "a.h", 0x30),
            fixture.add("g", "g.constprop.0", "a.h", 0x40),
            fixture.add("g", "g.constprop.0.lto_priv.1", "a.h", 0x50),
        ];
        let names = fixture.names(&all);
        let expected = ["f", "f", "g (0x1030)", "g (0x1040)", "g (0x1050)"];
        assert_eq!(names, expected);
    }

    #[test]
    fn functions_of_one_file_are_told_apart_by_their_lines() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let all = [
            fixture.declared("work", "work.0", ("/src/a.f90", 6), 0x10),
            fixture.declared("work", "work.1", ("/src/a.f90", 17), 0x20),
            fixture.declared("work", "", ("/src/a.f90", 17), 0),
            fixture.declared("work", "", ("/src/a.f90", 30), 0),
        ];
        let names = fixture.names(&all);
        let expected = [
            "work (a.f90:6)",
            "work (a.f90:17)",
            "work (a.f90:17)",
            "work (a.f90:30)",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn functions_of_scripts_are_where_they_are_declared() {
        let mut fixture = Fixture::new(ModuleKind::Jit);
        let all = [
            fixture.declared("work", "JS:~work /a/t.js:1:15", ("/a/t.js", 1), 0x10),
            fixture.declared("work", "JS:*work /a/t.js:1:15", ("/a/t.js", 1), 0x20),
            fixture.declared("work", "JS:*work /a/t.js:1:90", ("/a/t.js", 1), 0x30),
            fixture.declared("work", "JS:*work /a/t.js:7:15", ("/a/t.js", 7), 0x40),
            fixture.declared("work", "JS:^work /a/u.js:7:15", ("/a/u.js", 7), 0x50),
            fixture.add("work", "", "", 0x60),
            fixture.add("work", "", "", 0x70),
        ];
        let names = fixture.names(&all);
        let expected = [
            "work (t.js:1:15)",
            "work (t.js:1:15)",
            "work (t.js:1:90)",
            "work (t.js:7)",
            "work (u.js)",
            "work (0x1060)",
            "work (0x1070)",
        ];
        assert_eq!(names, expected);
        let mut fixture = Fixture::new(ModuleKind::Interpreted);
        let all = [2, 6].map(|line| fixture.declared("work", "", ("/a/l.py", line), 0));
        assert_eq!(fixture.names(&all), ["work (l.py:2)", "work (l.py:6)"]);
    }

    #[test]
    fn instances_of_a_generic_function_are_several() {
        let mut fixture = Fixture::new(ModuleKind::File);
        let all = [
            fixture.add("W<T>::f", "_RNvMINtC1a1Wta1f", "a.rs", 0x10),
            fixture.add("W<T>::f", "_RNvMINtC1a1Wha1f", "a.rs", 0x20),
            fixture.add("W<T>::f", "", "a.rs", 0),
        ];
        let names = fixture.names(&all);
        assert_eq!(
            names,
            ["W<T>::f (0x1010)", "W<T>::f (0x1020)", "W<T>::f (inlined)"]
        );
    }

    #[test]
    fn code_made_anew_is_the_same() {
        let mut fixture = Fixture::new(ModuleKind::Jit);
        let all = [
            fixture.add("Chain.work(int)", "", "", 0x10),
            fixture.add("Chain.work(int)", "", "", 0x20),
        ];
        assert_eq!(fixture.names(&all), ["Chain.work(int)"; 2]);
        let all = [
            fixture.add("work", "JIT$work", "", 0x30),
            fixture.add("work", "JIT$work", "", 0x40),
        ];
        assert_eq!(fixture.names(&all), ["work"; 2]);
        let mut fixture = Fixture::new(ModuleKind::Interpreted);
        let all = [
            fixture.add("work", "", "/a/js_a.js", 0),
            fixture.add("work", "", "/a/js_b.js", 0),
        ];
        assert_eq!(fixture.names(&all), ["work (js_a.js)", "work (js_b.js)"]);
    }

    #[test]
    fn a_word_at_two_addresses_is_two_functions() {
        let mut fixture = Fixture::new(ModuleKind::Jit);
        let all = [0x10, 0x20, 0x10].map(|start| fixture.add("work", "", "", start));
        let expected = ["work (0x1010)", "work (0x1020)", "work (0x1010)"];
        assert_eq!(fixture.names(&all), expected);
    }

    #[test]
    fn an_end_of_a_path_is_whole() {
        assert_eq!(Ends::of(["/a/b.c", "/a/bb.c"]).distinct("/a/b.c"), "b.c");
        assert_eq!(Ends::of(["b.c", "x/b.c"]).distinct("b.c"), "b.c");
        assert_eq!(Ends::of(["b.c", "x/b.c"]).distinct("x/b.c"), "x/b.c");
        assert_eq!(Ends::of(["b.c", "/b.c"]).distinct("/b.c"), "/b.c");
    }
}
