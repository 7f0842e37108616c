//! Both ends of DH-HMAC-CHAP against each other, against Python's arithmetic, and against hostile bytes.

use forebay_nvme::auth::{
    Agreement, Credentials, Explanation, Group, Hash, HostAuth, HostStep, Outcome, Policy, Random, Secret,
    TargetAuth,
};
use forebay_nvme::command::{Sgl, FABRICS};
use forebay_nvme::controller::{data_out, Answer};
use forebay_nvme::host::Data;
use forebay_nvme::status::Code;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::sync::Arc;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:vector";
const TRANSACTION: u16 = 0x1234;

/// The secret with these key bytes.
fn secret(transform: u8, key: &[u8]) -> Secret {
    use base64::Engine as _;
    let mut bytes = key.to_vec();
    bytes.extend(crc32fast::hash(key).to_le_bytes());
    let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
    Secret::parse(&format!("DHHC-1:{transform:02}:{encoded}:")).expect("a well-formed secret")
}

fn credentials(host: Secret, controller: Option<Secret>, policy: Policy) -> Arc<Credentials> {
    Arc::new(Credentials { host_nqn: HOST.into(), subsystem_nqn: SUBSYSTEM.into(), host, controller, policy })
}

fn only(hash: Hash, group: Group) -> Policy {
    Policy { hashes: vec![hash], groups: vec![group] }
}

fn random(step: usize, first: usize) -> Random {
    Random::new(&std::array::from_fn(|i| (i * step + first) as u8))
}

/// Outcome of a meeting: the host's end, the target's view of it, all messages in order.
struct Meeting {
    host: HostStep,
    target: Outcome,
    messages: Vec<Vec<u8>>,
}

/// Lets them meet; `link` may change each message, by its number.
fn meet(
    host: &Arc<Credentials>,
    target: &Arc<Credentials>,
    mut link: impl FnMut(usize, &mut Vec<u8>),
) -> Meeting {
    let mut host = HostAuth::new(host.clone(), random(5, 2), TRANSACTION);
    let mut target = TargetAuth::new(target.clone());
    let mut messages = Vec::new();
    let mut step = host.start();
    // Five messages, and a failure in place of one, are the most that there can be.
    for _ in 0..12 {
        step = match step {
            HostStep::Send(mut bytes) => {
                link(messages.len(), &mut bytes);
                let status = target.send(&bytes, random(3, 1));
                messages.push(bytes);
                assert!(status.is_success() || !matches!(target.outcome(), Outcome::Authenticated(_)));
                host.sent()
            }
            HostStep::Receive(length) => {
                let Ok(mut bytes) = target.receive(length) else { break };
                link(messages.len(), &mut bytes);
                messages.push(bytes.clone());
                host.received(&bytes)
            }
            HostStep::Done(_) | HostStep::Failed(_) => break,
        };
    }
    Meeting { host: step, target: target.outcome(), messages }
}

// promise: AUT-1
#[test]
fn says_what_python_computes() {
    for line in include_str!("auth_vectors.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let id = |text: &str| text.parse::<u8>().expect("a number");
        let hash = Hash::from_id(id(fields[0])).expect("a hash");
        let group = Group::from_id(id(fields[1])).expect("a group");
        let host_key: Vec<u8> = (0..32).collect();
        let controller_key: Vec<u8> = (100..148).collect();
        let controller = (fields[3] != "-").then(|| secret(id(fields[3]), &controller_key));
        let both_ways = controller.is_some();
        let credentials = credentials(secret(id(fields[2]), &host_key), controller, only(hash, group));
        let meeting = meet(&credentials, &credentials, |_, _| ());
        let agreement = Agreement { hash, group, both_ways };
        assert_eq!(meeting.host, HostStep::Done(agreement), "{line}");
        assert_eq!(meeting.target, Outcome::Authenticated(agreement), "{line}");
        assert_eq!(meeting.messages.len(), if both_ways { 5 } else { 4 });
        let digest = Sha256::digest(meeting.messages[1..4].concat());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, fields[4], "{line}");
    }
}

// promise: AUT-2
#[test]
fn wrong_keys_fail_in_each_direction() {
    let (one, other) = (secret(1, &[1; 32]), secret(1, &[2; 32]));
    for group in [Group::Null, Group::Ffdhe2048] {
        let policy = only(Hash::Sha384, group);
        let right = credentials(one.clone(), Some(other.clone()), policy.clone());

        let stranger = credentials(other.clone(), Some(other.clone()), policy.clone());
        let meeting = meet(&stranger, &right, |_, _| ());
        let HostStep::Failed(failure) = meeting.host else { panic!("{:?}", meeting.host) };
        assert_eq!((failure.explanation, failure.by_peer), (Explanation::FAILED, true));
        assert_eq!(
            meeting.messages[3],
            [0x00, 0xf1, 0, 0, 0x34, 0x12, 0x01, 0x01],
            "AUTH_Failure1, reason 01h"
        );
        let Outcome::Failed(failure) = meeting.target else { panic!("{:?}", meeting.target) };
        assert_eq!((failure.explanation, failure.by_peer), (Explanation::FAILED, false));

        let impostor = credentials(one.clone(), Some(one.clone()), policy.clone());
        let meeting = meet(&right, &impostor, |_, _| ());
        let HostStep::Failed(failure) = meeting.host else { panic!("{:?}", meeting.host) };
        assert_eq!((failure.explanation, failure.by_peer), (Explanation::FAILED, false));
        assert_eq!(
            meeting.messages[4],
            [0x00, 0xf0, 0, 0, 0x34, 0x12, 0x01, 0x01],
            "AUTH_Failure2, reason 01h"
        );
        assert!(matches!(meeting.target, Outcome::Failed(failure) if failure.by_peer));

        // A controller without a key can't prove itself, and a host that has one insists.
        let mute = credentials(one.clone(), None, policy);
        let meeting = meet(&right, &mute, |_, _| ());
        assert!(
            matches!(meeting.host, HostStep::Failed(failure) if failure.explanation == Explanation::FAILED)
        );
    }
}

// promise: AUT-2
#[test]
fn a_controller_that_skips_its_proof_is_refused() {
    let both = credentials(secret(0, &[1; 32]), Some(secret(0, &[2; 48])), only(Hash::Sha256, Group::Null));
    let meeting = meet(&both, &both, |number, bytes| {
        if number == 3 {
            // Success1 without R2.
            bytes[8] = 0;
            bytes.truncate(16);
        }
    });
    assert!(matches!(meeting.host, HostStep::Failed(failure) if failure.explanation == Explanation::FAILED));
    assert!(matches!(meeting.target, Outcome::Failed(_)));
}

#[test]
fn nothing_in_common_is_said_so() {
    let key = secret(0, &[1; 32]);
    let cases = [
        (only(Hash::Sha256, Group::Null), only(Hash::Sha512, Group::Null), Explanation::HASH_NOT_USABLE),
        (
            only(Hash::Sha256, Group::Null),
            only(Hash::Sha256, Group::Ffdhe2048),
            Explanation::GROUP_NOT_USABLE,
        ),
    ];
    for (host, target, explanation) in cases {
        let meeting =
            meet(&credentials(key.clone(), None, host), &credentials(key.clone(), None, target), |_, _| ());
        let HostStep::Failed(failure) = meeting.host else { panic!("{:?}", meeting.host) };
        assert_eq!((failure.explanation, failure.by_peer), (explanation, true));
    }
}

// promise: AUT-3
#[test]
fn public_values_that_give_the_key_away_are_refused() {
    let both = credentials(secret(0, &[1; 32]), None, only(Hash::Sha256, Group::Ffdhe2048));
    // ffdhe2048 ends in 64 ones; its highest 64 bits are ones, too, so that this is above it.
    let above = vec![0xff; 256];
    let mut one = vec![0; 256];
    one[255] = 1;
    for value in [vec![0; 256], one, above, prime_less(1), prime_less(0)] {
        for number in [1, 2] {
            let meeting = meet(&both, &both, |message, bytes| {
                if message == number {
                    let start = bytes.len() - 256;
                    bytes[start..].copy_from_slice(&value);
                }
            });
            let HostStep::Failed(failure) = meeting.host else { panic!("{:?}", meeting.host) };
            assert_eq!(failure.explanation, Explanation::INCORRECT_PAYLOAD, "message {number}");
            assert!(matches!(meeting.target, Outcome::Failed(_)));
        }
    }
    // And one that is just good enough is taken: the answers then differ.
    let meeting = meet(&both, &both, |message, bytes| {
        if message == 2 {
            let start = bytes.len() - 256;
            bytes[start..].copy_from_slice(&prime_less(2));
        }
    });
    assert!(matches!(meeting.host, HostStep::Failed(failure) if failure.explanation == Explanation::FAILED));
}

/// The prime of ffdhe2048 less `less` (RFC 7919, appendix A.1).
fn prime_less(less: u8) -> Vec<u8> {
    let hex = concat!(
        "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9",
        "7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935",
        "984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb",
        "b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61",
        "9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa",
        "886b423861285c97ffffffffffffffff"
    );
    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
    let mut bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
    bytes[255] -= less;
    bytes
}

/// Bytes of each message that mean nothing: reserved ones, and places of AUTH_Negotiate's lists that aren't used.
fn meaningless(message: usize, byte: usize) -> bool {
    match message {
        0 => matches!(byte, 2 | 3 | 9 | 13..=41 | 43..=71),
        1 => matches!(byte, 2 | 3 | 7),
        2 => matches!(byte, 2 | 3 | 7 | 9),
        3 => matches!(byte, 2 | 3 | 7 | 9..=15),
        _ => matches!(byte, 2 | 3 | 6..),
    }
}

// promise: AUT-3
#[test]
fn every_changed_byte_is_noticed() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let both = credentials(secret(1, &[1; 32]), Some(secret(2, &[2; 48])), only(Hash::Sha256, group));
        let lengths: Vec<usize> = meet(&both, &both, |_, _| ()).messages.iter().map(Vec::len).collect();
        for (message, &length) in lengths.iter().enumerate() {
            // Each byte without an exchange; with one, which takes long, the header and a sample of the values.
            for byte in (0..length).filter(|&byte| group == Group::Null || byte < 16 || byte % 61 == 0) {
                for &mask in if group == Group::Null { &[0x01, 0x80, 0xff][..] } else { &[0x01] } {
                    let meeting = meet(&both, &both, |number, bytes| {
                        if number == message {
                            bytes[byte] ^= mask;
                        }
                    });
                    let target = matches!(meeting.target, Outcome::Authenticated(_));
                    let agreed = target && matches!(meeting.host, HostStep::Done(_));
                    let at = format!("message {message}, byte {byte}, mask {mask:#x}: {:?}", meeting.host);
                    assert_eq!(agreed, meaningless(message, byte), "{at}");
                    assert_eq!(target, agreed, "the target lets nobody in whom it should not: {at}");
                }
            }
        }
    }
}

#[test]
fn a_live_queue_authenticates_again() {
    let both = credentials(secret(0, &[1; 32]), Some(secret(0, &[2; 32])), only(Hash::Sha256, Group::Null));
    let mut target = TargetAuth::new(both.clone());
    for transaction in [1, 2] {
        let mut host = HostAuth::new(both.clone(), random(7, 3), transaction);
        let mut step = host.start();
        while !matches!(step, HostStep::Done(_)) {
            if transaction == 2 {
                assert!(
                    matches!(target.outcome(), Outcome::Authenticated(_)),
                    "a live queue stays so meanwhile"
                );
            }
            step = match step {
                HostStep::Send(bytes) => {
                    assert!(target.send(&bytes, random(3, transaction.into())).is_success());
                    host.sent()
                }
                HostStep::Receive(length) => {
                    host.received(&target.receive(length).expect("a message is due"))
                }
                other => panic!("{other:?}"),
            };
        }
        assert!(matches!(target.outcome(), Outcome::Authenticated(_)));
    }
}

/// As a driver does it: by commands.
#[test]
fn commands_carry_the_messages() {
    let both =
        credentials(secret(1, &[1; 32]), Some(secret(1, &[2; 32])), only(Hash::Sha256, Group::Ffdhe2048));
    let mut host = HostAuth::new(both.clone(), random(5, 2), 1);
    let mut target = TargetAuth::new(both);
    let mut step = host.start();
    while let Some((mut sqe, data)) = step.command() {
        assert_eq!(sqe.opcode, FABRICS);
        sqe.cid = 9.into();
        let (sgl, out) = match data {
            Data::Out(bytes) => (Sgl::in_capsule(bytes.len() as u32), bytes),
            Data::In(length) => (Sgl::transport(length), Vec::new()),
            Data::None => panic!("an Authentication command without data"),
        };
        sqe.sgl = sgl;
        assert_eq!(data_out(&sqe), Ok(out.len() as u32));
        // Another security protocol, or a length that isn't the data's, is refused and changes nothing.
        let mut foreign = sqe;
        foreign.cdw10 = 0.into();
        let mut wrong = sqe;
        wrong.cdw11 = (sqe.cdw11.get() + 1).into();
        for bad in [Some(foreign), (!out.is_empty()).then_some(wrong)].into_iter().flatten() {
            let Answer::Complete(cqe) = target.execute(&bad, &out, random(3, 1)) else {
                panic!("data for {bad:?}")
            };
            assert_eq!((cqe.status().code, cqe.cid.get()), (Code::INVALID_FIELD, 9));
        }
        step = match target.execute(&sqe, &out, random(3, 1)) {
            Answer::Complete(cqe) => {
                assert!(cqe.status().is_success());
                host.sent()
            }
            Answer::Data { data, cqe } => {
                assert!(cqe.status().is_success());
                host.received(&data)
            }
            other => panic!("{other:?}"),
        };
    }
    assert!(matches!(step, HostStep::Done(agreement) if agreement.both_ways));
    assert!(matches!(target.outcome(), Outcome::Authenticated(_)));
}

#[test]
fn a_receive_that_is_too_short_may_be_repeated() {
    let both = credentials(secret(0, &[1; 32]), None, only(Hash::Sha512, Group::Ffdhe3072));
    let mut host = HostAuth::new(both.clone(), random(5, 2), 1);
    let mut target = TargetAuth::new(both);
    let HostStep::Send(bytes) = host.start() else { panic!("a host begins by sending") };
    assert!(target.receive(4096).is_err(), "nothing is due before the negotiation");
    assert!(target.send(&bytes, random(3, 1)).is_success());
    assert!(target.receive(16 + 64 + 384 - 1).is_err());
    assert_eq!(target.receive(16 + 64 + 384).expect("long enough").len(), 16 + 64 + 384);
    assert!(target.receive(4096).is_err(), "a message is fetched once");
}

// promise: AUT-4
#[test]
fn secrets_are_read_and_written() {
    // The example of the specification, as the Linux and SPDK projects quote it.
    let text = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    assert_eq!(Secret::parse(text).expect("the specification's example").to_text().as_str(), text);
    assert!(Secret::parse(&format!(" {}\n", text.trim_end_matches(':'))).is_ok());
    for other in ["01", "02", "03"] {
        assert!(Secret::parse(&text.replace(":00:", &format!(":{other}:"))).is_ok());
    }
    let wrong = [
        ("", "begins with DHHC-1"),
        ("DHHC-1:04:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", "begins with DHHC-1"),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2m:", "CRC-32"),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2:", "Base64"),
        ("DHHC-1:00:ia6zGodOr4SE:", "9 in all"),
        ("DHHC-1:00::", "0 in all"),
    ];
    for (text, says) in wrong {
        let error = Secret::parse(text).map(|_| ()).expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let made = Secret::generate(transform, &[7; 64]).to_text();
        assert_eq!(Secret::parse(&made).expect("our own").to_text(), made);
    }
    assert_eq!(format!("{:?}", Secret::generate(None, &[7; 64])), "Secret(hidden)");
}

/// Returns messages of a hostile peer: of each kind with any fields, and noise.
fn hostile() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let message = (0..7usize, prop::collection::vec(any::<u8>(), 0..160)).prop_map(|(kind, mut bytes)| {
        let header = [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0xf0), (0, 0xf1)][kind];
        for (slot, value) in bytes.iter_mut().zip([header.0, header.1, 0, 0, 0x34, 0x12, 32, 1]) {
            *slot = value;
        }
        bytes
    });
    prop::collection::vec(prop_oneof![message, prop::collection::vec(any::<u8>(), 0..64)], 1..8)
}

proptest! {
    // promise: AUT-3
    #[test]
    fn no_bytes_make_an_end_panic_or_believe(messages in hostile(), length in 0u32..200) {
        let both = credentials(secret(0, &[1; 32]), Some(secret(0, &[2; 32])), only(Hash::Sha256, Group::Null));
        let mut target = TargetAuth::new(both.clone());
        let mut host = HostAuth::new(both, random(5, 2), TRANSACTION);
        let mut step = host.start();
        for bytes in &messages {
            target.send(bytes, random(3, 1));
            if let Ok(sent) = target.receive(length) {
                prop_assert!(sent.len() <= length as usize);
            }
            prop_assert!(!matches!(target.outcome(), Outcome::Authenticated(_)));
            step = match step {
                HostStep::Send(_) => host.sent(),
                HostStep::Receive(_) => host.received(bytes),
                ended => ended,
            };
            prop_assert!(!matches!(step, HostStep::Done(_)));
        }
    }
}
