//! Repeats as a sample: how sure the means of throughput and service demand are.
//!
//! As netperf's `-i` and `-I` have it: a level in percent, and the width of the whole interval in percent of the mean, by
//! Student's t. Repeats of one machine minutes apart are not independent; the interval is what they say of each other.

use super::report::{Confidence, Repeat};

/// Two-sided critical values of Student's t by degrees of freedom 1 to 30, for 90, 95 and 99 %.
const T: [[f64; 3]; 30] = [
    [6.314, 12.706, 63.657],
    [2.920, 4.303, 9.925],
    [2.353, 3.182, 5.841],
    [2.132, 2.776, 4.604],
    [2.015, 2.571, 4.032],
    [1.943, 2.447, 3.707],
    [1.895, 2.365, 3.499],
    [1.860, 2.306, 3.355],
    [1.833, 2.262, 3.250],
    [1.812, 2.228, 3.169],
    [1.796, 2.201, 3.106],
    [1.782, 2.179, 3.055],
    [1.771, 2.160, 3.012],
    [1.761, 2.145, 2.977],
    [1.753, 2.131, 2.947],
    [1.746, 2.120, 2.921],
    [1.740, 2.110, 2.898],
    [1.734, 2.101, 2.878],
    [1.729, 2.093, 2.861],
    [1.725, 2.086, 2.845],
    [1.721, 2.080, 2.831],
    [1.717, 2.074, 2.819],
    [1.714, 2.069, 2.807],
    [1.711, 2.064, 2.797],
    [1.708, 2.060, 2.787],
    [1.706, 2.056, 2.779],
    [1.703, 2.052, 2.771],
    [1.701, 2.048, 2.763],
    [1.699, 2.045, 2.756],
    [1.697, 2.042, 2.750],
];
/// The same for the normal distribution, which is where t goes: beyond 30 the value of 30 is used, the safe side.
const LEVELS: [f64; 3] = [90.0, 95.0, 99.0];

fn critical(level: f64, freedom: usize) -> Option<f64> {
    let column = LEVELS.iter().position(|known| (known - level).abs() < 1e-9)?;
    Some(T[freedom.clamp(1, T.len()) - 1][column])
}

/// `LEVEL,WIDTH` in percent, such as `99,5`: the level is 90, 95 or 99.
///
/// # Errors
/// In words.
pub fn parse(text: &str) -> Result<(f64, f64), String> {
    let (level, width) = text.split_once(',').ok_or("it is not LEVEL,WIDTH in percent, such as 99,5")?;
    let level: f64 = level.trim().parse().map_err(|_| format!("`{level}` is not a number"))?;
    let width: f64 = width.trim().parse().map_err(|_| format!("`{width}` is not a number"))?;
    if critical(level, 1).is_none() {
        return Err(format!("the level {level} is none of 90, 95, 99"));
    }
    if !(width > 0.0 && width < 100.0) {
        return Err(format!("the width {width} is not between 0 and 100"));
    }
    Ok((level, width))
}

/// Mean and width of the interval in percent of it; `None` with fewer than two values.
fn width(values: &[f64], level: f64) -> Option<f64> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = critical(level, values.len() - 1)? * (variance / count).sqrt();
    Some(if mean == 0.0 { 0.0 } else { 200.0 * half / mean })
}

/// How sure the means are; `None` with fewer than two repeats, or a level that has no table.
pub fn confidence(repeats: &[Repeat], level: f64, wanted: f64) -> Option<Confidence> {
    let column = |pick: fn(&Repeat) -> f64| width(&repeats.iter().map(pick).collect::<Vec<_>>(), level);
    let throughput_percent = column(|repeat| repeat.bits_per_second)?;
    let service_demand_percent = column(|repeat| repeat.service_demand)?;
    Some(Confidence {
        level,
        wanted_percent: wanted,
        throughput_percent,
        service_demand_percent,
        met: throughput_percent <= wanted && service_demand_percent <= wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(rates: &[f64]) -> Vec<Repeat> {
        rates.iter().map(|rate| Repeat { bits_per_second: *rate, service_demand: 1.0, ..Repeat::default() }).collect()
    }

    #[test]
    fn an_interval_known_from_a_book() {
        // Mean 10, deviation 1, n = 4: half width 3.182 / 2.
        let found = confidence(&repeats(&[9.0, 9.0, 11.0, 11.0]), 95.0, 5.0).expect("four");
        let deviation = (4.0f64 / 3.0).sqrt();
        assert!((found.throughput_percent - 200.0 * 3.182 * deviation / 2.0 / 10.0).abs() < 1e-9);
        assert!((found.service_demand_percent, found.met) == (0.0, false));
        assert!(confidence(&repeats(&[5.0, 5.0, 5.0]), 99.0, 5.0).expect("three").met);
        assert!(confidence(&repeats(&[5.0]), 99.0, 5.0).is_none());
    }

    #[test]
    fn what_is_no_confidence() {
        assert_eq!(parse("99,5"), Ok((99.0, 5.0)));
        for wrong in ["99", "98,5", "99,0", "99,100", "x,5", "99,NaN", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
