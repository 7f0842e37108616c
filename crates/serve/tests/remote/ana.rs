//! Tests of the host's choice of paths by the target's ANA states: a server with two addresses.

use super::worker;
use forebay_io::Op;
use forebay_rigs::worker::{content, Rig, LONG};
use forebay_serve::{Ana, TargetConfig, TargetServer};
use forebay_storage::{NvmeTcpOptions, NvmeTcpRemote, Uri};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

const NQN: &str = "nqn.2026-11.io.example:ana";
const HERE: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
const LEN: u32 = 4096;
/// Reads in a row that must all have gone the way that is meant.
const READS: u64 = 16;

fn serve(path: &str) -> TargetServer {
    let text = format!(
        "listen = [\"{}:0\", \"{}:0\"]\nthreads = 1\nbuffers = \"16m\"\n\
         [[subsystems]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystems.namespaces]]\nsource = \"{path}\"\n",
        HERE[0], HERE[1]
    );
    TargetServer::start(TargetConfig::from_toml(&text).unwrap(), Box::new(|_| {})).unwrap()
}

fn set(server: &TargetServer, states: [&str; 2]) {
    let ana =
        |(address, state): (&str, &str)| Ana { group: None, address: address.into(), state: state.into() };
    server.set_ana(NQN, &HERE.into_iter().zip(states).map(ana).collect::<Vec<_>>()).unwrap();
}

/// Commands of each path so far.
fn carried(remote: &NvmeTcpRemote) -> [u64; 2] {
    let mut all = [0; 2];
    remote.traffic().iter().for_each(|t| all[t.path] += t.commands.load(Ordering::Relaxed));
    all
}

/// Reads until all go over that path: the host hears of a change when its event has come.
fn goes_by(rig: &mut Rig, remote: &NvmeTcpRemote, path: usize, bytes: &[u8]) {
    let until = Instant::now() + LONG;
    loop {
        let before = carried(remote);
        for at in 0..READS {
            let offset = at * u64::from(LEN);
            assert_eq!(rig.one(Op::Read, offset, LEN).result, Ok(LEN));
            let expected = &bytes[offset as usize..][..LEN as usize];
            assert_eq!(rig.crc(0, LEN), crc32c::crc32c(expected), "at {offset}");
        }
        let after = carried(remote);
        if (after[path] - before[path], after[1 - path] - before[1 - path]) == (READS, 0) {
            return;
        }
        assert!(Instant::now() < until, "{before:?} {after:?}");
    }
}

// promise: RHO-17
#[test]
fn the_best_path_is_taken_and_changes_while_it_runs() {
    let bytes = content(1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("content");
    std::fs::write(&file, &bytes).unwrap();
    let server = serve(file.to_str().unwrap());
    set(&server, ["optimized", "non-optimized"]);
    let [a, b] = [0, 1].map(|at| server.addresses()[at]);
    let uri = format!("nvme+tcp://{a}/{NQN}?path={b}&io_timeout=-1&fast_io_fail_tmo=-1&ctrl_loss_tmo=-1");
    let remote: Arc<NvmeTcpRemote> =
        NvmeTcpRemote::open(NvmeTcpOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap(), 1).unwrap();
    let mut rig = worker(&remote, 4, LEN as usize);
    goes_by(&mut rig, &remote, 0, &bytes);
    set(&server, ["non-optimized", "optimized"]);
    goes_by(&mut rig, &remote, 1, &bytes);
    set(&server, ["inaccessible", "non-optimized"]);
    goes_by(&mut rig, &remote, 1, &bytes);

    // Where no path leads there, commands wait: they don't fail.
    set(&server, ["inaccessible", "change"]);
    let shown = |state: &str| remote.paths().iter().filter(|p| p.ana == Some(state)).count();
    rig.finish_when(|| shown("inaccessible") == 1 && shown("change") == 1);
    rig.push(0, Op::Read, 0, LEN);
    rig.queue.submit(&mut rig.reactor);
    for _ in 0..3 {
        rig.turn();
    }
    assert!(rig.done.is_empty(), "{:?}", rig.done);
    set(&server, ["non-optimized", "inaccessible"]);
    let done = rig.finish(LONG);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].result, Ok(LEN));
    assert_eq!(rig.crc(0, LEN), crc32c::crc32c(&bytes[..LEN as usize]));
    goes_by(&mut rig, &remote, 0, &bytes);
    rig.close();
}
