//! libibverbs and librdmacm through dlopen: never linked, never needed, never a panic where they are absent.

use super::layout::{CmEvent, CmId, CompChannel, ConnParam, Context, Cq, EventChannel, Mr, Pd, QpInit};
use crate::gpu::library::{load, Wanted};
use forebay_model::Error;
use libloading::Library as Loaded;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

pub(crate) const IBVERBS: Wanted = Wanted { variable: "FOREBAY_LIBIBVERBS", names: &["libibverbs.so.1"] };
pub(crate) const RDMACM: Wanted = Wanted { variable: "FOREBAY_LIBRDMACM", names: &["librdmacm.so.1"] };
/// Command to type where they are missing.
pub const RDMA_INSTALL: &str =
    "apt install libibverbs1 librdmacm1 ibverbs-providers   # elsewhere: dnf install libibverbs librdmacm";
/// Command to type where there is no device: a card's driver makes one, or soft RoCE over any network card.
pub const RDMA_MAKE_DEVICE: &str =
    "rdma link show; without a card: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev NIC";
/// Command to type where the device files are missing.
pub const RDMA_SHOW_DEVICE: &str =
    "sudo modprobe -a ib_uverbs rdma_ucm   # in a container: --device /dev/infiniband";

macro_rules! calls {
    ($name:ident { $($call:ident: $symbol:literal ($($arg:ty),*) $(-> $result:ty)?;)* }) => {
        pub struct $name {
            $(pub $call: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }
        impl $name {
            /// # Safety
            /// The library has rdma-core's ABI.
            unsafe fn load(library: &Loaded) -> Result<$name, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are those of rdma-core's headers.
                unsafe { Ok($name { $($call: *library.get($symbol)?,)* }) }
            }
        }
    };
}

calls! { Verbs {
    device_name: b"ibv_get_device_name\0" (*mut c_void) -> *const c_char;
    alloc_pd: b"ibv_alloc_pd\0" (*mut Context) -> *mut Pd;
    dealloc_pd: b"ibv_dealloc_pd\0" (*mut Pd) -> c_int;
    reg_mr: b"ibv_reg_mr\0" (*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: b"ibv_dereg_mr\0" (*mut Mr) -> c_int;
    create_comp_channel: b"ibv_create_comp_channel\0" (*mut Context) -> *mut CompChannel;
    destroy_comp_channel: b"ibv_destroy_comp_channel\0" (*mut CompChannel) -> c_int;
    create_cq: b"ibv_create_cq\0" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: b"ibv_destroy_cq\0" (*mut Cq) -> c_int;
    get_cq_event: b"ibv_get_cq_event\0" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: b"ibv_ack_cq_events\0" (*mut Cq, c_uint);
    status_words: b"ibv_wc_status_str\0" (c_uint) -> *const c_char;
}}

calls! { Manager {
    create_event_channel: b"rdma_create_event_channel\0" () -> *mut EventChannel;
    destroy_event_channel: b"rdma_destroy_event_channel\0" (*mut EventChannel);
    create_id: b"rdma_create_id\0" (*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
    destroy_id: b"rdma_destroy_id\0" (*mut CmId) -> c_int;
    bind_addr: b"rdma_bind_addr\0" (*mut CmId, *const c_void) -> c_int;
    listen: b"rdma_listen\0" (*mut CmId, c_int) -> c_int;
    resolve_addr: b"rdma_resolve_addr\0" (*mut CmId, *const c_void, *const c_void, c_int) -> c_int;
    resolve_route: b"rdma_resolve_route\0" (*mut CmId, c_int) -> c_int;
    create_qp: b"rdma_create_qp\0" (*mut CmId, *mut Pd, *mut QpInit) -> c_int;
    destroy_qp: b"rdma_destroy_qp\0" (*mut CmId);
    connect: b"rdma_connect\0" (*mut CmId, *mut ConnParam) -> c_int;
    accept: b"rdma_accept\0" (*mut CmId, *mut ConnParam) -> c_int;
    reject: b"rdma_reject\0" (*mut CmId, *const c_void, u8) -> c_int;
    disconnect: b"rdma_disconnect\0" (*mut CmId) -> c_int;
    get_cm_event: b"rdma_get_cm_event\0" (*mut EventChannel, *mut *mut CmEvent) -> c_int;
    ack_cm_event: b"rdma_ack_cm_event\0" (*mut CmEvent) -> c_int;
    migrate_id: b"rdma_migrate_id\0" (*mut CmId, *mut EventChannel) -> c_int;
    get_devices: b"rdma_get_devices\0" (*mut c_int) -> *mut *mut Context;
}}

/// ibv_reg_dmabuf_mr: offset, length, address that peers name, descriptor, access.
type RegisterDmaBuf = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;

/// Both libraries, loaded once and kept.
pub struct Library {
    pub verbs: Verbs,
    /// None: rdma-core before 34.
    pub reg_dmabuf: Option<RegisterDmaBuf>,
    pub manager: Manager,
    /// Paths of the two libraries.
    pub from: [String; 2],
    _loaded: [Loaded; 2],
}

/// Loads both, the first time; why not, where one is missing.
///
/// # Errors
/// What the loader says of the first that can't be had.
pub fn rdma_library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref().map_err(String::as_str)
}

fn open() -> Result<Library, String> {
    let (verbs_library, verbs_from) = load(&IBVERBS)?;
    let (manager_library, manager_from) = load(&RDMACM)?;
    let symbols = |e: libloading::Error| e.to_string();
    // SAFETY: the first is libibverbs.so.1, by its name or because the user says so.
    let verbs = unsafe { Verbs::load(&verbs_library) }.map_err(symbols)?;
    // SAFETY: the second is librdmacm.so.1, likewise.
    let manager = unsafe { Manager::load(&manager_library) }.map_err(symbols)?;
    // SAFETY: as above; the signature is that of rdma-core's header.
    let reg_dmabuf = unsafe { verbs_library.get(b"ibv_reg_dmabuf_mr\0") }.ok().map(|symbol| *symbol);
    let from = [verbs_from, manager_from];
    Ok(Library { verbs, reg_dmabuf, manager, from, _loaded: [verbs_library, manager_library] })
}

/// Everything that RDMA needs here, for `asked`.
///
/// # Errors
/// `Machine`: a library, a device or its files are missing; which package or command brings them.
pub fn require_rdma(asked: &str) -> Result<&'static Library, Error> {
    let library = rdma_library().map_err(|why| Error::machine(asked, why, RDMA_INSTALL))?;
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    if devices == 0 && stands_alone() {
        return Err(Error::machine(
            asked,
            "no RDMA device here (/sys/class/infiniband is empty)",
            RDMA_MAKE_DEVICE,
        ));
    }
    if !Path::new("/dev/infiniband/rdma_cm").exists() && stands_alone() {
        return Err(Error::machine(
            asked,
            "no /dev/infiniband/rdma_cm, so that no program can connect",
            RDMA_SHOW_DEVICE,
        ));
    }
    library.keep_devices();
    Ok(library)
}

/// Libraries that the user named may bring devices of their own.
fn stands_alone() -> bool {
    std::env::var_os(RDMACM.variable).is_none()
}

impl Library {
    /// The connection manager closes a device with its last connection; what hangs on the device must outlive that.
    fn keep_devices(&self) {
        self.devices();
    }

    /// All devices, opened once and kept.
    pub(super) fn devices(&self) -> Vec<NonNull<Context>> {
        static KEPT: OnceLock<Vec<usize>> = OnceLock::new();
        let kept = KEPT.get_or_init(|| {
            let mut count = 0;
            // SAFETY: fills a local; the list is kept for ever, and null where there is none.
            unsafe {
                let list = (self.manager.get_devices)(&mut count);
                let at = |i: usize| *list.add(i) as usize;
                if list.is_null() {
                    Vec::new()
                } else {
                    (0..count.max(0) as usize).map(at).collect()
                }
            }
        });
        kept.iter().filter_map(|at| NonNull::new(*at as *mut Context)).collect()
    }

    /// A work completion's status in words.
    pub fn status_words(&self, status: c_uint) -> String {
        // SAFETY: it gives a constant string for any number, or null.
        let words = unsafe { (self.verbs.status_words)(status) };
        if words.is_null() {
            return format!("status {status}");
        }
        // SAFETY: not null, and a constant of the library's.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}
