//! A management controller on a local port, by Redfish.

use super::scripted::{wait_until, PATIENCE};
use super::{near, scopes};
use forebay_io::{
    open_power_meters, FoundMeters, PowerSample, PowerSampler, RedfishAddress, RedfishLogin,
    REDFISH_PASSWORD_ENV, REDFISH_USER_ENV,
};
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A management controller as far as one thread can be: path → (status, body).
struct Fake {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

type Answers = HashMap<&'static str, (u16, String)>;

fn reply(mut stream: impl Read + Write, answers: &Answers, requests: &Mutex<Vec<String>>) {
    let mut request = Vec::new();
    let mut buffer = [0u8; 1024];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 => request.extend_from_slice(&buffer[..length]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or("").to_string();
    requests.lock().unwrap().push(request);
    let missing = (404, "{}".to_string());
    let (status, body) = answers.get(path.as_str()).unwrap_or(&missing);
    if *status == 0 {
        std::thread::sleep(PATIENCE * 2); // never answers
        return;
    }
    let extra = if *status == 302 { "Location: http://127.0.0.1:1/elsewhere\r\n" } else { "" };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.flush();
}

fn serve(answers: Answers, tls: Option<Arc<rustls::ServerConfig>>) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            match &tls {
                None => reply(stream, &answers, &seen),
                Some(config) => {
                    let session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                    let mut secured = rustls::StreamOwned::new(session, stream);
                    reply(&mut secured, &answers, &seen);
                    secured.conn.send_close_notify();
                    let _ = secured.flush();
                }
            }
        }
    });
    Fake { address, requests }
}

fn answers(list: &[(&'static str, &str)]) -> Answers {
    list.iter().map(|&(path, body)| (path, (200, body.to_string()))).collect()
}

fn one_chassis() -> Answers {
    answers(&[
        ("/redfish/v1/Chassis", r#"{"Members":[{"@odata.id":"/redfish/v1/Chassis/1U"}]}"#),
        ("/redfish/v1/Chassis/1U", r#"{"Id":"1U","Power":{"@odata.id":"/redfish/v1/Chassis/1U/Power"}}"#),
        (
            "/redfish/v1/Chassis/1U/Power",
            r##"{"@odata.type":"#Power.v1_5_0.Power","PowerControl":[
                {"MemberId":"0","Name":"Server Power Control","PowerConsumedWatts":344,"PowerCapacityWatts":800},
                {"MemberId":"1","Name":"CPU Sub-system Power","PowerConsumedWatts":130}]}"##,
        ),
    ])
}

fn address(fake: &Fake) -> RedfishAddress {
    RedfishAddress::parse(&format!("http://{}", fake.address), false).unwrap()
}

fn open(fake: &Fake) -> Result<FoundMeters, String> {
    RedfishAddress::open(&address(fake), RedfishLogin::none())
}

#[test]
fn power_of_the_older_schema() {
    let fake = serve(one_chassis(), None);
    let mut found = open(&fake).unwrap();
    assert_eq!(scopes(&found.meters), ["server"]);
    assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(344.0)));
}

#[test]
fn power_of_the_newer_schema_and_several_chassis() {
    let fake = serve(
        answers(&[
            (
                "/redfish/v1/Chassis",
                r#"{"Members":[{"@odata.id":"/redfish/v1/Chassis/Self"},{"@odata.id":"/redfish/v1/Chassis/GPU_Board/"},
                        {"@odata.id":"/redfish/v1/Chassis/Backplane"},{"@odata.id":"http://elsewhere/x"}]}"#,
            ),
            (
                "/redfish/v1/Chassis/Self",
                r#"{"EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/Self/EnvironmentMetrics"}}"#,
            ),
            ("/redfish/v1/Chassis/Self/EnvironmentMetrics", r#"{"PowerWatts":{"Reading":1820.5}}"#),
            (
                "/redfish/v1/Chassis/GPU_Board/",
                r#"{"EnvironmentMetrics":{"@odata.id":"/e"},"Power":{"@odata.id":"/p"}}"#,
            ),
            ("/e", r#"{"TemperatureCelsius":{"Reading":31}}"#),
            ("/p", r#"{"PowerControl":[{"PowerConsumedWatts":900}]}"#),
            ("/redfish/v1/Chassis/Backplane", r#"{"Id":"Backplane"}"#),
        ]),
        None,
    );
    let mut found = open(&fake).unwrap();
    assert_eq!(scopes(&found.meters), ["server/Self", "server/GPU_Board"]);
    assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(1820.5)));
    assert_eq!(found.meters[1].sample(), Ok(PowerSample::Watts(900.0)));
    assert_eq!(found.refused[0].0, "redfish:Backplane");
}

#[test]
fn the_login_goes_with_each_request_and_into_no_reason() {
    let mut refusing = one_chassis();
    refusing.insert("/redfish/v1/Chassis", (401, "{}".into()));
    let fake = serve(refusing, None);
    let reason = RedfishAddress::open(&address(&fake), RedfishLogin::new("root", "calvin")).err().unwrap();
    assert!(reason.contains("401") && reason.contains("isn't accepted"), "{reason}");
    assert!(!reason.contains("calvin"));
    let request = fake.requests.lock().unwrap()[0].clone();
    assert!(request.contains("Basic cm9vdDpjYWx2aW4="), "{request}");
    let reason = open(&fake).err().unwrap();
    assert!(reason.contains("set FOREBAY_REDFISH_USER"), "{reason}");
}

#[test]
fn what_is_no_answer_is_a_reason() {
    let case = |status: u16, body: String| {
        open(&serve(HashMap::from([("/redfish/v1/Chassis", (status, body))]), None)).err().unwrap()
    };
    assert!(case(200, "<html>login</html>".into()).contains("not JSON"));
    assert!(case(200, "[1,2".into()).contains("not JSON"));
    assert!(case(200, "{}".into()).contains("no Members"));
    assert!(case(200, r#"{"Members":[]}"#.into()).contains("lists no chassis"));
    assert!(case(200, format!("[{}1]", "1,".repeat(1 << 20))).contains("more than 1048576 bytes"));
    assert!(case(302, String::new()).contains("redirects are not followed"));
    assert!(case(500, String::new()).contains("status 500"));
    assert!(case(404, String::new()).contains("is this a Redfish service?"));
    assert!(case(200, "[".repeat(100_000)).contains("not JSON"), "depth is bounded too");
}

#[test]
fn nobody_there_and_nobody_answering_end_in_time() {
    // The near end of a connection: nobody listens there, and nobody else gets the port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let port = near_end.local_addr().unwrap();
    let gone = RedfishAddress::parse(&format!("http://{port}"), false).unwrap();
    assert!(RedfishAddress::open(&gone, RedfishLogin::none()).err().unwrap().contains("efused"));
    let silent = serve(HashMap::from([("/redfish/v1/Chassis", (0, String::new()))]), None);
    let begun = Instant::now();
    assert!(open(&silent).err().unwrap().contains("timeout"));
    assert!(begun.elapsed() < PATIENCE);
}

/// A controller with a certificate that it signed itself, for localhost and 127.0.0.1 until 2099, and that certificate.
fn secured() -> (Fake, Vec<u8>) {
    let (certificate, key) = (include_bytes!("certificate.der"), include_bytes!("key.der"));
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.to_vec().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.to_vec().into()], key)
        .unwrap();
    (serve(one_chassis(), Some(Arc::new(config))), certificate.to_vec())
}

#[test]
fn a_certificate_nobody_vouches_for_is_refused_unless_the_user_says_so() {
    let (fake, _) = secured();
    let at = |insecure| {
        let address = RedfishAddress::parse(&fake.address.to_string(), insecure).unwrap();
        RedfishAddress::open(&address, RedfishLogin::new("root", "calvin"))
    };
    let reason = at(false).err().unwrap();
    assert!(reason.contains("redfish+insecure:HOST"), "{reason}");
    assert!(fake.requests.lock().unwrap().is_empty(), "no login before trust");
    let mut found = at(true).unwrap();
    assert_eq!(found.meters[0].sample(), Ok(PowerSample::Watts(344.0)));
}

/// In a process of its own, since what the system trusts is read from the environment.
#[test]
fn a_certificate_that_the_system_trusts_is_accepted() {
    const ADDRESS: &str = "FOREBAY_TEST_CONTROLLER";
    if let Ok(address) = std::env::var(ADDRESS) {
        let (mut meters, refused) = open_power_meters(&[address]);
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(meters[0].sample(), Ok(PowerSample::Watts(344.0)));
        return;
    }
    let (fake, der) = secured();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n");
    fs::write(&roots, pem).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "controller::a_certificate_that_the_system_trusts_is_accepted"])
        .env(ADDRESS, format!("redfish:{}", fake.address))
        .env("SSL_CERT_FILE", &roots)
        .envs([(REDFISH_USER_ENV, "root"), (REDFISH_PASSWORD_ENV, "calvin")])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let requests = fake.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.contains("Basic cm9vdDpjYWx2aW4=")), "{requests:?}");
}

// promise: REC-7
#[test]
fn a_controller_is_sampled_through_a_run() {
    let fake = serve(one_chassis(), None);
    let meters = open(&fake).unwrap().meters;
    let requests = || fake.requests.lock().unwrap().len();
    let (opened, begun) = (requests(), Instant::now());
    let mut sampler = PowerSampler::start(meters, Duration::from_millis(100));
    wait_until("the board is asked again", || requests() >= opened + 2);
    let powers = sampler.stop(1 << 30);
    assert_eq!((powers[0].source.as_str(), powers[0].scope.as_str()), ("redfish", "server"));
    assert!(near(powers[0].watts_mean, 344.0), "{powers:?}");
    let asked = requests() - opened;
    let took = begun.elapsed();
    // At 0 s, 1 s, 2 s and so on.
    assert!(
        asked as u64 <= took.as_secs() + 1,
        "a board is asked once a second at most: {asked} in {took:?}"
    );
}
