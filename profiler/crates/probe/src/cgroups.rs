//! Cgroups on the kernel side: what a session asks for -> globals and maps of the object, the
//! programs that see cgroups come and go, and decisions on those.
//!
//! What the kernel side then does with it: `profiler_common::cgroup`. A filter needs the kernel's
//! description of its types; without a filter, a session goes without what that would give.
//!
//! What does not belong here: which hierarchy and cgroups are meant (`target::cgroup`), what a
//! cgroup's path means (`target::container`).

use std::{collections::BTreeSet, os::fd::BorrowedFd};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData},
};
use profiler_common::cgroup::{
    CGROUP_UNWANTED, CGROUP_WANTED, CgroupLosses, DECIDED, LONGEST_NAME, MAX_CGROUPS, MAX_NAMES,
    NAME_BYTES, OFFSETS, OFFSETS_KNOWN, SUBSYS_NONE, SUBSYS_UNIFIED,
};

use super::{
    ProbeError, ProbeOptions, bpf, load,
    offsets::{self, OffsetError},
};
use profiler_model::raw::{RawBody, RawEvent};
use profiler_target::cgroup::{CgroupFilter, Hierarchy, Version};

/// The first generation of verdicts.
const FIRST_GENERATION: u32 = 1;

/// What `CGROUP_SUBSYS` is for a hierarchy of version 1, whose place `CGROUP_OFFSETS` says.
const SUBSYS_ONE: u32 = 0;

/// How many removed cgroups are remembered.
const REMEMBERED: usize = 4096;

/// What the kernel side is told of cgroups before it is loaded.
pub(super) struct CgroupSettings {
    subsystem: u32,
    root: u32,
    offsets: [u32; OFFSETS],
    undecided: u8,
    filter: Option<CgroupFilter>,
}

impl CgroupSettings {
    /// Checks what is asked for, and reads where the kernel has it.
    pub(super) fn new(options: &ProbeOptions) -> Result<CgroupSettings, ProbeError> {
        let filter = options.filter.cgroups.clone();
        let Some(hierarchy) = &options.hierarchy else {
            if filter.is_some() {
                return Err(ProbeError::Request(
                    "no hierarchy of cgroups to filter by: mount -t cgroup2 none /sys/fs/cgroup"
                        .to_owned(),
                ));
            }
            return Ok(CgroupSettings::none());
        };
        if let Some(filter) = &filter {
            check(filter)?;
        }
        let offsets = match offsets::of_cgroups(&hierarchy.version) {
            Ok(offsets) => offsets,
            Err(error) if filter.is_some() => return Err(unsupported(hierarchy, &error)),
            Err(error) => {
                log::debug!("cgroups that are made and removed are not told: {error}");
                [0; OFFSETS]
            }
        };
        let is_known = offsets[OFFSETS_KNOWN] != 0;
        Ok(CgroupSettings {
            subsystem: match hierarchy.version {
                Version::Two => SUBSYS_UNIFIED,
                Version::One { .. } if is_known => SUBSYS_ONE,
                Version::One { .. } => SUBSYS_NONE,
            },
            root: hierarchy.number,
            offsets,
            undecided: filter
                .as_ref()
                .is_some_and(|filter| filter.undecided)
                .into(),
            filter,
        })
    }

    fn none() -> CgroupSettings {
        CgroupSettings {
            subsystem: SUBSYS_NONE,
            root: 0,
            offsets: [0; OFFSETS],
            undecided: 0,
            filter: None,
        }
    }

    /// Sets globals and sizes of maps.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let one_unless = |wanted: bool, count: u32| if wanted { count } else { 1 };
        let names = self.filter.as_ref().map_or(0, |filter| filter.names.len());
        loader
            .override_global("CGROUP_SUBSYS", &self.subsystem, true)
            .override_global("CGROUP_ROOT", &self.root, true)
            .override_global("CGROUP_OFFSETS", &self.offsets, true)
            .override_global("CGROUPS_UNDECIDED", &self.undecided, true)
            .map_max_entries("CGROUPS", one_unless(self.filter.is_some(), MAX_CGROUPS))
            .map_max_entries("CGROUP_NAMES", names.max(1) as u32);
        if self.filter.is_none() {
            loader.map_max_entries("VERDICTS", 1);
        }
    }

    /// Fills the maps of the filter.
    pub(super) fn fill(&self, ebpf: &mut Ebpf) -> Result<(), ProbeError> {
        let Some(filter) = &self.filter else {
            return Ok(());
        };
        let mut cgroups = named_cgroups(ebpf)?;
        for cgroup in &filter.wanted {
            cgroups
                .insert(cgroup.id, CGROUP_WANTED, 0)
                .map_err(|error| load::refused(&error))?;
        }
        let mut names: HashMap<&mut MapData, [u8; NAME_BYTES], u8> =
            load::typed_map(ebpf, "CGROUP_NAMES")?;
        for name in &filter.names {
            let mut key = [0; NAME_BYTES];
            // Its length was checked.
            for (to, from) in key.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            names
                .insert(key, 1, 0)
                .map_err(|error| load::refused(&error))?;
        }
        set_generation(ebpf, FIRST_GENERATION)
    }

    /// Attaches the programs that see cgroups come and go. They must be attached before samples are
    /// taken, and after there are buffers. A filter needs them; without one they may be missing.
    pub(super) fn attach(&self, ebpf: &mut Ebpf) -> Result<Cgroups, ProbeError> {
        if self.offsets[OFFSETS_KNOWN] != 0 {
            match attach_programs(ebpf) {
                Err(error) if self.filter.is_some() => return Err(error),
                Err(error) => {
                    log::debug!("cgroups that are made and removed are not told: {error}");
                }
                Ok(()) => {}
            }
        }
        Ok(Cgroups {
            generation: self.filter.is_some().then_some(FIRST_GENERATION),
            ..Cgroups::default()
        })
    }
}

/// Cgroups of an attached probe.
#[derive(Default)]
pub(super) struct Cgroups {
    /// None without a filter.
    generation: Option<u32>,
    reported: CgroupLosses,
    /// The last ones that were removed, of which a decision may still come.
    removed: BTreeSet<u64>,
}

impl Cgroups {
    /// Says whether a cgroup is wanted, with all below it of which nothing else is said.
    pub(super) fn decide(
        &mut self,
        ebpf: &mut Ebpf,
        id: u64,
        wanted: bool,
    ) -> Result<(), ProbeError> {
        let Some(generation) = &mut self.generation else {
            return Err(ProbeError::Request(format!(
                "cgroup {id} can't be chosen: the session does not filter by cgroups"
            )));
        };
        if self.removed.contains(&id) {
            return Ok(());
        }
        let value = if wanted {
            CGROUP_WANTED
        } else {
            CGROUP_UNWANTED
        };
        named_cgroups(ebpf)?.insert(id, value, 0).map_err(|_| {
            ProbeError::Request(format!(
                "can't choose cgroup {id}: at most {MAX_CGROUPS} cgroups can be told apart at a time"
            ))
        })?;
        // Verdicts of it and of all below it are void.
        *generation = generation.wrapping_add(1).max(FIRST_GENERATION);
        set_generation(ebpf, *generation)
    }

    /// Looks for cgroups that were removed. The kernel side has forgotten them, but what was decided
    /// before their records were read came after that, and what is decided later would stay for good:
    /// ids are not used again.
    pub(super) fn note_removed(&mut self, ebpf: &mut Ebpf, events: &[RawEvent]) {
        if self.generation.is_none() {
            return;
        }
        for event in events {
            let RawBody::Cgroup(cgroup) = &event.body else {
                continue;
            };
            if !cgroup.removed {
                continue;
            }
            if let Ok(mut cgroups) = named_cgroups(ebpf) {
                // Most are not in it any more.
                let _ = cgroups.remove(&cgroup.id);
            }
            self.removed.insert(cgroup.id);
            if self.removed.len() > REMEMBERED {
                self.removed.pop_first();
            }
        }
    }

    /// Says what was lost of new cgroups since the last time.
    pub(super) fn tell_losses(&mut self, ebpf: &Ebpf) {
        let read = load::map_fd(ebpf, "CGROUP_LOSSES").and_then(read_losses);
        let losses = match read {
            Ok(losses) => losses,
            Err(error) => {
                log::warn!("failed to read how many cgroups were lost: {error}");
                return;
            }
        };
        let before = std::mem::replace(&mut self.reported, losses);
        let dropped = losses.dropped.saturating_sub(before.dropped);
        if dropped > 0 {
            log::warn!(
                "{dropped} new cgroups are not recorded: {MAX_CGROUPS} are told apart already, which \
                 is the most"
            );
        }
        let untold = losses.untold.saturating_sub(before.untold);
        if untold > 0 {
            log::warn!(
                "{untold} records of cgroups that were made or removed found no room; what is in \
                 them may be named late, or be decided by its samples"
            );
        }
    }
}

fn attach_programs(ebpf: &mut Ebpf) -> Result<(), ProbeError> {
    load::attach_raw(ebpf, "cgroup_made", "cgroup_mkdir")?;
    load::attach_raw(ebpf, "cgroup_removed", "cgroup_rmdir")
}

fn named_cgroups(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, u64, u32>, ProbeError> {
    load::typed_map(ebpf, "CGROUPS")
}

fn set_generation(ebpf: &Ebpf, generation: u32) -> Result<(), ProbeError> {
    let map = load::map_fd(ebpf, "CGROUP_STATE")?;
    bpf::update_map(map, &[DECIDED], &[generation])
        .map_err(|error| ProbeError::from_io("change which cgroups are sampled", error))
}

fn read_losses(map: BorrowedFd<'_>) -> Result<CgroupLosses, ProbeError> {
    let mut values: Vec<CgroupLosses> = Vec::new();
    bpf::read_array(map, 0, 1, 1, &mut values)
        .map_err(|error| ProbeError::from_io("read a map", error))?;
    Ok(values.first().copied().unwrap_or_default())
}

fn check(filter: &CgroupFilter) -> Result<(), ProbeError> {
    for (what, count, most) in [
        ("cgroups", filter.wanted.len(), MAX_CGROUPS),
        ("names of cgroups", filter.names.len(), MAX_NAMES),
    ] {
        if count > most as usize {
            return Err(ProbeError::Request(format!(
                "{count} {what}: at most {most} can be recorded at a time"
            )));
        }
    }
    let too_long = |name: &&String| name.len() > LONGEST_NAME;
    match filter.names.iter().find(too_long) {
        Some(name) => Err(ProbeError::Request(format!(
            "can't wait for cgroup '{name}': its name has more than {LONGEST_NAME} bytes"
        ))),
        None => Ok(()),
    }
}

fn unsupported(hierarchy: &Hierarchy, error: &OffsetError) -> ProbeError {
    ProbeError::Unsupported {
        action: format!("filter by cgroups of {}", hierarchy.mount.display()),
        remedy: offsets::remedy(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_target::cgroup::Cgroup;

    #[test]
    fn more_than_the_maps_hold_is_refused() {
        let cgroup = |id| Cgroup {
            path: String::new(),
            id,
        };
        let mut filter = CgroupFilter {
            wanted: (0..u64::from(MAX_CGROUPS)).map(cgroup).collect(),
            names: vec!["n".repeat(LONGEST_NAME); MAX_NAMES as usize],
            undecided: false,
        };
        check(&filter).unwrap();
        filter.wanted.push(cgroup(0));
        assert!(
            check(&filter)
                .unwrap_err()
                .to_string()
                .contains("16385 cgroups")
        );
        filter.wanted.clear();
        filter.names[7].push('n');
        let text = check(&filter).unwrap_err().to_string();
        assert!(text.contains("more than 127 bytes"), "{text}");
    }

    #[test]
    fn a_kernel_that_can_not_filter_is_explained() {
        let hierarchy = Hierarchy {
            version: Version::Two,
            number: 0,
            mount: "/sys/fs/cgroup".into(),
            root: "/".to_owned(),
        };
        let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
        let text = unsupported(&hierarchy, &OffsetError::NoBtf(missing)).to_string();
        assert!(text.contains("CONFIG_DEBUG_INFO_BTF=y"), "{text}");
        assert!(
            text.contains("filter by cgroups of /sys/fs/cgroup"),
            "{text}"
        );
    }
}
