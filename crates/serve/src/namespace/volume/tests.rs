use super::*;

fn namespace(source: &str) -> config::Namespace {
    config::Namespace { source: source.into(), ..config::Namespace::default() }
}

#[test]
fn what_has_no_content_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let path = file.display();
    for (source, content) in [
        (format!("{path}"), Content::Whole),
        ("nil:?size=1m".into(), Content::None),
        (format!("stripe:?chunk=64k&m={path}&m=nil:%3Fsize=1m"), Content::Partial),
        ("model:d7-ps1010".into(), Content::None),
        (format!("model:d7-ps1010?over={path}"), Content::Whole),
    ] {
        let volume = Volume::open("nqn.2026-11.io.example:a", 1, &namespace(&source), 1).unwrap();
        assert_eq!(volume.content, content, "{source}");
    }
}

#[test]
fn a_file_that_hosts_write_to_is_claimed_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    std::fs::write(&file, vec![1; (1 << 20) + 100]).unwrap();
    let given = config::Namespace { writable: true, ..namespace(&file.display().to_string()) };
    let volume = Volume::open("nqn.2026-11.io.example:a", 1, &given, 1).unwrap();
    assert_eq!(volume.bytes(), 1 << 20, "whole blocks");
    assert!(volume.write_cache);
    assert!(Volume::open("nqn.2026-11.io.example:a", 2, &given, 1).unwrap_err().found.contains("locked"));
    drop(volume);
    Volume::open("nqn.2026-11.io.example:a", 2, &given, 1).unwrap();
}

#[test]
fn what_can_not_be_served_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, [0; 100]).unwrap();
    for (source, found) in [
        (dir.path().display().to_string(), "directory"),
        (empty.display().to_string(), "less than one block"),
        (dir.path().join("none").display().to_string(), "no such file"),
        (dir.path().join("none").display().to_string(), "truncate -s 1g /"),
        ("/dev/null".into(), "nil:?size="),
        ("/dev/zero".into(), "no size"),
    ] {
        let error = Volume::open("nqn.2026-11.io.example:a", 1, &namespace(&source), 1).unwrap_err();
        assert!(error.to_string().contains(found), "{source}: {error}");
    }
}

#[test]
fn made_up_uuids_differ_and_stay() {
    let one = made_up_uuid("nqn.a", 1);
    assert_eq!(one, made_up_uuid("nqn.a", 1));
    assert_ne!(one, made_up_uuid("nqn.a", 2));
    assert_ne!(one, made_up_uuid("nqn.b", 1));
    assert_eq!((one[6] >> 4, one[8] >> 6), (8, 2));
}
