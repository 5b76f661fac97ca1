//! A packet of Firefox's remote debugging protocol is written, and read as it comes in from a socket.

use std::error::Error;

use profiler_wire::rdp::{Decoder, encode};

fn main() -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    encode(
        &serde_json::json!({ "to": "root", "type": "listProcesses" }),
        &mut bytes,
    );
    let mut decoder = Decoder::new(1 << 20);
    // What has come of it, piece by piece.
    for mut come in bytes.chunks(7) {
        while let Some(incoming) = decoder.advance(&mut come)? {
            println!("{incoming:?}");
        }
    }
    Ok(())
}
