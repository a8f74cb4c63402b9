//! Vision, the flow `xtls-rprx-vision`: hides that a TLS connection is inside another one, and then stops encrypting twice.
//!
//! ```text
//! each direction behind its VLESS header:
//!   id  frame  frame  ...  last frame  then bytes as they are
//!
//! frame      command (1)  content length (2)  padding length (2)  content  padding
//! command    0 goes on   1 the last one: bytes follow inside the outer TLS   2 the last one: bytes follow on the socket
//! ```
//!
//! Both ends watch what passes ([`filter`]). Where it turns out to be TLS 1.3, each direction by itself leaves the outer TLS
//! at the end of one of the inner records, and from there on the relay may move it inside the kernel. Other traffic goes
//! on inside the outer TLS after seven packets or with the first record that carries data.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | frames, from bytes and to bytes |
//! | [`filter`] | what the inner connection is |
//! | [`records`] | where its records end |
//! | [`writer`] | which frames are sent |
//! | [`conn`] | the stream |
//!
//! Sources: sing-vmess `vless/vision.go` as sing-box 1.14.4 uses it, Xray-core 26.7 `proxy/proxy.go`. What differs from
//! them: frames are cut where inner records end, whatever the reads were, so bulk uploads leave the outer TLS as well;
//! a `ServerHello` is recognised however it is cut. As in sing-box, datagrams to port 443 are carried: Xray's client turns
//! them away by this flow's name, here that is up to the rules.

pub mod conn;
pub mod filter;
pub mod frame;
pub mod records;
pub mod writer;

#[cfg(test)]
mod tests;

pub(super) use conn::VisionConn;

/// The flow's name in requests.
pub(super) const NAME: &str = "xtls-rprx-vision";
