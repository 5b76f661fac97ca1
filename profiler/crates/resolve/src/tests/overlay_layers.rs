//! Layers of overlays, and files that have the same path.

use std::os::unix::fs::symlink;

use super::super::overlay_layers::{OverlayLayers, folders_of_mount, kind_below};
use super::*;

fn mountinfo(options: &str) -> Vec<u8> {
    format!(
        "20 1 8:1 / / rw - ext4 /dev/sda rw\n\
         47 44 0:40 / / rw,relatime shared:1 master:2 - overlay overlay rw,{options}\n\
         48 47 0:41 / /proc rw - proc proc rw\n"
    )
    .into_bytes()
}

fn layers(options: &str) -> Option<OverlayLayers> {
    OverlayLayers::of_root(&mountinfo(options))
}

/// Three layers with files of their own names as contents.
struct Stack {
    dir: TempDir,
    layers: OverlayLayers,
}

impl Stack {
    fn new(name: &str) -> Stack {
        let dir = TempDir::new(name);
        for layer in ["upper", "middle", "lower"] {
            std::fs::create_dir_all(dir.path(layer).join("a/b")).unwrap();
        }
        let path = |name| dir.path(name).display().to_string();
        let (upper, middle, lower) = (path("upper"), path("middle"), path("lower"));
        let options = format!("lowerdir={middle}:{lower},upperdir={upper},workdir=/w,index=off");
        let layers = layers(&options).unwrap();
        Stack { dir, layers }
    }

    fn put(&self, layer: &str, path: &str) {
        std::fs::write(self.dir.path(layer).join(path), layer).unwrap();
    }

    fn get(&self, path: &str) -> Option<String> {
        let (file, _) = self.layers.open(path).ok()?;
        std::io::read_to_string(file).ok()
    }
}

#[test]
fn the_uppermost_layer_counts() {
    let stack = Stack::new("layers-order");
    stack.put("lower", "a/b/all");
    stack.put("lower", "a/b/low");
    stack.put("middle", "a/b/all");
    stack.put("upper", "a/b/new");
    assert_eq!(stack.get("/a/b/all").as_deref(), Some("middle"));
    assert_eq!(stack.get("/a/b/low").as_deref(), Some("lower"));
    assert_eq!(stack.get("/a/b/new").as_deref(), Some("upper"));
    assert_eq!(stack.get("/a/b/none"), None);
    assert_eq!(stack.get("/a/b"), None, "a folder");
    assert_eq!(stack.get("/"), None);
    assert_eq!(stack.get(&"/a".repeat(10_000)), None);
    // Without one of the layers, those below it don't tell.
    std::fs::remove_dir_all(stack.dir.path("middle")).unwrap();
    assert_eq!(stack.get("/a/b/low"), None);
}

#[test]
fn what_was_removed_in_a_layer_is_not_found_below() {
    if !rustix::process::geteuid().is_root() {
        crate::skip::skip("what_was_removed_in_a_layer", "needs root");
        return;
    }
    let stack = Stack::new("layers-whiteouts");
    stack.put("lower", "a/b/removed");
    stack.put("lower", "a/b/kept");
    let whiteout = |path: &str| {
        let path = stack.dir.path("upper").join(path);
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::empty();
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    };
    whiteout("a/b/removed");
    assert_eq!(stack.get("/a/b/removed"), None);
    assert_eq!(stack.get("/a/b/kept").as_deref(), Some("lower"));
    let opaque = stack.dir.path("middle").join("a/b");
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&opaque, "trusted.overlay.opaque", b"y", flags).is_ok() {
        assert_eq!(stack.get("/a/b/kept"), None);
    }
    std::fs::remove_dir_all(stack.dir.path("upper/a")).unwrap();
    whiteout("a");
    assert_eq!(stack.get("/a/b/kept"), None);
}

#[test]
fn links_in_layers_lead_nowhere() {
    let stack = Stack::new("layers-links");
    std::fs::create_dir(stack.dir.path("outside")).unwrap();
    stack.put("outside", "secret");
    stack.put("lower", "a/b/secret");
    let upper = stack.dir.path("upper/a");
    std::fs::remove_dir_all(&upper).unwrap();
    symlink(stack.dir.path("outside"), &upper).unwrap();
    for path in [
        "/a/secret",
        "/a/b/secret",
        "/a/../../outside/secret",
        "/../outside/secret",
    ] {
        assert_eq!(stack.get(path), None, "{path}");
    }
    std::fs::remove_file(&upper).unwrap();
    symlink("../outside/secret", &upper).unwrap();
    assert_eq!(stack.get("/a"), None);
    assert_eq!(stack.get("/a/b/secret"), None);
}

#[test]
fn options_that_can_not_be_believed_are_refused() {
    let hostile = [
        "rw",
        "lowerdir=",
        "lowerdir=relative",
        "lowerdir=/a:relative",
        "lowerdir=/a/../../etc",
        "lowerdir=/a,upperdir=../etc",
    ];
    for options in hostile {
        assert_eq!(layers(options), None, "{options}");
    }
    let many = vec!["/x"; 10_000].join(":");
    assert_eq!(layers(&format!("lowerdir={many}")), None);
    let long = "/x".repeat(100_000);
    assert_eq!(layers(&format!("lowerdir={long}")), None);
    // A folder of the overlay as a root, a root that is covered, and lines cut off.
    let text = String::from_utf8(mountinfo("lowerdir=/a")).unwrap();
    let part = text.replace("0:40 / /", "0:40 /folder /");
    assert_eq!(OverlayLayers::of_root(part.as_bytes()), None);
    let covered = format!("{text}49 47 0:42 / / rw - tmpfs tmpfs rw\n");
    assert_eq!(OverlayLayers::of_root(covered.as_bytes()), None);
    for end in 0..text.len() {
        let _ = OverlayLayers::of_root(&text.as_bytes()[..end]);
    }
}

#[test]
fn options_are_read_as_the_kernel_writes_them() {
    let dir = TempDir::new("layers-escapes");
    let strange = dir.path("a,b:c d\\e");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("file"), "found").unwrap();
    let data = dir.path("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("hidden"), "content only").unwrap();
    let folder = dir.0.display();
    let escaped = format!("{folder}/a\\054b\\134:c\\040d\\134\\134e");
    let layers = layers(&format!(
        "lowerdir={escaped}::{folder}/data,redirect_dir=on"
    ))
    .unwrap();
    assert_eq!(layers.device, (0, 40));
    assert!(layers.open("/file").is_ok());
    assert!(layers.open("/hidden").is_err(), "a layer without paths");
}

#[test]
fn where_the_folders_of_a_mount_lie_is_known() {
    let table = mountinfo("lowerdir=/proc/a:relative,upperdir=/procs");
    let folders = folders_of_mount(&table, 47).unwrap();
    let kinds: Vec<_> = folders.iter().map(|at| kind_below(&table, at)).collect();
    let [upper, lower, relative] = kinds[..] else {
        panic!("{folders:?}");
    };
    // The overlay covers the disk.
    assert_eq!(upper, Some(&b"overlay"[..]));
    assert_eq!(lower, Some(&b"proc"[..]));
    assert_eq!(relative, None);
    // No overlay, and no such mount.
    assert!(folders_of_mount(&table, 20).is_none() && folders_of_mount(&table, 4).is_none());
}

/// A program under a path of its own root, with a function of this name in place of `inner`.
fn program_in(dir: &TempDir, root: &str, function: &str, flags: &[&str]) -> (PathBuf, u64) {
    let out = build(
        dir,
        root,
        &[&[&*format!("-Dinner={function}")], flags].concat(),
    );
    let offset = offset_of(&out, function);
    std::fs::create_dir_all(dir.path(&format!("{root}.d"))).unwrap();
    let inside = dir.path(&format!("{root}.d/app"));
    std::fs::rename(out, &inside).unwrap();
    (inside, offset)
}

/// Runs what is at `/app` below each root; the names of the leaves, and the paths of their modules.
fn run_below(dir: &TempDir, programs: &[(&str, u64, FileIdentity)]) -> Vec<(String, String)> {
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = Vec::new();
    for (index, (root, offset, identity)) in programs.iter().enumerate() {
        let id = pid(300 + index as u32);
        let time = 10 + index as u64 * 10;
        let root = Root::at(&dir.path(&format!("{root}.d"))).unwrap();
        // As it is found at the moment of an exec.
        events.push(fork(time, std::process::id(), id));
        let map = map(time + 1, id, (BASE, 0x10000), "/app", 0, *identity);
        resolver.processes.keep_root(Pid(id), Arc::new(root));
        resolver.notice(&map);
        events.push(map);
        events.push(sample(time + 2, id, "program", &[BASE + offset + 4], &[]));
    }
    let mut out = Vec::new();
    // Their processes have no root of their own: it is that of the fork.
    for event in events {
        if let RawBody::Mmap(mmap) = &event.body {
            let root = resolver.processes.live_root(mmap.pid);
            resolver.processes.table.get_mut(mmap.pid).unwrap().root = root;
        }
        resolver.resolve(&mut vec![event], &mut out);
    }
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    let leaves = reader.samples().map(|sample| {
        let frame = reader.tables.frames_of(sample.user).next().unwrap();
        let module = reader.tables.frames.get(frame).unwrap().module.unwrap();
        let path = reader.tables.modules.get(module).unwrap().path;
        let path = reader.tables.string(path).to_owned();
        (reader.tables.frame_name(frame), path)
    });
    leaves.collect()
}

fn identity_of(path: &Path) -> FileIdentity {
    let stat = rustix::fs::stat(path).unwrap();
    FileIdentity {
        major: rustix::fs::major(stat.st_dev),
        minor: rustix::fs::minor(stat.st_dev),
        inode: stat.st_ino,
        generation: 0,
    }
}

#[test]
fn files_of_one_path_and_different_contents_never_share_names() {
    let same = &["-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567"][..];
    for (kind, flags) in [
        ("honest", &[][..]),
        ("none", &["-Wl,--build-id=none"]),
        ("forged", same),
    ] {
        let dir = TempDir::new(&format!("copies-{kind}"));
        let (first, at_first) = program_in(&dir, "one", "alpha", flags);
        let (second, at_second) = program_in(&dir, "two", "omega", flags);
        assert_eq!(at_first, at_second);
        // A third root has the first one's program again, as another file.
        std::fs::create_dir(dir.path("three.d")).unwrap();
        std::fs::copy(&first, dir.path("three.d/app")).unwrap();
        let third = dir.path("three.d/app");
        let programs = [
            ("one", at_first, identity_of(&first)),
            ("two", at_second, identity_of(&second)),
            ("three", at_first, identity_of(&third)),
            ("two", at_second, identity_of(&second)),
        ];
        let found = run_below(&dir, &programs);
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["alpha", "omega", "alpha", "omega"], "{kind}");
        assert_eq!(found[0], found[2], "{kind}: the same content is one module");
        assert_eq!(found[0].1, "/app");
        if kind != "honest" {
            assert!(found[1].1.starts_with("/app (copy "), "{kind}: {found:?}");
        }
    }
}
