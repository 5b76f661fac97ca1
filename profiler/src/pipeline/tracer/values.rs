//! Arguments and results of traced functions: what is fetched, and how it is read.
//!
//! An object's debug information -> fetches of its plans, and [`CallValues`] for the resolver.
//!
//! What does not belong here: signatures themselves (`trace::arguments`).

use std::sync::Arc;

use profiler_model::Value;
use profiler_object::Object;
use profiler_resolve::Role;
use profiler_trace::arguments::{Signature, Signatures};
use profiler_trace::{CallValues, Exits, FunctionKind, Plan};
use serde::{Deserialize, Serialize};

/// Finds out what the values of functions are, if they are wanted; of text so many bytes.
pub(super) fn sign(
    longest: Option<usize>,
    object: &Object,
    plans: &mut [(Plan, Role)],
) -> Vec<Option<Arc<Values>>> {
    let Some(longest) = longest else {
        return vec![None; plans.len()];
    };
    let mut signatures = Signatures::open(|name| object.section(name));
    let mut found = Vec::with_capacity(plans.len());
    for (plan, role) in plans {
        if *role != Role::Call {
            found.push(None);
            continue;
        }
        let function = &plan.function;
        let signature = match &function.kind {
            FunctionKind::Marker { arguments, .. } => {
                Signature::of_marker(&function.name, arguments)
            }
            FunctionKind::Function => {
                let linkage = function.linkage_name.as_deref().unwrap_or(&function.name);
                let known = signatures
                    .as_mut()
                    .and_then(|signatures| signatures.signature(function.address, linkage));
                known.unwrap_or_else(Signature::registers)
            }
        };
        let mut signature = signature;
        signature.limit_text(longest);
        plan.fetches = signature.fetches.clone();
        if matches!(plan.exits, Exits::None(_)) {
            plan.fetches.retain(|fetch| fetch.at_exit == 0);
        }
        found.push(Some(Arc::new(Values { signature, longest })));
    }
    found
}

/// The values of a function, as the resolver reads them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Values {
    signature: Signature,
    longest: usize,
}

impl CallValues for Values {
    fn parameters(&self) -> Vec<(String, Option<String>)> {
        let parameters = self.signature.parameters.iter();
        parameters
            .map(|parameter| (parameter.name.to_string(), Some(parameter.kind.to_string())))
            .collect()
    }

    fn result(&self) -> Option<String> {
        // Of what is known not to have one that is said too.
        let result = self.signature.result.as_ref();
        Some(result.map_or("void".to_owned(), |result| result.kind.to_string()))
    }

    fn decode(&self, items: &[u8], at_exit: bool) -> Vec<Value> {
        self.signature.decode(items, at_exit, self.longest)
    }
}
