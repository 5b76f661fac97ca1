//! `profiler.js`: the document's own interface for a page, in one file, with what its constructor has to know at once.
//!
//! A user, and the process that the page names in its query -> the script. Also what a header of authorization shows. What
//! does not belong here: what the script does (`profiler.js`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::agent::Agent;
use super::routes::target_of;

const SCRIPT: &str = include_str!("profiler.js");
/// What is replaced by what the server says.
const SERVED: &str = "/* served */ {}";

/// The script as this user gets it.
pub(super) fn of(agent: &mut Agent, user: u32, query: Option<&str>) -> String {
    let mut served = agent.served(user);
    let (pid, tid) = target_of(query);
    if let Some(pid) = pid {
        served["target"] = serde_json::json!({ "pid": pid.0 });
        // Of somebody who is not known yet the session will tell.
        if agent.is_allowed(user, pid) == Some(false) {
            served["jsProfiling"] = false.into();
        }
    } else if let Some(tid) = tid {
        served["target"] = serde_json::json!({ "tid": tid.0 });
    }
    SCRIPT.replacen(SERVED, &served.to_string(), 1)
}

/// `Bearer TOKEN`, or `Basic` with the token as the password.
pub(super) fn shown_token(authorization: &str) -> Option<String> {
    let (kind, shown) = authorization.trim().split_once(' ')?;
    let shown = shown.trim();
    if kind.eq_ignore_ascii_case("bearer") {
        return Some(shown.to_owned());
    }
    if !kind.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(shown).ok()?).ok()?;
    let (_, password) = decoded.split_once(':')?;
    Some(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_has_its_place() {
        assert_eq!(SCRIPT.matches(SERVED).count(), 1);
    }

    #[test]
    fn a_token_is_a_bearer_or_a_password() {
        let shown = |text: &str| shown_token(text);
        assert_eq!(shown("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(shown("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(shown("Basic dXNlcjphYmM6ZA==").as_deref(), Some("abc:d"));
        for other in ["", "abc", "Basic !!", "Basic YWJj", "Digest abc"] {
            assert_eq!(shown(other), None, "{other}");
        }
    }
}
