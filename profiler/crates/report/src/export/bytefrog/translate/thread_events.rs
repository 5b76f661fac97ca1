//! Threads and processes that come, change and go.
//!
//! Process events -> names, markers, ends of calls. A thread has a number and a name once something
//! is told of it.

use super::Translator;
use super::markers::{self, key};
use super::threads::Found;
use profiler_model::*;

impl Translator {
    /// The number of a thread, which has a name from now on; none if there is no number for it.
    #[inline]
    pub(super) fn thread(
        &mut self,
        at: Timestamp,
        id: ThreadId,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        self.owner(at, StackOwner::Thread(id), tables, out)
    }

    /// The same of whose stack calls are on.
    #[inline]
    pub(super) fn owner(
        &mut self,
        at: Timestamp,
        owner: StackOwner,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        match self.find(owner, tables) {
            Found::Known(number) => Some(number),
            found => self.new_thread(found, at, owner, tables, out),
        }
    }

    #[inline]
    fn find(&mut self, owner: StackOwner, tables: &Tables) -> Found {
        match owner {
            StackOwner::Thread(id) => self.threads.find(id, tables),
            StackOwner::Goroutine(Some(process), number) => {
                self.threads.find_goroutine(process, number, tables)
            }
            StackOwner::Goroutine(None, _) => Found::Undefined,
        }
    }

    #[cold]
    fn new_thread(
        &mut self,
        found: Found,
        at: Timestamp,
        owner: StackOwner,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        let found = match found {
            Found::ToClose(number) => {
                self.close_all(at, number, out);
                self.find(owner, tables)
            }
            found => found,
        };
        match found {
            Found::Known(number) => Some(number),
            Found::Renamed(number) => {
                self.threads.tell(number, at, &mut self.stream, out);
                Some(number)
            }
            Found::New(number) | Found::NewProcess(number) => {
                if let Some(samples) = &mut self.samples {
                    samples.end(number, at);
                }
                match found {
                    Found::New(_) => self.threads.tell(number, at, &mut self.stream, out),
                    _ => self.threads.tell_all(number, at, &mut self.stream, out),
                }
                self.see_container(at, owner.process(tables), tables, out);
                Some(number)
            }
            Found::None => {
                self.counts.events_without_thread += 1;
                if !self.told_threads {
                    self.told_threads = true;
                    let text =
                        "all 65536 numbers of threads are in use; further threads are not shown";
                    self.stream.marker(at, key::THREADS, text, out);
                }
                None
            }
            Found::ToClose(_) | Found::Undefined => None,
        }
    }

    fn see_container(
        &mut self,
        at: Timestamp,
        id: Option<ProcessId>,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) {
        if let Some(id) = id
            && let Some(process) = tables.process(id)
            && let Some(container) = self.containers.see(process, tables)
        {
            let text = format!("{container}: {}", markers::process_name(id, tables));
            self.stream.marker(at, key::CONTAINER, &text, out);
        }
    }

    pub(super) fn process(&mut self, event: &ProcessEvent, tables: &Tables, out: &mut Vec<u8>) {
        let process = tables.thread(event.thread).map(|thread| thread.process);
        match event.change {
            ProcessChange::Started => {
                self.see_container(event.at, process, tables, out);
            }
            ProcessChange::Executed(name) => {
                if let Some(thread) = self.threads.known(event.thread, tables) {
                    self.close_all(event.at, thread, out);
                }
                let text = match tables.thread(event.thread) {
                    Some(thread) => format!(
                        "{} runs {}",
                        markers::process_name(thread.process, tables),
                        tables.string(name)
                    ),
                    None => tables.string(name).to_owned(),
                };
                self.stream.marker(event.at, key::EXECUTED, &text, out);
                self.see_container(event.at, process, tables, out);
            }
            ProcessChange::Renamed(name) => {
                if let Some(thread) = self.threads.known(event.thread, tables)
                    && self.threads.rename(thread, tables.string(name))
                {
                    self.threads.tell(thread, event.at, &mut self.stream, out);
                }
            }
            ProcessChange::Exited => {
                if let Some(thread) = self.threads.known(event.thread, tables) {
                    self.close_all(event.at, thread, out);
                    self.threads.end(thread);
                }
                self.end_goroutines(event, tables, out);
            }
        }
    }

    /// With its main thread a process of Go has ended.
    fn end_goroutines(&mut self, event: &ProcessEvent, tables: &Tables, out: &mut Vec<u8>) {
        let Some(thread) = tables.thread(event.thread) else {
            return;
        };
        let process = tables.process(thread.process);
        let Some(process) = process.filter(|process| process.pid.0 == thread.tid.0) else {
            return;
        };
        for goroutine in self.threads.goroutines_of(process) {
            self.close_all(event.at, goroutine, out);
            self.threads.end(goroutine);
        }
    }
}
