//! As much gRPC as one call with one answer takes.
//!
//! A method and a message -> the answer's message, bounded. HTTP/2 is h2's, messages are prost's; each
//! message stands behind a byte (compressed or not) and its length. See gRPC's PROTOCOL-HTTP2.
//!
//! What does not belong here: services and messages, timeouts (`sockets`).

use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::UnixStream;

use super::super::sockets::{MAX_ANSWER_BYTES, Silence, Sockets};

/// Length of what stands before a message.
const PREFIX_BYTES: usize = 5;

/// Calls a method; with a namespace, in that one of containerd.
pub(super) fn call<Q: Message, A: Message + Default>(
    sockets: &mut Sockets,
    socket: &Path,
    method: &str,
    namespace: Option<&str>,
    question: &Q,
) -> Option<A> {
    let question = framed(question);
    let answer = sockets.ask(socket, async |stream| {
        exchange(stream, method, namespace, question).await
    })?;
    A::decode(message(&answer?)?).ok()
}

/// The answer's bytes; none if the method said no.
async fn exchange(
    stream: UnixStream,
    method: &str,
    namespace: Option<&str>,
    question: Bytes,
) -> Result<Option<Vec<u8>>, Silence> {
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
        .max_header_list_size(64 << 10)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(bad)?;
    let mut request = Request::post(format!("http://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(namespace) = namespace {
        request = request.header("containerd-namespace", namespace);
    }
    let request = request.body(()).map_err(|_| Silence::Bad)?;
    let answer = async {
        let mut client = client.ready().await.map_err(bad)?;
        let (answer, mut body) = client.send_request(request, false).map_err(bad)?;
        body.send_data(question, true).map_err(bad)?;
        let answer = answer.await.map_err(bad)?;
        if refused(answer.headers()) {
            return Ok(None);
        }
        let mut stream = answer.into_body();
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.data().await {
            let chunk = chunk.map_err(bad)?;
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Silence::Bad);
            }
            bytes.extend_from_slice(&chunk);
            let freed = stream.flow_control().release_capacity(chunk.len());
            freed.map_err(bad)?;
        }
        let trailers = stream.trailers().await.map_err(bad)?;
        let refused = trailers.is_some_and(|trailers| refused(&trailers));
        Ok((!refused).then_some(bytes))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // All of the answer may have come with the connection's end.
        _ = connection => answer.await,
    }
}

fn bad(_: h2::Error) -> Silence {
    Silence::Bad
}

/// Whether the status is there and not 0.
fn refused(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status != "0")
}

fn framed(question: &impl Message) -> Bytes {
    let length = question.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    bytes.put_slice(&question.encode_to_vec());
    bytes.freeze()
}

/// The first message of an answer, which must not be compressed: we have not offered that.
fn message(answer: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = answer.split_first_chunk::<PREFIX_BYTES>()?;
    let [compressed, length @ ..] = prefix;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.get(..length).filter(|_| *compressed == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_stand_behind_their_length() {
        let framed = framed(&"abc".to_owned());
        assert_eq!(framed[..5], [0, 0, 0, 0, 5]);
        assert_eq!(String::decode(message(&framed).unwrap()).unwrap(), "abc");
        assert_eq!(message(&framed[..9]), None);
        assert_eq!(message(&[1, 0, 0, 0, 0]), None);
        assert_eq!(message(&[0, 0xff, 0xff, 0xff, 0xff, 0]), None);
    }

    proptest! {
        #[test]
        fn any_frame_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(message) = message(&bytes) {
                prop_assert!(message.len() + PREFIX_BYTES <= bytes.len());
            }
        }

        #[test]
        fn any_server_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let talk = async move {
                    use tokio::io::AsyncWriteExt;
                    let _ = theirs.write_all(&bytes).await;
                    let _ = theirs.shutdown().await;
                };
                let (answer, ()) = tokio::join!(exchange(ours, "/a.B/C", None, Bytes::new()), talk);
                assert!(answer.is_err());
            });
        }
    }
}
