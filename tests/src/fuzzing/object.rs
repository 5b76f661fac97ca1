//! Fuzzing of what tracing reads of object files: functions and markers of an object, and where
//! their probes would sit.
//!
//! Input: a fuzzer's bytes as an ELF file; output: none, a broken promise is a panic. Addresses are
//! ELF virtual addresses, offsets file offsets.

use std::fs::File;
use std::io::Write;

use profiler_common::call::MAX_FETCHES;
use profiler_object::Object;
use profiler_trace::arguments::{Signature, Signatures};
use profiler_trace::code::kernel;
use profiler_trace::cost::CostTable;
use profiler_trace::place::{PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Exits, Function, FunctionKind, Plan, Site};

/// Functions that are planned of one file; more say nothing new.
const MAX_FUNCTIONS: usize = 48;
/// The longest instruction.
const INSTRUCTION_BYTES: u64 = 15;

/// Reads bytes as an object file, and plans its functions and markers in all ways: how many plans.
pub fn object(data: &[u8]) -> usize {
    let Some(file) = in_memory(data) else {
        return 0;
    };
    let Ok(object) = Object::read(&file, None, "/nowhere/fuzz.so") else {
        return 0;
    };
    let mut plans = 0;
    let functions = object.functions();
    assert!(functions.is_sorted_by_key(|function| function.address));
    let process = ProcessSafety::of([&object as _], false);
    let costs = CostTable::assumed();
    for (at, returns) in [
        (ProbeAt::Cheapest, Returns::Auto),
        (ProbeAt::Entry, Returns::Instructions),
        (ProbeAt::Cheapest, Returns::Uretprobe),
    ] {
        let options = PlaceOptions {
            at,
            returns,
            costs: &costs,
        };
        let mut placer = Placer::new(&object, options, &process);
        let all = functions.iter().take(MAX_FUNCTIONS);
        for function in all.chain(object.markers().iter().take(MAX_FUNCTIONS)) {
            if let Ok(plan) = placer.plan(function) {
                check(&object, function, &plan, options);
                plans += 1;
            }
        }
    }
    ask(&object);
    plans
}

/// Probes sit on instructions of the kind they are said to, in code.
fn check(object: &Object, function: &Function, plan: &Plan, options: PlaceOptions<'_>) {
    assert_eq!(plan.function, *function);
    check_site(object, plan.entry);
    let marker = matches!(function.kind, FunctionKind::Marker { .. });
    if options.at == ProbeAt::Entry && !object.is_go() || marker {
        assert_eq!(plan.entry.offset, function.offset);
    }
    assert!(plan.fetches.is_empty());
    match &plan.exits {
        Exits::None(_) => {}
        Exits::Uretprobe => {
            assert!(!marker && options.returns != Returns::Instructions);
            assert!(plan.entry.offset >= function.offset);
        }
        Exits::Instructions(sites) => {
            assert!(!marker);
            assert!(sites.is_sorted_by_key(|site| site.offset));
            sites.iter().for_each(|&site| check_site(object, site));
        }
    }
}

fn check_site(object: &Object, site: Site) {
    let Some(address) = object.address_of(site.offset) else {
        panic!("a probe in nothing that is loaded: {site:x?}");
    };
    let mut code = object.code_ranges();
    let is_code = code.any(|(start, len)| address.wrapping_sub(start) < len);
    assert!(is_code, "a probe in data: {site:x?}");
    // How long the instruction is, is not said.
    let mut lengths = 1..=INSTRUCTION_BYTES;
    let is = |len| object.code(address, len).and_then(kernel::kind) == Some(site.kind);
    assert!(lengths.any(is), "another instruction: {site:x?}");
}

/// What else is asked of an object.
fn ask(object: &Object) {
    let _ = (object.interpreter(), object.is_stripped(), object.soname());
    assert!(object.imports().count() <= 1 << 24);
    let mut signatures = Signatures::open(|name| object.section(name));
    for function in object.functions().iter().take(MAX_FUNCTIONS) {
        let _ = (object.source_of(function), object.inlined_at(function));
        let _ = (
            object.plt(function.address),
            object.extent(function.address),
        );
        let name = function.linkage_name.as_deref().unwrap_or(&function.name);
        if let Some(signatures) = &mut signatures
            && let Some(signature) = signatures.signature(function.address, name)
        {
            assert!(signature.fetches.len() <= MAX_FETCHES);
        }
    }
    for marker in object.markers().iter().take(MAX_FUNCTIONS) {
        if let FunctionKind::Marker { arguments, .. } = &marker.kind {
            let signature = Signature::of_marker(&marker.name, arguments);
            assert!(signature.fetches.len() <= MAX_FETCHES);
        }
    }
    let _ = object.inlined_only();
}

/// A file that is nowhere on disk.
fn in_memory(bytes: &[u8]) -> Option<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("object", flags).ok()?);
    file.write_all(bytes).ok()?;
    Some(file)
}
