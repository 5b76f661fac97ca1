//! A server with a client at its socket: what is asked -> what is answered when the server ends.
//!
//! What does not belong here: answers of a server that goes on (`agent_tests`, the end-to-end tests).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::*;
use crate::admission::Admission;
use crate::front::Order;
use crate::http::{HttpLimits, Policy};
use crate::machine::NoMachine;

/// A limit of what hangs.
const HANGS: Duration = Duration::from_secs(60);

#[tokio::test]
async fn who_waits_when_the_server_ends_is_told() {
    let options = HttpOptions {
        admission: Admission::new([]),
        policy: Policy::default(),
        origins: Vec::new(),
        token: None,
        tls: None,
        replay: None,
        limits: HttpLimits {
            // What runs is never known here: who asks waits.
            patience: Duration::from_secs(3600),
            ..HttpLimits::default()
        },
    };
    let address = HttpAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into());
    let mut front = start(address, options, Box::new(NoMachine)).unwrap();
    let welcome = front.welcome();
    let (_, address) = welcome.split_once("http://").unwrap();
    let address = address.trim_end_matches('/').to_owned();
    let mut client = TcpStream::connect(&address).unwrap();
    client.set_read_timeout(Some(HANGS)).unwrap();
    let body = r#"{"target":{"pid":1},"sampleInterval":10,"maxBufferSize":10}"#;
    let length = body.len();
    let request = format!(
        "POST /session HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.write_all(request.as_bytes()).unwrap();
    loop {
        match tokio::time::timeout(HANGS, front.order()).await.unwrap() {
            Order::Demand(demand) if demand.attached => break,
            Order::Failed(text) => panic!("{text}"),
            Order::Demand(_) | Order::Ask(_) => {}
        }
    }
    let summary = front.finish(HANGS).await;
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("OperationError"), "{answer}");
    assert!(answer.contains("the server ends"), "{answer}");
    assert!(summary.contains("1 request"), "{summary}");
}
