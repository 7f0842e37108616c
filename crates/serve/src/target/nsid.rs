//! Assignment of nsid and uuid to namespaces whose configuration doesn't give them. Over a reload, both stay with the
//! source.

use super::config::{parse_uuid, Config, Namespace};
use crate::namespace::volume::made_up_uuid;
use forebay_nvme::controller::subsystem::NAMESPACES_MAX;
use forebay_storage::Uri;
use std::collections::BTreeSet;

/// Gives each namespace that has none a uuid, made from the subsystem's NQN and its source, and each of nsid 0 the lowest
/// that is free. One whose source `running` has, too, keeps both as they are there; if the file says a uuid, it must be
/// the same.
pub fn number_namespaces(config: &mut Config, running: Option<&Config>) {
    for subsystem in &mut config.subsystems {
        let known = running.and_then(|r| r.subsystems.iter().find(|s| s.nqn == subsystem.nqn));
        let known = known.map_or(&[][..], |s| &s.namespaces);
        let kept = pair(&subsystem.nqn, &subsystem.namespaces, known);
        give_uuids(&subsystem.nqn, &mut subsystem.namespaces, &kept);
        let mut taken = said(&subsystem.namespaces);
        for (namespace, kept) in subsystem.namespaces.iter_mut().zip(&kept) {
            if let Some(kept) = kept.filter(|kept| namespace.nsid == 0 && taken.insert(kept.nsid)) {
                namespace.nsid = kept.nsid;
            }
        }
        // Not one that has just gone: a host would take it for the old one, changed.
        let had: BTreeSet<u32> = known.iter().map(|n| n.nsid).collect();
        for namespace in subsystem.namespaces.iter_mut().filter(|n| n.nsid == 0) {
            namespace.nsid =
                (1..).find(|n| !taken.contains(n) && !had.contains(n)).expect("few have been taken");
            taken.insert(namespace.nsid);
        }
    }
}

/// Returns the identifiers that the file gives.
fn said(namespaces: &[Namespace]) -> BTreeSet<u32> {
    namespaces.iter().map(|n| n.nsid).filter(|n| *n > 0).collect()
}

/// Predicate of pairs: a running namespace and a requested one.
type Fits<'a> = dyn Fn(&Namespace, &Namespace) -> bool + 'a;

/// The one of `known` that each is, where it is one of them. The more two have in common, the sooner they are a pair.
fn pair<'a>(nqn: &str, asked: &[Namespace], known: &'a [Namespace]) -> Vec<Option<&'a Namespace>> {
    let said = said(asked);
    let is_free = |old: &Namespace, new: &Namespace| new.nsid == 0 && !said.contains(&old.nsid);
    let same_settings = |old: &Namespace, new: &Namespace| {
        *new == Namespace { nsid: new.nsid, uuid: new.uuid.clone(), ..old.clone() }
    };
    let rounds: [&Fits; 4] = [
        &|old, new| old.nsid == new.nsid,
        &|old, new| is_free(old, new) && same_settings(old, new),
        &|old, new| is_free(old, new),
        &|_, new| new.nsid != 0,
    ];
    let made_up: Vec<bool> = known.iter().map(|old| is_made_up(nqn, old)).collect();
    let mut pairs = vec![None; asked.len()];
    let mut used = BTreeSet::new();
    for fits in rounds {
        for (new, pair) in asked.iter().zip(&mut pairs).filter(|(_, pair)| pair.is_none()) {
            let is_one = |(old, made_up): &(&Namespace, &bool)| {
                fits(old, new) && !used.contains(&old.nsid) && is_same(old, **made_up, new)
            };
            *pair = known.iter().zip(&made_up).find(is_one).map(|(old, _)| old);
            used.extend(pair.map(|old| old.nsid));
        }
    }
    pairs
}

/// They have one source, and one uuid. `made_up`: the old one's.
fn is_same(old: &Namespace, made_up: bool, new: &Namespace) -> bool {
    let is_uuid_kept = if new.uuid.is_some() { uuid(new) == uuid(old) } else { made_up };
    is_uuid_kept && name(&old.source) == name(&new.source)
}

/// Its uuid isn't one that the file said.
fn is_made_up(nqn: &str, namespace: &Namespace) -> bool {
    let (source, uuid) = (name(&namespace.source), uuid(namespace));
    (0..NAMESPACES_MAX).any(|twin| uuid == Some(made_up(nqn, &source, twin)))
}

fn uuid(of: &Namespace) -> Option<[u8; 16]> {
    of.uuid.as_deref().and_then(|text| parse_uuid(text).ok())
}

fn give_uuids(nqn: &str, namespaces: &mut [Namespace], kept: &[Option<&Namespace>]) {
    let mut taken = BTreeSet::new();
    for (namespace, kept) in namespaces.iter_mut().zip(kept) {
        if let (None, Some(kept)) = (&namespace.uuid, kept) {
            namespace.uuid.clone_from(&kept.uuid);
        }
        taken.extend(uuid(namespace));
    }
    for namespace in namespaces.iter_mut().filter(|n| n.uuid.is_none()) {
        let source = name(&namespace.source);
        let uuid = (0..).map(|twin| made_up(nqn, &source, twin)).find(|uuid| taken.insert(*uuid));
        namespace.uuid = uuid.map(|uuid| spelled(&uuid));
    }
}

/// As it is shown, however it was typed.
fn name(source: &str) -> String {
    Uri::parse(source).map_or_else(|_| source.into(), |uri| uri.to_string())
}

/// `twin`: how many before it have the same source.
fn made_up(nqn: &str, source: &str, twin: u32) -> [u8; 16] {
    made_up_uuid(&format!("{nqn}\n{source}"), twin)
}

fn spelled(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00000000-0000-4000-8000-000000000001";

    fn numbered(namespaces: &str, running: Option<&Config>) -> Config {
        let text = format!(
            "[[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"\nallow_any_host = true\nnamespaces = [{namespaces}]"
        );
        let mut made = Config::from_toml(&text).unwrap();
        number_namespaces(&mut made, running);
        made
    }

    fn ids(config: &Config) -> Vec<u32> {
        config.subsystems[0].namespaces.iter().map(|n| n.nsid).collect()
    }

    fn uuids(config: &Config) -> Vec<&str> {
        config.subsystems[0].namespaces.iter().map(|n| n.uuid.as_deref().unwrap()).collect()
    }

    // promise: SRV-4
    #[test]
    fn a_source_keeps_its_nsid_and_uuid_whatever_else_changes() {
        let first = numbered("{source='a'}", None);
        let allowed = numbered("{source='a', cache='allow'}", Some(&first));
        let moved = numbered("{source='b'}, {source='a', writable=true}", Some(&allowed));
        assert_eq!((ids(&allowed), ids(&moved)), (vec![1], vec![2, 1]));
        assert_eq!([uuids(&allowed)[0], uuids(&moved)[1]], [uuids(&first)[0]; 2]);
        assert_ne!(uuids(&moved)[0], uuids(&first)[0]);
        let anew = numbered("{source='b'}, {source='a', writable=true}", None);
        assert_eq!((ids(&anew), uuids(&anew)), (vec![1, 2], uuids(&moved)), "what a restart does");
    }

    // promise: SRV-4
    #[test]
    fn another_source_never_gets_a_uuid_that_was_made_for_one() {
        let first = numbered("{source='a', nsid=1}", None);
        let other = numbered("{source='b', nsid=1}", Some(&first));
        let back = numbered("{source='b', nsid=1}, {source='a', nsid=5}", Some(&other));
        assert_ne!(uuids(&first), uuids(&other));
        assert_eq!(uuids(&back), [uuids(&other)[0], uuids(&first)[0]]);
        let elsewhere = numbered("{source='a', nsid=7}", Some(&first));
        assert_eq!(uuids(&elsewhere), uuids(&first), "under another nsid, too");
    }

    // promise: SRV-4
    #[test]
    fn another_uuid_is_another_namespace() {
        let first = numbered("{source='a'}", None);
        let said = numbered(&format!("{{source='a', uuid='{ONE}'}}"), Some(&first));
        assert_eq!((ids(&said), uuids(&said)), (vec![2], vec![ONE]));
        let upper = numbered(&format!("{{source='a', uuid='{}'}}", ONE.replace('-', "")), Some(&said));
        assert_eq!(ids(&upper), [2]);
        let not_said = numbered("{source='a'}", Some(&said));
        assert_eq!((ids(&not_said), uuids(&not_said)), (vec![1], uuids(&first)));
    }

    // promise: SRV-4
    #[test]
    fn twins_have_a_uuid_each_and_keep_it() {
        let first = numbered("{source='a', nsid=3}, {source='a', nsid=4}", None);
        assert_ne!(uuids(&first)[0], uuids(&first)[1]);
        let one = numbered("{source='a', nsid=4}", Some(&first));
        assert_eq!(uuids(&one), uuids(&first)[1..]);
        assert_eq!(uuids(&numbered("{source='a', nsid=4}", Some(&one))), uuids(&one));
        let two = numbered("{source='a', writable=true}, {source='a', nsid=4}", Some(&one));
        assert_eq!((ids(&two), uuids(&two)), (vec![1, 4], uuids(&first)));
    }

    // promise: SRV-4
    #[test]
    fn a_source_is_the_same_however_it_is_typed() {
        let first = numbered("{source='/a/b'}", None);
        assert_eq!(numbered("{source='file:/a/b'}", Some(&first)).subsystems[0].namespaces[0].nsid, 1);
    }
}
