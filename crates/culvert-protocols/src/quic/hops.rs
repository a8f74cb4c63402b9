//! `server_ports`: a client that hops between ports of its server.

use std::io;
use std::time::Duration;

use culvert_config::value::{Dur, List, PortRange};
use culvert_core::Dialer;
use culvert_quic::Hop;

use crate::BuildError;

/// Time between hops where no option says so.
const HOP: Duration = Duration::from_secs(30);

/// Ports to hop between: ranges, and how long each is used.
#[derive(Clone, Debug)]
pub(crate) struct Hops {
    ranges: Vec<(u16, u16)>,
    interval: (Duration, Duration),
}

impl Hops {
    /// What the options say, if they name ports. `most` is the longest time between hops, if it is to vary.
    pub(crate) fn new(
        ports: &List<PortRange>,
        interval: &Dur,
        most: Option<&Dur>,
    ) -> Result<Option<Self>, BuildError> {
        if ports.is_empty() {
            return Ok(None);
        }
        let ranges: Vec<_> = ports
            .iter()
            .map(|range| (range.start().max(1), range.end()))
            .filter(|(first, last)| first <= last)
            .collect();
        if ranges.len() < ports.iter().count() {
            let reason = "a range has its lower end first".to_owned();
            return Err(BuildError::Invalid { option: "server_ports", reason });
        }
        let given = |time: &Dur| time.get().filter(|time| !time.is_zero());
        let least = given(interval).unwrap_or(HOP);
        let most = most.and_then(given).unwrap_or(least);
        if most < least {
            let reason = "it is less than `hop_interval`".to_owned();
            return Err(BuildError::Invalid { option: "hop_interval_max", reason });
        }
        Ok(Some(Self { ranges, interval: (least, most) }))
    }

    /// One of the ports, by which a connection knows its server where no other is named.
    pub(crate) fn first(&self) -> u16 {
        self.ranges.first().map_or(0, |(first, _)| *first)
    }

    /// For one connection.
    pub(crate) fn hop(&self, dialer: &Dialer) -> Hop {
        let (hops, dialer) = (self.clone(), dialer.clone());
        Hop {
            open: Box::new(move || dialer.udp_socket().map_err(io::Error::other)),
            next: Box::new(move || hops.pick(random(), random())),
        }
    }

    /// A port and a time by two random numbers.
    fn pick(&self, port: u64, time: u64) -> (u16, Duration) {
        let total: u64 = self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        let mut at = port % total.max(1);
        let mut chosen = 0;
        for (first, last) in &self.ranges {
            let len = u64::from(last - first) + 1;
            if at < len {
                chosen = first + at as u16;
                break;
            }
            at -= len;
        }
        let (least, most) = self.interval;
        let spread = (most - least).as_millis() as u64;
        (chosen, least + Duration::from_millis(time % (spread + 1)))
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers the first port is as good as any.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_reach_every_port_and_none_else() {
        let hops = Hops {
            ranges: vec![(65_534, 65_535), (7, 7), (100, 101)],
            interval: (Duration::from_secs(5), Duration::from_secs(6)),
        };
        let ports: Vec<_> = (0..6).map(|number| hops.pick(number, number * 500).0).collect();
        assert_eq!(ports, [65_534, 65_535, 7, 100, 101, 65_534]);
        let whole = Hops { ranges: vec![(1, 65_535)], ..hops };
        assert_eq!(whole.pick(65_534, 0), (65_535, Duration::from_secs(5)));
        assert_eq!(whole.pick(0, 1000).1, Duration::from_secs(6));
        assert_eq!(whole.pick(0, 1001).1, Duration::from_secs(5));
    }
}
