//! Memory that is lent to devices for long: registered once with each device, whatever connections come and go.

use super::library::Library;
use super::manager::Id;
use super::verbs::{Domain, Region};
use crate::arena::Arena;
use crate::gpu::cuda::DeviceMemory;
use forebay_model::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registered memory, as a connection keeps it to look up.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub at: u64,
    pub bytes: u64,
    pub local_key: u32,
    pub remote_key: u32,
}

/// The devices that a source's or a target's connections are on, and the memory that all of them may reach.
pub struct Domains {
    library: &'static Library,
    inner: Mutex<Inner>,
    /// Goes up with each change of what is registered.
    version: AtomicU64,
}

#[derive(Default)]
struct Inner {
    domains: Vec<Arc<Domain>>,
    lent: Vec<Stretch>,
    /// Number of regions ever made.
    count: u64,
}

struct Stretch {
    id: u64,
    place: PayloadPlace,
    bytes: usize,
    /// One for each domain, in their order.
    regions: Vec<Region>,
}

enum PayloadPlace {
    Host(NonNull<u8>),
    /// Address in a GPU's memory, and the dma-buf that begins there.
    Device(u64, OwnedFd),
}

// SAFETY: an address; what may be done with it is `Domains::lend`'s promise.
unsafe impl Send for PayloadPlace {}

/// Memory stays lent as long as this lives; drop it before the memory.
pub struct Lent {
    domains: Arc<Domains>,
    id: u64,
}

impl Domains {
    pub fn new(library: &'static Library) -> Arc<Domains> {
        Arc::new(Domains { library, inner: Mutex::default(), version: AtomicU64::new(1) })
    }

    pub fn library(&self) -> &'static Library {
        self.library
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain of the device that a connection is on, with all that is lent.
    ///
    /// # Errors
    /// The device isn't known yet, or refuses: ENOMEM where more is lent than may be locked.
    pub fn domain_of(&self, id: &Id) -> io::Result<Arc<Domain>> {
        let context = id.context().ok_or(io::ErrorKind::NotConnected)?;
        let mut inner = self.lock();
        if let Some(known) = inner.domains.iter().find(|domain| domain.is_on(context)) {
            return Ok(known.clone());
        }
        let domain = Arc::new(Domain::open(self.library, context)?);
        let regions =
            inner.lent.iter().map(|stretch| stretch.register(&domain)).collect::<io::Result<Vec<_>>>()?;
        for (stretch, region) in inner.lent.iter_mut().zip(regions) {
            stretch.regions.push(region);
        }
        inner.domains.push(domain.clone());
        self.version.fetch_add(1, Ordering::Release);
        Ok(domain)
    }

    /// Registers an arena with every device that there is a connection on, and with those to come.
    ///
    /// # Errors
    /// `Machine`: more than may be locked.
    pub fn lend(self: &Arc<Domains>, arena: &Arena) -> Result<Lent, Error> {
        let (at, bytes) = arena.whole();
        self.put(PayloadPlace::Host(at), bytes).map_err(|(device, e)| refusal(bytes, &device, &e))
    }

    /// As `lend`, of a GPU's memory.
    ///
    /// # Errors
    /// The GPU exports no such memory, or a device takes none: why.
    pub fn lend_device(self: &Arc<Domains>, memory: &DeviceMemory) -> Result<Lent, String> {
        let dma_buf = memory.export().map_err(|why| format!("GPU {}: {why}", memory.device().index()))?;
        let place = PayloadPlace::Device(memory.address(), dma_buf);
        self.put(place, memory.bytes()).map_err(|(device, e)| {
            let why =
                self.lock().domains.iter().find(|d| d.device == device).and_then(|d| d.refuses_dma_bufs());
            format!("{device} takes no GPU memory by dma-buf: {}", why.unwrap_or_else(|| e.to_string()))
        })
    }

    /// Returns whether there is a connection on a device, so that what is lent was tried.
    pub fn has_device(&self) -> bool {
        !self.lock().domains.is_empty()
    }

    /// Registers it with each device; the one that refuses, and why.
    fn put(self: &Arc<Domains>, place: PayloadPlace, bytes: usize) -> Result<Lent, (String, io::Error)> {
        let mut inner = self.lock();
        inner.count += 1;
        let mut stretch = Stretch { id: inner.count, place, bytes, regions: Vec::new() };
        for domain in &inner.domains {
            let region = stretch.register(domain).map_err(|e| (domain.device.clone(), e))?;
            stretch.regions.push(region);
        }
        let id = stretch.id;
        inner.lent.push(stretch);
        self.version.fetch_add(1, Ordering::Release);
        Ok(Lent { domains: self.clone(), id })
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The spans that are registered with a domain.
    pub fn spans(&self, domain: &Arc<Domain>) -> Vec<Span> {
        let inner = self.lock();
        let Some(index) = inner.domains.iter().position(|known| Arc::ptr_eq(known, domain)) else {
            return Vec::new();
        };
        let span = |region: &Region| Span {
            at: region.at,
            bytes: region.bytes as u64,
            local_key: region.local_key,
            remote_key: region.remote_key,
        };
        inner.lent.iter().filter_map(|stretch| stretch.regions.get(index)).map(span).collect()
    }
}

impl Stretch {
    fn register(&self, domain: &Arc<Domain>) -> io::Result<Region> {
        // SAFETY: who lent it keeps the memory until `Lent` is gone, and the region goes with that.
        unsafe {
            match &self.place {
                PayloadPlace::Host(at) => Region::register(domain, *at, self.bytes),
                PayloadPlace::Device(at, dma_buf) => {
                    Region::register_dma_buf(domain, dma_buf.as_fd(), *at, self.bytes)
                }
            }
        }
    }
}

/// Why memory can't be registered, and what to type.
pub(crate) fn refusal(bytes: usize, device: &str, error: &io::Error) -> Error {
    Error::machine(
        format!("register {bytes} bytes of buffers with {device}"),
        error.to_string(),
        "ulimit -l unlimited (in /etc/security/limits.conf: memlock); or fewer ‹workers›, a smaller ‹depth›",
    )
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.domains.lock().lent.retain(|stretch| stretch.id != self.id);
        self.domains.version.fetch_add(1, Ordering::Release);
    }
}

impl Span {
    pub fn covers(&self, at: u64, bytes: u64) -> bool {
        at >= self.at && at.checked_add(bytes).is_some_and(|end| end <= self.at + self.bytes)
    }
}
