//! How long requests took: a histogram of fixed size, whatever the count, with an error of at most 1/128.
//!
//! Buckets are log-linear, as HdrHistogram's: 128 to every power of two. One core writes, the controlling thread reads.

use super::report::Latency;
use crate::telemetry::tally::Cell;

/// log2 of the buckets of one power of two.
const FINE: u32 = 7;
/// Powers of two above the exact range: 2^47 ns is 39 hours.
const POWERS: u32 = 40;
const BUCKETS: usize = ((POWERS + 1) << FINE) as usize;

fn bucket(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(FINE + 1);
    (((power << FINE) as u64 + (ns >> power)) as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket, in nanoseconds.
fn top(bucket: usize) -> u64 {
    let fine = 1 << FINE;
    // Below 2 * fine every value has a bucket of its own.
    let power = (bucket / fine).saturating_sub(1);
    let base = bucket - power * fine;
    ((base as u64 + 1) << power) - 1
}

/// Counts of one core.
pub struct Latencies {
    counts: Box<[Cell]>,
    /// Nanoseconds in all.
    sum: Cell,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: (0..BUCKETS).map(|_| Cell::default()).collect(), sum: Cell::default() }
    }
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Latencies").field("sum", &self.sum.get()).finish_non_exhaustive()
    }
}

impl Latencies {
    /// One more, in nanoseconds.
    pub fn add(&self, ns: u64) {
        self.counts[bucket(ns)].add(1);
        self.sum.add(ns);
    }
}

/// What several cores had counted at a moment.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    counts: Vec<u64>,
    sum: u64,
}

impl Looked {
    /// Now, over all these cores.
    pub fn at<'a>(cores: impl Iterator<Item = &'a Latencies>) -> Self {
        let mut looked = Self { counts: vec![0; BUCKETS], ..Self::default() };
        for core in cores {
            looked.counts.iter_mut().zip(&core.counts).for_each(|(sum, more)| *sum += more.get());
            looked.sum += core.sum.get();
        }
        looked
    }

    /// What came between `before` and this; `None` if nothing did.
    pub fn since(&self, before: &Self) -> Option<Latency> {
        let counts: Vec<u64> = self.counts.iter().zip(&before.counts).map(|(now, then)| now - then).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return None;
        }
        let quantile = |share: f64| {
            let wanted = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let at = counts.iter().position(|many| {
                seen += many;
                seen >= wanted
            });
            top(at.unwrap_or(BUCKETS - 1)) as f64 / 1e9
        };
        Some(Latency {
            count,
            mean: (self.sum - before.sum) as f64 / 1e9 / count as f64,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: quantile(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_thousand() {
        let core = Latencies::default();
        let before = Looked::at(std::iter::once(&core));
        assert!(before.since(&before).is_none());
        for us in 1..=1000u64 {
            core.add(us * 1000);
        }
        let found = Looked::at(std::iter::once(&core)).since(&before).expect("some");
        assert_eq!(found.count, 1000);
        assert!((found.mean - 0.000_500_5).abs() < 1e-9);
        for (got, wanted) in [
            (found.p50, 0.0005),
            (found.p90, 0.0009),
            (found.p99, 0.00099),
            (found.p999, 0.000_999),
            (found.max, 0.001),
        ] {
            assert!(got >= wanted && got <= wanted * (1.0 + 1.0 / 64.0), "{got} for {wanted}");
        }
    }

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket(ns in 0u64..1 << 46) {
            let at = bucket(ns);
            prop_assert!(top(at) >= ns);
            prop_assert!(at == 0 || top(at - 1) < ns);
            prop_assert!(top(at) - ns <= ns / 128 + 1);
        }
    }
}
