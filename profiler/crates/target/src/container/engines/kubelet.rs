//! What Kubernetes' node agent leaves in names: pods and containers without asking anybody.
//!
//! `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log` and `/var/log/pods/NAMESPACE_POD_UID` -> names
//! by id and by uid. Both can be listed by anybody.
//!
//! What does not belong here: images, which no name has.

use std::collections::HashMap;

use super::Facts;
use super::files::Root;

/// What names of files tell.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// By the container's id.
    pub(super) containers: HashMap<String, Facts>,
    /// By the pod's uid.
    pub(super) pods: HashMap<String, Facts>,
}

impl Kubelet {
    pub(super) fn read(root: &Root) -> Kubelet {
        let containers = root.names(&root.join("/var/log/containers"));
        let pods = root.names(&root.join("/var/log/pods"));
        Kubelet {
            containers: containers.iter().filter_map(|name| log(name)).collect(),
            pods: pods.iter().filter_map(|name| pod(name)).collect(),
        }
    }
}

/// `POD_NAMESPACE_CONTAINER-ID.log`: none of the names has an underscore.
fn log(name: &str) -> Option<(String, Facts)> {
    let (pod, rest) = name.strip_suffix(".log")?.split_once('_')?;
    let (namespace, rest) = rest.split_once('_')?;
    let (container, id) = rest.rsplit_once('-')?;
    let facts = Facts {
        name: Some(container.to_owned()),
        pod: Some(pod.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..Facts::default()
    };
    (id.len() == 64).then(|| (id.to_owned(), facts))
}

/// `NAMESPACE_POD_UID`.
fn pod(name: &str) -> Option<(String, Facts)> {
    let (namespace, rest) = name.split_once('_')?;
    let (pod, uid) = rest.rsplit_once('_')?;
    let facts = Facts {
        pod: Some(pod.to_owned()),
        namespace: Some(namespace.to_owned()),
        pod_uid: Some(uid.to_owned()),
        ..Facts::default()
    };
    Some((uid.to_owned(), facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs_and_pods() {
        let id = "a".repeat(64);
        let (found, facts) = log(&format!("web-0_prod_nginx-main-{id}.log")).unwrap();
        assert_eq!(found, id);
        let shown = (facts.name, facts.pod, facts.namespace);
        let expected = ["nginx-main", "web-0", "prod"].map(|text| Some(text.to_owned()));
        assert_eq!(shown, expected.into());
        let (uid, facts) = pod("prod_web-0_6f4f6ae2").unwrap();
        assert_eq!(
            (uid.as_str(), facts.pod.as_deref()),
            ("6f4f6ae2", Some("web-0"))
        );
        for name in ["", "_", "__", "a_b_c.log", "a_b_c-d.log", "a_b"] {
            assert!(log(name).is_none(), "{name}");
        }
        assert!(pod("a").is_none());
        assert!(pod("a_b").is_none());
    }
}
