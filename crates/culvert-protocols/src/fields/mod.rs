//! Groups of options that many protocols share, from their config form to what the core works with.

pub mod dial;
pub mod listen;
pub mod server;

use culvert_config::value::{Dur, Mark};
use culvert_core::timeouts;
use culvert_os::socket::{Fragmentation, KeepAlive};

fn keep_alive(disabled: bool, idle: Dur, interval: Dur) -> Option<KeepAlive> {
    (!disabled).then(|| KeepAlive {
        idle: idle.or(timeouts::KEEP_ALIVE),
        interval: interval.or(timeouts::KEEP_ALIVE_INTERVAL),
    })
}

fn text(option: &str) -> Option<String> {
    Some(option.to_owned()).filter(|text| !text.is_empty())
}

fn mark(mark: Mark) -> Option<u32> {
    Some(mark.0).filter(|mark| *mark != 0)
}

/// `udp_fragment`, with the protocol's default.
fn fragmentation(option: Option<bool>, default: bool) -> Fragmentation {
    if option.unwrap_or(default) { Fragmentation::System } else { Fragmentation::Forbidden }
}
