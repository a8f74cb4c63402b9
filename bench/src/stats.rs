//! The few statistics that tables need. Nothing is averaged: a median with its lowest and highest says what was seen.

/// Median, lowest and highest of some rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// `None` for no values at all.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&low, &high) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, low, high })
    }
}

/// Ratios of two programs, round by round. Rounds of one number ran next to each other, so what slows the whole machine
/// for a while slows both and drops out. `None` when a baseline is zero or no round has both.
pub(crate) fn paired_ratios(values: &[f64], baseline: &[f64]) -> Option<Spread> {
    let pairs = values.iter().zip(baseline);
    let ratios: Vec<f64> =
        pairs.filter(|(_, base)| **base != 0.0).map(|(value, base)| value / base).collect();
    Spread::of(&ratios)
}

/// The smallest value that at least `fraction` of all values do not exceed ("nearest rank"): always a value that was
/// seen. `sorted` ascends and is not empty.
pub(crate) fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// In which order the contenders of one round run: forwards and backwards in turn (A B, B A, A B ...), so that a
/// steady drift of the machine favours nobody.
pub(crate) fn round_order(contenders: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_even_one_and_none() {
        let spread = |values: &[f64]| Spread::of(values);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, low: 1.0, high: 4.0 }));
        assert_eq!(spread(&[7.0]), Some(Spread { median: 7.0, low: 7.0, high: 7.0 }));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn pairing_removes_what_slows_both() {
        let ratios = paired_ratios(&[10.0, 5.0, 20.0], &[20.0, 10.0, 40.0]).unwrap();
        assert_eq!(ratios, Spread { median: 0.5, low: 0.5, high: 0.5 });
        assert_eq!(paired_ratios(&[1.0], &[0.0]), None);
        assert_eq!(paired_ratios(&[], &[1.0]), None);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 50.0);
        assert_eq!(percentile(&values, 0.99), 99.0);
        assert_eq!(percentile(&values, 1.0), 100.0);
        assert_eq!(percentile(&values, 0.0), 1.0);
        assert_eq!(percentile(&[5.0], 0.9), 5.0);
    }

    #[test]
    fn rounds_turn_around() {
        assert_eq!(round_order(2, 0), [0, 1]);
        assert_eq!(round_order(2, 1), [1, 0]);
        assert_eq!(round_order(3, 3), [2, 1, 0]);
    }
}
