use super::*;
use zerocopy::IntoBytes;

#[test]
fn connect_lies_over_a_submission_queue_entry() {
    let sqe = Connect::new(3, 128, 15_000).to_sqe();
    assert_eq!((sqe.opcode, command_type(&sqe)), (FABRICS, fctype::CONNECT));
    assert_eq!(sqe.as_bytes()[42..52], [3, 0, 127, 0, 0, 0, 0x98, 0x3a, 0, 0]);
    assert_eq!(Connect::from_sqe(&sqe).kato.get(), 15_000);
}

#[test]
fn a_property_is_known_by_offset_and_size() {
    for property in Property::ALL {
        assert_eq!(PropertyGet::new(property).property(), Some(property));
        assert_eq!(PropertySet::new(property, 9).property(), Some(property));
    }
    let mut get = PropertyGet::new(Property::Cc);
    get.attrib = 1;
    assert_eq!(get.property(), None, "CC has 4 bytes");
    get.ofst = 4.into();
    assert_eq!(get.property(), None);
}

#[test]
fn results_of_connect_survive_a_round_trip() {
    let asked = Connected { cntlid: 7, authentication_required: true, secure_channel_required: false };
    assert_eq!(asked.to_result(), 0x2_0007);
    assert_eq!(Connected::from_result(asked.to_result()), asked);
    for wrong in [InvalidParameter::Command(44), InvalidParameter::Data(256)] {
        assert_eq!(InvalidParameter::from_result(wrong.to_result()), wrong);
    }
    assert_eq!(InvalidParameter::Data(256).to_result(), 0x1_0100);
}

#[test]
fn capabilities_say_what_was_asked_for() {
    let cap = Cap::new(128, 7_600);
    assert_eq!((cap.queue_entries_max(), cap.timeout_ms(), cap.page_bytes_min()), (128, 8_000, 4096));
    assert!(cap.cqr() && cap.css() == css::NVM);
    assert_eq!(Cc::enabled().0, 0x0046_0001, "what hosts write");
    assert_eq!(Cc::enabled().with_shn(1).shn(), 1);
    assert_eq!((Version::V2_0.to_string(), Version(0x10202).to_string()), ("2.0".into(), "1.2.2".into()));
}
