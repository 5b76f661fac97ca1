//! Which functions are one, and how those of one name are told apart.
//!
//! Input: all functions of a recording; output: for each the one that stands for it, and a name that no other
//! function of its module has. The same function is met in several forms: its own code, parts that the compiler
//! moved away or cloned, copies inlined elsewhere (without a start), code that a JIT compiler made anew. Two
//! functions of one name are two: `static work()` of two source files, the instances of a generic one. What
//! stacks are made of ([`DisplayFrame`](super::DisplayFrame)) and how names are written do not belong here.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use profiler_model::*;

/// What compilers append to the name of a part or a clone of a function.
const PARTS: [&str; 7] = [
    ".cold",
    ".part.",
    ".constprop.",
    ".isra.",
    ".llvm.",
    ".lto_priv.",
    ".localalias",
];

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
    /// Name as linkers know it, without what was appended to that of a part.
    symbol: Option<&'a str>,
    functions: Vec<FunctionId>,
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
                let bias = module.map_or(0, |module| module.address_bias);
                let labels = labels(tables, bias, &forms);
                let ids = forms.iter().map(|form| form.functions[0]);
                functions.labels.extend(ids.zip(labels));
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

/// Name of the function that a part or a clone belongs to.
fn whole(symbol: &str) -> &str {
    let parts = PARTS.iter().filter_map(|part| symbol.find(part));
    symbol
        .get(..parts.min().unwrap_or(symbol.len()))
        .unwrap_or(symbol)
}

/// Functions of one name and module, the forms of one together.
fn forms<'a>(tables: &'a Tables, module: Option<&Module>, ids: &[FunctionId]) -> Vec<Form<'a>> {
    // What is made at run time is made anew, and elsewhere, as often as its runtime likes.
    let placed = !module
        .is_some_and(|module| matches!(module.kind, ModuleKind::Jit | ModuleKind::Interpreted));
    let known = |id: &FunctionId| Some((*id, tables.functions.get(*id)?));
    let (whole_ones, inlined): (Vec<_>, Vec<_>) = (ids.iter().filter_map(known))
        .partition(|(_, function)| placed && function.start.is_some());
    let mut forms: Vec<Form> = Vec::new();
    for (id, function) in whole_ones {
        let symbol = function.linkage_name.unwrap_or(function.name);
        let symbol = Some(whole(tables.string(symbol)));
        let is_part = |form: &Form| {
            form.file.is_some() && form.file == function.file && form.symbol == symbol
        };
        match forms
            .iter_mut()
            .find(|form| form.start == function.start || is_part(form))
        {
            Some(form) => {
                form.file = form.file.or(function.file);
                form.functions.push(id);
            }
            None => forms.push(Form {
                start: function.start,
                file: function.file,
                symbol,
                functions: vec![id],
            }),
        }
    }
    let placed_ones = forms.len();
    for (id, function) in inlined {
        let owners = |is_owner: &dyn Fn(&Form) -> bool| -> Option<usize> {
            let mut owners = (0..placed_ones).filter(|&index| is_owner(&forms[index]));
            owners.next().filter(|_| owners.next().is_none())
        };
        let owner = match function.file {
            Some(_) => owners(&|form| form.file == function.file)
                .or_else(|| owners(&|_| true).filter(|&only| forms[only].file.is_none())),
            None => owners(&|_| true),
        };
        let same = |form: &Form| form.start.is_none() && form.file == function.file;
        match owner.or_else(|| forms.iter().position(same)) {
            Some(form) => forms[form].functions.push(id),
            None => forms.push(Form {
                start: None,
                file: function.file,
                symbol: None,
                functions: vec![id],
            }),
        }
    }
    forms
}

/// What tells forms of one name apart: the ends of their files' paths, else addresses.
fn labels(tables: &Tables, bias: u64, forms: &[Form<'_>]) -> Vec<Box<str>> {
    let path = |form: &Form| form.file.map(|file| tables.string(file));
    let paths: Vec<&str> = forms.iter().filter_map(path).collect();
    let label = |form: &Form| -> Box<str> {
        let own = path(form).filter(|own| paths.iter().filter(|path| path == &own).count() == 1);
        match (own, form.start) {
            (Some(own), _) => distinct_end(own, &paths).into(),
            (None, Some(start)) => format!("{:#x}", start.wrapping_add(bias)).into(),
            (None, None) => "inlined".into(),
        }
    };
    forms.iter().map(label).collect()
}

/// The shortest end of a path, in whole parts, that none of the other paths has.
fn distinct_end<'a>(path: &'a str, all: &[&str]) -> &'a str {
    let ends = path.rmatch_indices('/').map(|(at, _)| &path[at..]);
    let is_distinct = |end: &str| {
        let has_end = |other: &&str| other.ends_with(end) || **other == end[1..];
        all.iter().filter(|other| has_end(other)).count() <= 1
    };
    ends.into_iter()
        .find(|end| is_distinct(end))
        .map_or(path, |end| &end[1..])
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
            let mut text =
                |text: &str| (!text.is_empty()).then(|| self.tables.intern_string(text).0);
            let function = Function {
                name: text(name).unwrap(),
                linkage_name: text(linkage),
                module: Some(self.module),
                file: text(file),
                line: 0,
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
            fixture.add("work", "", "", 0x10),
            fixture.add("work", "", "", 0x20),
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
    fn an_end_of_a_path_is_whole() {
        assert_eq!(distinct_end("/a/b.c", &["/a/b.c", "/a/bb.c"]), "b.c");
        assert_eq!(distinct_end("b.c", &["b.c", "x/b.c"]), "b.c");
        assert_eq!(distinct_end("x/b.c", &["b.c", "x/b.c"]), "x/b.c");
        assert_eq!(distinct_end("/b.c", &["b.c", "/b.c"]), "/b.c");
    }
}
