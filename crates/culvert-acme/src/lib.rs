//! Certificates of servers by ACME (RFC 8555): ordered, kept, renewed, without anybody having to wait for them.
//!
//! ```text
//!              ┌─ storage: certificates and accounts on disk
//! Provider ────┼─ order: account, challenge, signing request, chain ── authority (HTTP client)
//!    ▲         └─ challenges: what is answered while an authority looks ◀── authority (port 80, port 443)
//!    │ CertificateSource
//! acceptors of inbounds
//! ```
//!
//! A [`Provider`] has one certificate for each of its names, each with an order of its own. What is on disk is used at
//! once; [`Provider::run`] orders what is missing and renews after two thirds of a certificate's time. A failure is tried
//! again later and later, and never before the authority allows it. Orders go one after the other, and a lock on disk
//! keeps other providers and other programs with the same storage from ordering the same name at the same time.
//!
//! Ownership is proven over HTTP (`http-01`) by a listener that is there only while an authority looks, or over TLS
//! (`tls-alpn-01`) by the acceptor of the inbound on that port, or by a listener where there is none.
//!
//! | module | holds |
//! |---|---|
//! | [`provider`] | [`Provider`]: names, certificates, when to renew |
//! | [`challenge`] | [`Challenges`]: answers to authorities, shared by all providers |
//! | [`storage`] | the files |
//! | [`settings`] | what a provider is made from; [`options`] makes it from configuration options |
//! | `order`, `account`, `http` | the exchange with an authority |
//! | `http01` | the server of `http-01` |
//! | `schedule` | when to renew and when to try again |
//! | `error` | what can go wrong |
//!
//! Left out: proofs by DNS records, renewal information (RFC 9773), revocation, accounts with other keys than P-256.
//! Sources: RFC 8555, 8737, 8738.

#![forbid(unsafe_code)]

mod account;
pub mod challenge;
mod error;
mod http;
mod http01;
pub mod options;
mod order;
pub mod provider;
mod schedule;
pub mod settings;
pub mod storage;

pub use challenge::Challenges;
pub use options::OptionsError;
pub use provider::Provider;
pub use settings::Settings;
