//! TLS 1.3 with a pre-shared key, by OpenSSL 3 that is opened at run time: the base wheel runs without it.
//!
//! A `Session` moves bytes in memory and touches no socket: what came is fed, what is to be sent is taken.

use forebay_model::Error;
use forebay_nvme::auth::psk::TlsPsk;
use forebay_nvme::auth::Hash;
use libloading::Library;
use std::ffi::{c_char, c_int, c_long, c_uchar, c_void, CStr};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

type Pointer = *mut c_void;
type UseSession = extern "C" fn(Pointer, Pointer, *mut *const c_uchar, *mut usize, *mut Pointer) -> c_int;
type FindSession = extern "C" fn(Pointer, *const c_uchar, usize, *mut Pointer) -> c_int;

macro_rules! calls {
    ($($library:ident $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// OpenSSL's functions, by their names. The libraries stay open for ever.
        #[allow(non_snake_case)]
        struct Calls { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Calls {
            fn load() -> Result<Calls, String> {
                let (crypto, ssl) = (open("libcrypto.so.3")?, open("libssl.so.3")?);
                let libraries = Libraries { crypto, ssl };
                Ok(Calls { $(
                    // SAFETY: the type is that of OpenSSL 3's headers, and the library is never closed.
                    $name: unsafe {
                        *libraries.$library.get(concat!(stringify!($name), "\0").as_bytes()).map_err(|e| e.to_string())?
                    },
                )* })
            }
        }
    };
}

calls! {
    ssl TLS_client_method() -> Pointer;
    ssl TLS_server_method() -> Pointer;
    ssl SSL_CTX_new(Pointer) -> Pointer;
    ssl SSL_CTX_free(Pointer);
    ssl SSL_CTX_ctrl(Pointer, c_int, c_long, Pointer) -> c_long;
    ssl SSL_CTX_set_ciphersuites(Pointer, *const c_char) -> c_int;
    ssl SSL_CTX_set_num_tickets(Pointer, usize) -> c_int;
    ssl SSL_CTX_set_ex_data(Pointer, c_int, Pointer) -> c_int;
    ssl SSL_CTX_get_ex_data(Pointer, c_int) -> Pointer;
    ssl SSL_CTX_set_psk_use_session_callback(Pointer, UseSession);
    ssl SSL_CTX_set_psk_find_session_callback(Pointer, FindSession);
    ssl SSL_new(Pointer) -> Pointer;
    ssl SSL_free(Pointer);
    ssl SSL_get_SSL_CTX(Pointer) -> Pointer;
    ssl SSL_set_ex_data(Pointer, c_int, Pointer) -> c_int;
    ssl SSL_get_ex_data(Pointer, c_int) -> Pointer;
    ssl SSL_set_bio(Pointer, Pointer, Pointer);
    ssl SSL_set_connect_state(Pointer);
    ssl SSL_set_accept_state(Pointer);
    ssl SSL_do_handshake(Pointer) -> c_int;
    ssl SSL_read(Pointer, Pointer, c_int) -> c_int;
    ssl SSL_write(Pointer, *const c_void, c_int) -> c_int;
    ssl SSL_shutdown(Pointer) -> c_int;
    ssl SSL_get_error(Pointer, c_int) -> c_int;
    ssl SSL_CIPHER_find(Pointer, *const c_uchar) -> Pointer;
    ssl SSL_SESSION_new() -> Pointer;
    ssl SSL_SESSION_free(Pointer);
    ssl SSL_SESSION_set1_master_key(Pointer, *const c_uchar, usize) -> c_int;
    ssl SSL_SESSION_set_cipher(Pointer, Pointer) -> c_int;
    ssl SSL_SESSION_set_protocol_version(Pointer, c_int) -> c_int;
    crypto BIO_new(Pointer) -> Pointer;
    crypto BIO_s_mem() -> Pointer;
    crypto BIO_read(Pointer, Pointer, c_int) -> c_int;
    crypto BIO_write(Pointer, *const c_void, c_int) -> c_int;
    crypto BIO_ctrl_pending(Pointer) -> usize;
    crypto BIO_free(Pointer) -> c_int;
    crypto ERR_get_error() -> u64;
    crypto ERR_clear_error();
    crypto ERR_error_string_n(u64, *mut c_char, usize);
}

struct Libraries {
    crypto: &'static Library,
    ssl: &'static Library,
}

fn open(name: &str) -> Result<&'static Library, String> {
    // SAFETY: the system's OpenSSL: its initialisers are what loading it is for.
    let library = unsafe { Library::new(name) }.map_err(|e| e.to_string())?;
    Ok(Box::leak(Box::new(library)))
}

/// # Errors
/// Kind `Machine`: there is no OpenSSL 3.
fn calls() -> Result<&'static Calls, Error> {
    static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
    CALLS.get_or_init(Calls::load).as_ref().map_err(|why| {
        Error::machine(
            "TLS for NVMe/TCP",
            format!("OpenSSL 3 can't be opened: {why}"),
            "apt install libssl3, or no tls_key",
        )
    })
}

const MIN_PROTOCOL: c_int = 123;
const MAX_PROTOCOL: c_int = 124;
const TLS_1_3: c_long = 0x0304;
const WANT_READ: c_int = 2;
const WANT_WRITE: c_int = 3;
const ZERO_RETURN: c_int = 6;
/// Index of the data that a context or a session keeps for its owner.
const OURS: c_int = 0;

/// Keys by identity: what a server offers.
pub(crate) type Find = dyn Fn(&str) -> Option<TlsPsk> + Send + Sync;

enum Keys {
    Client(TlsPsk),
    Server(Arc<Find>),
}

/// One side's settings; sessions are made from it.
pub struct Context {
    calls: &'static Calls,
    raw: Pointer,
    /// Keys for the callbacks, by a pointer that OpenSSL keeps.
    keys: Box<Keys>,
}

// SAFETY: OpenSSL counts references to a context with atomics, and nothing is set once it is made.
unsafe impl Send for Context {}
// SAFETY: as above; the keys are only read.
unsafe impl Sync for Context {}

impl Context {
    /// The side that connects.
    pub fn client(psk: TlsPsk) -> Result<Arc<Context>, Error> {
        Context::new(Keys::Client(psk))
    }

    /// The side that is connected to.
    pub fn server(find: Arc<Find>) -> Result<Arc<Context>, Error> {
        Context::new(Keys::Server(find))
    }

    fn new(keys: Keys) -> Result<Arc<Context>, Error> {
        let calls = calls()?;
        let is_client = matches!(keys, Keys::Client(_));
        let suites: &CStr = match &keys {
            Keys::Client(psk) if psk.suite == Hash::Sha256 => c"TLS_AES_128_GCM_SHA256",
            Keys::Client(_) => c"TLS_AES_256_GCM_SHA384",
            Keys::Server(_) => c"TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256",
        };
        let keys = Box::new(keys);
        // SAFETY: a new context, set up before anybody else sees it; `keys` stays where it is until it is freed.
        unsafe {
            let method = if is_client { (calls.TLS_client_method)() } else { (calls.TLS_server_method)() };
            let raw = (calls.SSL_CTX_new)(method);
            if raw.is_null() {
                return Err(broken(calls, "a TLS context"));
            }
            let context = Context { calls, raw, keys };
            let done = (calls.SSL_CTX_ctrl)(raw, MIN_PROTOCOL, TLS_1_3, null_mut()) == 1
                && (calls.SSL_CTX_ctrl)(raw, MAX_PROTOCOL, TLS_1_3, null_mut()) == 1
                && (calls.SSL_CTX_set_ciphersuites)(raw, suites.as_ptr()) == 1
                && (calls.SSL_CTX_set_num_tickets)(raw, 0) == 1
                && (calls.SSL_CTX_set_ex_data)(
                    raw,
                    OURS,
                    std::ptr::addr_of!(*context.keys).cast_mut().cast(),
                ) == 1;
            if !done {
                return Err(broken(calls, "the settings of TLS 1.3"));
            }
            if is_client {
                (calls.SSL_CTX_set_psk_use_session_callback)(raw, use_session);
            } else {
                (calls.SSL_CTX_set_psk_find_session_callback)(raw, find_session);
            }
            Ok(Arc::new(context))
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: ours; sessions hold an Arc of this.
        unsafe { (self.calls.SSL_CTX_free)(self.raw) };
    }
}

fn broken(calls: &Calls, asked: &str) -> Error {
    Error::machine(asked, format!("OpenSSL refuses: {}", last_error(calls)), "a libssl3 of the distribution")
}

fn last_error(calls: &Calls) -> String {
    let mut text = [0 as c_char; 256];
    // SAFETY: OpenSSL writes at most so many bytes, with a zero behind.
    unsafe {
        let code = (calls.ERR_get_error)();
        if code == 0 {
            return "the peer broke off".into();
        }
        (calls.ERR_error_string_n)(code, text.as_mut_ptr(), text.len());
        let text = CStr::from_ptr(text.as_ptr()).to_string_lossy();
        // error:0A000418:SSL routines::tlsv1 alert unknown ca
        text.rsplit("::").next().unwrap_or(&text).to_owned()
    }
}

/// The client's callback: its identity and key.
extern "C" fn use_session(
    ssl: Pointer,
    _digest: Pointer,
    identity: *mut *const c_uchar,
    identity_bytes: *mut usize,
    session: *mut Pointer,
) -> c_int {
    let Ok(calls) = calls() else { return 0 };
    // SAFETY: OpenSSL calls this with a session of one of our contexts and places to write to; the identity lives
    // as long as the context.
    unsafe {
        let Keys::Client(psk) = keys_of(calls, ssl) else { return 0 };
        *session = session_of(calls, ssl, psk);
        *identity = psk.identity.as_ptr();
        *identity_bytes = psk.identity.len();
        c_int::from(!(*session).is_null())
    }
}

/// The server's: the key of the identity that the client names.
extern "C" fn find_session(
    ssl: Pointer,
    identity: *const c_uchar,
    bytes: usize,
    session: *mut Pointer,
) -> c_int {
    let Ok(calls) = calls() else { return 0 };
    // SAFETY: as above; the identity has so many bytes; the session's own data are its `Heard`.
    unsafe {
        *session = null_mut();
        let Keys::Server(find) = keys_of(calls, ssl) else { return 0 };
        let Ok(identity) = std::str::from_utf8(std::slice::from_raw_parts(identity, bytes)) else { return 1 };
        if let Some(psk) = find(identity) {
            *session = session_of(calls, ssl, &psk);
            let heard: *mut Option<String> = (calls.SSL_get_ex_data)(ssl, OURS).cast();
            if !heard.is_null() {
                *heard = Some(psk.identity.clone());
            }
        }
        1
    }
}

/// # Safety
/// `ssl` is a session of one of our contexts, which is alive.
unsafe fn keys_of<'a>(calls: &Calls, ssl: Pointer) -> &'a Keys {
    // SAFETY: each context's own data are its keys, in a box that it owns.
    unsafe { &*(calls.SSL_CTX_get_ex_data)((calls.SSL_get_SSL_CTX)(ssl), OURS).cast() }
}

/// Null: OpenSSL refuses, and says why in its own queue.
///
/// # Safety
/// `ssl` is a session.
unsafe fn session_of(calls: &Calls, ssl: Pointer, psk: &TlsPsk) -> Pointer {
    let suite: [c_uchar; 2] = if psk.suite == Hash::Sha256 { [0x13, 0x01] } else { [0x13, 0x02] };
    // SAFETY: a new session, filled by OpenSSL from copies of these bytes.
    unsafe {
        let session = (calls.SSL_SESSION_new)();
        let cipher = (calls.SSL_CIPHER_find)(ssl, suite.as_ptr());
        let made = !session.is_null()
            && !cipher.is_null()
            && (calls.SSL_SESSION_set1_master_key)(session, psk.key.as_ptr(), psk.key.len()) == 1
            && (calls.SSL_SESSION_set_cipher)(session, cipher) == 1
            && (calls.SSL_SESSION_set_protocol_version)(session, TLS_1_3 as c_int) == 1;
        if made {
            return session;
        }
        (calls.SSL_SESSION_free)(session);
        null_mut()
    }
}

/// Result of a session's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Number of bytes; of a handshake: it is complete.
    Done(usize),
    /// More of the peer's bytes must be fed first.
    Starved,
    /// The peer has closed its side.
    Ended,
}

/// One connection's TLS.
pub(crate) struct Session {
    context: Arc<Context>,
    raw: Pointer,
    /// Buffers for what came and for what is to be sent; the session owns both.
    incoming: Pointer,
    outgoing: Pointer,
    /// The identity that the client named, and that was found.
    heard: Box<Option<String>>,
}

// SAFETY: a session may move between threads; it isn't shared.
unsafe impl Send for Session {}

impl Session {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Session, Error> {
        let calls = context.calls;
        let heard: Box<Option<String>> = Box::default();
        // SAFETY: new objects, whose ownership goes as OpenSSL says: both memory BIOs to the session.
        unsafe {
            let raw = (calls.SSL_new)(context.raw);
            let incoming = (calls.BIO_new)((calls.BIO_s_mem)());
            let outgoing = (calls.BIO_new)((calls.BIO_s_mem)());
            if raw.is_null() || incoming.is_null() || outgoing.is_null() {
                (calls.SSL_free)(raw);
                (calls.BIO_free)(incoming);
                (calls.BIO_free)(outgoing);
                return Err(broken(calls, "a TLS session"));
            }
            (calls.SSL_set_bio)(raw, incoming, outgoing);
            (calls.SSL_set_ex_data)(raw, OURS, std::ptr::addr_of!(*heard).cast_mut().cast());
            match &*context.keys {
                Keys::Client(_) => (calls.SSL_set_connect_state)(raw),
                Keys::Server(_) => (calls.SSL_set_accept_state)(raw),
            }
            Ok(Session { context: context.clone(), raw, incoming, outgoing, heard })
        }
    }

    /// For a server, after the handshake: the client's identity.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.heard.as_deref()
    }

    /// Bytes that came from the peer.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(1 << 20) {
            // SAFETY: a memory BIO of ours; it copies, and takes all.
            unsafe {
                (self.context.calls.BIO_write)(self.incoming, chunk.as_ptr().cast(), chunk.len() as c_int)
            };
        }
    }

    /// Appends what is to be sent to the peer.
    pub(crate) fn take(&mut self, into: &mut Vec<u8>) {
        let calls = self.context.calls;
        // SAFETY: a memory BIO of ours, which writes at most as many bytes as there is room for.
        unsafe {
            let bytes = (calls.BIO_ctrl_pending)(self.outgoing).min(1 << 30);
            let start = into.len();
            into.resize(start + bytes, 0);
            let read = (calls.BIO_read)(self.outgoing, into[start..].as_mut_ptr().cast(), bytes as c_int);
            into.truncate(start + usize::try_from(read).unwrap_or(0));
        }
    }

    /// Err: why there is no handshake; what is to be sent still goes (an alert).
    pub(crate) fn handshake(&mut self) -> Result<Progress, String> {
        // SAFETY: a session of ours.
        self.step(|calls, raw| unsafe { (calls.SSL_do_handshake)(raw) })
    }

    /// Decrypts what was fed.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<Progress, String> {
        let room = into.len().min(1 << 30) as c_int;
        // SAFETY: a session of ours, and a place for so many bytes.
        self.step(|calls, raw| unsafe { (calls.SSL_read)(raw, into.as_mut_ptr().cast(), room) })
    }

    /// Encrypts all of it: memory takes whatever there is.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        for chunk in bytes.chunks(1 << 20) {
            // SAFETY: a session of ours, and so many bytes.
            let done = self.step(|calls, raw| unsafe {
                (calls.SSL_write)(raw, chunk.as_ptr().cast(), chunk.len() as c_int)
            })?;
            if done != Progress::Done(chunk.len()) {
                return Err(format!("{} bytes were not taken: {done:?}", chunk.len()));
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more comes.
    pub(crate) fn close(&mut self) {
        // SAFETY: a session of ours.
        let _ = self.step(|calls, raw| unsafe { (calls.SSL_shutdown)(raw).max(1) });
    }

    fn step(&mut self, call: impl FnOnce(&Calls, Pointer) -> c_int) -> Result<Progress, String> {
        let calls = self.context.calls;
        // SAFETY: a session of ours; the queue of errors is this thread's.
        unsafe {
            (calls.ERR_clear_error)();
            let result = call(calls, self.raw);
            if result > 0 {
                return Ok(Progress::Done(result as usize));
            }
            match (calls.SSL_get_error)(self.raw, result) {
                WANT_READ | WANT_WRITE => Ok(Progress::Starved),
                ZERO_RETURN => Ok(Progress::Ended),
                _ => Err(last_error(calls)),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: ours; it frees both BIOs, and only then goes what its callbacks may write to.
        unsafe { (self.context.calls.SSL_free)(self.raw) };
    }
}

#[cfg(test)]
mod tests;
