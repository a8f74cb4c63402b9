//! Options that HTTP/2 and QUIC share wherever they are used.

use crate::table::options;
use crate::value::{Dur, MemorySize};

options! {
    /// Limits of an HTTP/2 connection.
    pub struct Http2Options {
        /// Time without traffic after which a connection is closed.
        idle_timeout: Dur,
        /// Time between signs of life.
        keep_alive_period: Dur,
        /// How much a peer may send ahead on one stream.
        stream_receive_window: Option<MemorySize>,
        /// How much a peer may send ahead on all streams together.
        connection_receive_window: Option<MemorySize>,
        /// How many streams a peer may have open.
        max_concurrent_streams: i64,
    }

    /// Limits of a QUIC connection.
    pub struct QuicOptions {
        /// What it has in common with HTTP/2.
        common: Http2Options = ..,
        /// Size of the first packets in bytes.
        initial_packet_size: i64,
        /// Does not look for the largest packet that gets through.
        disable_path_mtu_discovery: bool,
    }
}
