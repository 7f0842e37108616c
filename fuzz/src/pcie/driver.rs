//! A driver whose function lies.

use super::BASE;
use crate::controller::{subsystem, HOST, SUBSYSTEM};
use crate::input::Input;
use forebay_nvme::command::Sqe;
use forebay_nvme::host::Options;
use forebay_nvme::transport::pcie::device::{Device, Effect, Settings};
use forebay_nvme::transport::pcie::host::{queue_bytes, Bar, Host, HostQueue, Step, MEMORY_BYTES};
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram};

/// A function that a driver has to do with: a real device, but for the registers and the memory that the input changes.
struct Liar<'a, 'b> {
    device: &'a mut Device,
    memory: &'a Ram,
    input: &'a mut Input<'b>,
}

impl Bar for Liar<'_, '_> {
    fn read(&mut self, offset: u64, bytes: usize) -> Result<u64, String> {
        let mut value = [0; 8];
        self.device.read(offset, &mut value[..bytes]);
        match self.input.u8() {
            0 => Err("the function is gone".into()),
            1..=8 => Ok(self.input.u64()),
            _ => Ok(u64::from_le_bytes(value)),
        }
    }

    fn write(&mut self, offset: u64, bytes: usize, value: u64) -> Result<(), String> {
        self.device.write(self.memory, offset, &value.to_le_bytes()[..bytes]);
        while self.device.work(self.memory, 0) {}
        Ok(())
    }
}

/// Whatever a function answers, its driver goes on, waits, or ends with a reason.
pub fn nvme_pcie_host(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = Ram::new(BASE, MEMORY_BYTES + 4 * queue_bytes(16));
    let mut device = Device::new(subsystem(&mut input, false, false), Settings::default(), 0);
    let options = Options {
        host_nqn: HOST.into(),
        host_id: [1; 16],
        subsystem_nqn: SUBSYSTEM.into(),
        queues: u16::from(input.u8() % 4) + 1,
        queue_entries: 16,
        keep_alive_ms: 0,
        timeout_ms: 2000,
        namespace: None,
    };
    let (mut host, mut now_ms, mut queues) = (Host::new(options, BASE, 0), 0, Vec::<HostQueue>::new());
    for _ in 0..300 {
        let mut liar = Liar { device: &mut device, memory: &memory, input: &mut input };
        match host.next(&mut liar, &memory, now_ms) {
            Ok(Step::Wait { until_ms }) => {
                if input.is_empty() {
                    break;
                }
                match input.u8() % 4 {
                    0 => now_ms = now_ms.max(until_ms.min(now_ms + 5000)),
                    1 => lie(&mut input, &memory),
                    2 => host.create_queue(1 + u16::from(input.u8() % 4), 16, BASE + MEMORY_BYTES, Some(1)),
                    _ => drive(&mut queues, &mut host, &memory, &mut input),
                }
            }
            Ok(Step::Queue(queue)) => queues.push(queue),
            Ok(_) => {}
            Err(failure) => {
                assert!(!failure.asked.is_empty() && !failure.found.is_empty());
                return;
            }
        }
        while let Some(effect) = device.next_effect() {
            match effect {
                Effect::CloseQueues => device.queues_closed(),
                Effect::CloseSubmission { sqid, .. } => device.submission_closed(sqid),
                Effect::CloseCompletion { cqid } => device.completion_closed(cqid),
                Effect::Abort { sqid, cid, .. } => device.aborted(sqid, cid, false),
                Effect::ShutDown => device.shut_down_complete(),
                _ => {}
            }
        }
    }
}

/// A word of the queues or of the data is another one.
fn lie(input: &mut Input<'_>, memory: &Ram) {
    let at = BASE + u64::from(input.u16()) % (5 * 4096 / 4) * 4 + if input.bool() { MEMORY_BYTES } else { 0 };
    let _ = memory.store(at, input.u32());
}

fn drive(queues: &mut [HostQueue], host: &mut Host, memory: &Ram, input: &mut Input<'_>) {
    if input.u8() % 4 == 0 {
        host.abort(1, input.u16() % 16);
        host.delete_queue(1 + u16::from(input.u8() % 4));
    }
    for queue in queues {
        let room = queue.room();
        let pushed = queue.push(memory, Sqe::default()).expect("its memory");
        assert_eq!(pushed.is_some(), room > 0);
        let _ = queue.ring(memory);
        let mut reaped = 0;
        while let Some(cqe) = queue.reap(memory).expect("its memory") {
            assert!(cqe.cid.get() < queue.depth());
            reaped += 1;
            assert!(reaped <= queue.depth(), "no more than were in flight");
        }
        let _ = queue.release(memory);
        assert!(queue.room() <= queue.depth());
    }
}
