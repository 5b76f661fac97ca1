//! Items of a block -> definitions and events, with the ids of their epoch.
//!
//! Input is a payload whose checksum is right, which says nothing about who wrote it: every field
//! is checked. A bad item is reported and skipped by its length; kinds of later versions are
//! skipped and counted; fields behind the known ones are ignored, but for samples and calls, which have
//! sections there.

use std::sync::Arc;

use profiler_model::*;

use super::calls::{self, moved};
use super::item::*;
use super::samples;

/// What a block gave besides its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decoded {
    /// Items met, of any kind.
    pub(super) items: u32,
    /// Items of kinds (or with values or sections) that this version does not know.
    pub(super) unknown: u32,
    /// Items that could not be read.
    pub(super) bad: u32,
    /// The first of those, from 0, and why; or why the payload ends in the middle.
    pub(super) first_bad: Option<(u32, Bad)>,
}

/// Reads a payload of definitions, handing each to `each`.
pub(super) fn definitions(payload: &[u8], each: &mut dyn FnMut(Definition)) -> Decoded {
    let mut decoder = DefinitionDecoder::default();
    items(payload, |kind, fields| {
        let definition = decoder.read(kind, fields)?;
        Ok(definition.map(&mut *each).is_some())
    })
}

/// Reads a payload of events, handing each to `each`.
pub(super) fn events(payload: &[u8], mut each: impl FnMut(Event)) -> Decoded {
    let mut decoder = EventDecoder::default();
    let mut decoded = items(payload, |kind, fields| {
        let event = decoder.read(kind, fields)?;
        Ok(event.map(&mut each).is_some())
    });
    decoded.unknown += decoder.in_part_unknown;
    decoded
}

/// Walks items; `each` says whether it knew the item.
pub(super) fn items<'a>(
    payload: &'a [u8],
    mut each: impl FnMut(u64, Fields<'a>) -> Result<bool, Bad>,
) -> Decoded {
    let mut rest = Fields(payload);
    let mut decoded = Decoded::default();
    while !rest.0.is_empty() {
        let item = rest.get().and_then(|kind| Ok((kind, rest.bytes()?)));
        let known = match item {
            Ok((kind, fields)) => each(kind, Fields(fields)),
            Err(bad) => {
                // Without a length there is no next item.
                rest = Fields(&[]);
                Err(bad)
            }
        };
        match known {
            Ok(true) => {}
            Ok(false) => decoded.unknown += 1,
            Err(bad) => {
                decoded.bad += 1;
                decoded.first_bad.get_or_insert((decoded.items, bad));
            }
        }
        decoded.items += 1;
    }
    decoded
}

impl Fields<'_> {
    fn maybe<const N: usize>(&mut self) -> Result<[Option<u64>; N], Bad> {
        let bits = self.get()?;
        let mut values = [None; N];
        for (i, value) in values.iter_mut().enumerate() {
            if bits >> i & 1 == 1 {
                *value = Some(self.get()?);
            }
        }
        Ok(values)
    }

    fn string(&mut self) -> Result<String, Bad> {
        self.text().map(str::to_owned)
    }
}

#[derive(Debug, Default)]
struct DefinitionDecoder {
    previous: [u32; definition::KINDS],
    address: u64,
    stack_frame: u32,
    function: u32,
}

impl DefinitionDecoder {
    fn read(&mut self, kind: u64, mut fields: Fields<'_>) -> Result<Option<Definition>, Bad> {
        let fields = &mut fields;
        Ok(Some(match kind {
            definition::SESSION => Definition::Session(session(fields)?),
            definition::STRING => {
                let id = self.id(kind, fields)?;
                Definition::String(id, Arc::from(fields.text()?))
            }
            definition::SOURCE => {
                let id = self.id(kind, fields)?;
                let (name, unit) = (fields.id()?, unit(fields.get()?));
                let [frequency_hz, period] = fields.maybe()?;
                let source = Source {
                    name,
                    unit,
                    frequency_hz,
                    period,
                };
                Definition::Source(id, source)
            }
            definition::PROCESS => {
                let id = self.id(kind, fields)?;
                Definition::Process(id, process(fields)?)
            }
            definition::THREAD => {
                let id = self.id(kind, fields)?;
                let thread = Thread {
                    process: fields.id()?,
                    tid: Tid(fields.get32()?),
                    started: Timestamp(fields.get()?),
                    name: fields.id()?,
                };
                Definition::Thread(id, thread)
            }
            definition::NAMED => Definition::Named(Named {
                thread: fields.id()?,
                from: Timestamp(fields.get()?),
                name: fields.id()?,
            }),
            definition::MODULE => {
                let id = self.id(kind, fields)?;
                let module = Module {
                    kind: module_kind(fields.get()?),
                    path: fields.id()?,
                    address_bias: fields.signed()? as u64,
                    build_id: match fields.get()?.checked_sub(1) {
                        Some(len) if len > 64 => return Err(Bad("a build id is too long")),
                        Some(len) => Some(BuildId(Box::from(fields.take(len)?))),
                        None => None,
                    },
                };
                Definition::Module(id, module)
            }
            definition::MAPPING => {
                let id = self.id(kind, fields)?;
                let (process, module, start) = (fields.id()?, fields.id()?, fields.get()?);
                let mapping = Mapping {
                    process,
                    module,
                    start,
                    end: start.wrapping_add(fields.get()?),
                    offset: fields.get()?,
                    at: Timestamp(fields.get()?),
                };
                Definition::Mapping(id, mapping)
            }
            definition::CONTAINER => {
                let id = self.id(kind, fields)?;
                let mut container = Container {
                    cgroup: fields.id()?,
                    engine: None,
                    id: None,
                    name: None,
                    image: None,
                    pod: None,
                    namespace: None,
                    unit: None,
                };
                for text in container.texts_mut() {
                    *text = fields.optional()?;
                }
                Definition::Container(id, container)
            }
            definition::FUNCTION => {
                let id = self.id(kind, fields)?;
                let name = fields.id()?;
                let (linkage_name, module) = (fields.optional()?, fields.optional()?);
                let file = fields.optional()?;
                let [start, size, line] = fields.maybe()?;
                let function = Function {
                    name,
                    linkage_name,
                    module,
                    file,
                    line: line.map_or(0, |line| line.try_into().unwrap_or(0)),
                    start,
                    size,
                };
                Definition::Function(id, function)
            }
            definition::FRAME => {
                let id = self.id(kind, fields)?;
                let (kind, module) = (frame_kind(fields.get()?), fields.optional()?);
                self.address = self.address.wrapping_add(fields.signed()? as u64);
                let address = self.address;
                Definition::Frame(
                    id,
                    Frame {
                        kind,
                        module,
                        address,
                    },
                )
            }
            definition::STACK => {
                let id: StackId = self.id(kind, fields)?;
                let parent = match fields.get()?.checked_sub(1) {
                    None => None,
                    Some(difference) => {
                        let difference = unzigzag(difference).checked_neg();
                        let difference = difference.ok_or(Bad("an id is out of range"))?;
                        StackId::new(moved(id.get(), difference)?)
                    }
                };
                self.stack_frame = moved(self.stack_frame, fields.signed()?)?;
                let frame = self::id(self.stack_frame)?;
                Definition::Stack(id, Stack { parent, frame })
            }
            definition::SYMBOL => {
                let frame = self.id(kind, fields)?;
                Definition::Symbol(frame, self.symbol(fields)?)
            }
            definition::CODE => {
                let (module, address) = (fields.id()?, fields.get()?);
                let bytes = Arc::from(fields.bytes()?);
                Definition::Code(Code {
                    module,
                    address,
                    bytes,
                })
            }
            definition::TRACED => {
                let function = self.id(kind, fields)?;
                Definition::Traced(function, traced(fields)?)
            }
            _ => return Ok(None),
        }))
    }

    fn id<I: EpochId>(&mut self, kind: u64, fields: &mut Fields<'_>) -> Result<I, Bad> {
        let difference = fields.signed()?;
        let previous = self.previous.get_mut(kind as usize);
        let previous = previous.ok_or(Bad("an id of an unknown kind"))?;
        *previous = moved(*previous, difference)?;
        id(*previous)
    }

    fn symbol(&mut self, fields: &mut Fields<'_>) -> Result<Symbol, Bad> {
        let count = fields.get()?;
        if count == 0 {
            return Ok(Symbol::Unknown(unknown_reason(fields.get()?)));
        }
        // Grows with what is there, not with what the count says.
        let mut lines = Vec::new();
        for _ in 0..count {
            self.function = moved(self.function, fields.signed()?)?;
            lines.push(Line {
                function: id(self.function)?,
                line: fields.get32()?,
            });
        }
        Ok(Symbol::Lines(lines.into()))
    }
}

fn session(fields: &mut Fields<'_>) -> Result<Session, Bad> {
    let mut session = Session {
        version: fields.string()?,
        host: fields.string()?,
        kernel: fields.string()?,
        arch: fields.string()?,
        cpus: fields.get32()?,
        target: fields.string()?,
        started: Timestamp(fields.get()?),
        command: Vec::new(),
        recordings: Vec::new(),
    };
    for _ in 0..fields.get()? {
        session.command.push(fields.string()?);
    }
    // Earlier writers end here.
    if !fields.0.is_empty() {
        for _ in 0..fields.get()? {
            session.recordings.push(fields.get()?);
        }
    }
    Ok(session)
}

fn process(fields: &mut Fields<'_>) -> Result<Process, Bad> {
    let mut process = Process {
        pid: Pid(fields.get32()?),
        started: Timestamp(fields.get()?),
        parent: fields.optional()?,
        name: fields.id()?,
        executable: fields.optional()?,
        command: fields.optional()?,
        cgroup: fields.optional()?,
        namespace_pids: Vec::new(),
        uid: None,
        container: None,
    };
    let [uid] = fields.maybe()?;
    let uid = uid.map(u32::try_from).transpose();
    process.uid = uid.map_err(|_| Bad("a user id is too large"))?;
    for _ in 0..fields.get()? {
        process.namespace_pids.push(Pid(fields.get32()?));
    }
    // Earlier writers end here.
    if !fields.0.is_empty() {
        process.container = fields.optional()?;
    }
    Ok(process)
}

fn traced(fields: &mut Fields<'_>) -> Result<Traced, Bad> {
    let (kind, entry_offset) = (traced_kind(fields.get()?), fields.get32()?);
    let (returns, cost_ns) = (return_mode(fields.get()?), fields.get32()?);
    let mut parameters = Vec::new();
    for _ in 0..fields.get()? {
        parameters.push(Parameter {
            name: fields.id()?,
            kind: fields.optional()?,
        });
    }
    let result = fields.optional()?;
    Ok(Traced {
        kind,
        entry_offset,
        returns,
        cost_ns,
        // Earlier writers end here.
        line: if fields.0.is_empty() {
            0
        } else {
            fields.get32()?
        },
        parameters: parameters.into(),
        result,
    })
}

#[derive(Default)]
struct EventDecoder {
    times: Times,
    samples: samples::Contexts,
    calls: calls::Contexts,
    /// Events with parts that this version does not know.
    in_part_unknown: u32,
}

impl EventDecoder {
    #[inline]
    fn read(&mut self, kind: u64, mut fields: Fields<'_>) -> Result<Option<Event>, Bad> {
        let fields = &mut fields;
        match kind {
            event::SAMPLE => {
                let (sample, more) = self.samples.read(fields, &mut self.times)?;
                self.in_part_unknown += u32::from(more);
                return Ok(Some(Event::Sample(sample)));
            }
            event::CALL => {
                let Some((call, more)) = self.calls.call(fields)? else {
                    return Ok(None);
                };
                self.in_part_unknown += u32::from(more);
                return Ok(Some(Event::Call(call)));
            }
            event::THROW => return self.calls.throw(fields),
            event::CALL_COUNT => return self.calls.count(fields),
            event::GAP => return self.calls.gap(fields),
            event::WAITS => return waits(fields).map(Some),
            _ => {}
        }
        if !(event::PROCESS..=event::LOST).contains(&kind) {
            return Ok(None);
        }
        let at = self.times.read(fields)?;
        Ok(Some(match kind {
            event::PROCESS => {
                let thread = fields.id()?;
                let (code, name) = (fields.get()?, fields.optional()?);
                let named = name.ok_or(Bad("a change has no name"));
                let change = match code {
                    1 => ProcessChange::Started,
                    2 => ProcessChange::Executed(named?),
                    3 => ProcessChange::Renamed(named?),
                    4 => ProcessChange::Exited,
                    _ => return Ok(None),
                };
                Event::Process(ProcessEvent { at, thread, change })
            }
            event::MARK => Event::Mark(Mark {
                at,
                text: fields.id()?,
            }),
            event::CLOCK => Event::Clock(Clock {
                monotonic: at,
                realtime_ns: fields.get()?,
            }),
            _ => {
                let span = fields.signed()?;
                let cpu =
                    match fields.get()?.checked_sub(1) {
                        None => None,
                        Some(cpu) => Some(Cpu(u32::try_from(cpu)
                            .map_err(|_| Bad("a processor number is too large"))?)),
                    };
                let count = fields.get()?;
                let Some(reason) = lost_reason(fields.get()?) else {
                    return Ok(None);
                };
                Event::Lost(Lost {
                    cpu,
                    from: Timestamp(at.0.wrapping_sub(span as u64)),
                    to: at,
                    count,
                    reason,
                })
            }
        }))
    }
}

/// Reads the totals of a thread's waits.
fn waits(fields: &mut Fields<'_>) -> Result<Event, Bad> {
    let to = fields.get()?;
    let from = to.saturating_sub(fields.get()?);
    let thread = fields.id()?;
    let (mut count, mut ns) = ([0; 4], [0; 4]);
    for value in count.iter_mut().chain(&mut ns) {
        *value = fields.get()?;
    }
    Ok(Event::Waits(Waits {
        thread,
        from: Timestamp(from),
        to: Timestamp(to),
        count,
        ns,
        runnable_ns: fields.get()?,
    }))
}
