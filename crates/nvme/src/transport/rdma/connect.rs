//! Private data of RDMA_CM_REQUEST, RDMA_CM_ACCEPT and RDMA_CM_REJECT (rdma transport, "RDMA connection manager
//! private data"; the same layouts as the Linux host's and target's).

use crate::layout::layout;
use zerocopy::little_endian::U16;

/// RECFMT: the only format there is.
pub const FORMAT: u16 = 0;
/// Entries of an Admin queue, at most (fabrics: a host may ask for as many, a controller takes no more).
pub const ADMIN_ENTRIES_MAX: u16 = 32;

layout! {
    /// RDMA_CM_REQUEST: a host asks for a queue.
    Request, 32 bytes {
        0 format: U16,
        2 qid: U16,
        /// HRQSIZE: responses that the host has room for.
        4 receive_entries: U16,
        /// HSQSIZE: commands that the host may have in flight, 0's based.
        6 send_entries: U16,
        /// CNTLID: 0 from hosts that don't say.
        8 controller: U16,
        10 reserved: [u8; 22],
    }
}

layout! {
    /// RDMA_CM_ACCEPT: the controller has it.
    Accept, 32 bytes {
        0 format: U16,
        /// CRQSIZE: commands that the controller has room for.
        2 receive_entries: U16,
        4 reserved: [u8; 28],
    }
}

layout! {
    /// RDMA_CM_REJECT.
    Reject, 4 bytes {
        0 format: U16,
        /// STS: a `Refusal`.
        2 status: U16,
    }
}

/// Why a queue was refused: STS of RDMA_CM_REJECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    #[error("the private data have another length than the specification's")]
    Length = 1,
    #[error("the private data's format isn't known")]
    Format = 2,
    #[error("there is no such queue")]
    Queue = 3,
    #[error("the queue can't have so many commands in flight")]
    SendEntries = 4,
    #[error("the host has room for too few or too many responses")]
    ReceiveEntries = 5,
    #[error("the controller has no resources left")]
    Resources = 6,
    #[error("the depth of incoming RDMA reads doesn't fit")]
    IncomingReads = 7,
    #[error("the depth of outgoing RDMA reads doesn't fit")]
    OutgoingReads = 8,
}

impl Refusal {
    const ALL: [Refusal; 8] = [
        Refusal::Length,
        Refusal::Format,
        Refusal::Queue,
        Refusal::SendEntries,
        Refusal::ReceiveEntries,
        Refusal::Resources,
        Refusal::IncomingReads,
        Refusal::OutgoingReads,
    ];

    pub fn reject(self) -> Reject {
        Reject { format: FORMAT.into(), status: (self as u16).into() }
    }
}

/// Offer of a controller.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// I/O queues: the highest identifier.
    pub queues: u16,
    /// Commands in flight on one of them, at most.
    pub entries: u16,
}

/// A queue, as both ends agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub qid: u16,
    /// Commands in flight: receives that the controller posts.
    pub commands: u16,
    /// Responses that the host has room for.
    pub responses: u16,
}

impl Request {
    /// Returns a host's request for a queue of so many entries (2 at least).
    pub fn new(qid: u16, entries: u16) -> Request {
        Request {
            qid: qid.into(),
            receive_entries: entries.into(),
            send_entries: entries.saturating_sub(1).into(),
            ..Request::default()
        }
    }
}

/// The controller's answer to a request's private data. The connection manager pads them with zeros.
///
/// # Errors
/// The refusal, to be sent as the private data of a rejection.
pub fn answer(private: &[u8], offer: &Offer) -> Result<(Agreed, Accept), Refusal> {
    let request = Request::read(private).ok_or(Refusal::Length)?;
    if request.format.get() != FORMAT {
        return Err(Refusal::Format);
    }
    let qid = request.qid.get();
    if qid > offer.queues {
        return Err(Refusal::Queue);
    }
    let most = if qid == 0 { ADMIN_ENTRIES_MAX } else { offer.entries };
    let commands = request.send_entries.get().checked_add(1).ok_or(Refusal::SendEntries)?;
    if !(2..=most).contains(&commands) {
        return Err(Refusal::SendEntries);
    }
    let responses = request.receive_entries.get();
    if responses == 0 {
        return Err(Refusal::ReceiveEntries);
    }
    let accept = Accept { format: FORMAT.into(), receive_entries: commands.into(), ..Accept::default() };
    Ok((Agreed { qid, commands, responses }, accept))
}

/// Interprets the answer to `request` for a host: the number of commands that it may have in flight. None: these
/// aren't the private data of a controller.
pub fn accepted(request: &Request, private: &[u8]) -> Option<u16> {
    let accept = Accept::read(private)?;
    let room = accept.receive_entries.get();
    let asked = request.send_entries.get().saturating_add(1);
    (accept.format.get() == FORMAT && room > 0).then_some(room.min(asked))
}

/// Interprets a rejection for a host. None: it isn't the controller's, or for a reason that isn't known.
pub fn rejected(private: &[u8]) -> Option<Refusal> {
    let reject = Reject::read(private)?;
    let known = Refusal::ALL.into_iter().find(|refusal| *refusal as u16 == reject.status.get());
    known.filter(|_| reject.format.get() == FORMAT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    const OFFER: Offer = Offer { queues: 8, entries: 128 };

    #[test]
    fn a_request_is_laid_out_as_linux_sends_it() {
        let mut wanted = [0; 32];
        wanted[..8].copy_from_slice(&[0, 0, 1, 0, 128, 0, 127, 0]);
        assert_eq!(Request::new(1, 128).as_bytes(), wanted);
        assert_eq!(Refusal::SendEntries.reject().as_bytes(), [0, 0, 4, 0]);
    }

    // promise: RHO-9
    #[test]
    fn each_thing_that_cannot_be_is_refused_by_its_name() {
        let refused = |request: &Request| answer(request.as_bytes(), &OFFER).unwrap_err();
        let good = Request::new(1, 128);
        assert_eq!(answer(&good.as_bytes()[..31], &OFFER).unwrap_err(), Refusal::Length);
        assert_eq!(refused(&Request { format: 1.into(), ..good }), Refusal::Format);
        assert_eq!(refused(&Request::new(9, 128)), Refusal::Queue);
        assert_eq!(refused(&Request::new(1, 129)), Refusal::SendEntries);
        assert_eq!(refused(&Request::new(1, 1)), Refusal::SendEntries);
        assert_eq!(refused(&Request::new(0, 33)), Refusal::SendEntries);
        assert_eq!(refused(&Request { send_entries: u16::MAX.into(), ..good }), Refusal::SendEntries);
        assert_eq!(refused(&Request { receive_entries: 0.into(), ..good }), Refusal::ReceiveEntries);
        for refusal in Refusal::ALL {
            assert_eq!(rejected(refusal.reject().as_bytes()), Some(refusal));
        }
        assert_eq!(rejected(&[0, 0, 9, 0]), None);
        assert_eq!(rejected(&[1, 0, 1, 0]), None);
    }

    proptest! {
        /// Whatever two ends may ask and offer, they agree on what both can do, or the controller says why not.
        // promise: RHO-9
        #[test]
        fn both_ends_agree(qid in 0u16..20, entries: u16, queues in 0u16..20, most: u16, padding in 0usize..30) {
            let request = Request::new(qid, entries);
            let private = [request.as_bytes(), &vec![0; padding]].concat();
            if let Ok((agreed, accept)) = answer(&private, &Offer { queues, entries: most }) {
                prop_assert!(agreed.qid == qid && qid <= queues);
                let limit = if qid == 0 { ADMIN_ENTRIES_MAX } else { most };
                prop_assert!(agreed.commands <= limit);
                prop_assert_eq!(accepted(&request, accept.as_bytes()), Some(agreed.commands));
                prop_assert!(agreed.responses >= agreed.commands);
            }
        }

        /// Anything may come.
        #[test]
        fn nonsense_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let request = Request::new(1, 16);
            let _ = (answer(&bytes, &OFFER), rejected(&bytes));
            prop_assert!(accepted(&request, &bytes).is_none_or(|room| (1..=16).contains(&room)));
        }
    }
}
