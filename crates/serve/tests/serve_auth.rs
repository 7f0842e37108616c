//! The target where hosts must prove who they are: nothing is served before, and nobody gets in with another key.

use crate::serve::{client, rig};
use client::{connect, Digests, Queue, HOST, SUBSYSTEM};
use forebay_io::{auth_random, generate_secret};
use forebay_nvme::auth::{Credentials, HostAuth, HostStep, Policy, Secret};
use forebay_nvme::command::Sqe;
use forebay_nvme::fabrics::{Cc, Connected, Property, PropertySet, CNTLID_DYNAMIC};
use forebay_nvme::host;
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::Data;
use forebay_serve::TargetConfig;
use rig::{eventually, pattern, Rig};
use std::sync::Arc;

const PLAIN: Digests = Digests(false, false);

struct Keys {
    host: String,
    controller: String,
}

fn keys() -> Keys {
    Keys { host: generate_secret("sha256").unwrap(), controller: generate_secret("sha512").unwrap() }
}

fn served(keys: &Keys, settings: &str, more: &str) -> (Rig, tempfile::TempDir) {
    let content = pattern(1 << 20, 5);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, content).unwrap();
    let rig = Rig::from_text(&format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 2\nbuffers = \"64m\"\n{settings}\n[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\n\
         [[subsystems.hosts]]\nnqn = \"{HOST}\"\ndhchap_key = \"{}\"\ndhchap_ctrl_key = \"{}\"\n{more}\n\
         [[subsystems.namespaces]]\nsource = \"{}\"\nblock_bytes = 512\nwritable = true\n",
        keys.host,
        keys.controller,
        path.display()
    ));
    (rig, dir)
}

/// Runs the exchange on a queue that was connected.
fn prove(queue: &mut Queue, host: &str, controller: Option<&str>) -> HostStep {
    let secret = |text: &str| Secret::parse(text).unwrap();
    let credentials = Credentials {
        host_nqn: HOST.into(),
        subsystem_nqn: SUBSYSTEM.into(),
        host: secret(host),
        controller: controller.map(secret),
        policy: Policy::default(),
    };
    let mut auth = HostAuth::new(Arc::new(credentials), auth_random().unwrap(), 1);
    let mut step = auth.start();
    while let Some((sqe, data)) = step.command() {
        step = match data {
            host::Data::Out(bytes) => {
                let sent = queue.code(sqe, Data::Out { len: bytes.len() as u32 }, bytes);
                assert_eq!(sent, Code::SUCCESS);
                auth.sent()
            }
            host::Data::In(len) => auth.received(&queue.call(sqe, Data::In { len }, vec![]).1),
            host::Data::None => panic!("an Authentication command without data"),
        };
    }
    step
}

/// An admin queue that was connected, and is to authenticate; its controller.
fn admin(rig: &Rig) -> (Queue, u16) {
    let mut queue = Queue::open(rig.address(), 31, PLAIN);
    let cqe = connect(&mut queue, 0, 32, 0, CNTLID_DYNAMIC, SUBSYSTEM, HOST);
    assert_eq!(cqe.status().code, Code::SUCCESS);
    let connected = Connected::from_result(cqe.result.get());
    assert!(connected.authentication_required && !connected.secure_channel_required);
    (queue, connected.cntlid)
}

fn enable() -> Sqe {
    PropertySet::new(Property::Cc, Cc::enabled().0.into()).to_sqe()
}

// promise: AUT-6
#[test]
fn a_host_that_proves_itself_on_each_queue_is_served() {
    let keys = keys();
    let (rig, _dir) = served(&keys, "", "");
    let (mut queue, cntlid) = admin(&rig);
    assert!(
        matches!(prove(&mut queue, &keys.host, Some(&keys.controller)), HostStep::Done(a) if a.both_ways)
    );
    assert_eq!(queue.code(enable(), Data::None, vec![]), Code::SUCCESS);
    let mut io = Queue::open(rig.address(), 31, PLAIN);
    assert_eq!(connect(&mut io, 1, 32, 0, cntlid, SUBSYSTEM, HOST).status().code, Code::SUCCESS);
    assert!(matches!(prove(&mut io, &keys.host, None), HostStep::Done(a) if !a.both_ways));
    let (cqe, data) = io.call(nvm::read(1, 8, 8), Data::In { len: 4096 }, vec![]);
    assert_eq!(cqe.status().code, Code::SUCCESS);
    assert!(data == pattern(1 << 20, 5)[4096..8192]);
    eventually("both are logged", || rig.heard("authenticated") == 2);
    let said = rig.said.lock().unwrap();
    assert!(said.iter().all(|entry| !entry.to_line().contains("DHHC")), "no key is ever logged");
}

// promise: AUT-6
#[test]
fn nothing_is_served_before_the_proof() {
    let keys = keys();
    let (rig, _dir) = served(&keys, "", "");
    let (mut queue, cntlid) = admin(&rig);
    let identify = Sqe { opcode: 0x06, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(queue.code(identify, Data::In { len: 4096 }, vec![]), Code::AUTHENTICATION_REQUIRED);
    assert_eq!(queue.code(enable(), Data::None, vec![]), Code::AUTHENTICATION_REQUIRED);
    assert!(matches!(prove(&mut queue, &keys.host, None), HostStep::Done(_)));
    assert_eq!(queue.code(enable(), Data::None, vec![]), Code::SUCCESS);
    let mut io = Queue::open(rig.address(), 31, PLAIN);
    assert_eq!(connect(&mut io, 1, 32, 0, cntlid, SUBSYSTEM, HOST).status().code, Code::SUCCESS);
    assert_eq!(io.code(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]), Code::AUTHENTICATION_REQUIRED);
    let written = io.code(nvm::write(1, 0, 8, false), Data::Out { len: 4096 }, vec![9; 4096]);
    assert_eq!(written, Code::AUTHENTICATION_REQUIRED);
    assert!(matches!(prove(&mut io, &keys.host, None), HostStep::Done(_)));
    let (cqe, data) = io.call(nvm::read(1, 0, 8), Data::In { len: 4096 }, vec![]);
    assert_eq!(cqe.status().code, Code::SUCCESS);
    assert!(data == pattern(1 << 20, 5)[..4096], "what was refused was not written");
}

// promise: AUT-6
#[test]
fn another_key_is_refused_and_the_connection_ends() {
    let keys = keys();
    let (rig, _dir) = served(&keys, "", "");
    let (mut queue, _) = admin(&rig);
    let step = prove(&mut queue, &generate_secret("sha256").unwrap(), None);
    assert!(matches!(step, HostStep::Failed(failure) if failure.by_peer), "{step:?}");
    assert!(queue.turn().is_err(), "the connection is closed");
    // And a target with another key than the host expects is left.
    let (mut queue, _) = admin(&rig);
    let step = prove(&mut queue, &keys.host, Some(&keys.host));
    assert!(matches!(step, HostStep::Failed(failure) if !failure.by_peer), "{step:?}");
    assert!(queue.turn().is_err(), "the connection is closed");
    eventually("both failures are logged", || rig.heard("authentication failed") == 2);
    eventually("nobody is connected", || rig.server.stats().controllers.is_empty());
}

// promise: AUT-6
#[test]
fn a_host_that_takes_its_time_is_left() {
    let keys = keys();
    let (rig, _dir) = served(&keys, "handshake_s = 3.0", "");
    let (mut queue, _) = admin(&rig);
    assert!(queue.turn().is_err(), "closed before it proved anything");
    eventually("it is logged", || rig.heard("broken off") == 1);
}

// promise: AUT-6
#[test]
fn only_what_the_configuration_allows_is_used() {
    let keys = keys();
    let (rig, _dir) = served(&keys, "", "dhchap_hashes = [\"sha512\"]\ndhchap_groups = [\"ffdhe3072\"]");
    let (mut queue, _) = admin(&rig);
    let HostStep::Done(agreement) = prove(&mut queue, &keys.host, None) else { panic!("refused") };
    assert_eq!((agreement.hash.name(), agreement.group.name()), ("sha512", "ffdhe3072"));
}

// promise: AUT-6
#[test]
fn a_key_that_would_prove_nothing_is_refused() {
    let text = format!(
        "[[subsystems]]\nnqn = \"{SUBSYSTEM}\"\nallow_any_host = true\n\
         [[subsystems.hosts]]\nnqn = \"{HOST}\"\ndhchap_key = \"{}\"\n",
        keys().host
    );
    let error = TargetConfig::from_toml(&text).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("allow_any_host"), "{error}");
}
