//! A configuration read again while serving: which namespaces come and go, and how hosts reach them (ANA). Anything
//! else takes a restart.

use super::config::{Ana, Config, Namespace, Subsystem};
pub use super::nsid::number_namespaces;
use super::Server;
use crate::namespace::volume::Volume;
use forebay_model::Error;
use serde::Serialize;

/// Changes by a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Changes {
    pub removed: Vec<Change>,
    pub added: Vec<Change>,
    /// ANA states of these subsystems.
    pub ana: Vec<States>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    pub subsystem: String,
    pub nsid: u32,
    pub source: String,
    #[serde(skip)]
    namespace: Namespace,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct States {
    pub subsystem: String,
    #[serde(skip)]
    states: Vec<Ana>,
}

/// Returns the changes from one numbered configuration to another.
///
/// # Errors
/// Kind `Request`: they differ in more than their namespaces and ANA states.
pub fn config_changes(running: &Config, asked: &Config) -> Result<Changes, Error> {
    if let Some(what) = difference(running, asked) {
        return Err(Error::request(
            what,
            "differs from what is being served; only namespaces and their ANA states can change while it runs",
            "a restart: systemctl restart forebay-serve",
        ));
    }
    let mut made = Changes::default();
    for new in &asked.subsystems {
        let old = find(running, &new.nqn).map_or(&[][..], |s| &s.namespaces);
        let change = |n: &Namespace| Change {
            subsystem: new.nqn.clone(),
            nsid: n.nsid,
            source: n.source.clone(),
            namespace: n.clone(),
        };
        made.removed.extend(old.iter().filter(|n| !new.namespaces.contains(n)).map(change));
        made.added.extend(new.namespaces.iter().filter(|n| !old.contains(n)).map(change));
        if find(running, &new.nqn).is_some_and(|old| old.ana != new.ana) {
            made.ana.push(States { subsystem: new.nqn.clone(), states: new.ana.clone() });
        }
    }
    Ok(made)
}

/// Makes them, and keeps `running` true. All sources that are new are opened first, so that nothing changes where one
/// can't be. Where something else fails later, what was done before is undone.
pub fn apply_changes(server: &Server, running: &mut Config, changes: &Changes) -> Result<(), Error> {
    let opened = open(server, changes)?;
    let before = running.clone();
    let made = make(server, running, changes, opened);
    if made.is_err() {
        if let Ok(back) = self::config_changes(running, &before) {
            let _ = back.removed.iter().try_for_each(|c| remove(server, running, c));
            let _ = back.added.iter().try_for_each(|c| add(server, running, c, None));
            let _ = back.ana.iter().try_for_each(|s| reach(server, running, s));
        }
    }
    made
}

/// Opens what is added, in order. None: its source is open already, and takes one at a time (a remote one, a drive),
/// so that it is opened once the old namespace is gone.
fn open(server: &Server, changes: &Changes) -> Result<Vec<Option<Volume>>, Error> {
    let opened = changes.added.iter().map(|c| {
        let mut same_source = changes.removed.iter().filter(|r| r.source == c.source);
        let volumes = same_source.clone().filter_map(|r| server.volume(&r.subsystem, r.nsid));
        if volumes.into_iter().any(|v| v.target.connections().next().is_some()) {
            return Ok(None);
        }
        // Its lock is ours, and let go of with the old namespace.
        let locked = same_source.any(|r| server.volume(&r.subsystem, r.nsid).is_some_and(|v| v.writable));
        server.open_namespace(&c.subsystem, &c.namespace, !locked).map(Some)
    });
    opened.collect()
}

/// Makes what is added; what takes over an nsid or a source in use comes after the old one left.
fn make(
    server: &Server,
    running: &mut Config,
    changes: &Changes,
    opened: Vec<Option<Volume>>,
) -> Result<(), Error> {
    let takes_over = |c: &Change| {
        let same_nsid = |r: &Change| (&r.subsystem, r.nsid) == (&c.subsystem, c.nsid);
        changes.removed.iter().any(|r| same_nsid(r) || r.source == c.source)
    };
    let all = changes.added.iter().zip(opened);
    let (second, first): (Vec<_>, Vec<_>) = all.partition(|(c, _)| takes_over(c));
    first.into_iter().try_for_each(|(c, volume)| add(server, running, c, volume))?;
    changes.removed.iter().try_for_each(|c| remove(server, running, c))?;
    second.into_iter().try_for_each(|(c, volume)| add(server, running, c, volume))?;
    changes.ana.iter().try_for_each(|s| reach(server, running, s))
}

/// `volume`: its source, where that is open.
fn add(server: &Server, running: &mut Config, change: &Change, volume: Option<Volume>) -> Result<(), Error> {
    let namespace = &change.namespace;
    match volume {
        Some(volume) => server.offer(&change.subsystem, volume)?,
        None => drop(server.add_namespace(&change.subsystem, namespace)?),
    }
    let subsystem = running.subsystems.iter_mut().find(|s| s.nqn == change.subsystem);
    subsystem.expect("changes are of subsystems that run").namespaces.push(namespace.clone());
    Ok(())
}

fn reach(server: &Server, running: &mut Config, to: &States) -> Result<(), Error> {
    server.set_ana(&to.subsystem, &to.states)?;
    let subsystem = running.subsystems.iter_mut().find(|s| s.nqn == to.subsystem);
    subsystem.expect("changes are of subsystems that run").ana.clone_from(&to.states);
    Ok(())
}

fn remove(server: &Server, running: &mut Config, change: &Change) -> Result<(), Error> {
    server.remove_namespace(&change.subsystem, change.nsid)?;
    let subsystem = running.subsystems.iter_mut().find(|s| s.nqn == change.subsystem);
    subsystem.expect("changes are of subsystems that run").namespaces.retain(|n| n.nsid != change.nsid);
    Ok(())
}

fn find<'a>(config: &'a Config, nqn: &str) -> Option<&'a Subsystem> {
    config.subsystems.iter().find(|s| s.nqn == nqn)
}

/// The first field other than namespaces and ANA states in which they differ.
fn difference(running: &Config, asked: &Config) -> Option<String> {
    let bare = |config: &Config| {
        let mut config = config.clone();
        config.subsystems.iter_mut().for_each(|s| (s.namespaces, s.ana) = Default::default());
        config
    };
    let (old, new) = (bare(running), bare(asked));
    if old == new {
        return None;
    }
    for subsystem in &new.subsystems {
        match find(&old, &subsystem.nqn) {
            None => return Some(format!("subsystem {}", subsystem.nqn)),
            Some(before) if before != subsystem => return Some(format!("the settings of {}", subsystem.nqn)),
            Some(_) => {}
        }
    }
    let fields = |config: &Config| serde_json::to_value(config).ok().and_then(|v| v.as_object().cloned());
    let (old, new) = (fields(&old).unwrap_or_default(), fields(&new).unwrap_or_default());
    let differs = new.iter().find(|(key, value)| old.get(*key) != Some(value));
    Some(differs.map_or("the subsystems".into(), |(key, _)| key.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(namespaces: &str) -> Config {
        let text = format!(
            "[[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"\nallow_any_host = true\nnamespaces = [{namespaces}]"
        );
        Config::from_toml(&text).unwrap()
    }

    fn numbered(namespaces: &str, running: Option<&Config>) -> Config {
        let mut made = config(namespaces);
        number_namespaces(&mut made, running);
        made
    }

    fn ids(config: &Config) -> Vec<u32> {
        config.subsystems[0].namespaces.iter().map(|n| n.nsid).collect()
    }

    #[test]
    fn namespaces_without_a_number_get_the_lowest_that_is_free() {
        let made = numbered("{source='a'}, {source='b', nsid=1}, {source='c'}", None);
        assert_eq!(ids(&made), [2, 1, 3]);
    }

    // promise: SRV-4
    #[test]
    fn what_stays_keeps_its_number_and_what_is_new_takes_none_that_was_in_use() {
        let running = numbered("{source='a'}, {source='b'}, {source='c'}", None);
        let asked = numbered("{source='c'}, {source='d'}, {source='a'}", Some(&running));
        assert_eq!(ids(&asked), [3, 4, 1]);
        let found = config_changes(&running, &asked).unwrap();
        let reported = |c: &[Change]| c.iter().map(|c| (c.nsid, c.source.clone())).collect::<Vec<_>>();
        assert_eq!(reported(&found.removed), [(2, "b".to_string())]);
        assert_eq!(reported(&found.added), [(4, "d".to_string())]);
        assert_eq!(config_changes(&asked, &asked).unwrap(), Changes::default());
    }

    #[test]
    fn one_that_becomes_writable_goes_and_comes_back_under_its_number() {
        let running = numbered("{source='a', nsid=7}", None);
        let asked = numbered("{source='a', nsid=7, writable=true}", Some(&running));
        let found = config_changes(&running, &asked).unwrap();
        assert_eq!((found.removed[0].nsid, found.added[0].nsid), (7, 7));
    }

    #[test]
    fn twins_keep_both_their_numbers() {
        let running = numbered("{source='a'}, {source='a'}", None);
        assert_eq!(
            config_changes(&running, &numbered("{source='a'}, {source='a'}", Some(&running))).unwrap(),
            Changes::default()
        );
        let one = numbered("{source='a'}", Some(&running));
        assert_eq!(config_changes(&running, &one).unwrap().removed[0].nsid, 2);
    }

    // promise: TGT-17
    #[test]
    fn other_states_are_a_change_of_their_own() {
        let running = numbered("{source='a'}", None);
        let mut asked = running.clone();
        asked.subsystems[0].ana.push(Ana { state: "inaccessible".into(), ..Ana::default() });
        let found = config_changes(&running, &asked).unwrap();
        assert_eq!((found.removed.len(), found.added.len(), found.ana.len()), (0, 0, 1));
        assert_eq!(found.ana[0].states, asked.subsystems[0].ana);
        assert_eq!(config_changes(&asked, &running).unwrap().ana[0].states, []);
    }

    // promise: SRV-4
    #[test]
    fn anything_but_namespaces_takes_a_restart_and_is_named() {
        let running = numbered("{source='a'}", None);
        let with = |edit: fn(&mut Config)| {
            let mut asked = running.clone();
            edit(&mut asked);
            config_changes(&running, &asked).unwrap_err().asked
        };
        assert_eq!(with(|c| c.queues = 4), "queues");
        assert_eq!(with(|c| c.listen = vec!["127.0.0.1:1".into()]), "listen");
        assert!(with(|c| c.subsystems[0].allow_any_host = false).contains("settings of nqn"));
        assert!(with(|c| c.subsystems[0].nqn.push('x')).starts_with("subsystem nqn"));
        assert!(with(|c| c.subsystems.clear()).contains("subsystems"));
    }
}
