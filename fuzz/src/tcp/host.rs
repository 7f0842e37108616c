//! A host's end and its driver.

use super::{content, Memory, BLOCKS_MOST, BLOCK_BYTES};
use forebay_nvme::nvm;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::{Data, Event, HostEnd, Options};
use forebay_nvme::transport::tcp::{Fatal, Outgoing};
use std::collections::BTreeMap;

pub struct Host {
    pub end: HostEnd,
    pub memory: Memory,
    pub ready: bool,
    /// The peer is ours, and the link tells of what it changes: what succeeds is right.
    pub strict: bool,
    pub submitted: u32,
    pub completed: u32,
    /// Reads in flight: where they begin.
    reads: BTreeMap<u16, u64>,
    out: Outgoing,
}

impl Host {
    pub fn new(options: Options) -> Host {
        Host {
            end: HostEnd::new(options),
            memory: Memory::default(),
            ready: false,
            strict: false,
            submitted: 0,
            completed: 0,
            reads: BTreeMap::new(),
            out: Outgoing::default(),
        }
    }

    pub fn submit(&mut self, kind: u8, slba: u64, blocks: u32) {
        let blocks = blocks % BLOCKS_MOST + 1;
        let len = blocks * BLOCK_BYTES;
        let (sqe, data, memory) = match kind % 3 {
            0 => (nvm::read(1, slba, blocks), Data::In { len }, vec![0; len as usize]),
            1 => (nvm::write(1, slba, blocks, false), Data::Out { len }, content(slba, len as usize)),
            _ => (nvm::flush(1), Data::None, Vec::new()),
        };
        let Ok(command) = self.end.submit(sqe, data) else { return };
        self.memory.give(command, memory);
        self.submitted += 1;
        if kind % 3 == 0 {
            self.reads.insert(command.0, slba);
        }
    }

    pub fn sends(&mut self) -> Vec<u8> {
        self.end.take_outgoing(&mut self.out);
        self.memory.flatten(&mut self.out)
    }

    /// One receive, and what it means; how much of it was taken.
    pub fn receives(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let taken = self.memory.receive(self.end.expect(), bytes);
        self.end.received(taken);
        while let Some(event) = self.end.next()? {
            let mut failed = None;
            match event {
                Event::Ready { .. } => self.ready = true,
                Event::Placed(place) => {
                    self.memory.at(&place);
                }
                Event::Copy { place, bytes } => self.memory.copy(&place, bytes),
                Event::DataEnd { place, digest } => {
                    failed = (self.memory.crc(&place) != digest).then_some(place.command);
                }
                Event::Completed { command, cqe, received, held } => {
                    if held {
                        self.end.release(command);
                    }
                    let data = self.memory.0.remove(&command.0).expect("completed once");
                    assert!(received as usize <= data.len());
                    self.completed += 1;
                    let read = self.reads.remove(&command.0);
                    if let (Some(slba), true, true) = (read, self.strict, cqe.status().is_success()) {
                        assert_eq!(received as usize, data.len());
                        assert!(data == content(slba, data.len()), "what was read is what was sent");
                    }
                    let code = cqe.status().code;
                    let known = [Code::SUCCESS, Code::TRANSIENT_TRANSPORT_ERROR, Code::ABORT_REQUESTED];
                    assert!(!self.strict || known.contains(&code), "{code:?}");
                }
            }
            if let Some(command) = failed {
                self.end.digest_failed(command);
            }
        }
        Ok(taken)
    }
}
