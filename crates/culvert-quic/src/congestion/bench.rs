//! A bench for controllers: two state machines of the library with a path between them, in simulated time.
//!
//! It turns like the driver does, with the same token bucket, but the socket is a [`Path`] and the clock jumps from event to
//! event. So a minute takes a second, and every run with a seed is the same.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use culvert_path::{Counts, Loss, Path, Shape};
use quinn_proto::congestion::{Controller, ControllerFactory};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, ServerConfig,
    StreamId,
};

use super::bbr::Bbr;
use super::{BbrProfile, Choice, Congestion};
use crate::pace::Bucket;
use crate::settings::Transport;
use crate::tests::{client_tls, server_tls};

const MS: Duration = Duration::from_millis(1);
const MBIT: u64 = 1_000_000;
/// IP and UDP heads.
const HEADS: usize = 28;
const BBR: Congestion = Congestion::Bbr(BbrProfile::Standard);

fn address(end: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, end as u8 + 1), 443).into()
}

/// Without the dice that real connections throw.
struct Fixed(Congestion);

impl ControllerFactory for Fixed {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        match self.0 {
            Congestion::Bbr(profile) => Box::new(Bbr::new(profile, now, mtu, None, 0)),
            other => other.controller(now, mtu, None),
        }
    }
}

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    bucket: Bucket,
    paced: Option<Instant>,
    buffer: Vec<u8>,
}

impl End {
    fn new(server: Option<Arc<ServerConfig>>, now: Instant) -> Self {
        Self {
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), server, true, Some([7; 32])),
            connection: None,
            bucket: Bucket::new(now),
            paced: None,
            buffer: Vec::new(),
        }
    }

    /// Lets the connection send what it may, each datagram to `send`.
    fn serve(&mut self, now: Instant, mut send: impl FnMut(Vec<u8>)) {
        self.paced = None;
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while connection.poll().is_some() {}
        let mtu = connection.current_mtu();
        let rate = connection.congestion_state().metrics().pacing_rate.map(|bits| bits / 8);
        self.bucket.set_rate(rate, now, mtu);
        loop {
            let packets = match self.bucket.packets(now, mtu) {
                Ok(packets) => packets.min(40),
                Err(at) => {
                    self.paced = Some(at);
                    return;
                }
            };
            self.buffer.clear();
            let Some(transmit) = connection.poll_transmit(now, packets, &mut self.buffer) else { return };
            self.bucket.sent(transmit.size);
            let segment = transmit.segment_size.unwrap_or(transmit.size);
            self.buffer[..transmit.size].chunks(segment).for_each(|datagram| send(datagram.to_vec()));
        }
    }

    fn receive(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) {
        self.buffer.clear();
        let data = BytesMut::from(datagram);
        match self.endpoint.handle(now, from, None, None, data, &mut self.buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection = self.endpoint.accept(incoming, now, &mut self.buffer, None).ok();
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    fn next(&mut self) -> Option<Instant> {
        let timer = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        timer.into_iter().chain(self.paced).min()
    }
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    /// Bytes that the receiver read, in each second.
    seconds: Vec<u64>,
    /// What happened to the sender's packets.
    counts: Counts,
    time: Duration,
}

impl Outcome {
    /// Bits per second from the second `from` on.
    fn goodput(&self, from: usize) -> f64 {
        let seconds = &self.seconds[from..];
        seconds.iter().sum::<u64>() as f64 * 8.0 / seconds.len() as f64
    }

    /// Bytes that left per second, without those of IP and UDP.
    fn sent(&self) -> f64 {
        let size = self.counts.bytes as f64 / self.counts.delivered as f64 - HEADS as f64;
        self.counts.offered as f64 * size / self.time.as_secs_f64()
    }
}

/// A sender with this congestion control has as much to send as it can, for so many seconds.
fn run(congestion: Congestion, forth: Shape, seconds: u64) -> Outcome {
    let start = Instant::now();
    let transport = Transport { congestion, ..Transport::default() };
    let config = |congestion| {
        let mut config = transport.build(Choice::new(congestion), 0, 1452);
        config.congestion_controller_factory(Arc::new(Fixed(congestion))).send_window(32 << 20);
        Arc::new(config)
    };
    let mut server = ServerConfig::new(
        Arc::clone(&server_tls().0) as _,
        Arc::new(aws_lc_rs::hkdf::Salt::new(aws_lc_rs::hkdf::HKDF_SHA256, b"").extract(b"bench")),
    );
    server.transport_config(config(Congestion::Cubic));
    let mut client = ClientConfig::new(Arc::clone(&client_tls().config) as _);
    client.transport_config(config(congestion));
    let back = Shape { delay: forth.delay, ..Shape::default() };
    let mut path: Path<Vec<u8>> = Path::new([forth, back], 1);
    let mut ends = [End::new(None, start), End::new(Some(Arc::new(server)), start)];
    ends[0].connection = Some(ends[0].endpoint.connect(start, client, address(1), "server.test").unwrap());

    let (mut now, end) = (start, start + Duration::from_secs(seconds));
    let mut stream: Option<StreamId> = None;
    let mut read = vec![0; seconds as usize + 1];
    let data = vec![0; 1 << 16];
    while now < end {
        for (from, side) in ends.iter_mut().enumerate() {
            if let Some((_, connection)) = &mut side.connection {
                if from == 0 && !connection.is_handshaking() {
                    let id = *stream.get_or_insert_with(|| connection.streams().open(Dir::Uni).unwrap());
                    while connection.send_stream(id).write(&data).is_ok() {}
                }
                if let Some(id) = stream.filter(|_| from == 1)
                    && let Ok(mut chunks) = connection.recv_stream(id).read(false)
                {
                    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                        read[(now - start).as_secs() as usize] += chunk.bytes.len() as u64;
                    }
                    let _ = chunks.finalize();
                }
            }
            side.serve(now, |datagram| {
                let len = datagram.len() + HEADS;
                path.offer(from, datagram, len, now);
            });
        }
        let timers = ends.iter_mut().filter_map(End::next);
        let next = timers.chain(path.next_arrival()).min().expect("something is under way");
        now = now.max(next);
        for (to, side) in ends.iter_mut().enumerate() {
            while let Some(datagram) = path.take(to, now) {
                side.receive(address(1 - to), &datagram, now);
            }
            if let Some((_, connection)) = &mut side.connection
                && connection.poll_timeout().is_some_and(|at| at <= now)
            {
                connection.handle_timeout(now);
            }
        }
    }
    for side in &ends {
        let (_, connection) = side.connection.as_ref().unwrap();
        assert!(!connection.is_closed(), "the connection did not last");
    }
    read.truncate(seconds as usize);
    Outcome { seconds: read, counts: path.counts()[0], time: now - start }
}

fn link(mbit: u64, rtt: Duration, loss: f64) -> Shape {
    let loss = if loss > 0.0 { Loss::Random(loss) } else { Loss::None };
    Shape::bottleneck(mbit * MBIT, rtt).losing(loss)
}

/// What of the link's rate arrived, without the first seconds.
fn share(outcome: &Outcome, mbit: u64, from: usize) -> f64 {
    outcome.goodput(from) / (mbit * MBIT) as f64
}

#[test]
fn bbr_fills_the_link_whatever_is_lost() {
    for rtt in [50, 150, 300] {
        for loss in [0.0, 0.01, 0.05, 0.1] {
            let outcome = run(BBR, link(20, MS * rtt, loss), 12);
            let share = share(&outcome, 20, 5);
            assert!(share > 0.8 * (1.0 - loss), "{rtt} ms, {loss}: {share:.2}");
        }
    }
}

#[test]
fn bbr_fills_a_fast_link_with_loss_where_cubic_does_not() {
    let share = |congestion| share(&run(congestion, link(100, MS * 50, 0.01), 8), 100, 3);
    let (bbr, cubic, reno) = (share(BBR), share(Congestion::Cubic), share(Congestion::NewReno));
    assert!(bbr > 0.8 && cubic < 0.5 && reno < 0.5, "{bbr:.2} {cubic:.2} {reno:.2}");
}

#[test]
fn every_controller_fills_a_clean_link() {
    for congestion in [Congestion::Cubic, Congestion::NewReno, BBR, Congestion::Brutal(2_300_000)] {
        let share = share(&run(congestion, link(20, MS * 50, 0.0), 10), 20, 3);
        assert!((0.85..1.0).contains(&share), "{congestion:?}: {share:.2}");
    }
}

#[test]
fn every_profile_of_bbr_fills_a_link_with_some_loss() {
    for profile in [BbrProfile::Conservative, BbrProfile::Standard, BbrProfile::Aggressive] {
        let outcome = run(Congestion::Bbr(profile), link(20, MS * 100, 0.02), 15);
        let share = share(&outcome, 20, 5);
        assert!(share > 0.75, "{profile:?}: {share:.2}");
    }
}

#[test]
fn bbr_does_not_push_more_than_the_link_takes() {
    // Of what it sends, little may be dropped by the queue, though that is short.
    for queue in [64 << 10, 256 << 10] {
        let shape = Shape { queue, ..link(30, MS * 60, 0.0) };
        let outcome = run(BBR, shape, 15);
        let dropped = outcome.counts.overflowed as f64 / outcome.counts.offered as f64;
        assert!(dropped < 0.06, "{queue}: {dropped:.3} dropped");
        assert!(outcome.sent() * 8.0 < 30e6 * 1.1, "{:.0} bytes/s", outcome.sent());
        assert!(share(&outcome, 30, 3) > 0.8);
    }
}

#[test]
fn bbr_gets_on_with_jitter_and_bursts_of_loss() {
    let shape = Shape { jitter: MS * 10, ..link(20, MS * 80, 0.0) }.losing(Loss::bursts(0.03, 5.0));
    let share = share(&run(BBR, shape, 15), 20, 5);
    assert!(share > 0.7, "{share:.2}");
}

#[test]
fn bbr_follows_a_link_that_is_far_faster_than_its_round_trip_is_short() {
    let shape = Shape {
        delay: Duration::from_micros(10),
        rate: Some(500 * MBIT),
        queue: 1 << 20,
        ..Shape::default()
    };
    let share = share(&run(BBR, shape, 2), 500, 1);
    assert!(share > 0.7, "{share:.2}");
}

/// Field report: at high rates, with packets out of order, some implementations break the connection off for its gaps.
#[test]
fn packets_out_of_order_at_high_rates_break_nothing_off() {
    let shape = Shape { reorder: 0.05, late: MS, queue: 4 << 20, ..link(300, MS * 4, 0.0) };
    for congestion in [BBR, Congestion::Brutal(30_000_000)] {
        let share = share(&run(congestion, shape.clone(), 2), 300, 1);
        assert!(share > 0.5, "{congestion:?}: {share:.2}");
    }
}

#[test]
fn brutal_keeps_its_contract_under_loss_and_never_sends_more() {
    const RATE: u64 = 2_000_000;
    for (loss, least) in [(0.0, 0.93), (0.05, 0.93), (0.1, 0.92), (0.2, 0.9), (0.5, 0.5)] {
        let outcome = run(Congestion::Brutal(RATE), link(100, MS * 60, loss), 10);
        let got = outcome.goodput(2) / 8.0 / RATE as f64;
        assert!((least..=1.02).contains(&got), "{loss}: {got:.2}");
        let sent = outcome.sent() / RATE as f64 * (1.0 - loss).max(0.8);
        assert!(sent < 1.02, "{loss}: {sent:.3} of what it may send");
    }
}
