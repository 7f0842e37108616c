//! NVMe/RDMA: what both ends say while they connect, and where a capsule says that its data are.

mod host;
mod target;

pub use host::nvme_rdma_host_end;
pub use target::nvme_rdma_target_end;

use forebay_nvme::command::Cqe;
use forebay_nvme::transport::rdma::connect::{accepted, answer, rejected, Offer, Request};
use forebay_nvme::transport::rdma::data::{of_capsule, Data, KeyedList, KEYED_BYTES_MAX};
use forebay_nvme::transport::rdma::target::{pieces, Event, Op, TargetEnd};
use zerocopy::IntoBytes;

/// From here on the first byte says that capsules follow, each behind its length in two bytes.
const CAPSULES: u8 = 0x80;
const COMMANDS: u16 = 4;
const OFFER: Offer = Offer { queues: 8, entries: 128 };

/// The first byte says which message it is; of a capsule the next two, how many bytes its command moves and whereto.
pub fn nvme_rdma(data: &[u8]) {
    let Some((which, data)) = data.split_first() else { return };
    if *which >= CAPSULES {
        return capsules(data);
    }
    match which % 4 {
        0 => asked(data),
        1 => {
            let room = accepted(&Request::new(1, 16), data);
            assert!(room.is_none_or(|room| (1..=16).contains(&room)));
        }
        2 => {
            if let Some(refusal) = rejected(data) {
                assert_eq!(refusal.reject().as_bytes(), &data[..4]);
            }
        }
        _ => capsule(data),
    }
}

fn asked(private: &[u8]) {
    let Ok((agreed, accept)) = answer(private, &OFFER) else { return };
    assert!(agreed.qid <= OFFER.queues && agreed.responses > 0);
    assert!((2..=OFFER.entries).contains(&agreed.commands));
    assert_eq!(
        accepted(&Request::new(agreed.qid, agreed.commands), accept.as_bytes()),
        Some(agreed.commands)
    );
}

fn capsule(data: &[u8]) {
    let [blocks, way, capsule @ ..] = data else { return };
    let (bytes, mut list) = (u32::from(*blocks) * 512, KeyedList::default());
    match of_capsule(capsule, bytes, way & 1 == 1, &mut list) {
        Ok(Data::None) => assert_eq!(bytes, 0),
        Ok(Data::InCapsule(range)) => {
            assert!(range.end <= capsule.len() && range.len() == bytes as usize && way & 1 == 0);
        }
        Ok(Data::Keyed) => {
            assert!(list.as_slice().iter().all(|keyed| keyed.bytes <= KEYED_BYTES_MAX));
            assert_eq!(
                list.as_slice().iter().map(|keyed| u64::from(keyed.bytes)).sum::<u64>(),
                u64::from(bytes)
            );
        }
        Err(status) => assert!(!status.is_success()),
    }
}

/// A connection: each capsule is served at once, and what is to be posted done at once.
fn capsules(mut data: &[u8]) {
    let mut end = TargetEnd::new(COMMANDS);
    let mut receives: Vec<u16> = (0..COMMANDS).collect();
    while let ([low, high, rest @ ..], Some(receive)) = (data, receives.pop()) {
        let bytes = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (capsule, behind) = rest.split_at(bytes);
        data = behind;
        if end.came(receive, capsule).is_err() {
            return;
        }
        while let Some(event) = end.next().expect("a host that keeps to its depth is served") {
            serve(&mut end, event, capsule.len());
        }
        while let Some(op) = end.next_op(usize::MAX) {
            match op {
                Op::Fetch { command, bytes, from } => {
                    assert_eq!(pieces(from, bytes).map(|(_, keyed)| keyed.bytes).sum::<u32>(), bytes);
                    end.fetched(command);
                }
                Op::Answer { command, bytes, to, .. } => {
                    assert_eq!(pieces(to, bytes).map(|(_, keyed)| keyed.bytes).sum::<u32>(), bytes);
                    end.sent(command);
                    end.take_released(&mut Vec::new());
                }
            }
            while let Some(event) = end.next().expect("nothing more came") {
                serve(&mut end, event, capsule.len());
            }
        }
        end.take_receives(&mut receives);
    }
}

fn serve(end: &mut TargetEnd, event: Event, capsule: usize) {
    match event {
        Event::Command { command, sqe, in_capsule: 0 } => match (sqe.opcode & 0b11, sqe.sgl.length.get()) {
            (0b01, length) if length > 0 => end.request(command, length),
            (0b10, length) => end.send(command, length, Cqe::default()),
            _ => end.complete(command, Cqe::default()),
        },
        Event::Copy { range, .. } => assert!(range.end <= capsule),
        Event::DataComplete { command } => end.complete(command, Cqe::default()),
        Event::Command { .. } | Event::Placed(_) => {}
    }
}
