//! What an engine tells Kubernetes: the Container Runtime Interface.
//!
//! `runtime.v1.RuntimeService` behind a socket -> names, images and pods by the containers' ids. Messages
//! have only the fields that are needed; numbers are those of `cri-api/pkg/apis/runtime/v1/api.proto`.
//!
//! What does not belong here: gRPC (`grpc`), which sockets there are.

use std::collections::HashMap;
use std::path::Path;

use super::super::Facts;
use super::super::sockets::Sockets;
use super::grpc;
use crate::container::Engine;

/// All containers and pods of an engine.
pub(super) fn ask(sockets: &mut Sockets, socket: &Path, engine: Engine) -> HashMap<String, Facts> {
    let list = "/runtime.v1.RuntimeService/ListPodSandbox";
    let Some(pods) = grpc::call::<_, Pods>(sockets, socket, list, None, &Everything {}) else {
        return HashMap::new();
    };
    let list = "/runtime.v1.RuntimeService/ListContainers";
    let containers = grpc::call::<_, Containers>(sockets, socket, list, None, &Everything {});
    facts(pods, containers.unwrap_or_default(), engine)
}

fn facts(pods: Pods, containers: Containers, engine: Engine) -> HashMap<String, Facts> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut found: HashMap<String, Facts> = HashMap::new();
    for pod in pods.items {
        let metadata = pod.metadata.unwrap_or_default();
        let facts = Facts {
            engine: Some(engine),
            pod: some(&metadata.name),
            namespace: some(&metadata.namespace),
            pod_uid: some(&metadata.uid),
            is_sandbox: true,
            ..Facts::default()
        };
        found.insert(pod.id, facts);
    }
    for container in containers.containers {
        let pod = found.get(&container.pod_sandbox_id).cloned();
        let image = container.image.unwrap_or_default();
        // The reference that the user wrote is worth more than the digest that it was resolved to.
        let names = [
            &image.user_specified_image,
            &image.image,
            &container.image_ref,
        ];
        let is_digest = |name: &&&String| name.starts_with("sha256:");
        let image = names
            .iter()
            .filter(|name| !is_digest(name))
            .find_map(|name| some(name));
        let facts = Facts {
            engine: Some(engine),
            name: container.metadata.and_then(|metadata| some(&metadata.name)),
            image,
            is_sandbox: false,
            ..pod.unwrap_or_default()
        };
        found.insert(container.id, facts);
    }
    found
}

#[derive(Clone, PartialEq, prost::Message)]
struct Everything {}

#[derive(Clone, PartialEq, prost::Message)]
struct Pods {
    #[prost(message, repeated, tag = "1")]
    items: Vec<Pod>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pod {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodMetadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
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
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(string, tag = "5")]
    image_ref: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Image {
    #[prost(string, tag = "1")]
    image: String,
    #[prost(string, tag = "18")]
    user_specified_image: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[test]
    fn containers_have_the_names_of_their_pods() {
        let pods = Pods {
            items: vec![Pod {
                id: "p".to_owned(),
                metadata: Some(PodMetadata {
                    name: "web-0".to_owned(),
                    uid: "6f".to_owned(),
                    namespace: "prod".to_owned(),
                }),
            }],
        };
        let containers = Containers {
            containers: vec![Listed {
                id: "c".to_owned(),
                pod_sandbox_id: "p".to_owned(),
                metadata: Some(Metadata {
                    name: "app".to_owned(),
                }),
                image: Some(Image {
                    image: "sha256:00".to_owned(),
                    user_specified_image: "nginx:1".to_owned(),
                }),
                image_ref: String::new(),
            }],
        };
        let found = facts(pods, containers, Engine::CriO);
        let facts = &found["c"];
        let shown = [&facts.name, &facts.image, &facts.pod, &facts.namespace];
        let shown = shown.map(|text| text.as_deref().unwrap_or_default());
        assert_eq!(shown, ["app", "nginx:1", "web-0", "prod"]);
        assert!(!facts.is_sandbox && found["p"].is_sandbox);
    }

    proptest! {
        #[test]
        fn any_message_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let pods = Pods::decode(bytes.as_slice()).unwrap_or_default();
            let containers = Containers::decode(bytes.as_slice()).unwrap_or_default();
            facts(pods, containers, Engine::CriO);
        }
    }
}
