//! Bodies: those of requests are read up to a limit, those of answers are bytes or a stream of events.
//!
//! An event is `event: NAME`, `data: JSON`, an empty line; a comment now and then shows both ends that the other one lives.
//! Source: HTML, "Server-sent events". What does not belong here: what is told.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, timeout};

use profiler_wire::self_profiling::{Error, ErrorName};

use super::profiling::Told;

/// How often a comment is sent.
const ALIVE: Duration = Duration::from_secs(15);
/// What a client may take to send a body.
const PATIENCE: Duration = Duration::from_secs(10);

/// The body of an answer.
pub(super) enum Answered {
    /// All of it.
    Whole(Option<Bytes>),
    /// Events, as they come.
    Events(mpsc::Receiver<Told>, Pin<Box<Sleep>>),
}

impl Answered {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Answered {
        Answered::Whole(Some(bytes.into()))
    }

    pub(super) fn events(events: mpsc::Receiver<Told>) -> Answered {
        Answered::Events(events, Box::pin(sleep(ALIVE)))
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Answered::Whole(bytes) => return Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Answered::Events(events, alive) => match events.poll_recv(context) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Told(name, says))) => {
                    format!("event: {name}\ndata: {says}\n\n")
                }
                Poll::Pending => {
                    if alive.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    alive.as_mut().reset(Instant::now() + ALIVE);
                    // Registers for the next one.
                    let _ = alive.as_mut().poll(context);
                    ":\n\n".to_owned()
                }
            },
        };
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answered::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Answered::Whole(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, |it| it.len() as u64))
            }
            Answered::Events(..) => hyper::body::SizeHint::default(),
        }
    }
}

/// Reads the body of a request.
pub(super) async fn read(mut body: Incoming, most: usize) -> Result<Vec<u8>, Error> {
    let too_large = || {
        let text = format!("a body has no more than {most} bytes");
        Error::new(ErrorName::QuotaExceededError, text)
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let collect = async {
        let mut bytes = Vec::new();
        loop {
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let Some(frame) = next.await else {
                return Ok(bytes);
            };
            let broken = |error: hyper::Error| {
                Error::new(
                    ErrorName::TypeError,
                    format!("the body has no end: {error}"),
                )
            };
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                if bytes.len() + data.len() > most {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&data);
            }
        }
    };
    timeout(PATIENCE, collect)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorName::TypeError, "the body does not come")))
}
