use super::*;
use forebay_nvme::auth::psk::{ConfiguredPsk, Version};

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2014-08.org.example:subsystem";

fn psk(hash: Hash, fill: u8, version: Version) -> TlsPsk {
    let configured = ConfiguredPsk::generate(hash, &[fill; 64]).expect("a hash with a suite");
    configured.session(version, HOST, SUBSYSTEM).expect("short names")
}

fn server(hash: Hash, fill: u8, version: Version) -> Arc<Context> {
    let find = move |identity: &str| Some(psk(hash, fill, version)).filter(|psk| psk.identity == identity);
    Context::server(Arc::new(find)).expect("OpenSSL 3")
}

/// Lets two ends shake hands, the link in our hands. Err: what each said.
fn shake(client: &Arc<Context>, server: &Arc<Context>) -> Result<(Session, Session), (String, String)> {
    let (mut a, mut b) = (Session::new(client).expect("a session"), Session::new(server).expect("a session"));
    let (mut ends, mut wire) = ((Progress::Starved, Progress::Starved), Vec::new());
    for _ in 0..8 {
        let first = a.handshake();
        wire.clear();
        a.take(&mut wire);
        b.feed(&wire);
        let second = b.handshake();
        wire.clear();
        b.take(&mut wire);
        a.feed(&wire);
        match (first, second) {
            (Ok(first), Ok(second)) => ends = (first, second),
            (Ok(_), Err(second)) => return Err((a.handshake().map(|_| ()).unwrap_err(), second)),
            (first, second) => return Err((format!("{first:?}"), format!("{second:?}"))),
        }
        if matches!(ends, (Progress::Done(_), Progress::Done(_))) {
            return Ok((a, b));
        }
    }
    panic!("{ends:?}");
}

// promise: TLS-1
#[test]
fn both_ends_meet_with_either_suite_and_identity() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for version in [Version::V0, Version::V1] {
            let client = Context::client(psk(hash, 1, version)).expect("OpenSSL 3");
            let (mut a, mut b) = shake(&client, &server(hash, 1, version)).expect("the same key");
            assert_eq!(b.identity(), Some(psk(hash, 1, version).identity.as_str()));
            let (sent, mut wire) = ([7u8; 100_000], Vec::new());
            a.write(&sent).expect("memory takes it");
            a.take(&mut wire);
            assert!(wire.len() > sent.len() && !wire.windows(64).any(|w| w == &sent[..64]));
            b.feed(&wire);
            let (mut got, mut buffer) = (Vec::new(), [0; 16384]);
            while let Progress::Done(bytes) = b.read(&mut buffer).expect("intact") {
                got.extend_from_slice(&buffer[..bytes]);
            }
            assert_eq!(got, sent);
            a.close();
            wire.clear();
            a.take(&mut wire);
            b.feed(&wire);
            assert_eq!(b.read(&mut buffer), Ok(Progress::Ended));
        }
    }
}

// promise: TLS-1
#[test]
fn another_key_or_name_or_a_changed_byte_ends_it() {
    let client = Context::client(psk(Hash::Sha256, 1, Version::V0)).expect("OpenSSL 3");
    let wrong = shake(&client, &server(Hash::Sha256, 2, Version::V0)).map(|_| ()).expect_err("another key");
    assert!(wrong.1.contains("binder"), "{wrong:?}");
    shake(&client, &server(Hash::Sha256, 1, Version::V1))
        .map(|_| ())
        .expect_err("an identity it doesn't know");
    shake(&client, &server(Hash::Sha384, 1, Version::V0)).map(|_| ()).expect_err("another suite");
    let (mut a, mut b) = shake(&client, &server(Hash::Sha256, 1, Version::V0)).expect("the same key");
    let mut wire = Vec::new();
    a.write(b"some bytes").expect("memory takes it");
    a.take(&mut wire);
    *wire.last_mut().expect("a record") ^= 1;
    b.feed(&wire);
    b.read(&mut [0; 64]).expect_err("a record that was changed");
}
