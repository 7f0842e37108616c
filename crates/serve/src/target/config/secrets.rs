//! Keys of the hosts in a configuration.

use super::Host;
use forebay_model::Error;
use forebay_nvme::auth::psk::{ConfiguredPsk, PskError};
use forebay_nvme::auth::{Credentials, Policy, Secret};
use std::sync::Arc;

/// Returns the credentials of a host of the configuration towards this subsystem. None: it needn't authenticate.
///
/// # Errors
/// Kind `Request`: a key that is none, or a name that is unknown.
pub(in crate::target) fn credentials(
    host: &Host,
    subsystem_nqn: &str,
) -> Result<Option<Arc<Credentials>>, Error> {
    let asked = |field: &str| format!("{field} of {}", host.nqn);
    let key = |field: &str, text: Option<&str>| match text {
        None => Ok(None),
        Some(text) => Secret::parse(text).map(Some).map_err(|e| {
            Error::request(asked(field), e.to_string(), "the line that `nvme gen-dhchap-key` prints")
        }),
    };
    let controller = key("dhchap_ctrl_key", host.dhchap_ctrl_key.as_ref().map(|key| key.reveal()))?;
    let Some(secret) = key("dhchap_key", host.dhchap_key.as_ref().map(|key| key.reveal()))? else {
        return Ok(None);
    };
    let policy = Policy::named(&host.dhchap_hashes, &host.dhchap_groups).map_err(|name| {
        Error::request(
            asked("dhchap_hashes and dhchap_groups"),
            format!("there is no '{name}'"),
            "sha256, ffdhe2048",
        )
    })?;
    Ok(Some(Arc::new(Credentials {
        host_nqn: host.nqn.clone(),
        subsystem_nqn: subsystem_nqn.to_owned(),
        host: secret,
        controller,
        policy,
    })))
}

/// The TLS key of a host of the configuration, where it has one.
///
/// # Errors
/// Kind `Request`: a key that is none.
pub(in crate::target) fn tls_key(host: &Host) -> Result<Option<ConfiguredPsk>, Error> {
    let Some(key) = &host.tls_key else { return Ok(None) };
    let next = "the line that `nvme gen-tls-key` prints";
    let wrong = |e: PskError| Error::request(format!("tls_key of {}", host.nqn), e.to_string(), next);
    ConfiguredPsk::parse(key.reveal()).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    // promise: AUT-5
    #[test]
    fn a_configured_host_authenticates_where_it_has_a_key() {
        let mut host = Host { nqn: "nqn.2014-08.org.example:h".into(), ..Host::default() };
        assert!(credentials(&host, "nqn.s").expect("nothing to be wrong").is_none());
        let secret = |text: &str| serde_json::from_value(serde_json::Value::from(text)).expect("a string");
        host.dhchap_key = Some(secret(SECRET));
        host.dhchap_groups = vec!["null".into()];
        let found = credentials(&host, "nqn.s").expect("a key").expect("it must authenticate");
        assert_eq!(found.policy.groups.len(), 1);
        assert_eq!(found.policy.hashes.len(), 3);
        host.dhchap_ctrl_key = Some(secret("DHHC-1:00:short:"));
        let error = credentials(&host, "nqn.s").map(|_| ()).expect_err("no key").to_string();
        assert!(error.contains("dhchap_ctrl_key") && !error.contains("short"), "{error}");
    }
}
