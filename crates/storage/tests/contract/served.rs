//! Namespaces that a small target in this process serves, and what they hold.

use forebay_rigs::drive::{Control, Drive};
use forebay_rigs::fake::{Fake, NQN};
use forebay_storage::{
    NvmeTcpOptions, NvmeTcpRemote, OpenNamespace, Target, Uri, VfioUserDrive, VfioUserOptions,
};
use std::sync::{Arc, Mutex};

type Disk = Arc<Mutex<Vec<u8>>>;

/// By label; they serve until `end`.
static SERVED: Mutex<Vec<(String, Disk, Server)>> = Mutex::new(Vec::new());

/// Held for what it does.
enum Server {
    #[allow(dead_code)]
    Target(Fake),
    #[allow(dead_code)]
    Drive(Drive),
}

/// A namespace with this content, connected to.
pub fn target(data: Vec<u8>, more: &str) -> Target {
    let disk = Arc::new(Mutex::new(data));
    let fake = Fake::start(disk.clone(), 0);
    let uri = format!("nvme+tcp://{}/{NQN}?{more}", fake.address);
    let options = NvmeTcpOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone();
    // Tests open queues for several workers at once.
    let remote = NvmeTcpRemote::open(&options, 3).unwrap_or_else(|e| panic!("{e}"));
    let label = format!("{uri} of {} bytes", remote.bytes());
    SERVED.lock().unwrap().push((label.clone(), disk, Server::Target(fake)));
    Target::new(label, remote.bytes(), OpenNamespace(remote))
}

/// An emulated drive with this content, connected to.
pub fn drive(data: Vec<u8>, more: &str, plain_doorbells: bool) -> Target {
    let disk = Arc::new(Mutex::new(data));
    let control = Control { plain_doorbells: plain_doorbells.into(), ..Control::default() };
    let device = Drive::with(disk.clone(), control);
    let uri = device.uri(more);
    let options = VfioUserOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone();
    let drive = VfioUserDrive::open(&options, 3).unwrap_or_else(|e| panic!("{e}"));
    let label = format!("{uri} of {} bytes", drive.bytes());
    SERVED.lock().unwrap().push((label.clone(), disk, Server::Drive(device)));
    Target::new(label, drive.bytes(), OpenNamespace(drive))
}

pub fn truth(target: &Target) -> Vec<u8> {
    let served = SERVED.lock().unwrap();
    let (_, disk, _) = served.iter().find(|(label, _, _)| *label == target.label).expect("it is served here");
    let data = disk.lock().unwrap().clone();
    data
}

/// They serve nobody any more: each would go on looking at what it was lent, and keep the others waiting.
pub fn end(labels: &[String]) {
    let mut served = SERVED.lock().unwrap();
    let (over, on) = served.drain(..).partition(|(label, ..)| labels.contains(label));
    *served = on;
    drop(served);
    drop::<Vec<_>>(over);
}
