//! Redfish: what a management controller says of a server's power, over HTTPS.
//!
//! Two resources of the DMTF's schema tell it: the chassis' `EnvironmentMetrics`
//! (`PowerWatts.Reading`, DSP0268 from 2020.4) and the older `Power`
//! (`PowerControl[].PowerConsumedWatts`). Which one answers is found out once.
//!
//! The login comes from the environment and goes to the named host alone: redirects and
//! proxies are not followed. A certificate must be one that the system trusts, unless the
//! user writes `redfish+insecure:`.

use super::{Found, Meter, Pace, Sample};
use crate::meter::Reason;
use base64::engine::general_purpose::STANDARD as BASE64;
use base64::Engine;
use forebay_model::Error;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::Agent;

pub const USER_ENV: &str = "FOREBAY_REDFISH_USER";
pub const PASSWORD_ENV: &str = "FOREBAY_REDFISH_PASSWORD";

const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// For finding out which resource answers.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

const BODY_BYTES_MAX: u64 = 1 << 20;

/// Enclosures, sleds and backplanes count as chassis too.
const CHASSIS_MAX: usize = 32;

const CHASSIS: &str = "/redfish/v1/Chassis";

/// Address of a controller, and the trust in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `https://host[:port]`.
    base: String,
    /// Accept any certificate.
    insecure: bool,
}

impl Address {
    /// `HOST[:PORT]`, or with a scheme, `http://127.0.0.1:8000`.
    pub fn parse(text: &str, insecure: bool) -> Result<Address, Error> {
        let kind = if insecure { "redfish+insecure" } else { "redfish" };
        let bad = |found: &str, next: String| Error::request(format!("‹power› {kind}:{text}"), found, next);
        if text.contains('@') {
            let next = format!("redfish:HOST with {USER_ENV} and {PASSWORD_ENV} in the environment");
            return Err(Error::request("‹power›", "a login in a meter's name, which records keep", next));
        }
        let whole = if text.contains("://") { text.to_string() } else { format!("https://{text}") };
        let example = || "redfish:HOST, redfish:HOST:PORT or redfish:[IPV6]:PORT".to_string();
        let uri: Uri = whole.parse().map_err(|_| bad("not a host", example()))?;
        let authority =
            uri.authority().filter(|a| !a.host().is_empty()).ok_or_else(|| bad("no host", example()))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad("a path after the host, which is discovered automatically", example()));
        }
        let loopback = matches!(authority.host(), "127.0.0.1" | "localhost" | "[::1]");
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if loopback || insecure => {}
            Some("http") => {
                let next = format!("redfish:{authority}, or redfish+insecure:{text} if that is acceptable");
                return Err(bad("plain HTTP, which shows the login to the network", next));
            }
            _ => return Err(bad("neither http nor https", example())),
        }
        let scheme = uri.scheme_str().unwrap_or("https");
        Ok(Address { base: format!("{scheme}://{authority}"), insecure })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

/// User and password, if any. Not printable on purpose.
pub struct Login(Option<(String, String)>);

impl Login {
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Login {
        Login(Some((user.into(), password.into())))
    }

    pub fn none() -> Login {
        Login(None)
    }

    pub(crate) fn from_env() -> Result<Login, Reason> {
        match (std::env::var(USER_ENV).ok(), std::env::var(PASSWORD_ENV).ok()) {
            (Some(user), Some(password)) => Ok(Login::new(user, password)),
            (None, None) => Ok(Login::none()),
            (Some(_), None) => Err(format!("{USER_ENV} is set and {PASSWORD_ENV} isn't")),
            (None, Some(_)) => Err(format!("{PASSWORD_ENV} is set and {USER_ENV} isn't")),
        }
    }

    fn header(&self) -> Option<String> {
        let (user, password) = self.0.as_ref()?;
        Some(format!("Basic {}", BASE64.encode(format!("{user}:{password}"))))
    }
}

impl Address {
    /// Asks the controller for its chassis, and each of these for its power.
    pub fn open(&self, login: Login) -> Result<Found, Reason> {
        let controller = Arc::new(Controller::new(self, &login));
        let until = Instant::now() + OPEN_LIMIT;
        let members =
            parse_members(&controller.get(CHASSIS)?).map_err(|found| format!("{CHASSIS}: {found}"))?;
        let mut found = Found { meters: Vec::new(), refused: Vec::new() };
        let mut chosen = Vec::new();
        for member in members {
            if Instant::now() > until {
                return Err(format!("{self} took more than {} s to list its chassis", OPEN_LIMIT.as_secs()));
            }
            match controller.resource_of(&member) {
                Ok(resource) => chosen.push((member, resource)),
                Err(reason) => found.refused.push((format!("redfish:{}", last_segment(&member)), reason)),
            }
        }
        // One chassis is the server. Of several each stands for itself, since one may hold others.
        let single = chosen.len() == 1;
        if single {
            found.refused.clear();
        }
        for (member, resource) in chosen {
            let scope = match single {
                true => "server".to_string(),
                false => format!("server/{}", last_segment(&member)),
            };
            found.meters.push(Box::new(Chassis { controller: Arc::clone(&controller), scope, resource }));
        }
        Found::or_reason(found, "the controller lists no chassis")
    }
}

struct Chassis {
    controller: Arc<Controller>,
    scope: String,
    /// The resource that tells the power.
    resource: String,
}

impl Meter for Chassis {
    fn source(&self) -> &'static str {
        "redfish"
    }

    fn scope(&self) -> &str {
        &self.scope
    }

    fn sample(&mut self) -> Result<Sample, Reason> {
        let body = self.controller.get(&self.resource)?;
        parse_watts(&body).map(Sample::Watts).map_err(|found| format!("{}: {found}", self.resource))
    }

    fn pace(&self) -> Pace {
        Pace::Slow(Duration::from_secs(1))
    }
}

struct Controller {
    agent: Agent,
    base: String,
    authorization: Option<String>,
}

impl Controller {
    fn new(address: &Address, login: &Login) -> Controller {
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(system_roots(address))
            .disable_verification(address.insecure)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(REQUEST_LIMIT))
            .user_agent("forebay")
            .build()
            .new_agent();
        Controller { agent, base: address.base.clone(), authorization: login.header() }
    }

    /// The JSON at `path`, which begins with a slash.
    fn get(&self, path: &str) -> Result<Value, Reason> {
        let url = format!("{}{path}", self.base);
        let mut request =
            self.agent.get(&url).header("Accept", "application/json").header("OData-Version", "4.0");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut response = request.call().map_err(|e| unreachable_because(&url, &e))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(refused_because(&url, status, self.authorization.is_some()));
        }
        let body = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_vec();
        let body = body.map_err(|e| match e {
            ureq::Error::BodyExceedsLimit(limit) => format!("{url}: more than {limit} bytes of answer"),
            e => unreachable_because(&url, &e),
        })?;
        serde_json::from_slice(&body).map_err(|e| format!("{url}: not JSON: {e}"))
    }

    /// The resource of a chassis that tells a power.
    fn resource_of(&self, member: &str) -> Result<String, Reason> {
        let chassis = self.get(member)?;
        let mut reason = "it links neither to Power nor to EnvironmentMetrics".to_string();
        for name in ["EnvironmentMetrics", "Power"] {
            let Some(path) = chassis.get(name).and_then(parse_link) else { continue };
            match self.get(&path).and_then(|body| parse_watts(&body)) {
                Ok(_) => return Ok(path),
                Err(found) => reason = found,
            }
        }
        Err(reason)
    }
}

/// Returns the system's trusted roots: a site signs its controllers' certificates with a root of its own, which no
/// list that comes with a program has. SSL_CERT_FILE and SSL_CERT_DIR apply.
fn system_roots(address: &Address) -> RootCerts {
    let needed = address.base.starts_with("https:") && !address.insecure;
    let loaded = if needed { rustls_native_certs::load_native_certs().certs } else { Vec::new() };
    RootCerts::from(loaded.iter().map(|der| Certificate::from_der(der).to_owned()).collect::<Vec<_>>())
}

fn unreachable_because(url: &str, error: &ureq::Error) -> Reason {
    let text = error.to_string();
    match text.contains("ertificate") || text.contains("UnknownIssuer") {
        true => format!("{url}: {text}; for a self-signed certificate, write redfish+insecure:HOST"),
        false => format!("{url}: {text}"),
    }
}

fn refused_because(url: &str, status: u16, with_login: bool) -> Reason {
    match status {
        401 | 403 if with_login => format!("{url}: status {status}; the login of {USER_ENV} isn't accepted"),
        401 | 403 => format!("{url}: status {status}; set {USER_ENV} and {PASSWORD_ENV}"),
        300..=399 => format!("{url}: status {status}; redirects are not followed, name the host it leads to"),
        404 => format!("{url}: status 404; is this a Redfish service?"),
        _ => format!("{url}: status {status}"),
    }
}

/// The members of a collection, by their paths.
pub(crate) fn parse_members(collection: &Value) -> Result<Vec<String>, Reason> {
    let members = collection.get("Members").and_then(Value::as_array).ok_or("no Members in the answer")?;
    Ok(members.iter().filter_map(parse_link).take(CHASSIS_MAX).collect())
}

/// The path that a link leads to, on the same host. Anything else is no link to us: a
/// controller must not send our login elsewhere.
pub(crate) fn parse_link(link: &Value) -> Option<String> {
    let path = link.get("@odata.id")?.as_str()?;
    let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'#' | b'?' | b'\\'));
    (path.starts_with('/') && !path.starts_with("//") && plain && path.len() <= 512).then(|| path.to_string())
}

/// The watts in an EnvironmentMetrics or a Power resource. Of several PowerControl entries
/// the first is the whole; those after it (CPU, memory) are parts of it.
pub(crate) fn parse_watts(body: &Value) -> Result<f64, Reason> {
    let environment = body.pointer("/PowerWatts/Reading");
    let control = body.get("PowerControl").and_then(Value::as_array).and_then(|entries| {
        let whole = entries.iter().find(|entry| entry.get("MemberId").and_then(Value::as_str) == Some("0"));
        whole.or(entries.first())?.get("PowerConsumedWatts")
    });
    let value = environment.or(control).ok_or("neither PowerWatts nor PowerControl in the answer")?;
    let watts = value.as_f64().filter(|watts| watts.is_finite() && *watts > 0.0);
    watts.ok_or_else(|| format!("its power reads {}", value.to_string().chars().take(40).collect::<String>()))
}

fn last_segment(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn addresses_as_users_write_them() {
        let base = |text: &str, insecure| Address::parse(text, insecure).map(|a| a.to_string());
        assert_eq!(base("bmc-7", false).unwrap(), "https://bmc-7");
        assert_eq!(base("bmc-7:8443", false).unwrap(), "https://bmc-7:8443");
        assert_eq!(base("[fe80::1]:443", false).unwrap(), "https://[fe80::1]:443");
        assert_eq!(base("http://127.0.0.1:8000", false).unwrap(), "http://127.0.0.1:8000");
        assert_eq!(base("http://bmc-7/", true).unwrap(), "http://bmc-7");
        for (text, found) in [
            ("", "not a host"),
            ("http://bmc-7", "plain HTTP"),
            ("ftp://bmc-7", "neither http"),
            ("bmc-7/redfish", "path after"),
            ("root:calvin@bmc-7", "a login in"),
        ] {
            let error = base(text, false).unwrap_err();
            assert!(error.found.contains(found), "{text}: {error}");
            assert!(!error.to_string().contains("calvin"), "a password must not be repeated");
        }
    }

    #[test]
    fn watts_as_controllers_say_them() {
        let power = json!({"PowerControl": [
            {"MemberId": "0", "Name": "Server Power Control", "PowerConsumedWatts": 312},
            {"MemberId": "1", "Name": "CPU Sub-system Power", "PowerConsumedWatts": 140}]});
        assert_eq!(parse_watts(&power), Ok(312.0));
        let metrics = json!({"PowerWatts": {"DataSourceUri": "/redfish/v1/x", "Reading": 374.5}});
        assert_eq!(parse_watts(&metrics), Ok(374.5));
        let unknown = json!({"PowerControl": [{"PowerConsumedWatts": null}]});
        assert_eq!(parse_watts(&unknown), Err("its power reads null".into()));
        assert!(parse_watts(&json!({"PowerControl": []})).unwrap_err().contains("neither"));
        assert!(parse_watts(&json!({"PowerWatts": {"Reading": 0}})).unwrap_err().contains("reads 0"));
    }

    #[test]
    fn links_stay_on_the_host() {
        let link = |path: &str| parse_link(&json!({ "@odata.id": path }));
        assert_eq!(link("/redfish/v1/Chassis/1").as_deref(), Some("/redfish/v1/Chassis/1"));
        for elsewhere in ["https://evil/x", "//evil/x", "evil", "/x\r\nHost: evil", "/\\evil", "/ x"] {
            assert_eq!(link(elsewhere), None, "{elsewhere}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let key = prop_oneof![
            Just("Members".to_string()),
            Just("@odata.id".to_string()),
            Just("PowerControl".to_string()),
            Just("PowerConsumedWatts".to_string()),
            Just("PowerWatts".to_string()),
            Just("Reading".to_string()),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..5)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_answer_is_watts_or_a_reason(body in any_json()) {
            if let Ok(watts) = parse_watts(&body) { prop_assert!(watts > 0.0 && watts.is_finite()); }
            if let Ok(members) = parse_members(&body) {
                prop_assert!(members.iter().all(|path| path.starts_with('/')) && members.len() <= CHASSIS_MAX);
            }
        }
    }
}
