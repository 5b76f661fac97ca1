//! Whether a file can have a function of a name, by its tables of symbols alone.
//!
//! Words of which any name of the function has one -> whether a symbol that the file defines has one. Names are mangled there in
//! many ways, but the words that they are made of are spelt out in all of them, once at least. Where it can't be told, because
//! names lie elsewhere (debug information alone, packed symbols, Go's table), the answer is yes. Nothing is demangled, sorted
//! or kept, which is most of the work of reading functions.
//!
//! What does not belong here: reading functions (`functions`).

use std::fs::File;

use super::{Part, is_symtab};
use crate::symbols::SymbolTable;

/// Where names are that no table of symbols has.
const OTHER_NAMES: [&str; 5] = [
    ".gnu_debugdata",
    ".debug_info",
    ".zdebug_info",
    ".gopclntab",
    ".data.rel.ro.gopclntab",
];

/// Whether a file, or the separate one of its names, can have a function whose name has one of these words.
pub fn may_name(file: &File, debug: Option<&File>, words: &[impl AsRef<str>]) -> bool {
    let words: Vec<String> = words.iter().flat_map(|w| spellings(w.as_ref())).collect();
    let mut has_symbols = false;
    let mut has_others = false;
    for file in std::iter::once(file).chain(debug) {
        let Ok(part) = Part::read(file, "") else {
            return true;
        };
        has_symbols |= part.sections.iter().any(is_symtab);
        has_others |= OTHER_NAMES.iter().any(|name| part.section(name).is_some());
        for table in part.symbol_sections() {
            let has = |table: SymbolTable| {
                let mut defined = table.symbols().filter(|symbol| !symbol.is_undefined());
                defined.any(|symbol| words.iter().any(|word| contains(symbol.name, word)))
            };
            // What can't be read is left to who says why.
            if table.bytes_in_file() > 0 && part.symbol_table(table).is_none_or(has) {
                return true;
            }
        }
    }
    has_others && !has_symbols
}

/// A word as tables of symbols may spell it: Haskell's as GHC does, Nim's without what does not count.
fn spellings(word: &str) -> Vec<String> {
    let haskell = word
        .replace('z', "zz")
        .replace('Z', "ZZ")
        .replace('_', "zu");
    let nim = word.replace('_', "");
    let mut all = vec![word.to_owned(), haskell, nim];
    all.sort_unstable();
    all.dedup();
    all
}

fn contains(name: &[u8], word: &str) -> bool {
    let mut places = name.windows(word.len().max(1));
    places.any(|place| place.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_what_a_file_defines() {
        // Of this function something is left in a program that is optimised.
        #[inline(never)]
        fn it_is_defined_here() -> File {
            File::open(std::env::current_exe().unwrap()).unwrap()
        }
        let own = std::hint::black_box(it_is_defined_here)();
        let has = |word: &str| may_name(&own, None, &[word]);
        assert!(has("it_is_defined_here"));
        assert!(has("It_is_DEFINED_here"));
        assert!(!has("there_is_no_such_function"));
        // It is the C library's.
        assert!(!has("posix_memalign"));
        // What is no program is left to who reads it.
        assert!(may_name(&File::open("/etc/passwd").unwrap(), None, &["x"]));
    }

    #[test]
    fn words_are_found_as_languages_spell_them() {
        let found = |name: &str, word: &str| {
            let spellings = spellings(word);
            spellings.iter().any(|word| contains(name.as_bytes(), word))
        };
        assert!(found("_ZN3foo6resize17h0123456789abcdefE", "resize"));
        assert!(found("_RNvCs1234_7mycrate3foo", "foo"));
        assert!(found("Main_myzuzzip_info", "my_zip"));
        assert!(found("fooBar__main_u12", "foo_Bar"));
        assert!(found("P$PROGRAM_$$_WORK$LONGINT", "work"));
        assert!(found("pkg__work_it", "Work_It"));
        assert!(!found("malloc", "calloc") && !found("fo", "foo"));
    }
}
