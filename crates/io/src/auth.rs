//! The sources of secrets for NVMe authentication.
//!
//! A host's own secrets come from files or from the environment: never from a URI, which records keep, or from the
//! command line, which every user of the machine can read.

use forebay_model::Error;
use forebay_nvme::auth::psk::ConfiguredPsk;
use forebay_nvme::auth::{Hash, Random, Secret};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The variables that a host's secrets may come from.
pub const DHCHAP_SECRET_VARIABLE: &str = "FOREBAY_DHCHAP_SECRET";
pub const TLS_KEY_VARIABLE: &str = "FOREBAY_TLS_KEY";
pub(crate) const CTRL_SECRET_VARIABLE: &str = "FOREBAY_DHCHAP_CTRL_SECRET";

/// A secret's text has at most 103 characters; this leaves room for white space.
const FILE_BYTES_MAX: u64 = 1024;

/// Random bytes of the kernel's, for one exchange.
///
/// # Errors
/// Kind `Machine`: the kernel gives none.
pub fn auth_random() -> Result<Random, Error> {
    Random::fill(fill)
}

/// A new secret, as `nvme gen-dhchap-key` makes it: `transform` is none, sha256, sha384 or sha512.
///
/// # Errors
/// Kind `Request`: another transform.
pub fn generate_secret(transform: &str) -> Result<String, Error> {
    let hash = match transform {
        "none" => None,
        name => Some(Hash::named(name).ok_or_else(|| {
            Error::request(
                "a secret's transform",
                format!("there is no '{name}'"),
                "none, sha256, sha384 or sha512",
            )
        })?),
    };
    let mut bytes = [0; 64];
    fill(&mut bytes)?;
    Ok(Secret::generate(hash, &bytes).to_text().to_string())
}

fn fill(mut rest: &mut [u8]) -> Result<(), Error> {
    use rustix::rand::{getrandom, GetRandomFlags};
    while !rest.is_empty() {
        let got = match getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(got) => got,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => {
                return Err(Error::machine(
                    "random bytes for authentication",
                    e.to_string(),
                    "a kernel with getrandom",
                ))
            }
        };
        rest = &mut rest[got..];
    }
    Ok(())
}

/// Reads a secret from the first line of a file, a pipe (`<(pass show …)`) or a credential of systemd.
///
/// # Errors
/// Kind `Request`: it can't be read, everybody may read it, or it holds no secret.
pub(crate) fn read_secret(path: &Path) -> Result<Secret, Error> {
    let next = "a file with one line from `nvme gen-dhchap-key`";
    read_line(path, next, |line| Secret::parse(line).map_err(|e| e.to_string()))
}

fn read_line<T>(path: &Path, next: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, Error> {
    let asked = format!("the secret in {}", path.display());
    let unreadable = |e: std::io::Error| Error::request(&asked, e.to_string(), next);
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_file() && metadata.mode() & 0o004 != 0 {
        return Err(Error::request(&asked, "everybody may read it", format!("chmod o= {}", path.display())));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    parse(text.lines().next().unwrap_or_default()).map_err(|e| Error::request(&asked, e, next))
}

/// The TLS key of this host: from the file that was named, else from the environment.
///
/// # Errors
/// Kind `Request`: as `read_secret`; or there is none.
pub fn host_tls_key(file: Option<&Path>) -> Result<ConfiguredPsk, Error> {
    let next = "the line that `nvme gen-tls-key` prints";
    let parse = |line: &str| ConfiguredPsk::parse(line).map_err(|e| e.to_string());
    if let Some(path) = file {
        return read_line(path, next, parse);
    }
    let text = std::env::var(TLS_KEY_VARIABLE).unwrap_or_default();
    if text.is_empty() {
        let next = format!("tls_key_file=PATH in the URI, or {TLS_KEY_VARIABLE}");
        return Err(Error::request("TLS", "this host has no key for it", next));
    }
    parse(&text).map_err(|e| Error::request(TLS_KEY_VARIABLE, e, next))
}

/// A host's secrets: from the files that were named, else from the environment. None: it has none.
///
/// # Errors
/// Kind `Request`: as `read_secret`; or a secret for the controller without one for the host.
pub fn host_secrets(
    secret_file: Option<&Path>,
    ctrl_secret_file: Option<&Path>,
) -> Result<Option<(Secret, Option<Secret>)>, Error> {
    let host = find(secret_file, DHCHAP_SECRET_VARIABLE)?;
    let controller = find(ctrl_secret_file, CTRL_SECRET_VARIABLE)?;
    match (host, controller) {
        (None, Some(_)) => Err(Error::request(
            "a controller that proves itself",
            "this host has no secret of its own, and only a host that authenticates may ask",
            format!("dhchap_secret_file=PATH, or {DHCHAP_SECRET_VARIABLE}"),
        )),
        (host, controller) => Ok(host.map(|host| (host, controller))),
    }
}

fn find(file: Option<&Path>, variable: &str) -> Result<Option<Secret>, Error> {
    if let Some(path) = file {
        return read_secret(path).map(Some);
    }
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => Secret::parse(&text).map(Some).map_err(|e| {
            Error::request(variable, e.to_string(), "the line that `nvme gen-dhchap-key` prints")
        }),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    // promise: AUT-5
    #[test]
    fn a_secret_is_read_from_a_file_that_others_cannot_read() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), format!("{SECRET}\n")).expect("written");
        assert_eq!(read_secret(file.path()).expect("one line, mode 0600").to_text().as_str(), SECRET);
        let set = |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode));
        set(0o644).expect("chmod");
        let error = read_secret(file.path()).map(|_| ()).expect_err("others may read it").to_string();
        assert!(error.contains("chmod o="), "{error}");
        set(0o600).expect("chmod");
        std::fs::write(file.path(), SECRET.replace("ia6z", "ia6y")).expect("written");
        let error = read_secret(file.path()).map(|_| ()).expect_err("a wrong CRC").to_string();
        assert!(error.contains("CRC-32") && !error.contains("ia6y"), "{error}");
        assert!(read_secret(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn secrets_are_new_each_time_and_of_their_kind() {
        let one = generate_secret("sha384").expect("a transform");
        assert!(one.starts_with("DHHC-1:02:") && Secret::parse(&one).is_ok());
        assert_ne!(one, generate_secret("sha384").expect("a transform"));
        assert!(generate_secret("none").expect("no transform").starts_with("DHHC-1:00:"));
        assert!(generate_secret("md5").is_err());
    }
}
