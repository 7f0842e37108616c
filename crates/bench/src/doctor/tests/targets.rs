//! What a target over TCP answers to doctor, which asks the source.

use forebay_io::{Check, CheckState, Roots};
use forebay_serve::{TargetConfig, TargetServer};
use forebay_storage::Uri;

const NQN: &str = "nqn.2026-11.io.example:a";

fn server(settings: &str, host: &str) -> TargetServer {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 1\nbuffers = \"16m\"\n{settings}\n[[subsystems]]\nnqn = \"{NQN}\"\n{host}\n\
         [[subsystems.namespaces]]\nsource = \"nil:?size=1g\"\nblock_bytes = 512\n"
    );
    TargetServer::start(TargetConfig::from_toml(&text).unwrap(), Box::new(|_| {})).unwrap()
}

fn checks_on(server: &TargetServer, more: &str) -> Vec<Check> {
    let uri = format!("nvme+tcp://{}/{NQN}{more}", server.addresses()[0]);
    Uri::recognise(&uri).unwrap().checks(&Roots::host())
}

fn check_named<'a>(checks: &'a [Check], id: &str) -> &'a Check {
    let wanted = format!("source.nvme_tcp.{id} ");
    checks.iter().find(|c| c.id.starts_with(&wanted)).unwrap_or_else(|| panic!("{id} in {checks:?}"))
}

// promise: DOC-4
#[test]
fn a_target_is_asked_for_all_that_a_run_would_need() {
    let server = server("", "allow_any_host = true");
    let found = checks_on(&server, "?queues=2&hdgst=1");
    for id in [
        "handshake",
        "digests",
        "connect",
        "queues",
        "transfer",
        "namespace",
        "keep_alive",
        "path",
        "buffers",
    ] {
        let check = check_named(&found, id);
        assert_eq!(check.state, CheckState::Works, "{check:?}");
    }
    assert!(check_named(&found, "queues").found.contains("2 granted of 2"));
    assert!(check_named(&found, "namespace").found.starts_with("1 GiB in blocks of 512 B, read-only"));
    assert!(check_named(&found, "connect").found.contains("Forebay"));
}

// promise: DOC-4
#[test]
fn what_a_target_lacks_is_named_with_what_to_type() {
    let server = server("queues = 1\ndata_digest = false\nmax_transfer = \"64k\"", "allow_any_host = true");
    let found = checks_on(&server, "?queues=4&ddgst=1&nsid=7&kato=-1");
    for (id, state, next) in [
        ("digests", CheckState::Missing, "data_digest = true"),
        ("queues", CheckState::Missing, "queues=1"),
        ("transfer", CheckState::Limited, "max_transfer"),
        ("namespace", CheckState::Missing, "forebay identify nvme+tcp://"),
        ("keep_alive", CheckState::Limited, "kato=5"),
    ] {
        let check = check_named(&found, id);
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.next.as_ref().is_some_and(|n| n.contains(next)), "{check:?}");
        assert!(check.why.is_some(), "{check:?}");
    }
}

// promise: DOC-4
#[test]
fn a_host_that_may_not_come_and_a_peer_that_is_no_target_are_told_so() {
    let server = server("", "[[subsystems.hosts]]\nnqn = \"nqn.2026-11.io.example:other\"");
    let refused = checks_on(&server, "");
    let check = check_named(&refused, "connect");
    assert!(check.state == CheckState::Missing && check.next.is_some(), "{check:?}");
    assert_eq!(check_named(&refused, "handshake").state, CheckState::Works);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        // The first is the one that tries whether anybody listens.
        drop(listener.accept().unwrap());
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").unwrap();
    });
    let found = Uri::recognise(&format!("nvme+tcp://{address}/{NQN}")).unwrap().checks(&Roots::host());
    assert_eq!((found.len(), check_named(&found, "handshake").state), (2, CheckState::Missing), "{found:?}");
    answers.join().unwrap();
}
