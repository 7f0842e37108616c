use super::*;
use core::net::IpAddr;
use proptest::prelude::*;

fn service() -> Service {
    Service::new("store", Ipv4Addr::new(192, 0, 2, 7), 4420)
}

fn found(messages: &[&[u8]]) -> Vec<Found> {
    let mut finder = Finder::default();
    messages.iter().for_each(|message| finder.take(message));
    finder.found()
}

fn reported() -> Found {
    Found {
        title: "NVMe discovery on store 192.0.2.7:4420".into(),
        addresses: vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))],
        port: 4420,
        protocol: Some("tcp".into()),
        nqn: Some(nqn::DISCOVERY.into()),
    }
}

/// A question of one name and kind; `class` 1 is the Internet.
fn question(labels: &[&str], kind: u16, class: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    Name::from_labels(labels).write(&mut bytes);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(class.to_be_bytes());
    bytes
}

#[test]
fn who_asks_finds_it_in_one_answer() {
    let answer = service().answer(&query(), 40000).unwrap();
    assert!(answer.alone, "who asks from a port of its own hears nothing that goes to all");
    assert_eq!(found(&[&answer.bytes]), [reported()]);
    let to_all = service().answer(&query(), PORT).unwrap();
    assert!(!to_all.alone);
    assert_eq!(found(&[&to_all.bytes]), [reported()]);
}

/// RFC 6762, section 6.7.
// promise: TGT-18
#[test]
fn a_plain_resolver_gets_its_question_back_and_times_that_are_short() {
    let asked = question(&SERVICE, 12, 1);
    let answer = Message::read(&service().answer(&asked, 40000).unwrap().bytes).unwrap();
    assert_eq!((answer.id, answer.questions.len(), answer.is_response), (0x1234, 1, true));
    for record in answer.answers.iter().chain(&answer.additional) {
        assert!(record.seconds == LEGACY_S && !record.flush, "{record:?}");
    }
    let answer = Message::read(&service().answer(&asked, PORT).unwrap().bytes).unwrap();
    assert_eq!((answer.id, answer.questions.len()), (0, 0));
}

// promise: TGT-18
#[test]
fn each_of_its_names_is_answered_and_no_other() {
    let instance = "NVMe discovery on store 192.0.2.7:4420";
    let of_instance = [instance, "_nvme-disc", "_tcp", "local"];
    let host = ["forebay-192-0-2-7-4420", "local"];
    for (labels, kind, expected) in [
        (&SERVICE[..], 12, 1),
        (&["_NVME-DISC", "_TCP", "LOCAL"][..], 12, 1),
        (&SERVICE, 255, 1),
        (&SERVICE, 1, 0),
        (&TYPES, 12, 1),
        (&of_instance, 33, 1),
        (&of_instance, 16, 1),
        (&of_instance, 255, 2),
        (&host, 1, 1),
        (&host, 28, 0),
        (&["other", "local"], 1, 0),
        (&["_http", "_tcp", "local"], 12, 0),
        (&["local"], 255, 0),
    ] {
        let answers = service().answer(&question(labels, kind, 1), PORT);
        let count = answers.map_or(0, |answer| Message::read(&answer.bytes).unwrap().answers.len());
        assert_eq!(count, expected, "{labels:?} {kind}");
    }
    assert_eq!(service().answer(&question(&SERVICE, 12, 3), PORT), None, "another class");
    assert!(service().answer(&question(&SERVICE, 12, 1 | 1 << 15), PORT).unwrap().alone);
    assert_eq!(service().answer(&service().announcement(), PORT), None, "an answer is no question");
}

#[test]
fn who_knows_it_already_isnt_told_again() {
    let known = |seconds: u32| {
        let mut writer = Writer { bytes: question(&SERVICE, 12, 1) };
        writer.record(&Record { seconds, ..service().pointer() }, true);
        service().answer(&writer.bytes, PORT)
    };
    assert_eq!(known(OTHER_S), None);
    assert_eq!(known(OTHER_S / 2), None);
    assert!(known(OTHER_S / 2 - 1).is_some(), "less than half of its time is left");
}

#[test]
fn a_farewell_takes_back_what_was_announced() {
    let service = service();
    assert_eq!(found(&[&service.announcement()]), [reported()]);
    assert_eq!(found(&[&service.announcement(), &service.farewell()]), []);
}

#[test]
fn addresses_whose_bytes_are_letters_are_told_apart() {
    let others =
        [65, 97].map(|last| Service::new("store", Ipv4Addr::new(10, 0, 0, last), 4420).announcement());
    let addresses: Vec<_> = found(&[&others[0], &others[1]]).into_iter().flat_map(|f| f.addresses).collect();
    assert_eq!(addresses, ["10.0.0.65", "10.0.0.97"].map(|at| at.parse::<IpAddr>().unwrap()));
    let record = |last| Record::own(Name::from_labels(&["a", "local"]), Kind::A, 1, vec![10, 0, 0, last]);
    assert!(!record(65).is(&record(97)));
}

#[test]
fn a_long_name_of_a_machine_is_cut_before_the_address() {
    let service = Service::new(&"é".repeat(70), Ipv4Addr::new(192, 0, 2, 7), 65535);
    let title = found(&[&service.announcement()])[0].title.clone();
    assert!(title.len() <= LABEL_BYTES_MAX && title.ends_with("é 192.0.2.7:65535"), "{title}");
}

/// As other responders write it: names that point back, a text of more keys, two addresses.
// promise: TGT-18
#[test]
fn compressed_names_are_read() {
    let mut bytes = vec![0, 0, 0x84, 0, 0, 0, 0, 4, 0, 0, 0, 1];
    let service_at = bytes.len() as u8;
    Name::from_labels(&SERVICE).write(&mut bytes);
    let local_at = service_at + 16;
    bytes.extend([0, 12, 0, 1, 0, 0, 0, 120, 0, 5, 2, b'd', b'1', POINTER, service_at]);
    let instance_at = bytes.len() as u8 - 5;
    bytes.extend([POINTER, instance_at, 0, 33, 0x80, 1, 0, 0, 0, 120, 0, 10, 0, 0, 0, 0, 0x1f, 0x49]);
    let host_at = bytes.len() as u8;
    bytes.extend([1, b'h', POINTER, local_at]);
    let text = b"\x0bMODEL=thing\x03P=a\x05nqn=n\x04flag";
    bytes.extend([POINTER, instance_at, 0, 16, 0x80, 1, 0, 0, 0, 120, 0, text.len() as u8]);
    bytes.extend(text);
    bytes.extend([POINTER, host_at, 0, 1, 0x80, 1, 0, 0, 0, 120, 0, 4, 10, 0, 0, 1]);
    bytes.extend([POINTER, host_at, 0, 28, 0x80, 1, 0, 0, 0, 120, 0, 16]);
    bytes.extend([0; 15]);
    bytes.push(1);
    let expected = Found {
        title: "d1".into(),
        addresses: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        port: 8009,
        protocol: Some("a".into()),
        nqn: Some("n".into()),
    };
    assert_eq!(found(&[&bytes]), [expected]);
}

#[test]
fn a_name_that_points_at_itself_or_ahead_is_none() {
    for to in [12u8, 13, 14, 40, 255] {
        let mut bytes = vec![0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend([POINTER, to, 0, 12, 0, 1, 0, 0, 0, 120, 0, 2, POINTER, to]);
        assert!(Message::read(&bytes).is_none(), "{to}");
    }
}

const POINTER: u8 = 0b1100_0000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_message_is_read_to_an_end(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in 0..400usize,
        byte in any::<u8>(),
        port in any::<u16>(),
    ) {
        for mut message in [bytes, query(), service().announcement()] {
            if let Some(changed) = message.get_mut(at) {
                *changed = byte;
            }
            let _ = service().answer(&message, port);
            prop_assert!(found(&[&message]).len() <= 1);
        }
    }
}
