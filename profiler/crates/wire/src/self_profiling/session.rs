//! A profiling session: its states, and its buffer of samples.
//!
//! What a client asks for -> [`InitOptions`], or the error that the constructor throws; samples that are to be taken
//! -> the buffer, until that is full. What a sample holds beside its time is up to whoever takes it. Times are
//! nanoseconds since the session's time origin. What does not belong here: when a sample is due, what is running.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{Error, ErrorName};

/// What a session is asked for: ProfilerInitOptions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitOptions {
    /// In milliseconds; may be less than nothing.
    pub sample_interval_ms: f64,
    /// Samples that are kept at most.
    pub max_buffer_size: u32,
}

impl InitOptions {
    /// Reads both from an object of JSON, in which others may be too.
    pub fn read(object: &Value) -> Result<InitOptions, Error> {
        let wrong = |text: String| Error::new(ErrorName::TypeError, text);
        let member = |name: &str| match object.get(name) {
            None | Some(Value::Null) => Err(wrong(format!("{name} is missing"))),
            Some(value) => Ok(value),
        };
        if !object.is_object() {
            return Err(wrong("the options are no object".to_owned()));
        }
        // In the order of their names, as dictionaries are read.
        let size = member("maxBufferSize")?;
        let max_buffer_size = size
            .as_u64()
            .or_else(|| {
                let size = size.as_f64()?;
                (size >= 0.0 && size.fract() == 0.0 && size <= f64::from(u32::MAX))
                    .then_some(size as u64)
            })
            .and_then(|size| u32::try_from(size).ok())
            .ok_or_else(|| {
                wrong(format!(
                    "maxBufferSize is no whole number below 2^32: {size}"
                ))
            })?;
        let interval = member("sampleInterval")?;
        let sample_interval_ms = interval
            .as_f64()
            .ok_or_else(|| wrong(format!("sampleInterval is no number: {interval}")))?;
        Ok(InitOptions {
            sample_interval_ms,
            max_buffer_size,
        })
    }
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Samples are taken.
    Started,
    /// None are for now.
    Paused,
    /// None are any more.
    Stopped,
}

/// What has become of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is in the buffer.
    Yes,
    /// The buffer was full: the session is stopped now, and `samplebufferfull` is to be told.
    Full,
    /// The session is not started.
    No,
}

/// A session. `S` is what a sample has beside its time.
#[derive(Clone, Debug)]
pub struct Session<S> {
    state: State,
    max_buffer_size: u32,
    samples: Vec<(u64, S)>,
    /// It was stopped because the buffer was full: its trace can still be had, once.
    is_full: bool,
}

impl<S> Session<S> {
    /// Starts one.
    pub fn new(max_buffer_size: u32) -> Session<S> {
        Session {
            state: State::Started,
            max_buffer_size,
            samples: Vec::new(),
            is_full: false,
        }
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes a sample.
    pub fn take(&mut self, since_origin_ns: u64, what: S) -> Taken {
        if self.state != State::Started {
            return Taken::No;
        }
        if self.samples.len() >= self.max_buffer_size as usize {
            self.fill();
            return Taken::Full;
        }
        self.samples.push((since_origin_ns, what));
        Taken::Yes
    }

    /// Ends it as if its buffer were full.
    pub fn fill(&mut self) {
        if self.state != State::Stopped {
            self.state = State::Stopped;
            self.is_full = true;
        }
    }

    /// Takes no samples until it is resumed. Says whether that is new.
    pub fn pause(&mut self) -> Result<bool, Error> {
        self.change(State::Paused)
    }

    /// Takes samples again. Says whether that is new.
    pub fn resume(&mut self) -> Result<bool, Error> {
        self.change(State::Started)
    }

    fn change(&mut self, to: State) -> Result<bool, Error> {
        match self.state {
            State::Stopped => Err(stopped()),
            state => {
                self.state = to;
                Ok(state != to)
            }
        }
    }

    /// Stops it. One that was stopped by its full buffer can be stopped once more, for the sake of its trace.
    pub fn stop(&mut self) -> Result<(), Error> {
        if self.state == State::Stopped && !std::mem::take(&mut self.is_full) {
            return Err(stopped());
        }
        self.state = State::Stopped;
        Ok(())
    }

    /// Gives up samples that were taken later than that, or all. Says how many.
    pub fn give_up_after(&mut self, since_origin_ns: Option<u64>) -> usize {
        let before = self.samples.len();
        self.samples
            .retain(|(at, _)| since_origin_ns.is_some_and(|last| *at <= last));
        before - self.samples.len()
    }

    /// The samples that were taken.
    pub fn samples(&self) -> &[(u64, S)] {
        &self.samples
    }

    /// The same, to give them up.
    pub fn into_samples(self) -> Vec<(u64, S)> {
        self.samples
    }
}

fn stopped() -> Error {
    Error::new(ErrorName::InvalidStateError, "the session is stopped")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_read_as_the_dictionary_says() {
        let read = |options: Value| InitOptions::read(&options);
        let options = read(json!({ "sampleInterval": 10, "maxBufferSize": 10000 })).unwrap();
        assert_eq!(
            (options.sample_interval_ms, options.max_buffer_size),
            (10.0, 10_000)
        );
        let options = read(json!({ "sampleInterval": -0.5, "maxBufferSize": 0.0 })).unwrap();
        assert_eq!(
            (options.sample_interval_ms, options.max_buffer_size),
            (-0.5, 0)
        );
        for (options, named) in [
            (json!({}), "maxBufferSize"),
            (json!({ "sampleInterval": 10 }), "maxBufferSize"),
            (json!({ "maxBufferSize": 1 }), "sampleInterval"),
            (
                json!({ "sampleInterval": null, "maxBufferSize": 1 }),
                "sampleInterval",
            ),
            (
                json!({ "sampleInterval": "x", "maxBufferSize": 1 }),
                "sampleInterval",
            ),
            (
                json!({ "sampleInterval": 1, "maxBufferSize": "x" }),
                "maxBufferSize",
            ),
            (
                json!({ "sampleInterval": 1, "maxBufferSize": -1 }),
                "maxBufferSize",
            ),
            (
                json!({ "sampleInterval": 1, "maxBufferSize": 1.5 }),
                "maxBufferSize",
            ),
            (
                json!({ "sampleInterval": 1, "maxBufferSize": 4294967296u64 }),
                "maxBufferSize",
            ),
            (json!(7), "object"),
            (json!(null), "object"),
        ] {
            let error = read(options.clone()).unwrap_err();
            assert_eq!(error.name, ErrorName::TypeError, "{options}");
            assert!(error.message.contains(named), "{options}: {error}");
        }
    }

    #[test]
    fn a_session_begins_started_and_stays_stopped() {
        let mut session = Session::new(10);
        assert_eq!(session.state(), State::Started);
        assert_eq!(session.take(1, 'a'), Taken::Yes);
        assert_eq!((session.resume(), session.pause()), (Ok(false), Ok(true)));
        assert_eq!(
            (session.state(), session.pause()),
            (State::Paused, Ok(false))
        );
        assert_eq!(session.take(2, 'b'), Taken::No);
        assert_eq!(session.resume(), Ok(true));
        assert_eq!(session.take(3, 'c'), Taken::Yes);
        assert_eq!(session.stop(), Ok(()));
        assert_eq!(session.take(4, 'd'), Taken::No);
        for error in [
            session.stop().unwrap_err(),
            session.pause().unwrap_err(),
            session.resume().unwrap_err(),
        ] {
            assert_eq!(error.name, ErrorName::InvalidStateError);
        }
        assert_eq!(session.state(), State::Stopped);
        assert_eq!(session.samples(), [(1, 'a'), (3, 'c')]);
    }

    #[test]
    fn a_full_buffer_stops_a_session_whose_trace_can_be_had_once() {
        for (size, taken) in [(2, 2), (0, 0)] {
            let mut session = Session::new(size);
            for at in 0..taken {
                assert_eq!(session.take(at, ()), Taken::Yes);
            }
            assert_eq!(session.state(), State::Started, "{size}");
            assert_eq!(session.take(9, ()), Taken::Full);
            assert_eq!(session.state(), State::Stopped);
            assert_eq!(session.take(10, ()), Taken::No);
            assert!(session.resume().is_err());
            assert_eq!(session.stop(), Ok(()));
            assert_eq!(session.samples().len(), taken as usize);
            assert_eq!(
                session.stop().unwrap_err().name,
                ErrorName::InvalidStateError
            );
        }
    }

    #[test]
    fn a_paused_session_can_be_stopped() {
        let mut session = Session::<()>::new(1);
        session.pause().unwrap();
        assert_eq!(session.stop(), Ok(()));
    }
}
