//! Which functions of an object file a pattern chooses, as `--trace` would: a file and a pattern, such as `libc:mem*`.

use std::error::Error;
use std::fs::File;

use profiler_object::Object;
use profiler_trace::pattern::Selection;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name an object file")?;
    let selection = Selection {
        include: vec![arguments.next().ok_or("name a pattern")?.parse()?],
        ..Selection::default()
    };
    let object = Object::read(&File::open(&path)?, None, &path)?;
    let choice = selection.select(&object, true);
    for index in choice.functions {
        println!("{}", object.functions()[index].name);
    }
    Ok(())
}
