//! Why a probe can't be attached: one line that names the thing and the remedy.

use std::io;

/// Why kernel-side programs can't be loaded, attached or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel forbids it.
    #[error("not permitted to {action}: {remedy}")]
    Permission {
        /// What was tried.
        action: String,
        /// What to do.
        remedy: String,
    },
    /// The kernel lacks what is needed.
    #[error("the kernel can't {action}: {remedy}")]
    Unsupported {
        /// What was tried.
        action: String,
        /// What to do.
        remedy: String,
    },
    /// A request that makes no sense on this machine.
    #[error("{0}")]
    Request(String),
    /// A system call failed for another reason.
    #[error("failed to {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel-side object was refused.
    #[error("failed to load the kernel-side programs: {0}")]
    Load(String),
}

impl ProbeError {
    /// What a failed system call means.
    pub(super) fn from_io(action: impl Into<String>, source: io::Error) -> ProbeError {
        let action = action.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => ProbeError::Permission {
                action,
                remedy: super::features::privilege_remedy(),
            },
            Some(libc::ENOSYS) => ProbeError::Unsupported {
                action,
                remedy: "Linux 5.10 or newer with CONFIG_BPF_SYSCALL, CONFIG_BPF_EVENTS and \
                         CONFIG_PERF_EVENTS is needed"
                    .to_owned(),
            },
            Some(libc::EMFILE | libc::ENFILE) => ProbeError::Request(format!(
                "failed to {action}: too many open files; raise the limit with 'ulimit -n'"
            )),
            _ => ProbeError::System { action, source },
        }
    }
}
