//! DH-HMAC-CHAP: both ends, with an input that changes messages, makes them up, or sends them twice.

use crate::input::Input;
use forebay_nvme::auth::{
    Credentials, Group, Hash, HostAuth, HostStep, Outcome, Policy, Random, Secret, TargetAuth,
    MESSAGE_BYTES_MAX,
};
use std::sync::{Arc, OnceLock};

/// Without an exchange in most runs: it takes milliseconds, and its values are tested elsewhere.
fn credentials(both_ways: bool, exchange: bool) -> Arc<Credentials> {
    static MADE: OnceLock<Vec<Arc<Credentials>>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let secret =
            |first: u8| Secret::generate(None, &std::array::from_fn(|i| first.wrapping_add(i as u8)));
        (0..4)
            .map(|which| {
                let group = if which & 2 != 0 { Group::Ffdhe2048 } else { Group::Null };
                Arc::new(Credentials {
                    host_nqn: "nqn.2014-08.org.example:host".into(),
                    subsystem_nqn: "nqn.2014-08.org.example:disk".into(),
                    host: secret(1),
                    controller: (which & 1 != 0).then(|| secret(99)),
                    policy: Policy { hashes: Hash::ALL.to_vec(), groups: vec![group] },
                })
            })
            .collect()
    });
    made[usize::from(both_ways) + 2 * usize::from(exchange)].clone()
}

/// Never the same at both ends: `step` is 5 at one and 7 at the other.
fn random(step: usize, first: u8) -> Random {
    Random::new(&std::array::from_fn(|i| first.wrapping_add((i * step) as u8)))
}

/// Leaves a message alone, or changes it. True: it was changed.
fn tamper(input: &mut Input<'_>, message: &mut Vec<u8>) -> bool {
    let before = message.clone();
    match input.u8() % 8 {
        0 => {
            let length = input.u16();
            *message = input.bytes(usize::from(length) % 600).to_vec();
        }
        1 => message.truncate(usize::from(input.u16()) % (message.len() + 1)),
        2 => {
            let count = input.u8() % 4 + 1;
            for _ in 0..count {
                let (at, with) = (usize::from(input.u16()), input.u8());
                let length = message.len();
                if length > 0 {
                    message[at % length] ^= with;
                }
            }
        }
        3 => {
            let length = usize::from(input.u8());
            message.extend_from_slice(input.bytes(length));
        }
        _ => {}
    }
    *message != before
}

/// The first byte that makes a run take milliseconds, with an exchange in a group.
const EXCHANGE: u8 = 0xd2;

/// Both ends meet; whoever proves nothing is let in nowhere.
pub fn nvme_auth(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let both_ways = choice & 1 != 0;
    let shared = credentials(both_ways, choice == EXCHANGE);
    let wrong_key = choice & 4 != 0;
    let mut theirs = (*shared).clone();
    if wrong_key {
        theirs.host = Secret::generate(None, &[42; 64]);
    }
    let mut host = HostAuth::new(Arc::new(theirs), random(5, input.u8()), input.u16());
    let mut target = TargetAuth::new(shared);
    let mut changed = false;
    let mut step = host.start();
    for _ in 0..24 {
        step = match step {
            HostStep::Send(mut message) => {
                assert!(message.len() <= MESSAGE_BYTES_MAX);
                changed |= tamper(&mut input, &mut message);
                target.send(&message, random(7, input.u8()));
                if input.u8() == 1 {
                    changed = true;
                    target.send(&message, random(7, input.u8()));
                }
                host.sent()
            }
            HostStep::Receive(length) => {
                let (asked, length) = (length, if input.u8() == 1 { u32::from(input.u8()) } else { length });
                changed |= asked != length;
                let mut message = target.receive(length).unwrap_or_default();
                assert!(message.len() <= length as usize);
                changed |= tamper(&mut input, &mut message);
                host.received(&message)
            }
            HostStep::Done(_) | HostStep::Failed(_) => break,
        };
    }
    let admitted = matches!(target.outcome(), Outcome::Authenticated(_));
    assert!(!(admitted && wrong_key), "a host with another key was let in");
    if let HostStep::Done(agreement) = &step {
        assert!(!wrong_key || changed, "the wrong key did");
        assert!(!both_ways || agreement.both_ways, "a host that insists on proof went without");
    }
    if !changed && !wrong_key {
        assert!(matches!(step, HostStep::Done(_)) && admitted, "an honest pair fails: {step:?}");
    }
}
