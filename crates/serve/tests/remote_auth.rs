//! The NVMe/TCP host and the target where each must prove to the other who it is.

use crate::serve::{client, rig};
use client::{HOST, SUBSYSTEM};
use forebay_io::{generate_secret, stream_digest, Arena, Io, Op, Reactor, RingOptions};
use forebay_model::job::Pages;
use forebay_nvme::auth::psk::ConfiguredPsk;
use forebay_nvme::auth::Hash;
use forebay_storage::{discover, identify, Inquiry, NvmeTcpOptions, NvmeTcpRemote, QueueNeeds, Uri};
use rig::{eventually, pattern, Rig, LONG};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Secrets in files, as a host has them.
struct Keys {
    dir: TempDir,
}

impl Keys {
    fn new() -> Keys {
        Keys { dir: tempfile::tempdir().unwrap() }
    }

    /// A new secret and its file.
    fn make(&self, name: &str, transform: &str) -> (String, PathBuf) {
        let text = generate_secret(transform).unwrap();
        let path = self.put(name, &text);
        (text, path)
    }

    /// A file that others can't read.
    fn put(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = self.dir.path().join(name);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
        path
    }

    fn serve(&self, host: &str, controller: Option<&str>, more: &str) -> Rig {
        let content = self.dir.path().join("content");
        std::fs::write(&content, pattern(1 << 20, 5)).unwrap();
        let controller = controller.map_or(String::new(), |key| format!("dhchap_ctrl_key = \"{key}\"\n"));
        Rig::from_text(&format!(
            "listen = [\"127.0.0.1:0\"]\nthreads = 2\nbuffers = \"64m\"\n[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\n\
             [[subsystems.hosts]]\nnqn = \"{HOST}\"\ndhchap_key = \"{host}\"\n{controller}{more}\n\
             [[subsystems.namespaces]]\nsource = \"{}\"\nblock_bytes = 512\n",
            content.display()
        ))
    }
}

fn options(rig: &Rig, more: &str) -> NvmeTcpOptions {
    let host = if more.contains("hostnqn=") { String::new() } else { format!("&hostnqn={HOST}") };
    let uri = format!("nvme+tcp://{}/{SUBSYSTEM}?queues=2{host}{more}", rig.address());
    NvmeTcpOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone()
}

/// Reads the first 64 KiB by each of two workers.
fn check(remote: &Arc<NvmeTcpRemote>) {
    const LEN: u32 = 64 << 10;
    for _ in 0..2 {
        let mut reactor = Reactor::with_ring(RingOptions { depth: 64, ..RingOptions::default() }).unwrap();
        let needs = QueueNeeds::new(1, LEN.into());
        let mut queue = remote.queue(needs, &mut reactor).unwrap();
        let arena = Arena::new(1, LEN as usize, Pages::Small).unwrap();
        queue
            .push(Io { tag: 0, op: Op::Read, offset: 0, len: LEN, mem: arena.slot(0) }, &mut reactor)
            .unwrap();
        queue.submit(&mut reactor);
        let (mut done, until) = (Vec::new(), Instant::now() + LONG);
        while done.is_empty() && Instant::now() < until {
            reactor.wait(1, Instant::now() + Duration::from_millis(50), Duration::ZERO);
            queue.reap(&mut reactor, &mut done);
        }
        assert_eq!(done.first().map(|d| d.result.clone()), Some(Ok(LEN)));
        let expected = crc32c::crc32c(&pattern(1 << 20, 5)[..LEN as usize]);
        assert_eq!(stream_digest(0, arena.slot(0), LEN), expected);
        queue.close(&mut reactor);
    }
}

// promise: AUT-7
#[test]
fn both_prove_themselves_on_each_queue() {
    let keys = Keys::new();
    let ((host, host_file), (controller, controller_file)) =
        (keys.make("h", "sha256"), keys.make("c", "sha384"));
    let rig = keys.serve(&host, Some(&controller), "");
    let files = format!(
        "&dhchap_secret_file={}&dhchap_ctrl_secret_file={}",
        host_file.display(),
        controller_file.display()
    );
    let remote = NvmeTcpRemote::open(&options(&rig, &files), 2).unwrap();
    check(&remote);
    eventually("the admin queue and two I/O queues", || rig.heard("authenticated") == 3);
    // One way only is enough for a host that asks for no more.
    drop(remote);
    let remote =
        NvmeTcpRemote::open(&options(&rig, &format!("&dhchap_secret_file={}", host_file.display())), 2)
            .unwrap();
    check(&remote);
}

// promise: AUT-7
#[test]
fn a_look_at_a_controller_takes_the_same_secrets() {
    let keys = Keys::new();
    let (host, file) = keys.make("h", "sha512");
    let rig = keys.serve(&host, None, "");
    let inquiry = Inquiry { host_nqn: None, timeout: LONG };
    let uri = |more: &str| format!("nvme+tcp://{}/{SUBSYSTEM}?hostnqn={HOST}{more}", rig.address());
    let found = identify(&uri(&format!("&dhchap_secret_file={}", file.display())), &inquiry).unwrap();
    assert_eq!(found.namespaces.len(), 1);
    let why = identify(&uri(""), &inquiry).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("authenticate"), "{why}");
}

// promise: AUT-7
#[test]
fn a_host_without_its_secret_or_with_another_is_told_why() {
    let keys = Keys::new();
    let (host, _) = keys.make("h", "sha256");
    let (_, other) = keys.make("o", "sha256");
    let rig = keys.serve(&host, None, "");
    let refused = |more: &str| {
        let began = Instant::now();
        let why = NvmeTcpRemote::open(&options(&rig, more), 1).map(|_| ()).unwrap_err().to_string();
        assert!(
            began.elapsed() < Duration::from_secs(12),
            "not until opening gives up: it would be refused again"
        );
        why
    };
    let why = refused("");
    assert!(why.contains("dhchap_secret_file") && why.contains("FOREBAY_DHCHAP_SECRET"), "{why}");
    let why = refused(&format!("&dhchap_secret_file={}", other.display()));
    assert!(why.contains("authentication failed"), "{why}");
    assert!(!why.contains("DHHC"), "{why}");
}

// promise: AUT-7
#[test]
fn a_controller_that_cannot_prove_itself_is_left() {
    let keys = Keys::new();
    let ((host, host_file), (controller, _)) = (keys.make("h", "none"), keys.make("c", "none"));
    let (_, expected) = keys.make("e", "none");
    let files =
        format!("&dhchap_secret_file={}&dhchap_ctrl_secret_file={}", host_file.display(), expected.display());
    for key in [Some(controller.as_str()), None] {
        let rig = keys.serve(&host, key, "");
        let why = NvmeTcpRemote::open(&options(&rig, &files), 1).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains("authentication failed"), "{why}");
    }
    // One that asks for nothing proves nothing.
    let content = keys.dir.path().join("content");
    let rig = Rig::from_text(&format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 1\nbuffers = \"64m\"\n[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\n\
         allow_any_host = true\n[[subsystems.namespaces]]\nsource = \"{}\"\nblock_bytes = 512\n",
        content.display()
    ));
    let why = NvmeTcpRemote::open(&options(&rig, &files), 1).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("asks for no authentication"), "{why}");
}

/// A server whose host must come over TLS with this key.
fn served_over_tls(keys: &Keys, key: &str, more: &str) -> Rig {
    let content = keys.dir.path().join("content");
    std::fs::write(&content, pattern(1 << 20, 5)).unwrap();
    Rig::from_text(&format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 2\nbuffers = \"64m\"\n[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\n\
         [[subsystems.hosts]]\nnqn = \"nqn.2026-11.io.example:plain\"\n\
         [[subsystems.hosts]]\nnqn = \"{HOST}\"\ntls_key = \"{key}\"\n{more}\n\
         [[subsystems.namespaces]]\nsource = \"{}\"\nblock_bytes = 512\n",
        content.display()
    ))
}

// promise: TLS-3
#[test]
fn a_host_with_a_tls_key_comes_over_tls_or_not_at_all() {
    let keys = Keys::new();
    for hash in [Hash::Sha256, Hash::Sha384] {
        let tls = |fill: u8, name: &str| {
            let text = ConfiguredPsk::generate(hash, &[fill; 64]).unwrap().to_text().to_string();
            (text.clone(), keys.put(&format!("{name}-{}", hash.name()), &text))
        };
        let ((key, file), (_, other)) = (tls(1, "tls"), tls(2, "other"));
        let (secret, secret_file) = keys.make(&format!("secret-{}", hash.name()), "sha256");
        let rig = served_over_tls(&keys, &key, &format!("dhchap_key = \"{secret}\""));
        let files = |tls: &PathBuf| {
            format!("&tls_key_file={}&dhchap_secret_file={}", tls.display(), secret_file.display())
        };
        // TLS below, authentication within.
        let remote = NvmeTcpRemote::open(&options(&rig, &files(&file)), 2).unwrap();
        check(&remote);
        drop(remote);
        // A look takes the same keys.
        let inquiry = Inquiry { host_nqn: None, timeout: LONG };
        let look = |more: &str| {
            let uri = format!("nvme+tcp://{}/{SUBSYSTEM}?hostnqn={HOST}{more}", rig.address());
            identify(&uri, &inquiry).map(|found| found.namespaces.len())
        };
        assert_eq!(look(&files(&file)).unwrap(), 1);
        let asked = |tls: &PathBuf| {
            let host = format!("nvme+tcp://{}?hostnqn={HOST}{}", rig.address(), files(tls));
            discover(&host, &inquiry)
        };
        assert!(asked(&file).unwrap().records.iter().any(|r| r.subnqn == SUBSYSTEM && r.sectype == "tls13"));
        let why = asked(&other).unwrap_err().to_string();
        assert!(why.contains("where keys differ"), "{why}");
        let why = look(&files(&other)).unwrap_err().to_string();
        assert!(why.contains("TLS"), "{why}");
        let refused = |more: &str| {
            let options = options(&rig, &format!("{more}&ctrl_loss_tmo=0"));
            NvmeTcpRemote::open(&options, 1).map(|_| ()).unwrap_err().to_string()
        };
        let why = refused(&files(&other));
        assert!(why.contains("TLS"), "{why}");
        eventually("another key is logged", || rig.heard("no TLS") > 0);
        refused(&format!("&dhchap_secret_file={}", secret_file.display()));
        eventually("a connection in the clear is refused", || rig.heard("refused") > 0);
        // Others come as they did, on the same port.
        let plain = options(&rig, "&hostnqn=nqn.2026-11.io.example:plain");
        check(&NvmeTcpRemote::open(&plain, 2).unwrap());
        let said = rig.said.lock().unwrap();
        assert!(said.iter().all(|entry| !entry.to_line().contains("NVMeTLSkey")), "no key is ever logged");
    }
}

// promise: AUT-7
#[test]
fn secrets_have_no_place_in_a_uri() {
    let uri = format!("nvme+tcp://h:1/{SUBSYSTEM}?dhchap_secret=DHHC-1:00:abc:");
    let why = Uri::parse(&uri).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("dhchap_secret_file=PATH"), "{why}");
}
