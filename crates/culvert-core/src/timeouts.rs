//! How long anything may take, in one place. Options of the config override those that have one.

use std::time::Duration;

/// From accept to the end of an inbound's handshake: greeting, authentication, request. sing-box 1.14.4 has none for
/// SOCKS and HTTP and 15 s for TLS; the same number serves here for all.
pub const HANDSHAKE: Duration = Duration::from_secs(15);
/// The same while the program carries all the connections it may and others wait.
pub const HANDSHAKE_IN_A_CROWD: Duration = Duration::from_secs(1);
/// The same where a client's network has many others in the handshake as well.
pub const HANDSHAKE_OF_A_CROWD: Duration = Duration::from_millis(100);
/// How long a flow may rest while the program carries all the connections it may and others wait.
pub const IDLE_IN_A_CROWD: Duration = Duration::from_secs(60);
/// `connect_timeout` of the dial fields: one TCP connect, all addresses of the name together.
pub const CONNECT: Duration = Duration::from_secs(5);
/// An outbound's own handshake (SOCKS, HTTP CONNECT, …) after the connect.
pub const OUTBOUND_HANDSHAKE: Duration = Duration::from_secs(15);
/// `fallback_delay` of the dial fields: head start of one address before the next is tried (RFC 8305 section 5).
pub const HAPPY_EYEBALLS: Duration = Duration::from_millis(300);
/// How long the header of an outbound's protocol waits for the client's first bytes, to leave with them. Where the server
/// speaks first they never come (sing-box 1.14.4 waits 300 ms).
pub const FIRST_PAYLOAD: Duration = Duration::from_millis(100);
/// How long a client of an inbound with a fallback may leave open whether it is one; it is a stranger then. Less than
/// [`HANDSHAKE`], whose end would close the connection.
pub const STRANGER: Duration = Duration::from_secs(10);
/// Saying goodbye to a client that is sent away.
pub const GOODBYE: Duration = Duration::from_secs(1);
/// How long a server may take to say anything at all when it is asked whether it lives, over a connection that carries many
/// streams; it is gone then, with all of them (sing-box 1.14.4: 3 s).
pub const SESSION_ANSWER: Duration = Duration::from_secs(3);
/// The same before such a connection is used that was idle for [`SESSION_STALE`]: a new one is made then.
pub const SESSION_PROBE: Duration = Duration::from_secs(2);
/// See [`SESSION_PROBE`].
pub const SESSION_STALE: Duration = Duration::from_secs(5);
/// How long a peer that knows no half-close may send nothing before it is told the end of one direction, which ends both.
pub const LAST_ANSWER: Duration = Duration::from_secs(5);
/// A TCP flow without a byte either way. Long, since dead peers are found by keep-alive and a quiet SSH session is
/// no fault; it bounds what a peer that only acknowledges probes can hold.
pub const STREAM_IDLE: Duration = Duration::from_secs(24 * 3600);
/// A TCP flow of which one direction has ended and the other moves nothing.
pub const HALF_CLOSED_IDLE: Duration = Duration::from_secs(10 * 60);
/// A keep-alive HTTP proxy connection between two requests.
pub const HTTP_KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
/// A multiplexed connection without a stream in it.
pub const MULTIPLEX_IDLE: Duration = Duration::from_secs(60);
/// A stream in a multiplexed connection without flow control that takes nothing while others wait behind its data.
pub const MULTIPLEX_STALL: Duration = Duration::from_secs(10);
/// `udp_timeout` of the listen fields.
pub const UDP_IDLE: Duration = Duration::from_secs(5 * 60);
/// Idle limit of DNS, NTP and STUN associations, by port or sniffed protocol, where no option says otherwise.
pub const UDP_IDLE_QUERY: Duration = Duration::from_secs(10);
/// Idle limit of QUIC and DTLS associations, likewise.
pub const UDP_IDLE_QUIC: Duration = Duration::from_secs(30);
/// Idle limit of one client's pings to one target.
pub const PING_IDLE: Duration = Duration::from_secs(20);
/// One name look-up, retries included.
pub const RESOLVE: Duration = Duration::from_secs(10);
/// Time before TCP keep-alive probes (`tcp_keep_alive`).
pub const KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);
/// Time between them (`tcp_keep_alive_interval`).
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(75);
/// Multiplex: opening a connection for streams, the outbound's own handshake included.
pub const MUX_DIAL: Duration = Duration::from_secs(5);
/// Multiplex: silence after which a sign of life is asked for, and how long it may take to come.
pub const MUX_PING: Duration = Duration::from_secs(30);
/// See [`MUX_PING`].
pub const MUX_PING_ANSWER: Duration = Duration::from_secs(10);
/// Multiplex: a connection on which nothing has come for so long although it was due gets no more streams.
pub const MUX_PATIENCE: Duration = Duration::from_secs(5);
/// Multiplex: a connection without streams, on the side that opened it. sing-box keeps it.
pub const MUX_IDLE_CLIENT: Duration = Duration::from_secs(5 * 60);
/// Multiplex: the same on the other side.
pub const MUX_IDLE_SERVER: Duration = Duration::from_secs(10 * 60);
/// Multiplex: a stream that is done with here, but whose peer neither takes the rest nor ends it.
pub const MUX_LINGER: Duration = Duration::from_secs(60);
/// How long running flows may go on after a stop was asked for.
pub const SHUTDOWN: Duration = Duration::from_secs(2);
/// How often the tables of flows and handshakes are looked over; the precision of every idle limit.
pub const SWEEP: Duration = Duration::from_secs(1);

/// The idle limit of a UDP association by what sniffing told, else by its first destination port, where nothing better is
/// known (sing-box 1.14.4: 10 s for DNS, NTP and STUN, 30 s for QUIC and DTLS, else `udp_timeout`).
#[must_use]
pub fn udp_idle(protocol: Option<&str>, port: u16, default: Duration) -> Duration {
    match (protocol, port) {
        (Some("dns" | "ntp" | "stun"), _) | (None, 53 | 123 | 3478) => UDP_IDLE_QUERY,
        (Some("quic" | "dtls"), _) | (None, 443) => UDP_IDLE_QUIC,
        _ => default,
    }
}
