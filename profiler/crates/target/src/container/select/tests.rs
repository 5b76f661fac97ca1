//! Selectors on a machine whose cgroups and engines are folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::cgroup::Version;
use crate::container::identify;

const UID: &str = "6f4f6ae2-0be9-4d4b-a13c-6f3ef02f3a4f";

/// A machine that is removed with its value.
struct Machine {
    root: PathBuf,
    hierarchy: Hierarchy,
}

impl Machine {
    fn new(name: &str) -> Machine {
        let name = format!("profiler-select-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&root);
        let mount = root.join("sys/fs/cgroup");
        fs::create_dir_all(&mount).unwrap();
        Machine {
            root,
            hierarchy: Hierarchy {
                version: Version::Two,
                number: 0,
                mount,
                root: "/".to_owned(),
            },
        }
    }

    fn cgroup(&self, path: &str) {
        fs::create_dir_all(self.hierarchy.directory(path)).unwrap();
    }

    fn docker(&self, id: &str, name: &str) {
        self.cgroup(&format!("/docker/{id}"));
        let folder = self.root.join("var/lib/docker/containers").join(id);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(r#"{{"ID":"{id}","Name":"/{name}","Config":{{"Image":"nginx"}}}}"#);
        fs::write(folder.join("config.v2.json"), text).unwrap();
    }

    fn kubernetes(&self, id: &str, pod: &str, uid: &str, name: &str) {
        self.cgroup(&format!("/kubepods/pod{uid}/{id}"));
        for path in [
            format!("var/log/pods/prod_{pod}_{uid}/{name}"),
            format!("var/log/containers/{pod}_prod_{name}-{id}.log"),
        ] {
            fs::create_dir_all(self.root.join(path)).unwrap();
        }
    }

    fn select(&self, selectors: &[Selector], wait: bool) -> Result<Selected, SelectorError> {
        let mut engines = Engines::at(&self.root);
        Selector::select(selectors, &self.hierarchy, &mut engines, wait)
    }

    fn container(&self, text: &str) -> Result<Selected, SelectorError> {
        self.select(&[Selector::Container(text.to_owned())], false)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn id(number: usize) -> String {
    format!("{number:03x}").chars().cycle().take(64).collect()
}

fn cgroups(selected: &Selected) -> Vec<&str> {
    let containers = selected.containers.iter();
    containers
        .map(|container| container.identity.cgroup.as_str())
        .collect()
}

#[test]
fn containers_by_name_and_id() {
    let machine = Machine::new("containers");
    let (web, db) = (id(0xabc), id(0xabd));
    machine.docker(&web, "web");
    machine.docker(&db, "db");
    machine.cgroup(&format!("/docker/{web}/below"));
    machine.cgroup("/lxc.payload.box");
    let cgroup = format!("/docker/{web}");

    let selected = machine.container("web").unwrap();
    assert_eq!(cgroups(&selected), [&cgroup]);
    assert_eq!(selected.names, [web.as_str()]);
    assert!(selected.undecided, "it may be made anew");
    for text in [&web[..], &web[..12], &web[..3]] {
        let selected = machine.container(text).unwrap();
        assert_eq!(cgroups(&selected), [&cgroup], "{text}");
        assert_eq!(selected.names, [web.as_str()]);
        assert!(!selected.undecided, "{text}");
    }
    let selected = machine.container("box").unwrap();
    assert_eq!(cgroups(&selected), ["/lxc.payload.box"]);
    assert_eq!(selected.names, ["lxc.payload.box"]);
    assert!(!selected.undecided);

    let error = machine.container("ab").unwrap_err().to_string();
    let both = format!("{} (web, docker), {} (db, docker)", &web[..12], &db[..12]);
    assert_eq!(
        error,
        format!("container ab may be several, name one of them whole (there are: {both})")
    );
    let error = machine.container("none").unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no container none (there are: box, db, web); --wait waits for it"
    );
    let waiting = machine
        .select(&[Selector::Container("none".to_owned())], true)
        .unwrap();
    assert!(waiting.containers.is_empty() && waiting.undecided);
    assert_eq!(waiting.names, ["lxc.payload.none", "machine-none.scope"]);
    for text in ["", "a\nb"] {
        let error = machine.container(text).unwrap_err();
        assert!(matches!(error, SelectorError::Malformed(_)), "{error}");
    }
}

#[test]
fn pods_and_their_containers() {
    let machine = Machine::new("pods");
    let other_uid = UID.replace('6', "7");
    machine.kubernetes(&id(1), "web-0", UID, "app");
    machine.kubernetes(&id(2), "web-0", UID, "proxy");
    machine.kubernetes(&id(3), "web-1", &other_uid, "app");
    let pod = |name: &str| Selector::Pod {
        namespace: "prod".to_owned(),
        name: name.to_owned(),
    };
    let selected = machine.select(&[pod("web-0")], false).unwrap();
    assert_eq!(cgroups(&selected), [format!("/kubepods/pod{UID}")]);
    assert!(selected.undecided);
    let error = machine.select(&[pod("x")], false).unwrap_err().to_string();
    let expected =
        "there is no pod prod/x (there are: prod/web-0, prod/web-1); --wait waits for it";
    assert_eq!(error, expected);

    let error = machine.container("app").unwrap_err().to_string();
    assert!(
        error.ends_with("(there are: prod/web-0/app, prod/web-1/app)"),
        "{error}"
    );
    let selected = machine.container("prod/web-1/app").unwrap();
    assert_eq!(
        cgroups(&selected),
        [format!("/kubepods/pod{other_uid}/{}", id(3))]
    );
    assert!(selected.undecided);
    let selected = machine.container("proxy").unwrap();
    let container = &selected.containers[0];
    assert!(pod("web-0").matches(container) && !pod("web-1").matches(container));
}

#[test]
fn units() {
    let machine = Machine::new("units");
    machine.cgroup("/system.slice/nginx.service/worker");
    machine.cgroup("/user.slice/user-1.slice/user@1.service/app.slice/nginx.service");
    machine.cgroup("/user.slice/user-1.slice/session-2.scope");
    let unit = |name: &str| machine.select(&[Selector::Unit(name.to_owned())], false);
    let nginx = [
        "/system.slice/nginx.service",
        "/user.slice/user-1.slice/user@1.service/app.slice/nginx.service",
    ];
    for name in ["nginx", "nginx.service"] {
        let selected = unit(name).unwrap();
        assert_eq!(cgroups(&selected), nginx);
        assert_eq!(selected.names, ["nginx.service"]);
        assert!(!selected.undecided);
    }
    assert_eq!(
        cgroups(&unit("user-1.slice").unwrap()),
        ["/user.slice/user-1.slice"]
    );
    let error = unit("apache").unwrap_err().to_string();
    assert!(error.starts_with("there is no unit apache.service (there are: nginx.service, "));
    let waiting = machine
        .select(&[Selector::Unit("apache".to_owned())], true)
        .unwrap();
    assert_eq!(waiting.names, ["apache.service"]);
    assert!(!waiting.undecided);
}

#[test]
fn what_comes_later_is_meant_by_whole_names() {
    let mut container = Container::new(identify(&format!("/docker/{}", id(0xabc))).unwrap());
    container.name = Some("web".to_owned());
    let matches = |text: &str| Selector::Container(text.to_owned()).matches(&container);
    assert!(matches("web") && matches(&id(0xabc)) && matches(&id(0xabc)[..12]));
    assert!(!matches("we") && !matches(&id(0xabc)[..11]) && !matches("") && !matches("//web"));
    let mut chosen = Container::new(identify("/default/abcabcabcabcabc").unwrap());
    chosen.name = None;
    assert!(Selector::Container("abcabcabcabcabc".to_owned()).matches(&chosen));
    // Who chooses ids does not mean others by their beginnings.
    assert!(!Selector::Container("abcabcabcabca".to_owned()).matches(&chosen));
}

#[test]
fn errors_list_a_few_candidates() {
    let candidates: Vec<String> = (0..25)
        .rev()
        .map(|number| format!("c{number:02}"))
        .collect();
    let text = listed("db", &candidates);
    assert!(text.starts_with(" (there are: c00, c01, "), "{text}");
    assert!(text.ends_with("c09 and 15 more)"), "{text}");
    let text = listed("c17-old", &candidates);
    assert!(text.starts_with(" (there are: c17, c10, c11, "), "{text}");
    assert_eq!(listed("a", &[]), "");
    assert_eq!(
        listed("a", &["a\u{1b}b".to_owned()]),
        " (there are: a\\u{1b}b)"
    );
}

#[test]
fn a_thousand_containers_are_found() {
    let machine = Machine::new("thousand");
    for number in 0..1000 {
        machine.docker(&id(number), &format!("c{number}"));
    }
    let began = Instant::now();
    let selected = machine.container("c777").unwrap();
    let took = began.elapsed();
    println!("1,000 containers: {took:?}");
    assert_eq!(cgroups(&selected), [format!("/docker/{}", id(777))]);
    let mut engines = Engines::at(Path::new(&machine.root));
    let all = Selector::list(&machine.hierarchy, &mut engines, false);
    assert_eq!(all.len(), 1000);
    assert!(all.iter().all(|container| container.name.is_some()));
}
