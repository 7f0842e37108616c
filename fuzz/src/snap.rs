//! Input of a gateway from its operator: a configuration, and RPCs.

use crate::controller::subsystem;
use crate::input::Input;
use forebay_model::Error;
use forebay_nvme::status::Status;
use forebay_nvme::transport::pcie::device::{Device, Settings};
use forebay_nvme::transport::pcie::memory::Ram;
use forebay_nvme::transport::pcie::queue::{CompletionQueue, QueueFault};
use forebay_serve::{
    answer_rpc, parse_handover, GatewayConfig, GatewayController, GatewayNamespace, GatewayStats,
    GatewaySubsystem, HandoverMessage, Qos, RpcControl, RpcFrames,
};
use std::sync::LazyLock;
use std::time::Duration;

/// The configuration of `forebay snap`: what passes is the same once it was written out.
pub fn snap_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = GatewayConfig::from_toml(text) else { return };
    let written = serde_json::to_string(&config).expect("a configuration is JSON");
    assert_eq!(GatewayConfig::from_json(&written).expect("what passed passes again"), config);
    assert!(config.controllers().all(|(_, c)| !c.name.is_empty()));
    assert!(config.subsystems.iter().all(|s| s.namespaces.iter().all(|n| n.nsid > 0)));
}

/// A stream of bytes as the RPC socket gets it: each document is answered once or asks for nothing, and what a verb
/// hands to the gateway was checked.
pub fn snap_rpc(data: &[u8]) {
    let mut frames = RpcFrames::default();
    for part in data.chunks(97) {
        frames.push(part);
        while let Ok(Some(document)) = frames.take() {
            let Some(answer_rpc) = answer_rpc(&document, &Strict) else { continue };
            let all = answer_rpc.as_array().cloned().unwrap_or_else(|| vec![answer_rpc]);
            for one in all {
                assert_eq!(one["jsonrpc"], "2.0");
                assert!(one.get("result").is_some() != one.get("error").is_some());
            }
        }
    }
}

/// Reads another process's state of a gateway. It is refused, or can be gone on with, whatever it says.
pub fn snap_state(data: &[u8]) {
    let Ok(HandoverMessage::State(state)) = parse_handover(data) else { return };
    let memory = Ram::new(0x4000_0000, 64 << 10);
    for one in state.controllers {
        let queues: Vec<_> = one.queues.iter().map(|kept| kept.queue.clone()).collect();
        let subsystem = subsystem(&mut Input::new(&[]), false, false);
        if let Ok(mut device) = Device::restore(subsystem, Settings::default(), &one.device, &queues) {
            device.answer_ended(&memory);
            device.work(&memory, 0);
            device.function_reset();
        }
        for state in &queues {
            if let Ok(mut queue) = CompletionQueue::restore(state) {
                let saved = queue.state();
                let again = CompletionQueue::restore(&saved).expect("what was can be");
                assert_eq!(again.state(), saved);
                let _ = go_on(&mut queue, &memory);
            }
        }
    }
}

/// Commands in flight end, others are fetched.
fn go_on(queue: &mut CompletionQueue, memory: &Ram) -> Result<(), QueueFault> {
    queue.poll(memory)?;
    for slot in 0..queue.slots() {
        queue.complete(memory, slot, Status::SUCCESS, 0)?;
    }
    for _ in 0..64 {
        let Some(fetched) = queue.fetch(memory)? else { break };
        queue.complete(memory, fetched.slot, Status::SUCCESS, 0)?;
    }
    queue.interrupt(0);
    queue.sleep(memory).map(|_| ())
}

static THERE: LazyLock<GatewayConfig> = LazyLock::new(|| {
    let text =
        "[[subsystems]]\nnqn = \"nqn.2026-11.io.example:a\"\nnamespaces = [{ source = \"nil:?size=1g\" }]\n\
                controllers = [{ name = \"c\", socket = \"/run/c.sock\" }]";
    GatewayConfig::from_toml(text).expect("a configuration")
});

/// Takes only what can be.
struct Strict;

impl RpcControl for Strict {
    fn config(&self) -> GatewayConfig {
        THERE.clone()
    }

    fn stats(&self) -> GatewayStats {
        GatewayStats::default()
    }

    fn subsystem_create(&self, subsystem: &GatewaySubsystem) -> Result<(), Error> {
        subsystem.check().map_err(|e| panic!("unchecked: {e}"))
    }

    fn subsystem_destroy(&self, _: &str) -> Result<(), Error> {
        Err(Error::request("a subsystem", "has controllers", "force"))
    }

    fn namespace_create(&self, _: &str, namespace: &GatewayNamespace) -> Result<u32, Error> {
        namespace.check().map(|()| 1).map_err(|e| panic!("unchecked: {e}"))
    }

    fn namespace_destroy(&self, _: &str, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn namespace_set_source(&self, _: &str, _: u32, namespace: &GatewayNamespace) -> Result<(), Error> {
        namespace.check().map_err(|e| panic!("unchecked: {e}"))
    }

    fn namespace_set_qos(&self, _: &str, _: u32, qos: Qos) -> Result<(), Error> {
        qos.check().map_err(|e| panic!("unchecked: {e}"))
    }

    fn controller_create(&self, _: &str, controller: &GatewayController) -> Result<(), Error> {
        controller.check().map_err(|e| panic!("unchecked: {e}"))
    }

    fn controller_destroy(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn attach(&self, _: &str, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn detach(&self, _: &str, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn suspend(&self, _: &str, timeout: Duration) -> Result<(), Error> {
        assert!(timeout <= Duration::from_secs(600));
        Ok(())
    }

    fn resume(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }
}
