//! Hierarchies in folders that look like cgroups, and those of this machine.

use super::*;

/// A folder that is removed with its value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("profiler-cgroup-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn cgroup(&self, path: &str, processes: &str) {
        let directory = self.0.join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.procs"), processes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn hierarchy(mount: &Path, root: &str) -> Hierarchy {
    Hierarchy {
        version: Version::Two,
        number: 0,
        mount: mount.to_owned(),
        root: root.to_owned(),
    }
}

fn one(mount: &str, number: u32, controllers: &[&str]) -> Hierarchy {
    let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
    Hierarchy {
        version: Version::One { controllers },
        number,
        mount: PathBuf::from(mount),
        root: "/".to_owned(),
    }
}

#[test]
fn the_primary_is_where_engines_put_containers() {
    let two = hierarchy(Path::new("/two"), "/");
    let named = one("/systemd", 1, &[]);
    let memory = one("/memory", 2, &["memory"]);
    let pids = one("/pids", 3, &["pids"]);
    let net = one("/net", 4, &["net_cls", "net_prio"]);
    let primary = |hierarchies: &[&Hierarchy]| {
        let all = Hierarchies(hierarchies.iter().map(|&one| one.clone()).collect());
        all.primary().map(|found| found.mount.display().to_string())
    };
    assert_eq!(primary(&[]), None);
    assert_eq!(primary(&[&named]), None);
    assert_eq!(primary(&[&two]).as_deref(), Some("/two"));
    assert_eq!(
        primary(&[&two, &named, &memory, &pids]).as_deref(),
        Some("/pids")
    );
    assert_eq!(primary(&[&memory, &two]).as_deref(), Some("/memory"));
    // Some machines of version 2 mount a controller of version 1 beside it, for nothing but packets.
    assert_eq!(primary(&[&net, &two]).as_deref(), Some("/two"));
    assert_eq!(primary(&[&net, &named]).as_deref(), Some("/net"));
}

#[test]
fn paths_of_processes() {
    let text = "9:name=systemd:/s\n8:pids:/docker/a:b\n0::/docker/gone (deleted)\n";
    let two = hierarchy(Path::new("/m"), "/");
    assert_eq!(two.path_in(text), Some("/docker/gone"));
    assert_eq!(one("/m", 8, &["pids"]).path_in(text), Some("/docker/a:b"));
    assert_eq!(one("/m", 7, &["cpu"]).path_in(text), None);
    assert_eq!(two.path_in("0::/\n"), Some("/"));
    // Outside of our namespace, which nothing that is mounted is above.
    assert_eq!(two.path_in("0::/../other\n"), None);
    assert_eq!(two.path_in("0::/..\n"), None);
    assert_eq!(two.path_in("0::/..other\n"), Some("/..other"));
    for damaged in ["", "0", "0:", "0::", "0::x", "x::/a", ":::\n0:::/"] {
        assert!(
            matches!(two.path_in(damaged), None | Some("/")),
            "{damaged}"
        );
    }
}

#[test]
fn paths_from_inside_a_namespace() {
    let above = hierarchy(Path::new("/m"), "/../..");
    assert_eq!(
        above.path_in("0::/../../system.slice/x\n"),
        Some("/system.slice/x")
    );
    assert_eq!(above.path_in("0::/../..\n"), Some("/"));
    assert_eq!(above.path_in("0::/../sibling\n"), None);
    assert_eq!(above.path_in("0::/own\n"), None);
    assert_eq!(above.path_in("0::/../../../x\n"), None);
    assert_eq!(above.path_in("0::/../..x\n"), None);
    assert_eq!(
        above.directory("/system.slice/x"),
        Path::new("/m/system.slice/x")
    );

    let part = hierarchy(Path::new("/m"), "/docker/abc");
    assert_eq!(part.path_in("0::/docker/abc/x\n"), Some("/docker/abc/x"));
    assert_eq!(part.directory("/docker/abc/x"), Path::new("/m/x"));
    assert_eq!(part.directory("/docker/abc"), Path::new("/m/"));
    assert_eq!(part.directory("/docker/abcd"), Path::new(""));
    assert_eq!(part.directory("/"), Path::new(""));
}

#[test]
fn cgroups_are_found_by_any_of_their_paths() {
    let folder = Folder::new("find");
    folder.cgroup("whole/docker/abc/inner", "");
    folder.cgroup("part/inner", "");
    let whole = hierarchy(&folder.0.join("whole"), "/");
    let part = hierarchy(&folder.0.join("part"), "/docker/abc");
    let id = fs::metadata(folder.0.join("whole/docker/abc/inner"))
        .unwrap()
        .ino();
    let all = Hierarchies(vec![whole.clone(), part.clone()]);
    let expected = Cgroup {
        path: "/docker/abc/inner".to_owned(),
        id,
    };
    let full = folder.0.join("whole/docker/abc/inner/");
    for path in [
        full.to_str().unwrap(),
        "/docker/abc/inner",
        "docker/abc/inner/",
        // By the mount of a part: the whole one is as good.
        folder.0.join("part/inner").to_str().unwrap(),
    ] {
        let (hierarchy, cgroup) = all.find(Path::new(path)).unwrap();
        assert_eq!((hierarchy, &cgroup), (&whole, &expected), "{path}");
    }
    for path in ["/docker/none", "/docker/../docker", "/etc"] {
        let error = all.find(Path::new(path)).unwrap_err();
        assert!(matches!(error, CgroupError::Missing(_)), "{path}: {error}");
    }
    assert!(part.cgroup("/docker").is_err());
    assert!(part.cgroup("/docker/abc").is_ok());
    assert_eq!(whole.cgroup("/").unwrap().path, "/");

    let mut named = whole.clone();
    named.version = Version::One {
        controllers: Vec::new(),
    };
    let all = Hierarchies(vec![named, hierarchy(&folder.0.join("part"), "/")]);
    let error = all.find(&full).unwrap_err();
    assert!(matches!(error, CgroupError::NoController(_)), "{error}");
}

#[test]
fn members_of_a_cgroup_and_below() {
    let folder = Folder::new("members");
    folder.cgroup("a", "12\n0\n7\n");
    folder.cgroup("a/b", "99\n7\nx\n");
    folder.cgroup("c", "1000\n");
    let own = std::process::id();
    fs::create_dir_all(folder.0.join("a/threaded")).unwrap();
    fs::write(
        folder.0.join("a/threaded/cgroup.threads"),
        format!("{own}\n"),
    )
    .unwrap();
    let hierarchy = hierarchy(&folder.0, "/");
    let mut expected = vec![Pid(7), Pid(12), Pid(99), Pid(own)];
    expected.sort();
    assert_eq!(hierarchy.processes("/a", 10), expected);
    assert_eq!(hierarchy.processes("/a", 2).len(), 2);
    assert_eq!(hierarchy.processes("/none", 10), []);

    let mut paths = Vec::new();
    hierarchy.walk(&mut |path| paths.push(path.to_owned()));
    paths.sort();
    assert_eq!(paths, ["/", "/a", "/a/b", "/a/threaded", "/c"]);
}

#[test]
fn a_cgroup_contains_what_is_below() {
    assert!(contains("/", "/a"));
    assert!(contains("/a", "/a"));
    assert!(contains("/a", "/a/b"));
    assert!(!contains("/a", "/ab"));
    assert!(!contains("/a/b", "/a"));
}

#[test]
fn the_hierarchies_of_this_machine() {
    let all = Hierarchies::read().unwrap();
    for hierarchy in &all.0 {
        let path = format!("{}/profiler test", hierarchy.top().trim_end_matches('/'));
        // A cgroup without processes, if we may make one here.
        if fs::create_dir(hierarchy.directory(&path)).is_ok() {
            let made = hierarchy.cgroup(&path).unwrap();
            let found = hierarchy.path_of(made.id);
            fs::remove_dir(hierarchy.directory(&path)).unwrap();
            assert!(found.is_none_or(|found| found == path));
            assert_eq!(hierarchy.path_of(made.id), None);
        }
        let top = hierarchy.cgroup(hierarchy.top()).unwrap();
        // Without the capability nothing is told, and nothing wrong.
        if let Some(path) = hierarchy.path_of(top.id) {
            assert_eq!(path, top.path);
        }
        assert_eq!(hierarchy.path_of(u64::MAX), None);
    }
}
