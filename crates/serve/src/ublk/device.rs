//! A device as its owner sees it: started, asked, suspended, stopped, or left to the next daemon.

mod node;

use super::control::{self, Control};
use super::inbox::{Inbox, Message, Report};
use super::options::OnDeath;
use super::options::Options;
use super::stats::{DeviceState, Stats};
use super::uapi::feature;
use super::uapi::DeviceInfo;
use super::uring::{DevicePort, Kernel};
use super::worker::{Setup, Throttle, Worker};
use crate::namespace::volume::Volume;
use crate::target::config::Namespace;
use crate::target::thread_pool::Failure;
use forebay_io::{memlock_refusal, monotonic_now, settle_thread_in, Reactor, RingOptions};
use forebay_model::Error;
pub use node::delete_ublk;
use node::{await_node, check_unused, open_node, stopped, written_back};
pub(super) use node::{claim, make};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, sync_channel, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A name that only seeds the identity of sources opened by `Ublk::open`.
const NQN: &str = "nqn.2026-11.io.forebay:ublk";
/// For udev, or the kernel's own devtmpfs, to make a node.
const NODE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A thread that doesn't report within this time is left out of a snapshot.
const REPORT: Duration = Duration::from_millis(500);
/// Time for requests to be answered by the source when the device stops, and then for the source to let go of them.
const STOP: Duration = Duration::from_secs(5);
const STOP_FAILING: Duration = Duration::from_secs(30);
const DELETE: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(30);

/// A /dev/ublkbN on threads of its own. All calls may come from any thread. Dropped, it leaves the device to the next
/// daemon, if it was made to wait for one.
pub struct Ublk {
    info: DeviceInfo,
    features: u64,
    recovered: bool,
    volume: Mutex<Arc<Volume>>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Mutex<Vec<JoinHandle<Report>>>,
    /// Reports of threads that have ended.
    past: Mutex<Vec<Report>>,
    suspended: Mutex<bool>,
    failure: Arc<Failure>,
}

impl Ublk {
    /// Opens a source and starts a device over it.
    ///
    /// # Errors
    /// Of `Volume::open` and `start`.
    pub fn open(namespace: &Namespace, options: &Options) -> Result<Ublk, Error> {
        options.check()?;
        let volume = Volume::open_direct(NQN, namespace.nsid.max(1), namespace, options.workers())?;
        Ublk::start(Arc::new(volume), options)
    }

    /// Makes the device, or takes it over, and serves it.
    ///
    /// # Errors
    /// `Machine`: no driver, no right to use it, a kernel that lacks what is asked. `Request`: the device is there
    /// and has another daemon, or stood on something else. `Run`: the driver refuses.
    pub fn start(volume: Arc<Volume>, options: &Options) -> Result<Ublk, Error> {
        Ublk::start_limited(volume, options, None)
    }

    /// As `start`, under limits that others share.
    ///
    /// # Errors
    /// Of `start`.
    pub(crate) fn start_limited(
        volume: Arc<Volume>,
        options: &Options,
        throttle: Option<Throttle>,
    ) -> Result<Ublk, Error> {
        options.check()?;
        let (mut kernel, features) = opened()?;
        control::check_death(options.on_death, features)?;
        let found = claim(&mut kernel, &volume, options)?;
        let recovered = found.is_some();
        let info = match found {
            Some(info) => info,
            None => make(&mut kernel, &volume, options)?,
        };
        let mut device = Ublk {
            info,
            features,
            recovered,
            volume: Mutex::new(volume),
            inboxes: Vec::new(),
            threads: Mutex::default(),
            past: Mutex::default(),
            suspended: Mutex::new(false),
            failure: Arc::default(),
        };
        match device.go_live(&mut kernel, options, throttle.as_ref()) {
            Ok(()) => Ok(device),
            Err(e) => {
                device.end();
                if !recovered {
                    let _ = control::delete(&mut kernel, info.dev_id, DELETE);
                }
                Err(e)
            }
        }
    }

    fn go_live(
        &mut self,
        kernel: &mut dyn Control,
        options: &Options,
        throttle: Option<&Throttle>,
    ) -> Result<(), Error> {
        let id = self.info.dev_id;
        let device = Arc::new(open_node(Path::new(&format!("/dev/ublkc{id}")))?);
        let threads = options.workers().clamp(1, self.info.nr_hw_queues.into());
        let (tell, reported) = channel();
        for number in 0..threads {
            let queues = (0..self.info.nr_hw_queues).filter(|q| u32::from(*q) % threads == number).collect();
            let start = ThreadStart {
                setup: Setup {
                    number,
                    transfer_max: self.info.max_io_buf_bytes,
                    io_timeout: options.io_timeout(),
                    throttle: throttle.cloned(),
                    failure: self.failure.clone(),
                },
                info: self.info,
                spin: Duration::from_micros(options.spin_us.into()),
                device: device.clone(),
                volume: lock(&self.volume).clone(),
                queues,
            };
            let tell = tell.clone();
            let run = move || match start.worker() {
                Ok((worker, inbox)) => {
                    let _ = tell.send(Ok(inbox));
                    drop(tell);
                    worker.run()
                }
                Err(e) => {
                    let _ = tell.send(Err(e));
                    Report::default()
                }
            };
            let thread = std::thread::Builder::new().name(format!("ublk{id}-{number}")).spawn(run);
            let thread = thread.map_err(|e| Error::machine("a thread", e.to_string(), "ulimit -u"))?;
            lock(&self.threads).push(thread);
        }
        drop((tell, device));
        self.gather(&reported, threads)?;
        control::start(kernel, id, self.recovered).map_err(|errno| {
            let found = format!("the driver doesn't start it: {}", text(errno));
            Error::run(self.path().display().to_string(), found, "dmesg | tail; the source may not answer")
        })?;
        await_node(&self.path())
    }

    /// All threads have asked for their first requests.
    fn gather(&mut self, reported: &Receiver<Result<Arc<Inbox>, Error>>, threads: u32) -> Result<(), Error> {
        let mut failed = None;
        for answer in reported {
            match answer {
                Ok(inbox) => self.inboxes.push(inbox),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        match failed {
            Some(e) => Err(e),
            None if self.inboxes.len() < threads as usize => {
                Err(Error::run("the threads of a ublk device", "one of them has ended", "threads = 1"))
            }
            None => Ok(()),
        }
    }

    pub fn id(&self) -> u32 {
        self.info.dev_id
    }

    /// /dev/ublkbN.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.info.dev_id))
    }

    /// It waited for a daemon, and got this one.
    pub fn recovered(&self) -> bool {
        self.recovered
    }

    /// Why a thread of it ended: nobody serves its queues until the next daemon does.
    pub fn failure(&self) -> Option<Error> {
        self.failure.get()
    }

    /// Hardware queues that the kernel gave.
    pub fn queues(&self) -> u16 {
        self.info.nr_hw_queues
    }

    pub fn stats(&self) -> Stats {
        let volume = lock(&self.volume).clone();
        let mut stats = Stats {
            id: self.info.dev_id,
            path: self.path().display().to_string(),
            source: volume.source.clone(),
            bytes: volume.bytes(),
            block_bytes: volume.block_bytes,
            writable: volume.writable,
            fabric: volume.target.reports(),
            recovered: self.recovered,
            on_death: OnDeath::from_flags(self.info.flags),
            kernel_features: feature::names(self.features),
            depth: self.info.queue_depth,
            max_transfer: self.info.max_io_buf_bytes,
            ..Stats::default()
        };
        let live = self.reports();
        let past = lock(&self.past);
        let open = live.iter().any(|r| r.open) || lock(&self.threads).iter().any(|t| !t.is_finished());
        stats.state = match (open, *lock(&self.suspended)) {
            (false, _) => DeviceState::Stopped,
            (true, true) => DeviceState::Suspended,
            (true, false) => DeviceState::Live,
        };
        for report in live.iter().chain(past.iter()) {
            stats.queues.extend(report.queues.iter().cloned());
            report.queues.iter().for_each(|queue| stats.counts.add(&queue.counts));
        }
        for queue in &stats.queues {
            stats.read_latency.add(&queue.read_latency);
            stats.write_latency.add(&queue.write_latency);
            stats.staged_bytes += queue.staged_bytes;
        }
        stats.queues.sort_by_key(|queue| queue.queue);
        stats.copied_bytes = stats.counts.read_bytes + stats.counts.write_bytes;
        stats
    }

    fn reports(&self) -> Vec<Report> {
        let asked: Vec<Receiver<Report>> = self
            .inboxes
            .iter()
            .map(|inbox| {
                let (to, from) = sync_channel(1);
                inbox.post(Message::Report(to));
                from
            })
            .collect();
        let until = monotonic_now() + REPORT;
        let left = || until.saturating_duration_since(monotonic_now());
        asked.into_iter().filter_map(|from| from.recv_timeout(left()).ok()).collect()
    }

    /// Holds requests from now on. Returns once none is in the source.
    ///
    /// # Errors
    /// `Run`: the source doesn't answer `within` that time; requests are taken again.
    pub fn suspend(&self, within: Duration) -> Result<(), Error> {
        let mut suspended = lock(&self.suspended);
        let asked: Vec<Receiver<()>> = self
            .inboxes
            .iter()
            .map(|inbox| {
                let (to, from) = sync_channel(1);
                inbox.post(Message::Suspend(to));
                from
            })
            .collect();
        let until = monotonic_now() + within;
        for from in asked {
            let left = until.saturating_duration_since(monotonic_now());
            if from.recv_timeout(left).is_err() && !self.has_ended() {
                self.inboxes.iter().for_each(|m| m.post(Message::Resume));
                let asked = format!("suspend {}", self.path().display());
                let found = format!("its source still has requests after {:.1} s", within.as_secs_f64());
                return Err(Error::run(asked, found, "forebay snap rpc … with a longer timeout"));
            }
        }
        *suspended = true;
        Ok(())
    }

    /// Takes requests again, those first that were held.
    pub fn resume(&self) {
        let mut suspended = lock(&self.suspended);
        self.inboxes.iter().for_each(|m| m.post(Message::Resume));
        *suspended = false;
    }

    /// Limits that it is under may have changed.
    pub fn limits_changed(&self) {
        self.inboxes.iter().for_each(|m| m.post(Message::LimitsChanged));
    }

    fn has_ended(&self) -> bool {
        lock(&self.threads).iter().all(JoinHandle::is_finished)
    }

    /// Puts another source in the place of the one that there is, between two requests.
    ///
    /// # Errors
    /// `Request`: it has another size, blocks or writability. `Run`: the last one still has requests after 30 s, or
    /// the new one can't be opened on every thread. The last one stays then.
    pub fn replace(&self, volume: Arc<Volume>) -> Result<(), Error> {
        let mut current = lock(&self.volume);
        let shape = |v: &Volume| (v.bytes(), v.block_bytes, v.writable, v.write_cache);
        if shape(&current) != shape(&volume) {
            let say = |v: &Volume| {
                let mode = if v.writable { "writable" } else { "read-only" };
                let cache = if v.write_cache { ", with a cache" } else { "" };
                format!("{} bytes in blocks of {}, {mode}{cache}", v.bytes(), v.block_bytes)
            };
            let found = format!("it has {}; the device has {}", say(&volume), say(&current));
            let asked = format!("{} in place of {}", volume.source, current.source);
            return Err(Error::request(asked, found, "a source of the same shape"));
        }
        let was_suspended = *lock(&self.suspended);
        self.suspend(QUIET)?;
        let switched = self.switch(&volume);
        if !was_suspended {
            self.resume();
        }
        switched?;
        *current = volume;
        Ok(())
    }

    /// Opens a source and puts it in the place of the one that there is: `replace`.
    ///
    /// # Errors
    /// Of `Volume::open` and `replace`.
    pub fn replace_by(&self, namespace: &Namespace) -> Result<(), Error> {
        let threads = self.inboxes.len() as u32;
        self.replace(Arc::new(Volume::open_direct(NQN, namespace.nsid.max(1), namespace, threads)?))
    }

    fn switch(&self, volume: &Arc<Volume>) -> Result<(), Error> {
        let lost =
            || Error::run("another source", "a thread of the device doesn't respond", "forebay snap again");
        let ask = |inbox: &Arc<Inbox>| {
            let (to, from) = sync_channel(1);
            inbox.post(Message::Prepare(volume.clone(), to));
            from
        };
        let prepared: Vec<_> = self.inboxes.iter().map(ask).collect();
        for from in prepared {
            from.recv_timeout(QUIET).map_err(|_| lost())??;
        }
        // Suspended and quiet, all of them can: nothing is left that could fail on one thread alone.
        for inbox in &self.inboxes {
            let (to, from) = sync_channel(1);
            inbox.post(Message::Switch(to));
            if !from.recv_timeout(QUIET).unwrap_or(false) {
                return Err(lost());
            }
        }
        Ok(())
    }

    /// Stops the device and deletes it. What the page cache holds for it is written first, unless `force`.
    ///
    /// # Errors
    /// `Request`: something uses it (`force` stops it nevertheless: whoever uses it sees errors). `Run`: what was
    /// cached can't be written, or the driver doesn't stop it.
    pub fn stop(&self, force: bool) -> Result<(), Error> {
        if !force {
            check_unused(&self.path())?;
            written_back(&self.path())?;
        }
        self.resume();
        let mut kernel = Kernel::open()?;
        let id = self.info.dev_id;
        let mut answer = control::stop(&mut kernel, id, STOP);
        if answer == Err(libc::ETIMEDOUT) {
            self.inboxes.iter().for_each(|m| m.post(Message::GiveUp));
            answer = stopped(&mut kernel, id, STOP_FAILING);
        }
        let failed = |what: &str, errno| {
            let next = format!("dmesg | tail; the source still holds requests of {}", self.path().display());
            Error::run(format!("stop {}", self.path().display()), format!("{what}: {}", text(errno)), next)
        };
        match answer {
            Ok(()) | Err(libc::ENODEV) => {}
            Err(errno) => return Err(failed("the driver doesn't stop it", errno)),
        }
        self.join();
        match control::delete(&mut kernel, id, DELETE) {
            Ok(()) | Err(libc::ENODEV) => Ok(()),
            Err(errno) => Err(failed("it is stopped, and can't be deleted", errno)),
        }
    }

    /// Ends the threads. The device stays and waits for its next daemon, unless `on_death` is `remove`.
    pub fn leave(self) {
        self.end();
    }

    fn end(&self) {
        self.inboxes.iter().for_each(|m| m.post(Message::Leave));
        self.join();
    }

    fn join(&self) {
        let ended: Vec<Report> = lock(&self.threads).drain(..).filter_map(|t| t.join().ok()).collect();
        lock(&self.past).extend(ended);
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that devices can be made at all.
///
/// # Errors
/// `Machine`: no driver, no right to use it, or one that is too old.
pub(crate) fn available() -> Result<(), Error> {
    opened().map(drop)
}

/// The control device, and what the driver can do.
fn opened() -> Result<(Kernel, u64), Error> {
    let mut kernel = Kernel::open()?;
    let features = control::features(&mut kernel).map_err(|errno| {
        let found = format!("this kernel's ublk is too old for us ({})", text(errno));
        Error::machine("a ublk device", found, "Linux 6.5 or later")
    })?;
    Ok((kernel, features))
}

/// Starting point of one thread.
struct ThreadStart {
    setup: Setup,
    info: DeviceInfo,
    spin: Duration,
    device: Arc<File>,
    volume: Arc<Volume>,
    queues: Vec<u16>,
}

impl ThreadStart {
    fn worker(self) -> Result<(Worker<DevicePort>, Arc<Inbox>), Error> {
        settle_thread_in(None, None)?;
        let ThreadStart { setup, info, spin, device, volume, queues } = self;
        let depth = u32::from(info.queue_depth) * queues.len() as u32;
        let options = RingOptions { depth: depth.saturating_mul(2), ..RingOptions::default() };
        let mut reactor = Reactor::with_ring(options).map_err(|e| {
            let next = "forebay doctor for the reason (sysctl kernel.io_uring_disabled)";
            memlock_refusal("a ublk device", &e, next)
        })?;
        reactor.spin(spin);
        let inbox = Arc::new(Inbox::new(reactor.waker()?));
        let open = |queue: u16, reactor: &mut Reactor| {
            let port = DevicePort::open(&device, queue, info.queue_depth, info.max_io_buf_bytes, reactor)?;
            Ok((queue, port))
        };
        let ports = queues.into_iter().map(|q| open(q, &mut reactor)).collect::<Result<Vec<_>, Error>>()?;
        let worker = Worker::new(setup, volume, ports, reactor, inbox.clone())?;
        Ok((worker, inbox))
    }
}

fn text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
