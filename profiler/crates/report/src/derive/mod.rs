//! Shapes that several consumers of a recording share: aggregated samples, call trees, traced
//! calls, display frames, counts of what is missing.
//!
//! Input: events and [`Tables`](profiler_model::Tables); output: plain data, in nanoseconds of
//! CLOCK_MONOTONIC and in the unit of a sample's source. No I/O, no format, no text layout here.

mod aggregate;
mod arguments;
mod call_filter;
pub mod calls;
mod containers;
mod differ;
mod ends;
mod entered;
mod filter;
mod frames;
pub(crate) mod functions;
mod latency;
mod losses;
mod path;
mod pattern;
pub mod quantity;
mod realm;
mod recorder;
mod sources;
mod span;
mod target;
mod ticks;
mod tree;
mod waits;

pub(crate) use aggregate::early_end;
pub use aggregate::{Aggregate, Aggregator, EarlyEnds, Key, Merge, Owner, WaitSums};
pub use arguments::{arguments_text, parameter};
pub(crate) use call_filter::CallFilter;
pub use calls::{CallLimits, CallTable, FunctionCalls};
pub use containers::{ContainerError, ContainerNames, container_label_of, inner_pid};
pub use differ::{CallChange, CallDiffer};
pub use ends::{EarlyEnd, EndTable, UserEnds};
pub use entered::{FrameEvent, SampledFrames, call_frames, missing_frames};
pub use filter::Filter;
pub(crate) use filter::{InStack, short_name};
pub use frames::{DisplayFrame, frame_lines, stack_frames};
pub use functions::Functions;
pub use latency::{Bucket, Latency};
pub use losses::{CUT_OFF, Losses};
pub use path::ClassPath;
pub(crate) use pattern::Pattern;
pub use realm::{Placed, Realm, RealmFrame, realm_frames};
pub(crate) use recorder::is_recorder;
pub use sources::{OFF_CPU, Sources, WALL, by_interest, first_same, is_same, wait_frame};
pub use span::{Span, TimeRange};
pub use target::{Chosen, Target, TargetError};
pub use ticks::{Tick, Ticks, sampling_period_ns};
pub use tree::{CallTree, Edge, Granularity, Node, Path, Place, PlaceId, PlaceInfo, Sums, Visit};
pub use waits::{EndedBy, WaitTable, WaitTotals, WakerSums, waiting_frame};
