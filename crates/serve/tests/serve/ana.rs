//! Asymmetric namespace access: what hosts that came to different addresses see, are told and are refused.

use super::client::{Host, Queue, HOST, SUBSYSTEM};
use super::rig::{eventually, Rig};
use super::PLAIN;
use forebay_nvme::command::Sqe;
use forebay_nvme::log::{lid, AnaLog, AnaState};
use forebay_nvme::nvm;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::host::Data;
use forebay_serve::Ana;
use std::collections::BTreeMap;

const FAR: &str = "127.0.0.2";

/// Two namespaces in groups 1 and 2, at two addresses; at `FAR`, group 2 isn't to be had.
fn rig() -> Rig {
    let namespace = |group: u32| {
        format!(
            "[[subsystems.namespaces]]\nsource = \"nil:?size=1m\"\nblock_bytes = 512\nana_group = {group}\n"
        )
    };
    Rig::from_text(&format!(
        "listen = [\"127.0.0.1:0\", \"{FAR}:0\"]\nthreads = 1\nbuffers = \"16m\"\n\
         [[subsystems]]\nnqn = \"{SUBSYSTEM}\"\nallow_any_host = true\n\
         cntlid_min = 100\ncntlid_max = 199\n{}{}\
         [[subsystems.ana]]\ngroup = 2\naddress = \"{FAR}\"\nstate = \"inaccessible\"\n",
        namespace(1),
        namespace(2)
    ))
}

fn ana(group: u32, state: &str) -> Ana {
    Ana { group: Some(group), address: FAR.into(), state: state.into() }
}

fn states(host: &mut Host) -> BTreeMap<u32, (AnaState, Vec<u32>)> {
    let log = AnaLog::parse(&host.log(lid::ANA, 4096)).unwrap();
    log.groups.into_iter().map(|g| (g.id, (g.state, g.nsids))).collect()
}

fn read(queue: &mut Queue, nsid: u32) -> Status {
    queue.call(nvm::read(nsid, 0, 8), Data::In { len: 4096 }, vec![]).0.status()
}

fn admin(opcode: u8, cdw10: u32, cdw11: u32) -> Sqe {
    Sqe { opcode, cdw10: cdw10.into(), cdw11: cdw11.into(), ..Sqe::default() }
}

// promise: TGT-17
#[test]
fn each_address_has_its_states_and_a_change_is_told_and_obeyed() {
    let rig = rig();
    let addresses = rig.server.addresses();
    let (mut near, mut far) = (Host::up(addresses[0], PLAIN), Host::up(addresses[1], PLAIN));
    assert!([near.cntlid, far.cntlid].iter().all(|id| (100..200).contains(id)), "as the file says");
    let best = |nsid| (AnaState::Optimized, vec![nsid]);
    assert_eq!(states(&mut near), BTreeMap::from([(1, best(1)), (2, best(2))]));
    assert_eq!(states(&mut far), BTreeMap::from([(1, best(1)), (2, (AnaState::Inaccessible, vec![2]))]));
    let (mut by_near, mut by_far) = (near.queue(1, 9), far.queue(1, 9));
    assert_eq!([1, 2].map(|nsid| read(&mut by_near, nsid).code), [Code::SUCCESS; 2]);
    assert_eq!(read(&mut by_far, 1).code, Code::SUCCESS);
    let refused = read(&mut by_far, 2);
    assert_eq!((refused.code, refused.do_not_retry), (Code::ANA_INACCESSIBLE, false));

    let of_ana = admin(0x09, 0x0b, 1 << 11);
    assert_eq!(far.admin.code(of_ana, Data::None, vec![]), Code::SUCCESS);
    let event = far.admin.submit(admin(0x0c, 0, 0), Data::None, vec![]);
    far.admin.push().unwrap();
    rig.server.set_ana(SUBSYSTEM, &[ana(1, "non-optimized")]).unwrap();
    let (cqe, _) = far.admin.wait(event);
    assert_eq!(cqe.result.get(), 0x0c_03_02, "ANA changed, of log page 0Ch, a notice");
    assert_eq!(states(&mut far), BTreeMap::from([(1, (AnaState::NonOptimized, vec![1])), (2, best(2))]));
    assert_eq!(states(&mut near), BTreeMap::from([(1, best(1)), (2, best(2))]));
    assert_eq!([1, 2].map(|nsid| read(&mut by_far, nsid).code), [Code::SUCCESS; 2]);

    for (state, code) in [("persistent-loss", Code::ANA_PERSISTENT_LOSS), ("change", Code::ANA_TRANSITION)] {
        rig.server.set_ana(SUBSYSTEM, &[ana(1, state)]).unwrap();
        assert_eq!([read(&mut by_far, 1).code, read(&mut by_far, 2).code], [code, Code::SUCCESS]);
        assert_eq!(read(&mut by_near, 1).code, Code::SUCCESS);
    }
    let wrong = rig.server.set_ana(SUBSYSTEM, &[ana(1, "slow")]).unwrap_err();
    assert!(wrong.next.contains("non-optimized"), "{wrong}");
    assert_eq!(read(&mut by_far, 1).code, Code::ANA_TRANSITION, "what can't be changes nothing");
}

// promise: TGT-17
#[test]
fn counters_name_the_states_and_the_time_out_of_each_controller() {
    let rig = rig();
    let addresses = rig.server.addresses();
    let up = |at: usize, kato_ms| {
        let up = Host::up_as(addresses[at], SUBSYSTEM, HOST, kato_ms, PLAIN);
        up.unwrap_or_else(|r| panic!("{:?}", r.0.status()))
    };
    let (near, far) = (up(0, 0), up(1, 90_000));
    let of = |host: &Host| {
        let all = rig.server.stats().controllers;
        all.into_iter().find(|c| c.cntlid == host.cntlid).map(|c| (c.keep_alive_s, c.ana))
    };
    eventually("a thread reports", || of(&near) == Some((None, BTreeMap::new())));
    eventually("a thread reports", || of(&far) == Some((Some(90.0), BTreeMap::from([(2, "inaccessible")]))));
}
