//! TLS 1.3 under a source's connections, where its URI asks for it.

use super::options::{Options, CONNECT_WITHIN};
use forebay_io::{host_tls_key, TlsBridge, TlsContext};
use forebay_model::Error;
use forebay_nvme::auth::psk::Version;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) struct Tls {
    bridge: TlsBridge,
    context: Arc<TlsContext>,
}

impl Tls {
    /// None: the URI doesn't ask for it.
    ///
    /// # Errors
    /// Kind `Request`: no key, or none that can be used. Kind `Machine`: no OpenSSL.
    pub(crate) fn from_options(options: &Options, host_nqn: &str) -> Result<Option<Arc<Tls>>, Error> {
        if !options.asks_for_tls() {
            return Ok(None);
        }
        let asked = format!("TLS to {options}");
        let key = host_tls_key(options.tls_key_file.as_deref())?;
        let psk = key
            .session(Version::V1, host_nqn, &options.nqn)
            .map_err(|e| Error::request(asked, e.to_string(), "shorter names"))?;
        Ok(Some(Arc::new(Tls { context: TlsContext::client(psk)?, bridge: TlsBridge::start()? })))
    }

    /// A connection that may be used at once, and is closed where there is no TLS to be had.
    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<OwnedFd> {
        self.bridge.connect(to, &self.context, CONNECT_WITHIN)
    }
}
