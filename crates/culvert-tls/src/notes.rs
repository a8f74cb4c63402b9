//! What the TLS library tells its callbacks, kept for the handshake that it is about.
//!
//! The library calls a verifier, a certificate resolver and a key log from within the call that drives a handshake, on
//! the same thread, and does not say for which connection. So they leave a note on the thread, and the driver picks it
//! up right after the call.

use std::cell::RefCell;

use rustls::KeyLog;
use zeroize::Zeroizing;

use crate::fault::CertificateFault;

/// What was told during one handshake.
#[derive(Default)]
pub(crate) struct Notes {
    /// The traffic secret of what the client sends (TLS 1.3).
    pub(crate) client_secret: Option<Zeroizing<Vec<u8>>>,
    /// The traffic secret of what the server sends (TLS 1.3).
    pub(crate) server_secret: Option<Zeroizing<Vec<u8>>>,
    /// The name that the client asked for.
    pub(crate) server_name: Option<String>,
    /// Why the peer's certificate was not accepted.
    pub(crate) fault: Option<CertificateFault>,
}

thread_local! {
    static NOTES: RefCell<Notes> = RefCell::default();
}

/// Lets the notes of a handshake be continued while `call` runs, which drives it.
pub(crate) fn during<T>(notes: &mut Notes, call: impl FnOnce() -> T) -> T {
    NOTES.with_borrow_mut(|here| std::mem::swap(here, notes));
    let result = call();
    NOTES.with_borrow_mut(|here| std::mem::swap(here, notes));
    result
}

pub(crate) fn fault(fault: CertificateFault) {
    NOTES.with_borrow_mut(|notes| notes.fault = Some(fault));
}

pub(crate) fn server_name(name: &str) {
    NOTES.with_borrow_mut(|notes| notes.server_name = Some(name.to_owned()));
}

/// Takes down the traffic secrets, from which later keys can be derived; the library itself gives out only the first.
#[derive(Debug)]
pub(crate) struct Secrets;

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let secret = Some(Zeroizing::new(secret.to_vec()));
        NOTES.with_borrow_mut(|notes| match label {
            CLIENT => notes.client_secret = secret,
            SERVER => notes.server_secret = secret,
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        label == CLIENT || label == SERVER
    }
}
