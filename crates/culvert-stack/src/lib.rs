//! IP, TCP, UDP and ICMP in user space: packets in, packets out, time passed in. No sockets, no devices, no threads.
//!
//! It is made for a proxy, which ends the connections of many clients and never forwards a packet. So a packet may be a
//! train of segments (up to 64 KiB, as the kernel's offloads make them), payload stays in the piece of memory that it
//! came in and goes out of the piece that it was written in, and a connection without traffic holds no buffer.
//!
//! ```text
//! packets ─▶ Stack::receive ─▶ Delivery (datagrams, pings)            per packet
//!            Stack::poll_event ─▶ Event (a client knocks, bytes are there, room is there, it broke)
//!            Stack::accept / refuse / read / write / shut_down / abort / release
//!            Stack::transmit ─▶ Outgoing, for the device                  after each batch of the above
//!            Stack::next_timeout, Stack::on_timeout                       when nothing else happens
//! ```
//!
//! The order of calls is free, with one rule: after whatever was called, `transmit` sends what has become due, so a caller
//! that has received a batch of packets and moved their bytes calls it once.
//!
//! | module | holds |
//! |---|---|
//! | [`stack`] | [`Stack`]: who belongs to which packet, timers, limits |
//! | [`tcp`] | connections: sequence numbers, windows, loss, retransmission |
//! | [`ip`], [`fragment`] | heads of version 4 and 6, fragments put together |
//! | [`udp`], [`icmp`] | datagrams, pings, errors |
//! | [`train`] | trains of packets, cut and joined, for links without offloads |
//! | [`checksum`] | the Internet checksum |
//!
//! Sources: RFC 9293 (TCP), 7323 (window scale, timestamps), 2018 and 6675 (SACK), 8985 (RACK-TLP), 9438 (CUBIC), 6298
//! (retransmission time-out), 5961 (blind attacks), 6528 (initial sequence numbers), 8200 (IPv6), 791 (IPv4), 792 and 4443
//! (ICMP).

#![forbid(unsafe_code)]

pub mod checksum;
pub mod fragment;
pub mod icmp;
pub mod ip;
mod narrow;
pub mod stack;
pub mod tcp;
pub mod train;
pub mod udp;

pub use stack::{
    Config, ConnId, Counters, Delivery, Event, Offloads, Outgoing, ReadOutcome, Received, Refusal, Stack,
    TooBig,
};
