//! Places of a file -> links in the kernel, of either kind.
//!
//! All places with one system call where the kernel can do that. If it refuses them, halves of them
//! are tried until those that it refuses are known; what could be attached by then stays so, since a
//! link that is given back has to be waited for.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use aya::Ebpf;
use aya_obj::generated::bpf_insn;
use profiler_common::call::Cookie;

use super::{CallSite, CallSupport, CallTarget, LinkFds, program};
use crate::{
    ProbeError,
    bpf::{self, Places},
    sys,
};

/// The kernel's internal "not supported", which it gives away for instructions without probes.
const ENOTSUPP: i32 = 524;

/// Refused places that are still looked for one by one.
const MAX_REFUSED: usize = 1000;

/// Attaches places in the way that this kernel knows.
pub(super) struct Linker {
    support: CallSupport,
    /// For kernels that hand no cookies over: each place has a program of its own.
    instructions: Vec<bpf_insn>,
    /// The program, if it serves all places.
    program: Option<OwnedFd>,
}

impl Linker {
    /// Nothing is done at hits of processes whose ids are in `own`.
    pub(super) fn new(
        ebpf: &Ebpf,
        support: CallSupport,
        own: BorrowedFd<'_>,
    ) -> Result<Linker, ProbeError> {
        let instructions = program::instructions(ebpf, own)?;
        let program = if support.cookies {
            Some(program::load(&instructions, support.multi)?)
        } else {
            None
        };
        Ok(Linker {
            support,
            instructions,
            program,
        })
    }

    pub(super) fn support(&self) -> CallSupport {
        self.support
    }

    /// Attaches `sites`; see [`super::Probe::attach_calls`]. What is attached is in `fds`, also if this
    /// fails.
    pub(super) fn attach(
        &self,
        target: CallTarget,
        file: BorrowedFd<'_>,
        sites: &[CallSite],
        fds: &mut LinkFds,
    ) -> Result<Vec<(usize, ProbeError)>, ProbeError> {
        let attachment = Attachment {
            linker: self,
            path: path_of(file)?,
            pid: match target {
                CallTarget::Process(pid) => pid.0,
                CallTarget::Everyone => 0,
            },
        };
        let mut refused = Vec::new();
        // Returns first: they count only for calls that are entered from then on.
        for at_return in [true, false] {
            let chosen: Vec<(usize, &CallSite)> = (0..)
                .zip(sites)
                .filter(|(_, site)| site.return_probe == at_return)
                .collect();
            attachment.attach(&chosen, at_return, fds, &mut refused)?;
        }
        refused.sort_by_key(|(index, _)| *index);
        Ok(refused)
    }
}

struct Attachment<'a> {
    linker: &'a Linker,
    path: CString,
    pid: u32,
}

impl Attachment<'_> {
    fn attach(
        &self,
        sites: &[(usize, &CallSite)],
        at_return: bool,
        fds: &mut LinkFds,
        refused: &mut Vec<(usize, ProbeError)>,
    ) -> Result<(), ProbeError> {
        if sites.is_empty() {
            return Ok(());
        }
        if !self.linker.support.multi {
            return self.attach_events(sites, fds, refused);
        }
        let error = match self.link(sites, at_return) {
            Ok(fd) => {
                fds.push(fd);
                return Ok(());
            }
            Err(error) => error,
        };
        self.check_general(&error, sites.len())?;
        self.attach_halves(sites, at_return, error, fds, refused)
    }

    /// Attaches those of `sites`, which were refused together, that are not at fault. In their order:
    /// where several are at one place it matters.
    fn attach_halves(
        &self,
        sites: &[(usize, &CallSite)],
        at_return: bool,
        error: io::Error,
        fds: &mut LinkFds,
        refused: &mut Vec<(usize, ProbeError)>,
    ) -> Result<(), ProbeError> {
        if let [(index, site)] = sites {
            refused.push((*index, refusal(site, error)));
            if refused.len() > MAX_REFUSED {
                return Err(ProbeError::Request(format!(
                    "the kernel refuses more than {MAX_REFUSED} of the functions to be traced in \
                     one file: name fewer"
                )));
            }
            return Ok(());
        }
        let (left, right) = sites.split_at(sites.len() / 2);
        for half in [left, right] {
            match self.link(half, at_return) {
                Ok(fd) => fds.push(fd),
                Err(error) => {
                    self.check_general(&error, half.len())?;
                    self.attach_halves(half, at_return, error, fds, refused)?;
                }
            }
        }
        Ok(())
    }

    /// Whether an error is about all places, so that it makes no sense to try others.
    fn check_general(&self, error: &io::Error, count: usize) -> Result<(), ProbeError> {
        match error.raw_os_error() {
            Some(
                libc::EPERM
                | libc::EACCES
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ESRCH
                | libc::EINTR,
            ) => {
                let error = io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0));
                Err(self.failed(count, error))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, count: usize, error: io::Error) -> ProbeError {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return ProbeError::Request(format!("process {} has ended", self.pid));
        }
        ProbeError::from_io(format!("attach probes to {count} places"), error)
    }

    fn cookie(&self, site: &CallSite) -> u64 {
        let cookie = Cookie {
            probe: site.probe,
            site: site.site,
            edge: site.edge,
            generation: site.generation,
            behind_return: site.return_probe,
            tgid: self.pid,
        };
        cookie.to_bits()
    }

    fn link(&self, sites: &[(usize, &CallSite)], at_return: bool) -> io::Result<OwnedFd> {
        let Some(program) = &self.linker.program else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        let offsets: Vec<u64> = sites.iter().map(|(_, site)| site.offset).collect();
        let cookies: Vec<u64> = sites.iter().map(|(_, site)| self.cookie(site)).collect();
        let has_semaphores = sites.iter().any(|(_, site)| site.semaphore.is_some());
        let semaphores: Vec<u64> = sites
            .iter()
            .map(|(_, site)| site.semaphore.unwrap_or(0))
            .filter(|_| has_semaphores)
            .collect();
        let by_kernel = self.linker.support.pid_filter;
        bpf::link_uprobes(
            program.as_fd(),
            &Places {
                path: &self.path,
                offsets: &offsets,
                semaphores: &semaphores,
                cookies: &cookies,
                at_return,
                pid: if by_kernel { self.pid } else { 0 },
            },
        )
    }

    /// Attaches each place by a perf event of its own.
    fn attach_events(
        &self,
        sites: &[(usize, &CallSite)],
        fds: &mut LinkFds,
        refused: &mut Vec<(usize, ProbeError)>,
    ) -> Result<(), ProbeError> {
        let kind = uprobe_type()?;
        for (index, site) in sites {
            match self.attach_event(kind, site, fds)? {
                Ok(()) => {}
                Err(error) => {
                    self.check_general(&error, 1)?;
                    refused.push((*index, refusal(site, error)));
                }
            }
        }
        Ok(())
    }

    fn attach_event(
        &self,
        kind: u32,
        site: &CallSite,
        fds: &mut LinkFds,
    ) -> Result<io::Result<()>, ProbeError> {
        // A process's event counts on any processor; one for all needs a processor, but its
        // program runs on every one.
        let (pid, cpu) = match self.pid {
            0 => (-1, 0),
            pid => (pid.cast_signed(), -1),
        };
        let event = match sys::open_uprobe(
            kind,
            &self.path,
            site.offset,
            site.return_probe,
            site.semaphore,
            (pid, cpu),
        ) {
            Ok(event) => event,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(program) = &self.linker.program {
            let linked = bpf::link_event(program.as_fd(), event.as_fd(), self.cookie(site));
            return Ok(linked.map(|link| fds.extend([link, event])));
        }
        let instructions = program::with_cookie(&self.linker.instructions, self.cookie(site))?;
        let program = program::load(&instructions, false)?;
        let set = sys::set_program(event.as_fd(), program.as_fd());
        Ok(set.map(|()| fds.push(event)))
    }
}

/// A path to an open file that leads nowhere else, whatever the target does with its own paths.
pub(super) fn path_of(file: BorrowedFd<'_>) -> Result<CString, ProbeError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    CString::new(path).map_err(|error| ProbeError::Request(error.to_string()))
}

/// Number of the kernel's perf events for uprobes.
pub(super) fn uprobe_type() -> Result<u32, ProbeError> {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    let text = fs::read_to_string(PATH).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ProbeError::Unsupported {
            action: "trace functions".to_owned(),
            remedy: "boot a kernel with CONFIG_UPROBE_EVENTS, and mount sysfs at /sys".to_owned(),
        },
        _ => ProbeError::from_io(format!("read {PATH}"), error),
    })?;
    text.trim()
        .parse()
        .map_err(|_| ProbeError::Load(format!("{PATH} is not a number: {}", text.trim())))
}

/// Why the kernel doesn't want a probe at a place.
fn refusal(site: &CallSite, error: io::Error) -> ProbeError {
    let action = format!("attach a probe at offset {:#x}", site.offset);
    let remedy = match error.raw_os_error() {
        Some(ENOTSUPP | libc::EOPNOTSUPP) => {
            "the instruction there is one on which the kernel allows no probes"
        }
        Some(libc::EINVAL) => {
            "the offset is not in the file, or no instruction that the kernel knows"
        }
        Some(libc::EIO) => "the file can't be read there",
        _ => return ProbeError::from_io(action, error),
    };
    ProbeError::Unsupported {
        action,
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::{Child, Command};

    use super::*;
    use profiler_model::Pid;
    use profiler_object::elf::Elf;
    use profiler_resolve::objects::{Finder, TargetObject};

    struct Idle(Child);

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Idle {
        fn start() -> Idle {
            Idle(Command::new("sleep").arg("60").spawn().unwrap())
        }

        /// The program, once it runs.
        fn program(&self) -> TargetObject {
            let mut finder = Finder::default();
            loop {
                let objects = finder.objects_of(Pid(self.0.id())).unwrap_or_default();
                let main = objects.into_iter().next().filter(|main| main.is_main);
                if let Some(main) = main.filter(|main| main.path.ends_with("sleep")) {
                    return main;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }

        fn byte(&self, main: &TargetObject, offset: u64) -> u8 {
            let holds =
                |range: &&(u64, u64, u64)| (range.2..range.2 + range.1 - range.0).contains(&offset);
            let range = main.ranges.iter().find(holds).unwrap();
            let memory = File::open(format!("/proc/{}/mem", self.0.id())).unwrap();
            let mut byte = [0];
            let address = range.0 + offset - range.2;
            memory.read_exact_at(&mut byte, address).unwrap();
            byte[0]
        }
    }

    /// What kernels without links to many places have.
    #[test]
    fn an_event_of_one_process_is_in_no_other_s_code() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("an_event_of_one_process_is_in_no_other_s_code skipped: it needs root");
            return;
        }
        let (traced, stranger) = (Idle::start(), Idle::start());
        let (main, other) = (traced.program(), stranger.program());
        assert_eq!(main.id, other.id);
        // Where it begins.
        let mut entry = [0; 8];
        main.file.read_exact_at(&mut entry, 24).unwrap();
        let elf = Elf::read(&main.file).unwrap();
        let offset = elf.offset_of(u64::from_ne_bytes(entry)).unwrap();
        let was = stranger.byte(&other, offset);
        let path = path_of(main.file.as_fd()).unwrap();
        let whom = (traced.0.id().cast_signed(), -1);
        let event = sys::open_uprobe(uprobe_type().unwrap(), &path, offset, false, None, whom);
        let event = event.unwrap();
        let later = Idle::start();
        assert_eq!(traced.byte(&main, offset), 0xcc);
        assert_eq!(stranger.byte(&other, offset), was);
        assert_eq!(later.byte(&later.program(), offset), was);
        drop(event);
        assert_eq!(traced.byte(&main, offset), was);
    }
}
