use super::*;
use forebay_nvme::auth::psk::{ConfiguredPsk, TlsPsk, Version};
use forebay_nvme::auth::Hash;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

fn psk(fill: u8) -> TlsPsk {
    let configured = ConfiguredPsk::generate(Hash::Sha256, &[fill; 64]).expect("a hash with a suite");
    configured
        .session(Version::V1, "nqn.2014-08.org.example:h", "nqn.2014-08.org.example:s")
        .expect("short names")
}

fn server() -> Arc<Context> {
    let find = |identity: &str| Some(psk(1)).filter(|psk| psk.identity == identity);
    Context::server(Arc::new(find)).expect("OpenSSL 3")
}

/// A connection through both sides of the bridge: the client's end, and what the server was told.
fn meet(bridge: &Bridge, client: TlsPsk) -> (UnixStream, mpsc::Receiver<Arrival>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("an address");
    let client = Context::client(client).expect("OpenSSL 3");
    let near = bridge.connect(to, &client, LIMIT).expect("a socket");
    let (tell, reported) = mpsc::channel();
    let (socket, _) = listener.accept().expect("a connection");
    bridge.accept(
        socket.into(),
        &server(),
        LIMIT,
        Box::new(move |arrival| tell.send(arrival).expect("heard")),
    );
    (near.into(), reported)
}

// promise: TLS-2
#[test]
fn bytes_go_both_ways_and_the_end_goes_with_them() {
    let bridge = Bridge::start().expect("a thread");
    let (mut near, reported) = meet(&bridge, psk(1));
    // Written before hands are shaken.
    near.write_all(b"first").expect("taken");
    let Arrival::Secure { socket, client } = reported.recv_timeout(LIMIT).expect("an arrival") else {
        panic!("no TLS")
    };
    assert_eq!(client.host_nqn, "nqn.2014-08.org.example:h");
    assert_eq!(client.subsystem_nqn, "nqn.2014-08.org.example:s");
    let mut far = UnixStream::from(socket);
    let mut got = [0; 5];
    far.read_exact(&mut got).expect("what was written first");
    assert_eq!(&got, b"first");
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (from, to) in
        [(&mut near.try_clone().expect("dup"), &mut far.try_clone().expect("dup")), (&mut far, &mut near)]
    {
        let (mut from, data) = (from.try_clone().expect("dup"), sent.clone());
        let writer = std::thread::spawn(move || from.write_all(&data).expect("taken"));
        let mut back = vec![0; sent.len()];
        to.read_exact(&mut back).expect("all of it");
        writer.join().expect("it wrote");
        assert!(back == sent);
    }
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).expect("the end"), 0);
}

// promise: TLS-2
#[test]
fn a_host_with_another_key_is_told_and_gone() {
    let bridge = Bridge::start().expect("a thread");
    let other = TlsPsk { identity: psk(1).identity, key: psk(2).key, suite: Hash::Sha256 };
    let (mut near, reported) = meet(&bridge, other);
    let Arrival::Failed(why) = reported.recv_timeout(LIMIT).expect("an arrival") else {
        panic!("it was let in")
    };
    assert!(why.contains("binder"), "{why}");
    assert!(matches!(near.read(&mut [0; 8]), Ok(0) | Err(_)));
}

// promise: TLS-2
#[test]
fn a_host_without_tls_is_handed_on_as_it_came_and_one_that_keeps_silent_is_not() {
    let bridge = Bridge::start().expect("a thread");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let arrival = |limit| {
        let (tell, reported) = mpsc::channel();
        let (socket, _) = listener.accept().expect("a connection");
        bridge.accept(socket.into(), &server(), limit, Box::new(move |a| tell.send(a).expect("heard")));
        reported.recv_timeout(LIMIT).expect("an arrival")
    };
    let mut plain = TcpStream::connect(address).expect("a connection");
    plain.write_all(&[0, 0, 128, 0]).expect("taken");
    let Arrival::Plain(socket) = arrival(LIMIT) else { panic!("not handed on") };
    let mut got = [9; 4];
    TcpStream::from(socket).read_exact(&mut got).expect("all that was sent");
    assert_eq!(got, [0, 0, 128, 0]);
    let silent = TcpStream::connect(address).expect("a connection");
    let Arrival::Failed(why) = arrival(Duration::from_millis(50)) else { panic!("not ended") };
    assert!(why.contains("in time"), "{why}");
    drop(silent);
}
