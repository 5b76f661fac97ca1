//! What a client wants of a context: parameters of `configure` -> settings.
//!
//! Values of other types than expected are taken for absent, numbers out of range for the nearest one
//! in it: a client ends its channel when a configuration fails, so none does. Frequencies are samples
//! per second and processor. What does not belong here: which contexts there are.

use serde_json::{Map, Value};

use crate::tcf::options::Limits;

/// Most frames of a stack: user and kernel frames, as many as the kernel side takes of each.
pub(in crate::tcf) const MAX_FRAME_COUNT: u64 = 127 + 512;
/// Samples that wait to be read, if a client says no number; and the most it can say.
pub(in crate::tcf) const DEFAULT_MAX_SAMPLES: u64 = 1_000_000;
const HIGHEST_MAX_SAMPLES: u64 = 1 << 40;
/// Samples per second and processor, if a client says no number.
pub(in crate::tcf) const DEFAULT_FREQUENCY_HZ: u64 = 99;

/// Whose samples a context gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Its own.
    Context,
    /// Those of the process's descendants too.
    Children,
    /// Those of all processes in the process's container; without one, in its cgroup, or below that.
    Container,
}

/// The parameters of one configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Most frames of a stack, 1 and up.
    pub(super) frames: usize,
    /// Most samples that wait to be read.
    pub(super) max_samples: u64,
    /// How often to sample.
    pub(super) frequency_hz: u64,
    /// The client has said how often, so that a recording is thinned to it.
    pub(super) is_explicit: bool,
    /// Kernel frames are part of the stacks of threads with user memory.
    pub(super) kernel_stacks: bool,
    /// Whose samples.
    pub(super) scope: Scope,
}

impl Settings {
    /// None: profiling is to be off, which is what no parameters or 0 frames say. Parameters without
    /// a number of frames want the leaf alone: clients that are known always give a number, the
    /// specification has profiling off for empty parameters only.
    pub(super) fn parse(parameters: &Map<String, Value>, limits: &Limits) -> Option<Settings> {
        if parameters.is_empty() {
            return None;
        }
        let number = |key: &str| parameters.get(key).and_then(whole);
        let frames = number("FrameCnt").unwrap_or(1).min(MAX_FRAME_COUNT);
        if frames == 0 {
            return None;
        }
        // 0 is no buffer at all to some, no limit to others; the reference ignores the number.
        let max_samples = number("MaxSamples").filter(|&max| max > 0);
        let frequency = number("Frequency").filter(|&hz| hz > 0);
        let scope = match parameters.get("Scope").and_then(Value::as_str) {
            Some("Children") => Scope::Children,
            Some("Container") => Scope::Container,
            _ => Scope::Context,
        };
        Some(Settings {
            frames: frames as usize,
            max_samples: max_samples
                .unwrap_or(DEFAULT_MAX_SAMPLES)
                .min(HIGHEST_MAX_SAMPLES),
            frequency_hz: frequency
                .unwrap_or(DEFAULT_FREQUENCY_HZ)
                .min(limits.frequency_hz.max(1)),
            is_explicit: frequency.is_some(),
            kernel_stacks: parameters.get("KernelStacks") == Some(&Value::Bool(true)),
            scope,
        })
    }
}

/// A number as the nearest whole one from 0 up; none if it is no number.
fn whole(value: &Value) -> Option<u64> {
    match (value.as_u64(), value.as_f64()) {
        (Some(number), _) => Some(number),
        // Casts of floats saturate.
        (None, Some(number)) => Some(number.round() as u64),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(parameters: Value) -> Option<Settings> {
        let Value::Object(parameters) = parameters else {
            panic!("{parameters} is no object");
        };
        Settings::parse(&parameters, &Limits::default())
    }

    #[test]
    fn what_clients_send_is_understood() {
        let settings = parse(json!({
            "FrameCnt": 8, "MaxSamples": 500, "Frequency": 997, "KernelStacks": true,
            "Scope": "Container", "Aggregate": true, "ViewUpdatePeriod": 4000,
        }));
        assert_eq!(
            settings,
            Some(Settings {
                frames: 8,
                max_samples: 500,
                frequency_hz: 997,
                is_explicit: true,
                kernel_stacks: true,
                scope: Scope::Container,
            })
        );
        let least = parse(json!({"FrameCnt": 1})).unwrap();
        assert_eq!((least.frames, least.frequency_hz), (1, 99));
        assert_eq!(least.max_samples, DEFAULT_MAX_SAMPLES);
        assert!(!least.is_explicit && !least.kernel_stacks);
        assert_eq!(least.scope, Scope::Context);
    }

    #[test]
    fn nothing_and_no_frames_are_off() {
        assert_eq!(parse(json!({})), None);
        assert_eq!(parse(json!({"FrameCnt": 0, "Frequency": 99})), None);
        assert_eq!(parse(json!({"FrameCnt": -3})), None);
        assert_eq!(parse(json!({"Frequency": 49})).unwrap().frames, 1);
    }

    #[test]
    fn nonsense_is_no_error() {
        let odd = parse(json!({
            "FrameCnt": "8", "MaxSamples": [], "Frequency": null, "KernelStacks": 1, "Scope": 7,
        }));
        assert_eq!(odd, parse(json!({"FrameCnt": 1})));
        let huge = parse(json!({"FrameCnt": 1e300, "MaxSamples": u64::MAX, "Frequency": 1e9}));
        let huge = huge.unwrap();
        assert_eq!(huge.frames, MAX_FRAME_COUNT as usize);
        assert_eq!(huge.max_samples, HIGHEST_MAX_SAMPLES);
        assert_eq!(huge.frequency_hz, Limits::default().frequency_hz);
        let negative = parse(json!({"FrameCnt": 7.6, "MaxSamples": -1, "Frequency": -5})).unwrap();
        assert_eq!((negative.frames, negative.frequency_hz), (8, 99));
        assert_eq!(negative.max_samples, DEFAULT_MAX_SAMPLES);
    }
}
