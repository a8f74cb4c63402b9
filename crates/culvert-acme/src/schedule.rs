//! When to renew, and when to try again.

use std::time::{Duration, SystemTime};

/// Times between tries after what may pass by itself, a network that is down: the first, the factor, the longest.
const PASSING: (u64, u32, u64) = (5, 2, 600);
/// The same after a refusal. Let's Encrypt allows five failed proofs for a name in an hour.
const REFUSED: (u64, u32, u64) = (120, 3, 6 * 3600);
/// Longest time that an authority can make us wait.
const LONGEST_ASKED: Duration = Duration::from_secs(24 * 3600);

/// When a certificate that is valid between these times, in seconds since 1970, is renewed: after two thirds of its time,
/// or up to a fiftieth of it earlier, so that many certificates made together are not renewed together. `dice` is
/// between 0 and 1.
pub(crate) fn renewal((from, to): (i64, i64), dice: f64) -> SystemTime {
    let life = Duration::from_secs(u64::try_from(to.saturating_sub(from)).unwrap_or(0));
    let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(from).unwrap_or(0));
    begin + life.mul_f64(2.0 / 3.0 - dice / 50.0)
}

/// How long to wait after this many failures in a row, at least one. What may pass by itself is tried again soon; a refusal
/// is not, since authorities count them. `asked` is what the authority asked for.
pub(crate) fn back_off(failures: u32, is_passing: bool, asked: Option<Duration>, dice: f64) -> Duration {
    let (first, factor, longest) = if is_passing { PASSING } else { REFUSED };
    let factor = u64::from(factor).saturating_pow(failures.saturating_sub(1));
    let wait = Duration::from_secs(first.saturating_mul(factor).min(longest));
    wait.mul_f64(1.0 + dice / 10.0).max(asked.unwrap_or_default().min(LONGEST_ASKED))
}

/// A number between 0 and 1.
pub(crate) fn dice() -> f64 {
    let mut bytes = [0; 2];
    // Without it all certificates are merely renewed at the same time.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u16::from_be_bytes(bytes)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn certificates_are_renewed_after_two_thirds_of_their_time() {
        assert_eq!(renewal((1000, 4000), 0.0), at(3000));
        assert_eq!(renewal((1000, 4000), 1.0), at(2940));
        // What makes no sense is renewed at once.
        assert!(renewal((4000, 1000), 0.5) <= at(4000));
        assert!(renewal((-5, -1), 0.0) <= at(4));
    }

    #[test]
    fn waits_grow_and_have_an_end() {
        let seconds = |failures, passing, asked: Option<u64>| {
            back_off(failures, passing, asked.map(Duration::from_secs), 0.0).as_secs()
        };
        let waits = |passing| [1, 2, 3, 20, u32::MAX].map(|failures| seconds(failures, passing, None));
        assert_eq!(waits(true), [5, 10, 20, 600, 600]);
        assert_eq!(waits(false), [120, 360, 1080, 21600, 21600]);
        assert_eq!(seconds(1, true, Some(300)), 300);
        assert_eq!(seconds(1, false, Some(3)), 120);
        assert_eq!(seconds(1, false, Some(u64::MAX)), 24 * 3600);
        assert_eq!(back_off(1, false, None, 1.0), Duration::from_secs(132));
    }
}
