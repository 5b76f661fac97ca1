//! The dynamic linker's cache of libraries.
//!
//! `/etc/ld.so.cache` -> path of a library by its name, for this kind of processor. Source: glibc's
//! `ldconfig`, formats `glibc-ld.so.cache1.1` and, before it, `ld.so-1.7.0`.

use rustc_hash::FxHashMap;

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const OLD_ENTRY_BYTES: usize = 12;
/// Kinds of entries: libraries of glibc for this machine.
const FLAGS: u32 = if cfg!(target_arch = "x86_64") {
    0x0303
} else if cfg!(target_arch = "aarch64") {
    0x0a03
} else {
    3
};

/// Paths of libraries by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LoaderCache(FxHashMap<String, String>);

impl LoaderCache {
    /// Reads the bytes of the cache; what is damaged is left out.
    pub(super) fn parse(bytes: &[u8]) -> LoaderCache {
        LoaderCache::entries(bytes).unwrap_or_default()
    }

    /// The path of a library. Variants for better processors are found in folders beside it.
    pub(super) fn path(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn entries(bytes: &[u8]) -> Option<LoaderCache> {
        let mut bytes = bytes;
        if bytes.starts_with(OLD_MAGIC) {
            let count = number(bytes, 12)? as usize;
            let end = count.checked_mul(OLD_ENTRY_BYTES)?.checked_add(16)?;
            bytes = bytes.get(end.checked_next_multiple_of(8)?..)?;
        }
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let count = number(bytes, 20)? as usize;
        let entries = bytes.get(HEADER_BYTES..)?.chunks_exact(ENTRY_BYTES);
        let mut paths = FxHashMap::default();
        for entry in entries.take(count) {
            // Entries with a demand on the processor have one that is not zero.
            let plain = entry.get(16..24)? == [0; 8];
            if !plain || number(entry, 0)? != FLAGS {
                continue;
            }
            let text = |at| {
                let rest = bytes.get(number(entry, at)? as usize..)?;
                let end = rest.iter().take(4096).position(|&byte| byte == 0)?;
                String::from_utf8(rest[..end].to_vec()).ok()
            };
            if let (Some(name), Some(path)) = (text(4), text(8)) {
                paths.entry(name).or_insert(path);
            }
        }
        Some(LoaderCache(paths))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> Vec<u8> {
        let strings_at = (HEADER_BYTES + 2 * ENTRY_BYTES) as u32;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(2u32.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        for (flags, hwcap) in [(FLAGS, 1u64 << 62), (FLAGS, 0)] {
            let entry = [flags, strings_at, strings_at + 8, 0];
            bytes.extend(entry.iter().flat_map(|number| number.to_ne_bytes()));
            bytes.extend(hwcap.to_ne_bytes());
        }
        bytes.extend(b"libx.so\0/l/libx.so\0");
        bytes
    }

    #[test]
    fn libraries_have_paths() {
        let new = cache();
        assert_eq!(LoaderCache::parse(&new).path("libx.so"), Some("/l/libx.so"));
        let mut both = OLD_MAGIC.to_vec();
        both.extend(0u32.to_ne_bytes());
        both.extend(&new);
        assert_eq!(LoaderCache::parse(&both), LoaderCache::parse(&new));
        assert_eq!(LoaderCache::parse(&new).path("liby.so"), None);
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = cache();
        for at in 0..whole.len() {
            let _ = LoaderCache::parse(&whole[..at]);
            let mut flipped = whole.clone();
            flipped[at] ^= 0xff;
            let _ = LoaderCache::parse(&flipped);
        }
    }
}
