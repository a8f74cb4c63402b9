//! The statistics are those asked for, and the same each time.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Offers `count` packets of `len` bytes, one each `every`; what arrived, and how long after the first was offered.
fn run(shape: Shape, seed: u64, count: u32, len: usize, every: Duration) -> (Vec<(u32, Duration)>, Counts) {
    let mut way = Way::new(shape, seed);
    let start = Instant::now();
    let mut arrived = Vec::new();
    for packet in 0..count {
        let now = start + every * packet;
        while let Some(at) = way.next_arrival().filter(|at| *at <= now) {
            arrived.push((way.take(at).unwrap(), at - start));
        }
        way.offer(packet, len, now);
    }
    while let Some(at) = way.next_arrival() {
        arrived.push((way.take(at).unwrap(), at - start));
    }
    assert!(way.is_empty());
    (arrived, way.counts())
}

fn near(value: f64, wanted: f64, tolerance: f64) {
    assert!((value - wanted).abs() <= tolerance, "{value} is not {wanted} ± {tolerance}");
}

#[test]
fn a_path_without_effects_passes_all_at_once_in_order() {
    let (arrived, counts) = run(Shape::default(), 1, 1000, 1500, MS);
    assert!(arrived.iter().enumerate().all(|(at, got)| *got == (at as u32, MS * at as u32)));
    assert_eq!((counts.delivered, counts.bytes, counts.lost), (1000, 1_500_000, 0));
}

#[test]
fn random_loss_takes_its_share_and_has_no_memory() {
    let (arrived, counts) = run(Shape::default().losing(Loss::Random(0.05)), 7, 200_000, 1, MS);
    near(counts.lost as f64 / 200_000.0, 0.05, 0.002);
    // Of the packets behind a lost one just as many are lost.
    let got: std::collections::HashSet<u32> = arrived.iter().map(|(packet, _)| *packet).collect();
    let behind: Vec<u32> = (1..200_000).filter(|packet| !got.contains(&(packet - 1))).collect();
    let lost = behind.iter().filter(|packet| !got.contains(packet)).count();
    near(lost as f64 / behind.len() as f64, 0.05, 0.01);
}

#[test]
fn bursty_loss_has_its_mean_and_its_length() {
    let (arrived, counts) = run(Shape::default().losing(Loss::bursts(0.02, 8.0)), 3, 500_000, 1, MS);
    near(counts.lost as f64 / 500_000.0, 0.02, 0.002);
    let gaps: Vec<u32> =
        arrived.windows(2).map(|pair| pair[1].0 - pair[0].0 - 1).filter(|gap| *gap > 0).collect();
    near(gaps.iter().sum::<u32>() as f64 / gaps.len() as f64, 8.0, 0.5);
}

#[test]
fn jitter_is_even_around_the_delay_and_keeps_the_order_unless_told_otherwise() {
    let shape = Shape { delay: MS * 100, jitter: MS * 50, jitter_reorders: true, ..Shape::default() };
    let (arrived, _) = run(shape.clone(), 5, 50_000, 1, MS);
    let delays: Vec<f64> =
        arrived.iter().map(|(packet, at)| (*at - MS * *packet).as_secs_f64() * 1e3).collect();
    near(delays.iter().sum::<f64>() / delays.len() as f64, 100.0, 0.5);
    near(delays.iter().copied().fold(f64::MAX, f64::min), 50.0, 0.1);
    near(delays.iter().copied().fold(0.0, f64::max), 150.0, 0.1);
    assert!(arrived.windows(2).any(|pair| pair[0].0 > pair[1].0));
    let (arrived, _) = run(Shape { jitter_reorders: false, ..shape }, 5, 50_000, 1, MS);
    assert!(arrived.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn late_packets_are_overtaken_and_hold_nobody_up() {
    let shape = Shape { delay: MS * 10, reorder: 0.1, late: MS * 5, ..Shape::default() };
    let (arrived, counts) = run(shape, 9, 50_000, 1, MS);
    near(counts.held_up as f64 / 50_000.0, 0.1, 0.005);
    let late = arrived.iter().filter(|(packet, at)| *at - MS * *packet == MS * 15).count();
    let on_time = arrived.iter().filter(|(packet, at)| *at - MS * *packet == MS * 10).count();
    assert_eq!((late as u64, late + on_time), (counts.held_up, 50_000));
}

#[test]
fn repeats_come_as_often_as_asked() {
    let (arrived, counts) = run(Shape { repeat: 0.03, ..Shape::default() }, 11, 100_000, 1, MS);
    near(counts.repeated as f64 / 100_000.0, 0.03, 0.002);
    assert_eq!(arrived.len() as u64, 100_000 + counts.repeated);
}

#[test]
fn the_bottleneck_lets_through_its_rate_and_not_a_byte_more() {
    // Twice of what fits, for ten seconds, at a rate at which a packet takes no whole number of nanoseconds.
    let rate = 97_777_777;
    let shape = Shape { rate: Some(rate), queue: 100_000, ..Shape::default() };
    let every = Duration::from_secs_f64(1400.0 * 8.0 / (2.0 * rate as f64));
    let (arrived, counts) = run(shape, 1, 174_602, 1400, every);
    let took = arrived.last().unwrap().1.as_secs_f64();
    near(took, 10.0, 0.02);
    near(counts.bytes as f64 * 8.0 / took / rate as f64, 1.0, 1e-6);
    assert!(counts.overflowed > 80_000);
    // Nobody waits longer than the queue is long.
    let longest = arrived.iter().map(|(packet, at)| *at - every * *packet).max().unwrap();
    near(longest.as_secs_f64(), 100_000.0 * 8.0 / rate as f64, 0.0002);
}

#[test]
fn a_queue_shorter_than_a_packet_still_passes_what_finds_the_bottleneck_idle() {
    let shape = Shape { rate: Some(12_000_000), queue: 0, ..Shape::default() };
    let (arrived, _) = run(shape, 1, 100, 1500, MS); // one takes a millisecond
    assert_eq!(arrived.len(), 100);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    let shape = Shape {
        delay: MS * 20,
        jitter: MS * 5,
        jitter_reorders: true,
        loss: Loss::bursts(0.05, 3.0),
        repeat: 0.02,
        reorder: 0.05,
        late: MS,
        rate: Some(100_000_000),
        queue: 50_000,
    };
    let once = run(shape.clone(), 42, 20_000, 1200, Duration::from_micros(90));
    assert!(once == run(shape.clone(), 42, 20_000, 1200, Duration::from_micros(90)));
    assert!(once != run(shape, 43, 20_000, 1200, Duration::from_micros(90)));
}

#[test]
fn one_effect_does_not_reshuffle_another() {
    let losing = Shape::default().losing(Loss::Random(0.1));
    let lost = |shape: Shape| {
        let (arrived, _) = run(shape, 4, 5000, 1, MS);
        let mut got: Vec<u32> = arrived.iter().map(|(packet, _)| *packet).collect();
        got.sort_unstable();
        got.dedup();
        got
    };
    let more = Shape { jitter: MS * 9, repeat: 0.3, reorder: 0.3, late: MS * 3, ..losing };
    assert_eq!(lost(losing), lost(more));
}

proptest! {
    #[test]
    fn every_packet_is_accounted_for_and_none_comes_early(
        seed in any::<u64>(),
        loss in 0.0..0.5f64,
        repeat in 0.0..0.5f64,
        reorder in 0.0..0.5f64,
        jitter in 0u32..30,
        jitter_reorders in any::<bool>(),
        rate in proptest::option::of(1_000_000u64..1_000_000_000),
        queue in 0usize..100_000,
    ) {
        let shape = Shape {
            delay: MS * 20,
            jitter: MS * jitter,
            jitter_reorders,
            loss: Loss::Random(loss),
            repeat,
            reorder,
            late: MS * 7,
            rate,
            queue,
        };
        let (arrived, counts) = run(shape, seed, 2000, 1000, Duration::from_micros(100));
        prop_assert_eq!(counts.offered + counts.repeated, counts.delivered + counts.lost + counts.overflowed);
        prop_assert_eq!(counts.delivered, arrived.len() as u64);
        prop_assert!(arrived.windows(2).all(|pair| pair[0].1 <= pair[1].1), "time goes on");
        let least = (MS * 20).saturating_sub(MS * jitter);
        for (packet, at) in arrived {
            prop_assert!(at >= Duration::from_micros(100) * packet + least);
        }
    }
}
