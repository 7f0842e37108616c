//! Several drives as one: md, dm, and forebay's own `stripe:`.

use super::drives::DriveFacts;
use super::source::Asked;
use forebay_io::{counted, Check, CheckArea, CheckState, Roots};
use forebay_model::units::readable_bytes as size;
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Raid {
    pub name: String,
    /// `md`, `dm` or `stripe`.
    pub kind: String,
    /// `raid0`, `raid1`, `linear` …; of dm `lvm`, `crypt`, `multipath`.
    pub level: Option<String>,
    pub chunk_bytes: Option<u64>,
    pub members: Vec<String>,
    pub state: Option<String>,
}

/// Facts about the md and dm devices among `drives`.
pub(crate) fn facts(roots: &Roots, drives: &[super::drives::DriveFacts]) -> Vec<Raid> {
    drives
        .iter()
        .filter_map(|facts| {
            let (name, members) = (&facts.drive.name, facts.members.clone());
            match facts.drive.kind.as_str() {
                "md" => Some(md(roots, name, members)),
                "dm" => Some(dm(roots, name, members)),
                _ => None,
            }
        })
        .collect()
}

fn md(roots: &Roots, name: &str, members: Vec<String>) -> Raid {
    let directory = DriveFacts::block(roots, name).join("md");
    Raid {
        name: name.into(),
        kind: "md".into(),
        level: Roots::line(&directory.join("level")),
        chunk_bytes: Roots::number(&directory.join("chunk_size")).filter(|bytes| *bytes > 0),
        members,
        state: Roots::line(&directory.join("array_state")),
    }
}

fn dm(roots: &Roots, name: &str, members: Vec<String>) -> Raid {
    let directory = DriveFacts::block(roots, name).join("dm");
    let uuid = Roots::line(&directory.join("uuid")).unwrap_or_default();
    let level = match uuid.split('-').next().unwrap_or_default() {
        "CRYPT" => Some("crypt".to_string()),
        "LVM" => Some("lvm".into()),
        "mpath" => Some("multipath".into()),
        _ => None,
    };
    Raid {
        name: Roots::line(&directory.join("name")).unwrap_or_else(|| name.into()),
        kind: "dm".into(),
        level,
        chunk_bytes: None,
        members,
        state: Roots::number::<u8>(&directory.join("suspended"))
            .map(|s| if s == 0 { "active" } else { "suspended" }.into()),
    }
}

/// Returns the kernel's md personalities from /proc/mdstat; None without md.
pub(crate) fn md_levels(roots: &Roots) -> Option<Vec<String>> {
    let mdstat = Roots::text(&roots.proc("mdstat"))?;
    let levels = mdstat.lines().find_map(|l| l.strip_prefix("Personalities :"))?;
    Some(levels.split_whitespace().map(|l| l.trim_matches(['[', ']']).to_string()).collect())
}

pub(crate) fn stripe(asked: &Asked) -> Option<Raid> {
    let chunk_bytes = Some(asked.chunk_bytes?);
    let members =
        asked.paths.iter().map(|p| p.display().to_string()).chain(asked.others.iter().map(|o| o.uri.clone()));
    Some(Raid {
        name: "stripe:".into(),
        kind: "stripe".into(),
        level: Some("raid0".into()),
        chunk_bytes,
        members: members.collect(),
        state: None,
    })
}

/// `gpu`: direct DMA to a GPU matters here.
pub(crate) fn checks(roots: &Roots, raids: &[Raid], gpu: bool) -> Vec<Check> {
    if raids.is_empty() {
        let md = match md_levels(roots) {
            Some(levels) if levels.is_empty() => "md is in the kernel".to_string(),
            Some(levels) => format!("md has {}", levels.join(" ")),
            None => "the kernel has no md".into(),
        };
        let found = format!("none behind this; {md}");
        return vec![Check::new(CheckArea::Raid, "raid", "RAID", CheckState::NotApplicable, found)
            .next("forebay bench 'stripe:?chunk=512k&m=A&m=B' stripes over files or drives, without md")];
    }
    raids.iter().map(|raid| check(raid, gpu)).collect()
}

fn check(raid: &Raid, gpu: bool) -> Check {
    let mut found = format!("{} {}", raid.kind, raid.level.as_deref().unwrap_or("of unknown kind"));
    if let Some(chunk) = raid.chunk_bytes {
        found += &format!(", chunk {}", size(chunk));
    }
    found += &format!(", {}: {}", counted(raid.members.len(), "member"), raid.members.join(" "));
    if let Some(state) = &raid.state {
        found += &format!(", {state}");
    }
    let check =
        |state| Check::new(CheckArea::Raid, format!("raid.{}", raid.name), raid.name.clone(), state, found);
    let stripe = "name the drives themselves: 'stripe:?chunk=512k&m=A&m=B'";
    match (raid.kind.as_str(), raid.level.as_deref()) {
        ("dm", Some("crypt")) => check(CheckState::Limited)
            .why("the CPU encrypts every byte, and no device can read it directly")
            .next("name an unencrypted drive, or one that encrypts itself"),
        ("md", Some("raid4" | "raid5" | "raid6")) => {
            check(CheckState::Limited).why("small writes read and write parity as well").next(stripe)
        }
        ("md", _) | ("dm", _) if gpu => check(CheckState::Limited)
            .why("PCI P2PDMA doesn't pass through md or dm; nvidia-fs supports only md raid0 and raid1")
            .next(stripe),
        ("stripe", _) => repeated(raid, check(CheckState::Works)),
        _ => check(CheckState::Works),
    }
}

/// A stripe over one and the same drive or file gains nothing.
fn repeated(raid: &Raid, check: Check) -> Check {
    let mut members = raid.members.clone();
    members.sort();
    members.dedup();
    if members.len() == raid.members.len() {
        return check;
    }
    Check { state: CheckState::Limited, ..check }
        .why("a member is named twice: the stripe would read the same bytes again")
        .next("name each member once")
}
