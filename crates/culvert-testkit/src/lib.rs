//! For tests only: what a test of a proxy needs around the proxy.
//!
//! | module      | what it gives                                                                     |
//! |-------------|-----------------------------------------------------------------------------------|
//! | [`pattern`] | a byte stream in which loss, repetition and reordering show                       |
//! | [`conn`]    | in-memory conns that trickle, stall, reset, record or follow a script             |
//! | [`origin`]  | the servers a client wants to reach: TCP services, a banner, UDP                  |
//! | [`http`]    | an HTTP/1 origin with every framing, late chunks and 1xx responses                |
//! | [`certificate`] | certificates for servers                                                      |
//! | [`client`]  | SOCKS4, 4a, 5 and HTTP proxy clients written from the RFCs                        |
//! | [`upstream`]| a proxy server that answers with prepared bytes, right or wrong                   |
//! | [`peer`]    | real programs as child processes: start, wait for a log line, measure, stop       |
//! | [`ports`]   | free ports that stay free until the program under test binds them                 |
//! | [`temp`]    | directories that vanish with the test                                             |
//!
//! Nothing here uses the product's own codecs, so that one misreading cannot hide on both ends of a test.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod client;
pub mod conn;
pub mod http;
pub mod origin;
pub mod pattern;
pub mod peer;
pub mod ports;
pub mod temp;
pub mod upstream;

/// Any error, as the helpers of a test report it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Result of a helper whose failure ends the test.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Returns from the function with a formatted error unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
