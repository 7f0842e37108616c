//! The subject of the examination: the paths, sockets and hosts that a source URI names.

use forebay_io::{counted, with_time_limit, Check, CheckArea, CheckState, Roots};
use forebay_model::units::readable_bytes as size;
use forebay_model::Error;
use forebay_storage::{FileAccess, SourceMedium, Uri};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for the examination of a path.
const ANSWER: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Asked {
    /// As typed; null when nothing was named.
    pub uri: Option<String>,
    /// `machine`, `file`, `stripe`, `nil`, `model`, `nvme+tcp`, `nvme+rdma` or `vfio-user`.
    pub kind: &'static str,
    /// Files, directories and devices that it reads.
    pub paths: Vec<PathBuf>,
    /// Its parts that aren't files.
    pub others: Vec<Other>,
    pub chunk_bytes: Option<u64>,
    /// Composition of the source; None for the machine.
    #[serde(skip)]
    pub medium: Option<SourceMedium>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    pub uri: String,
    /// `kind`, and what the source tells of itself.
    #[serde(flatten)]
    pub reported: serde_json::Value,
    #[serde(skip)]
    source: Uri,
}

/// None: the machine as a whole. Fails where the text can't be a source, or a file isn't there.
pub(crate) fn parse(text: Option<&str>) -> Result<Asked, Error> {
    let Some(text) = text else { return Ok(Asked { kind: "machine", ..Asked::default() }) };
    let uri = Uri::recognise(text)?;
    let mut asked =
        Asked { uri: Some(text.into()), kind: uri.scheme(), medium: Some(uri.medium()), ..Asked::default() };
    collect(&uri, &mut asked);
    for path in &asked.paths {
        present(text, path)?;
    }
    Ok(asked)
}

fn present(text: &str, path: &std::path::Path) -> Result<(), Error> {
    let shown = path.display();
    let asked = path.to_path_buf();
    let Some(looked) = with_time_limit(ANSWER, move || std::fs::metadata(asked)) else {
        let found = format!("{shown}: no answer in {} s", ANSWER.as_secs());
        return Err(Error::machine(
            format!("source '{text}'"),
            found,
            "dmesg | tail   # a lost file server, or a dead drive",
        ));
    };
    let error = match looked {
        Ok(meta) if FileAccess::is_source(&meta) => return Ok(()),
        Ok(_) => return Err(FileAccess::is_neither(path)),
        Err(error) => error,
    };
    let (found, next) = match error.kind() {
        std::io::ErrorKind::NotFound => {
            (format!("{shown} doesn't exist"), "a file, directory or block device that exists".to_string())
        }
        std::io::ErrorKind::PermissionDenied => {
            (format!("{shown}: permission denied"), format!("sudo forebay doctor {shown}"))
        }
        _ => (format!("{shown}: {error}"), "a path that can be looked at".into()),
    };
    Err(Error::request(format!("source '{text}'"), found, next))
}

fn collect(uri: &Uri, asked: &mut Asked) {
    asked.paths.extend(uri.path().map(Path::to_path_buf));
    asked.chunk_bytes = asked.chunk_bytes.or(uri.chunk());
    let other = |reported| Other { uri: uri.to_string(), reported, source: uri.clone() };
    asked.others.extend(uri.reported().map(other));
    uri.parts().iter().for_each(|part| collect(part, asked));
}

pub(crate) fn checks(roots: &Roots, asked: &Asked) -> Vec<Check> {
    let mut checks = Vec::new();
    if !asked.paths.is_empty() {
        let shown: Vec<String> = asked.paths.iter().map(|p| p.display().to_string()).collect();
        let mut found = format!("{}: {}", asked.kind, shown.join(" "));
        if let Some(chunk) = asked.chunk_bytes {
            found = format!(
                "{} in chunks of {}: {}",
                counted(shown.len(), "member"),
                size(chunk),
                shown.join(" ")
            );
        }
        checks.push(Check::new(CheckArea::Source, "source", "source", CheckState::Works, found));
    }
    checks.extend(asked.others.iter().flat_map(|other| other.source.checks(roots)));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_gives_its_members_whatever_they_are() {
        let text = "stripe:?chunk=64k&m=/a%26b&m=file:/c&m=nil:&m=nvme%2Btcp://h:1/nqn.x";
        let mut asked = Asked::default();
        collect(&Uri::recognise(text).unwrap(), &mut asked);
        assert_eq!(asked.paths, [PathBuf::from("/a&b"), PathBuf::from("/c")]);
        assert_eq!(asked.chunk_bytes, Some(65536));
        assert_eq!(asked.others.len(), 2);
    }

    #[test]
    fn a_path_that_is_not_there_is_the_requests_fault() {
        for text in ["/no/such/path", "file:/no/such/path", "stripe:?m=/&m=/no/such/path"] {
            let error = parse(Some(text)).unwrap_err();
            assert_eq!(error.kind, forebay_model::Kind::Request);
            assert!(error.found.contains("/no/such/path"), "{error}");
        }
    }
}
