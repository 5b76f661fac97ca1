//! Cgroups of an engine that puts containers at /engine/ID, whose names are not in their paths.

use super::*;

fn identify(path: &str) -> Option<Identity> {
    let id = path.strip_prefix("/engine/")?.split('/').next()?;
    Some(Identity {
        cgroup: format!("/engine/{id}"),
        engine: Engine::Oci,
        id: Some(id.to_owned()),
        name: None,
        pod_uid: None,
        unit: None,
    })
}

fn described(id: &str, name: &str) -> Container {
    Container {
        name: Some(name.to_owned()),
        ..Container::new(identify(&format!("/engine/{id}")).unwrap())
    }
}

/// Containers called web are wanted.
fn web() -> Decisions {
    let judge = |container: &Container| container.name.as_ref().map(|name| name == "web");
    let meaning = Meaning {
        identify,
        judge: Box::new(judge),
    };
    Decisions::new(meaning, vec!["/named".to_owned()])
}

fn undecided(id: u64, path: &str) -> RawCgroup {
    RawCgroup {
        id,
        path: path.into(),
        removed: false,
        verdict: CgroupVerdict::Undecided,
    }
}

fn made(decisions: &mut Decisions, at: u64, cgroup: &RawCgroup) -> Vec<Step> {
    let mut steps = Vec::new();
    decisions.made(Timestamp(at), cgroup, &mut steps);
    steps
}

fn answered(decisions: &mut Decisions, container: &Container) -> Vec<Step> {
    let mut steps = Vec::new();
    decisions.answered(container, &mut steps);
    steps.sort_by_key(|step| format!("{step:?}"));
    steps
}

fn fate(decisions: &Decisions, cgroup: u64) -> Option<Fate> {
    decisions.fate(Place {
        cgroup,
        undecided: true,
    })
}

fn ask(id: &str) -> Step {
    Step::Ask(identify(&format!("/engine/{id}")).unwrap())
}

#[test]
fn a_container_is_asked_about_once_and_decided_with_all_that_is_in_it() {
    let mut web = web();
    assert_eq!(made(&mut web, 1, &undecided(7, "/engine/a")), [ask("a")]);
    assert_eq!(made(&mut web, 2, &undecided(8, "/engine/a/inner")), []);
    assert_eq!(fate(&web, 7), Some(Fate::Wait));
    assert_eq!(fate(&web, 8), Some(Fate::Wait));
    assert_eq!(web.wants("/engine/a/inner"), None);
    assert!(!web.has_come());
    let steps = answered(&mut web, &described("a", "web"));
    assert_eq!(steps, [Step::Decide(7, true), Step::Decide(8, true)]);
    assert_eq!(fate(&web, 8), Some(Fate::Keep));
    assert_eq!(web.wants("/engine/a/inner"), Some(true));
    assert!(web.has_come() && web.is_there());
    // What is made in it later is wanted at once.
    let steps = made(&mut web, 3, &undecided(9, "/engine/a/other"));
    assert_eq!(steps, [Step::Decide(9, true)]);
    assert_eq!(fate(&web, 10), None);
}

#[test]
fn a_stranger_is_dropped_and_what_is_in_it_not_asked_about() {
    let mut web = web();
    made(&mut web, 1, &undecided(7, "/engine/a"));
    let steps = answered(&mut web, &described("a", "db"));
    assert_eq!(steps, [Step::Decide(7, false)]);
    assert_eq!(fate(&web, 7), Some(Fate::Drop));
    let steps = made(&mut web, 2, &undecided(8, "/engine/a/web"));
    assert_eq!(steps, [Step::Decide(8, false)]);
    assert_eq!(web.wants("/engine/a/web"), Some(false));
    assert!(!web.has_come());
}

#[test]
fn cgroups_without_containers_are_decided_by_their_path() {
    let mut web = web();
    for (id, path, wanted) in [
        (1, "/user", false),
        (2, "/named", true),
        (3, "/named/x", true),
    ] {
        let steps = made(&mut web, 1, &undecided(id, path));
        assert_eq!(steps, [Step::Decide(id, wanted)], "{path}");
    }
    assert_eq!(web.wants("/named2"), Some(false));
    web.removed(Timestamp(2), 2);
    assert!(!web.is_there());
    // The path is made anew.
    let steps = made(&mut web, 3, &undecided(4, "/named"));
    assert_eq!(steps, [Step::Decide(4, true)]);
    assert!(web.is_there());
}

#[test]
fn an_answer_that_comes_when_all_is_over_still_decides_its_samples() {
    let mut web = web();
    made(&mut web, 1, &undecided(7, "/engine/a"));
    web.removed(Timestamp(2), 7);
    let steps = answered(&mut web, &described("a", "web"));
    // The kernel side has forgotten the cgroup.
    assert_eq!(steps, [Step::Admit("/engine/a".to_owned())]);
    assert_eq!(fate(&web, 7), Some(Fate::Keep));
    assert!(web.has_come() && !web.is_there());
    web.tidy(Timestamp(2 + REMOVED_NS));
    assert_eq!(fate(&web, 7), None);
}

#[test]
fn one_that_is_started_again_is_not_asked_about() {
    let mut web = web();
    made(&mut web, 1, &undecided(7, "/engine/a"));
    answered(&mut web, &described("a", "web"));
    web.removed(Timestamp(2), 7);
    let steps = made(&mut web, 3, &undecided(8, "/engine/a"));
    assert_eq!(steps, [Step::Decide(8, true)]);
    assert!(web.is_there());
}

#[test]
fn what_nobody_knows_is_given_up_and_taken_back_by_a_late_answer() {
    let mut web = web();
    made(&mut web, 1, &undecided(7, "/engine/a"));
    web.nameless(Timestamp(5), 8);
    let nothing_yet = described("a", "web");
    let nothing_yet = Container {
        name: None,
        ..nothing_yet
    };
    assert_eq!(answered(&mut web, &nothing_yet), []);
    let mut steps = Vec::new();
    assert_eq!(
        web.give_up(Timestamp(PATIENCE_NS), &mut steps),
        Vec::<String>::new()
    );
    let given_up = web.give_up(Timestamp(1 + PATIENCE_NS), &mut steps);
    assert_eq!(given_up, ["/engine/a"]);
    assert_eq!(steps, [Step::Decide(7, false)]);
    assert_eq!(fate(&web, 7), Some(Fate::Lose));
    assert_eq!(fate(&web, 8), Some(Fate::Wait));
    let steps = answered(&mut web, &described("a", "web"));
    assert_eq!(steps, [Step::Decide(7, true)]);
    assert_eq!(fate(&web, 7), Some(Fate::Keep));
}

#[test]
fn a_name_in_a_foreign_container_is_not_believed() {
    let mut web = web();
    let named = |id, path: &str| RawCgroup {
        verdict: CgroupVerdict::Wanted,
        ..undecided(id, path)
    };
    assert_eq!(made(&mut web, 1, &named(7, "/slice/web.service")), []);
    assert_eq!(web.wants("/slice/web.service/x"), Some(true));
    let steps = made(&mut web, 2, &named(8, "/engine/a/web.service"));
    assert_eq!(steps, [Step::Decide(8, false)]);
    assert_eq!(fate(&web, 8), Some(Fate::Drop));
}

#[test]
fn one_that_was_found_running_is_admitted_when_it_is_known() {
    let mut web = web();
    let mut steps = Vec::new();
    web.found("/engine/a", &mut steps);
    web.found("/user", &mut steps);
    assert_eq!(steps, [ask("a")]);
    let steps = answered(&mut web, &described("a", "web"));
    assert_eq!(steps, [Step::Admit("/engine/a".to_owned())]);
    web.admit(&Cgroup {
        path: "/engine/a".to_owned(),
        id: 7,
    });
    assert_eq!(web.wants("/engine/a/x"), Some(true));
}

#[test]
fn a_selector_may_match_what_is_not_described_yet() {
    let bare = |engine, unit: Option<&str>, pod_uid: Option<&str>| {
        Container::new(Identity {
            cgroup: "/x".to_owned(),
            engine,
            id: unit.is_none().then(|| "1".to_owned()),
            name: None,
            pod_uid: pod_uid.map(str::to_owned),
            unit: unit.map(str::to_owned),
        })
    };
    let container = Selector::Container("web".to_owned());
    let pod = Selector::Pod {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
    };
    let unit = Selector::Unit("nginx".to_owned());
    let docker = bare(Engine::Docker, None, None);
    let in_pod = bare(Engine::Containerd, None, Some("uid"));
    let service = bare(Engine::Systemd, Some("x.service"), None);
    let named = |container: &Container| Container {
        name: Some("db".to_owned()),
        ..container.clone()
    };
    assert!(may_match(&container, &docker) && may_match(&container, &in_pod));
    assert!(!may_match(&container, &named(&docker)) && !may_match(&container, &service));
    assert!(may_match(&pod, &in_pod) && may_match(&pod, &named(&in_pod)));
    assert!(!may_match(&pod, &docker) && !may_match(&pod, &service));
    assert!(!may_match(&unit, &docker) && !may_match(&unit, &service));
}
