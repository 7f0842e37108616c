//! Sessions with a discovery controller: what their log holds, and how changes of it are heard of.

use super::*;
use forebay_nvme::controller::subsystem::Offer;
use forebay_nvme::discovery::Endpoint;
use forebay_nvme::nqn::DISCOVERY;
use std::collections::BTreeSet;

fn endpoint(number: u16) -> Endpoint {
    Endpoint {
        transport: 3,
        family: 1,
        kind: 2,
        requirements: 0,
        port: number,
        controller: 0xffff,
        admin_entries: 32,
        flags: 0,
        service: "4420".into(),
        nqn: format!("nqn.2014-08.org.example:disk{number}"),
        address: "192.0.2.1".into(),
        security: 0,
    }
}

// promise: NCT-8
#[test]
fn a_discovery_session_reads_what_is_meant_for_its_host() {
    let offer = |number, hosts: Option<&[&str]>| Offer {
        endpoint: endpoint(number),
        hosts: hosts.map(|hosts| hosts.iter().map(ToString::to_string).collect::<BTreeSet<_>>()),
    };
    let mut entries: Vec<Offer> = (0..20).map(|number| offer(number, None)).collect();
    entries.push(offer(20, Some(&[OTHER])));
    entries.push(offer(21, Some(&[HOST, OTHER])));
    let subsystem = Subsystem {
        nqn: DISCOVERY.into(),
        kind: Kind::Discovery { generation: 5, entries },
        ..subsystem([])
    };
    let mut target = Target::new(subsystem);
    let mut discovery = Discovery::new(HOST.into(), [1; 16], 1000, target.now_ms);
    assert_eq!(target.run_until_quiet(&mut discovery), Ok(vec![Event::Ready]));
    let expected: Vec<Endpoint> = (0..20).chain([21]).map(endpoint).collect();
    assert_eq!((discovery.log().generation, &discovery.log().endpoints), (5, &expected));
    // Nobody there for two minutes: it is over.
    let deadline = target.controller().deadline_ms().unwrap();
    assert_eq!(deadline, target.now_ms + 120_000);
}

// promise: NCT-8
#[test]
fn a_discovery_session_that_stays_hears_of_changes() {
    let offers = |count: u16| Subsystem {
        nqn: DISCOVERY.into(),
        kind: Kind::Discovery {
            generation: count.into(),
            entries: (0..count).map(|number| Offer { endpoint: endpoint(number), hosts: None }).collect(),
        },
        ..subsystem([])
    };
    let mut target = Target::new(offers(1));
    let options = Options { subsystem_nqn: DISCOVERY.into(), ..options() };
    let mut discovery = Discovery::with_options(options, target.now_ms);
    for count in 1..9 {
        assert_eq!(target.run_until_quiet(&mut discovery), Ok(vec![Event::Ready]), "{count}");
        assert_eq!(
            (discovery.log().generation, discovery.log().endpoints.len()),
            (count.into(), count.into())
        );
        target.update(offers(count + 1));
        let Ok(Action::Wait { until_ms }) = discovery.next(target.now_ms) else { panic!("it should wait") };
        assert!(until_ms <= target.now_ms + 2500, "it keeps its controller alive");
    }
}
