//! The gateway and the driver of emulated drives, one against the other: every byte in its place, nothing staged at
//! either end, and a gateway that goes and comes back.

use forebay_io::{Arena, Op, Via};
use forebay_rigs::worker::{content, Rig, LONG};
use forebay_serve::{
    Gateway, GatewayConfig, GatewayController, GatewayNamespace, GatewaySubsystem, TargetConfig, TargetServer,
};
use forebay_storage::{Uri, VfioUserDrive, VfioUserOptions};
use std::path::Path;
use std::sync::Arc;

const BYTES: usize = 4 << 20;

fn namespace(source: &str) -> GatewayNamespace {
    GatewayNamespace { nsid: 1, source: source.into(), writable: true, ..GatewayNamespace::default() }
}

fn gateway(socket: &Path, source: &str, spin_us: u32) -> Gateway {
    with(namespace(source), socket, spin_us)
}

fn with(namespace: GatewayNamespace, socket: &Path, spin_us: u32) -> Gateway {
    let config = GatewayConfig {
        threads: 1,
        spin_us,
        subsystems: vec![GatewaySubsystem {
            nqn: "nqn.2026-11.io.example:gateway".into(),
            namespaces: vec![namespace],
            controllers: vec![GatewayController {
                name: "drive".into(),
                socket: Some(socket.display().to_string()),
                ..GatewayController::default()
            }],
            ..GatewaySubsystem::default()
        }],
        ..GatewayConfig::default()
    };
    Gateway::start(&config, Box::new(|entry| eprintln!("{}", entry.to_line())))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn drive(socket: &Path, more: &str) -> Arc<VfioUserDrive> {
    let uri = format!("vfio-user:{}?reconnect_delay=0.1{more}", socket.display());
    let options = VfioUserOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone();
    VfioUserDrive::open(&options, 1).unwrap_or_else(|e| panic!("{e}"))
}

fn worker(drive: &Arc<VfioUserDrive>, depth: u32, slot_bytes: usize) -> Rig {
    let lend = |arena: &Arena| drive.lend(arena).unwrap();
    Rig::open((depth, slot_bytes, true), lend, |needs, reactor| drive.queue(needs, reactor))
}

// promise: VUD-6
#[test]
fn bytes_go_straight_between_a_file_and_the_drivers_slots() {
    for (spin_us, more) in [(0, ""), (200, "&spin_us=200"), (0, "&queues=3&depth=4")] {
        let home = tempfile::tempdir().unwrap();
        let (file, socket) = (home.path().join("f"), home.path().join("s"));
        let content = content(BYTES);
        std::fs::write(&file, &content).unwrap();
        let gateway = gateway(&socket, &file.display().to_string(), spin_us);
        let drive = drive(&socket, more);
        assert_eq!(drive.bytes(), BYTES as u64);
        let mut rig = worker(&drive, 8, 512 << 10);
        for (offset, len) in [(0usize, 4096u32), (8192, 65536), (1 << 20, 512 << 10)] {
            for tag in 0..8 {
                rig.push(tag, Op::Read, offset as u64, len);
            }
            let done = rig.finish(LONG);
            assert_eq!(done.len(), 8, "{more}");
            for d in done {
                assert_eq!((d.result, d.via), (Ok(len), Via::Direct), "{more} {offset}+{len}");
                assert_eq!(rig.crc(d.tag, len), crc32c::crc32c(&content[offset..][..len as usize]), "{more}");
            }
        }
        assert_eq!(rig.one(Op::Write { durable: true }, 0, 512 << 10).result, Ok(512 << 10));
        assert!(rig.one(Op::Flush, 0, 0).result.is_ok());
        assert!(std::fs::read(&file).unwrap()[..512 << 10] == content[1 << 20..][..512 << 10]);
        let stats = gateway.stats();
        assert_eq!(stats.controllers[0].staged_bytes, 0, "{more}");
        rig.close();
        drop(drive);
        gateway.stop();
    }
}

/// Our host would take small reads of a fabric in bulk and copy them; a gateway's payload is a guest's memory.
// promise: GWY-6
#[test]
fn small_reads_over_a_fabric_are_not_staged_either() {
    let home = tempfile::tempdir().unwrap();
    let (file, socket) = (home.path().join("f"), home.path().join("s"));
    let content = content(BYTES);
    std::fs::write(&file, &content).unwrap();
    let nqn = "nqn.2026-11.io.example:target";
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nthreads = 1\nbuffers = \"64m\"\n[[subsystems]]\nnqn = \"{nqn}\"\n\
         allow_any_host = true\n[[subsystems.namespaces]]\nsource = \"{}\"\n",
        file.display()
    );
    let target = TargetServer::start(TargetConfig::from_toml(&text).unwrap(), Box::new(|_| {})).unwrap();
    let source = format!("nvme+tcp://{}/{nqn}", target.addresses()[0]);
    let gateway = with(GatewayNamespace { writable: false, ..namespace(&source) }, &socket, 0);
    let drive = drive(&socket, "");
    let mut rig = worker(&drive, 32, 8192);
    for len in [4096u32, 8192] {
        for round in 0..8 {
            (0..32).for_each(|tag| rig.push(tag, Op::Read, u64::from((round * 32 + tag) * len), len));
            for d in rig.finish(LONG) {
                let offset = ((round * 32 + d.tag) * len) as usize;
                assert_eq!((d.result, d.via), (Ok(len), Via::Direct), "{offset}+{len}");
                assert_eq!(rig.crc(d.tag, len), crc32c::crc32c(&content[offset..][..len as usize]));
            }
        }
    }
    let stats = gateway.stats();
    assert!(stats.controllers[0].queues.iter().map(|q| q.counts.reads).sum::<u64>() >= 512);
    assert_eq!(stats.staged_bytes, 0);
    rig.close();
    drop(drive);
    gateway.stop();
    target.stop();
}

// promise: VUD-6
#[test]
fn a_gateway_that_comes_back_is_found_again() {
    let home = tempfile::tempdir().unwrap();
    let (file, socket) = (home.path().join("f"), home.path().join("s"));
    let content = content(BYTES);
    std::fs::write(&file, &content).unwrap();
    let source = file.display().to_string();
    let first = gateway(&socket, &source, 0);
    let drive = drive(&socket, "");
    let mut rig = worker(&drive, 2, 65536);
    assert_eq!(rig.one(Op::Read, 0, 65536).result, Ok(65536));
    first.stop();
    let second = gateway(&socket, &source, 0);
    rig.push(1, Op::Read, 131_072, 65536);
    assert_eq!(rig.finish(LONG)[0].result, Ok(65536));
    assert_eq!(rig.crc(1, 65536), crc32c::crc32c(&content[131_072..][..65536]));
    assert_eq!(drive.report().paths[0].reconnects, 1);
    rig.close();
    drop(drive);
    second.stop();
}
