//! The functions of the object file that is named, with their addresses.

use std::error::Error;
use std::fs::File;

use profiler_object::Object;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name an object file")?;
    let object = Object::read(&File::open(&path)?, None, &path)?;
    for function in object.functions() {
        println!("{:#x} {}", function.address, function.name);
    }
    Ok(())
}
