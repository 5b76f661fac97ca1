//! What containerd says of its containers.
//!
//! The services `containers.v1` and `namespaces.v1` behind its socket -> facts by ids. Messages have only the
//! fields that are needed; numbers are those of containerd's .proto files.
//!
//! What does not belong here: gRPC (`grpc`), Kubernetes' own interface (`cri`), containerd's files.

use std::collections::HashMap;
use std::path::Path;

use super::super::containerd::from_labels;
use super::super::sockets::Sockets;
use super::super::{Facts, files};
use super::grpc;
use crate::container::Engine;

/// Most namespaces that are asked for.
const MAX_NAMESPACES: usize = 64;
/// How many containers one question is about: their specifications come with the answer.
const AT_ONCE: usize = 100;

/// Of containers, by their ids, from the services.
pub(super) fn ask(sockets: &mut Sockets, socket: &Path, ids: &[&str]) -> HashMap<String, Facts> {
    let mut found = HashMap::new();
    let list = "/containerd.services.namespaces.v1.Namespaces/List";
    let Some(namespaces) =
        grpc::call::<_, Namespaces>(sockets, socket, list, None, &Filters::default())
    else {
        return found;
    };
    for namespace in namespaces.namespaces.iter().take(MAX_NAMESPACES) {
        if namespace.name == "moby" || !files::is_plain(&namespace.name) {
            continue;
        }
        for ids in ids.chunks(AT_ONCE) {
            let filters = ids.iter().filter(|id| files::is_plain(id));
            let filters = Filters {
                filters: filters.map(|id| format!("id==\"{id}\"")).collect(),
            };
            if filters.filters.is_empty() {
                // No filter at all would be all of them.
                continue;
            }
            let list = "/containerd.services.containers.v1.Containers/List";
            let namespace = Some(namespace.name.as_str());
            let Some(answer) =
                grpc::call::<_, Containers>(sockets, socket, list, namespace, &filters)
            else {
                return found;
            };
            for container in answer.containers {
                let labels = container.labels.into_iter().collect();
                let mut facts = from_labels(labels, Engine::Containerd);
                let image = Some(container.image).filter(|image| !image.is_empty());
                facts.image = facts.image.or(image);
                found.entry(container.id).or_insert(facts);
            }
        }
    }
    found
}

#[derive(Clone, PartialEq, prost::Message)]
struct Filters {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespaces {
    #[prost(message, repeated, tag = "1")]
    namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Containers {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Listed>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Listed {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    #[prost(string, tag = "3")]
    image: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[test]
    fn listed_containers_survive_a_round_trip() {
        let message = Containers {
            containers: vec![Listed {
                id: "aa".to_owned(),
                labels: [("a".to_owned(), "b".to_owned())].into(),
                image: "nginx".to_owned(),
            }],
        };
        // A field that we don't know, as a specification is.
        let mut bytes = message.encode_to_vec();
        assert_eq!(bytes[..4], [0x0a, bytes[1], 0x0a, 0x02]);
        bytes.extend([0x2a, 0x01, 0x00]);
        assert_eq!(Containers::decode(bytes.as_slice()).unwrap(), message);
    }

    proptest! {
        #[test]
        fn any_message_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Containers::decode(bytes.as_slice());
            let _ = Namespaces::decode(bytes.as_slice());
        }
    }
}
