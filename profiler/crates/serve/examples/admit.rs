//! Who may connect: a server that admits the users of this machine who are root, who started it, or who are named.

use std::error::Error;
use std::net::{TcpListener, TcpStream};

use profiler_serve::admission::Admission;

fn main() -> Result<(), Box<dyn Error>> {
    let admission = Admission::new([1000]);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    admission.may_listen(address)?;
    let _client = TcpStream::connect(address)?;
    let (socket, peer) = listener.accept()?;
    match admission.admit(&socket, peer) {
        Ok(user) => println!("admitted, of user {user:?}"),
        Err(refusal) => println!("refused: {refusal}"),
    }
    Ok(())
}
