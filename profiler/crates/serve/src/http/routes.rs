//! Requests -> what the agent is asked, and its answers -> responses.
//!
//! Who asks is whoever owns the peer's socket; who is on another machine must show the token, and is the user who runs the
//! server then. A page may ask only from an origin that was allowed, and only by a name of this machine, so that no name
//! that somebody else gives to its address gets a page in. Nothing is changed by GET. The description for programs is
//! `openapi.json`. What does not belong here: what becomes of sessions (`agent`).

use std::net::IpAddr;
use std::time::Instant;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode, Version};
use serde_json::{Value, json};

use profiler_model::{Pid, Tid};
use profiler_wire::self_profiling::{Error, ErrorName};

use super::agent::{Agent, Answer, Later, Ticket};
use super::body::{self, Answered};
use super::network::{Peer, Serving};
use super::script;
use crate::admission::is_same_token;

const JSON: &str = "application/json";
const OPENAPI: &str = include_str!("openapi.json");

/// What an answer is.
enum Answering {
    Json(StatusCode, Vec<u8>),
    Text(&'static str, String),
    Events(Answered),
    Nothing,
    /// What can be done to it; whether that was asked, by a page that may.
    Methods(&'static str, Asked),
}

/// Why methods are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Another one was tried.
    Wrongly,
    /// By OPTIONS.
    Plainly,
    /// By a page, before it asks something else.
    ByPage,
}

/// Somebody who was admitted.
struct Client {
    user: u32,
    /// The origin of its page, if that may ask.
    origin: Option<String>,
}

/// Answers one request.
pub(super) async fn answer(
    serving: &Serving,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<Answered> {
    serving.change(|agent| agent.summary().requests += 1);
    let origin = allowed_origin(serving, request.headers());
    let mut response = match client(serving, peer, &request) {
        Ok(client) => {
            let answering = match route(serving, &client, request).await {
                Ok(answering) => answering,
                Err(refused) => refused,
            };
            respond(answering)
        }
        Err(error) => respond(failed(&error)),
    };
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::CACHE_CONTROL, "no-store");
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(header::VARY, "Origin");
    match origin {
        Some(origin) => {
            put(header::ACCESS_CONTROL_ALLOW_ORIGIN, &origin);
            let policy = HeaderName::from_static("cross-origin-resource-policy");
            put(policy, "cross-origin");
        }
        None => {
            let policy = HeaderName::from_static("cross-origin-resource-policy");
            put(policy, "same-origin");
        }
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer, Basic realm=\"profiler\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    response
}

/// What a client hears that is not admitted.
pub(super) fn refusal(reason: &str) -> Response<Answered> {
    respond(failed(&Error::new(ErrorName::NotAllowedError, reason)))
}

/// Who asks, if it may.
fn client(serving: &Serving, peer: Peer, request: &Request<Incoming>) -> Result<Client, Error> {
    let headers = request.headers();
    let denied = |text: String| Err(Error::new(ErrorName::NotAllowedError, text));
    let hosts = hosts(request)?;
    // A name that somebody else gives to this address is none that the certificate has.
    if let Some(local) = peer.local.filter(|_| !peer.is_encrypted) {
        let is_foreign = |host: &&&str| !is_own_name(host, local.ip(), &serving.options.origins);
        if hosts.iter().any(|host| host.is_empty()) {
            // HTTP/1.0 need not have one.
            let text = "the request has no Host";
            return Err(Error::new(ErrorName::TypeError, text));
        }
        if let Some(host) = hosts.iter().find(is_foreign) {
            let by = match local.ip().is_loopback() {
                true => "'localhost'".to_owned(),
                false => format!("'{}'", local.ip()),
            };
            return denied(format!(
                "'{host}' is no name of this server here: ask it by {by}"
            ));
        }
    }
    let origin = text(headers, header::ORIGIN);
    let allowed = allowed_origin(serving, headers);
    if let Some(origin) = origin.filter(|_| allowed.is_none())
        && !is_own_origin(origin, hosts.first().copied())
    {
        return denied(format!(
            "pages of {origin} may not ask; --allow-origin admits them"
        ));
    }
    // Browsers say so of scripts and pictures, too, which have no origin.
    let site = headers
        .get("sec-fetch-site")
        .and_then(|site| site.to_str().ok());
    if matches!(site, Some("cross-site" | "same-site")) && allowed.is_none() {
        return denied("pages of other origins may not ask; --allow-origin admits them".to_owned());
    }
    let user = match peer.uid {
        Some(uid) => uid,
        None => rustix::process::getuid().as_raw(),
    };
    // A preflight has no credentials.
    let is_preflight = request.method() == Method::OPTIONS;
    let must_show = peer.uid.is_none() && !is_preflight;
    let shown = || super::script::shown_token(text(headers, header::AUTHORIZATION)?);
    match &serving.options.token {
        Some(token) if must_show && !shown().is_some_and(|shown| is_same_token(&shown, token)) => {
            denied(UNAUTHORIZED.to_owned())
        }
        None if must_show => denied("clients of other machines need a token".to_owned()),
        _ => Ok(Client {
            user,
            origin: allowed,
        }),
    }
}

/// Whom a request is for: what its line says, if it has a whole address, and its Host. Of two that differ somebody on the
/// way may have understood the other one.
fn hosts(request: &Request<Incoming>) -> Result<Vec<&str>, Error> {
    let malformed = |text: &str| Err(Error::new(ErrorName::TypeError, text));
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = named.next().map(HeaderValue::to_str);
    match (&host, named.next()) {
        (_, Some(_)) => return malformed("a request has one Host"),
        (Some(Err(_)), None) => return malformed("its Host is no text"),
        (None, None) if request.version() >= Version::HTTP_11 => {
            return malformed("the request has no Host");
        }
        _ => {}
    }
    let host = host.and_then(Result::ok);
    let whole = request.uri().authority().map(Authority::as_str);
    let hosts: Vec<&str> = whole.into_iter().chain(host).collect();
    Ok(if hosts.is_empty() { vec![""] } else { hosts })
}

const UNAUTHORIZED: &str = "the token is missing or wrong: it was printed when the server started";

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The origin of a request, if its pages may ask.
fn allowed_origin(serving: &Serving, headers: &HeaderMap) -> Option<String> {
    let origin = text(headers, header::ORIGIN)?;
    let mut allowed = serving.options.origins.iter();
    allowed.any(|it| it == origin).then(|| origin.to_owned())
}

/// Whether a page was served by this very server.
fn is_own_origin(origin: &str, host: Option<&str>) -> bool {
    let authority = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    authority.is_some() && authority == host
}

/// Whether `host` names the address that was connected to, or a host whose pages are let in.
fn is_own_name(host: &str, local: IpAddr, origins: &[String]) -> bool {
    let local = local.to_canonical();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address == local || (address.is_loopback() && local.is_loopback());
    }
    let is_of_origin = |origin: &String| {
        let authority = origin
            .split_once("://")
            .map_or("", |(_, authority)| authority);
        authority
            .rsplit_once(':')
            .map_or(authority, |(name, _)| name)
            == name
    };
    (name.eq_ignore_ascii_case("localhost") && local.is_loopback())
        || (!local.is_loopback() && origins.iter().any(is_of_origin))
}

async fn route(
    serving: &Serving,
    client: &Client,
    request: Request<Incoming>,
) -> Result<Answering, Answering> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let method = request.method().clone();
    let user = client.user;
    let now = Instant::now();
    let give = |result: Result<Value, Error>| match result {
        Ok(value) => Ok(Answering::Json(StatusCode::OK, value.to_string().into())),
        Err(error) => Err(failed(&error)),
    };
    let Some(methods) = methods(&parts) else {
        return Err(failed(&Error::new(
            ErrorName::NotFoundError,
            "there is no such path; /openapi.json has all there are",
        )));
    };
    if method == Method::OPTIONS {
        let asked = match client.origin {
            Some(_) => Asked::ByPage,
            None => Asked::Plainly,
        };
        return Ok(Answering::Methods(methods, asked));
    }
    let method = match method {
        // Of an answer to it the body is left out.
        Method::HEAD => "GET",
        _ => method.as_str(),
    };
    match (method, parts.as_slice()) {
        ("GET", ["openapi.json"]) => Ok(Answering::Text(JSON, OPENAPI.to_owned())),
        ("GET", ["profiler.js"]) => {
            let query = request.uri().query();
            let script = serving.change(|agent| script::of(agent, user, query));
            Ok(Answering::Text("text/javascript; charset=utf-8", script))
        }
        ("GET", ["clock"]) => give(Ok(json!({ "now": serving.change(|agent| agent.clock()) }))),
        ("GET", ["events"]) => {
            let context = in_query(request.uri().query(), "context").unwrap_or_default();
            let events = serving.change(|agent| agent.listen_to_context(user, context));
            let events = events.map_err(|error| failed(&error))?;
            Ok(Answering::Events(Answered::events(events)))
        }
        ("GET", ["session"]) => give(Ok(serving.change(|agent| agent.list(user)))),
        ("POST", ["session"]) => create(serving, user, request).await,
        ("GET", ["session", id]) => give(serving.change(|agent| agent.state(user, id, now))),
        ("DELETE", ["session", id]) => {
            let discarded = serving.change(|agent| agent.discard(user, id, now));
            discarded
                .map(|()| Answering::Nothing)
                .map_err(|it| failed(&it))
        }
        ("GET", ["session", id, "events"]) => {
            let events = serving.change(|agent| agent.listen(user, id, now));
            let events = events.map_err(|error| failed(&error))?;
            Ok(Answering::Events(Answered::events(events)))
        }
        ("POST", ["session", id, "pause"]) => {
            give(serving.change(|agent| agent.pause(user, id, now)))
        }
        ("POST", ["session", id, "resume"]) => {
            give(serving.change(|agent| agent.resume(user, id, now)))
        }
        ("POST", ["session", id, "stop"]) => {
            let as_of = as_of(request.uri().query()).map_err(|error| failed(&error))?;
            let ticket = serving.change(|agent| agent.stop(user, id, as_of, now));
            let ticket = ticket.map_err(|error| failed(&error))?;
            let _awaited = Awaited(serving, &ticket);
            let trace = later(serving, |agent, now| agent.trace(&ticket, now)).await;
            let trace = trace.map_err(|error| failed(&error))?;
            Ok(Answering::Json(StatusCode::OK, trace))
        }
        ("POST", ["session", id, "forcesample"]) => {
            let forcing = serving.change(|agent| agent.force(user, id, now));
            let mut forcing = forcing.map_err(|error| failed(&error))?;
            let forced = |agent: &mut Agent, now| agent.forced(&mut forcing, now).map(Ok);
            later(serving, forced)
                .await
                .map_err(|error| failed(&error))?;
            give(Ok(json!({ "value": null })))
        }
        _ => Err(Answering::Methods(methods, Asked::Wrongly)),
    }
}

/// Whether a Content-Type is that of JSON, in capitals or not, with parameters or without.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(JSON)
}

/// What can be done to a path; none if there is no such path.
fn methods(parts: &[&str]) -> Option<&'static str> {
    match parts {
        ["openapi.json" | "profiler.js" | "clock" | "events"] => Some("GET, HEAD, OPTIONS"),
        ["session"] => Some("GET, HEAD, POST, OPTIONS"),
        ["session", _] => Some("GET, HEAD, DELETE, OPTIONS"),
        ["session", _, "events"] => Some("GET, HEAD, OPTIONS"),
        ["session", _, "pause" | "resume" | "stop" | "forcesample"] => Some("POST, OPTIONS"),
        _ => None,
    }
}

async fn create(
    serving: &Serving,
    user: u32,
    request: Request<Incoming>,
) -> Result<Answering, Answering> {
    let wrong = |text: &str| failed(&Error::new(ErrorName::TypeError, text));
    // What forms of foreign pages can send is something else.
    if !text(request.headers(), header::CONTENT_TYPE).is_some_and(is_json) {
        return Err(wrong("the body's Content-Type is not application/json"));
    }
    let bytes = body::read(request.into_body(), serving.options.limits.body_bytes).await;
    let bytes = bytes.map_err(|error| failed(&error))?;
    let body: Value = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(&format!("the body is no JSON: {error}")))?;
    let _expecting = Expecting::new(serving);
    let since = Instant::now();
    let create = |agent: &mut Agent, now| agent.create(user, &body, since, now);
    let about = later(serving, create)
        .await
        .map_err(|error| failed(&error))?;
    Ok(Answering::Json(
        StatusCode::CREATED,
        about.to_string().into(),
    ))
}

/// As long as this lives somebody waits for what there is.
struct Expecting<'s>(&'s Serving);

impl Expecting<'_> {
    fn new(serving: &Serving) -> Expecting<'_> {
        serving.change(|agent| agent.expect(true));
        Expecting(serving)
    }
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.0.change(|agent| agent.expect(false));
    }
}

/// As long as this lives somebody waits for a trace.
struct Awaited<'s>(&'s Serving, &'s Ticket);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.change(|agent| agent.forget(self.1));
    }
}

/// Asks until there is an answer.
async fn later<T>(
    serving: &Serving,
    mut ask: impl FnMut(&mut Agent, Instant) -> Answer<T>,
) -> Result<T, Error> {
    loop {
        let changed = serving.changed.notified();
        match serving.change(|agent| ask(agent, Instant::now())) {
            Ok(answer) => return answer,
            Err(Later) if serving.is_closing.get() => {
                return Err(Error::new(ErrorName::OperationError, "the server ends"));
            }
            Err(Later) => changed.await,
        }
    }
}

fn failed(error: &Error) -> Answering {
    let status = match error.message == UNAUTHORIZED {
        true => StatusCode::UNAUTHORIZED,
        false => StatusCode::from_u16(error.name.status()).unwrap_or(StatusCode::BAD_REQUEST),
    };
    Answering::Json(status, serde_json::to_vec(error).unwrap_or_default())
}

fn respond(answering: Answering) -> Response<Answered> {
    let (status, kind, body) = match answering {
        Answering::Json(status, json) => (status, Some(JSON), Answered::whole(json)),
        Answering::Text(kind, text) => (StatusCode::OK, Some(kind), Answered::whole(text)),
        Answering::Events(events) => (StatusCode::OK, Some("text/event-stream"), events),
        Answering::Nothing => (StatusCode::NO_CONTENT, None, Answered::whole(Bytes::new())),
        Answering::Methods(methods, asked) => return tell_methods(methods, asked),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(kind) = kind {
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

fn tell_methods(methods: &'static str, asked: Asked) -> Response<Answered> {
    let mut response = match asked {
        Asked::Wrongly => {
            let text = format!("what can be done to it is {methods}");
            respond(failed(&Error::new(ErrorName::NotSupportedError, text)))
        }
        Asked::Plainly | Asked::ByPage => respond(Answering::Nothing),
    };
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, HeaderValue::from_static(methods));
    if asked == Asked::ByPage {
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, methods),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "Content-Type, Authorization",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
            (
                HeaderName::from_static("access-control-allow-private-network"),
                "true",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

/// When a session was stopped, in nanoseconds, if a query says so.
fn as_of(query: Option<&str>) -> Result<Option<u64>, Error> {
    let Some(at) = in_query(query, "at") else {
        return Ok(None);
    };
    let ms = at.parse::<f64>().ok().filter(|ms| ms.is_finite());
    let Some(ms) = ms else {
        let text = "at is no time in milliseconds";
        return Err(Error::new(ErrorName::TypeError, text));
    };
    // What was before all there is is cut off there.
    Ok(Some((ms * 1e6) as u64))
}

fn in_query<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    let mut pairs = query.unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The process or thread that a query names.
pub(super) fn target_of(query: Option<&str>) -> (Option<Pid>, Option<Tid>) {
    let number = |name: &str| in_query(query, name)?.parse::<u32>().ok();
    (number("pid").map(Pid), number("tid").map(Tid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_machine_are_its_own() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let other: IpAddr = "10.0.0.7".parse().unwrap();
        let origins = ["https://app.example:8443".to_owned()];
        for (host, local, expected) in [
            ("127.0.0.1:8977", loopback, true),
            ("127.0.0.1", loopback, true),
            ("127.9.9.9:1", loopback, true),
            ("localhost:8977", loopback, true),
            ("LOCALHOST", loopback, true),
            ("[::1]:8977", loopback, true),
            ("[::ffff:127.0.0.1]:1", loopback, true),
            ("evil.example:8977", loopback, false),
            ("127.0.0.1.evil.example", loopback, false),
            ("app.example:8443", loopback, false),
            ("", loopback, false),
            ("10.0.0.7:80", loopback, false),
            ("10.0.0.7:80", other, true),
            ("localhost", other, false),
            ("127.0.0.1", other, false),
            ("app.example", other, true),
            ("evil.example", other, false),
        ] {
            assert_eq!(
                is_own_name(host, local, &origins),
                expected,
                "{host} at {local}"
            );
        }
    }

    #[test]
    fn a_content_type_is_compared_as_it_is_defined() {
        for kind in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            " application/json ;charset=UTF-8",
        ] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in ["", "text/plain", "application/jsonp", "x;application/json"] {
            assert!(!is_json(kind), "{kind}");
        }
    }

    #[test]
    fn pages_of_the_server_itself_are_its_own() {
        assert!(is_own_origin("http://localhost:1", Some("localhost:1")));
        for (origin, host) in [
            ("http://localhost:1", Some("localhost:2")),
            ("http://evil", Some("localhost:1")),
            ("null", Some("null")),
            ("http://localhost:1", None),
        ] {
            assert!(!is_own_origin(origin, host), "{origin} {host:?}");
        }
    }

    #[test]
    fn targets_are_read_of_queries() {
        assert_eq!(target_of(Some("a=1&pid=7")), (Some(Pid(7)), None));
        assert_eq!(target_of(Some("tid=8&pid=x")), (None, Some(Tid(8))));
        assert_eq!(target_of(None), (None, None));
    }
}
