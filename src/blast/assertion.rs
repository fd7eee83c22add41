//! `--assert 'throughput>=9Gb/s'`: what a run must come to, for scripts and CI.

use super::report::{Assertion, Report};

/// How the measured and the wanted value are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    AtLeast,
    AtMost,
    More,
    Less,
    Equal,
}

/// A quantity of the report.
struct Quantity {
    name: &'static str,
    /// Units with their factor to the measured value's; the first is what is shown.
    units: &'static [(&'static str, f64)],
    measure: fn(&Report) -> Option<f64>,
}

const BITS: &[(&str, f64)] =
    &[("Gb/s", 1.0), ("Mb/s", 1e-3), ("Kb/s", 1e-6), ("b/s", 1e-9), ("GB/s", 8.0), ("MB/s", 8e-3)];
const DEMAND: &[(&str, f64)] = &[("us/KiB", 1.0)];
const TIMES: &[(&str, f64)] = &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6)];
const NUMBER: &[(&str, f64)] = &[("", 1.0), ("%", 1.0)];

const QUANTITIES: &[Quantity] = &[
    Quantity {
        name: "throughput",
        units: BITS,
        measure: |report| Some(mean(report, |one| one.bits_per_second)? / 1e9),
    },
    Quantity { name: "service_demand", units: DEMAND, measure: |report| mean(report, |one| one.service_demand) },
    Quantity {
        name: "remote_service_demand",
        units: DEMAND,
        measure: |report| report.end.receiver.as_ref().and_then(|_| mean(report, |one| one.remote_service_demand)),
    },
    Quantity { name: "cpu", units: NUMBER, measure: |report| Some(report.end.cpu_utilization_percent.host_total) },
    Quantity {
        name: "remote_cpu",
        units: NUMBER,
        measure: |report| report.end.receiver.as_ref().map(|_| report.end.cpu_utilization_percent.remote_total),
    },
    Quantity { name: "retransmits", units: NUMBER, measure: |report| Some(report.end.sum_sent.retransmits as f64) },
    Quantity { name: "errors", units: NUMBER, measure: |report| Some(report.end.sum_sent.errors as f64) },
    Quantity {
        name: "requests_per_second",
        units: NUMBER,
        measure: |report| {
            let sum = &report.end.sum_sent;
            (sum.seconds > 0.0).then(|| sum.requests as f64 / sum.seconds)
        },
    },
    Quantity {
        name: "copied",
        units: NUMBER,
        measure: |report| Some(100.0 * report.end.sender.zero_copy_copied_share?),
    },
    Quantity { name: "latency.mean", units: TIMES, measure: |report| Some(report.end.latency?.mean) },
    Quantity { name: "latency.p50", units: TIMES, measure: |report| Some(report.end.latency?.p50) },
    Quantity { name: "latency.p90", units: TIMES, measure: |report| Some(report.end.latency?.p90) },
    Quantity { name: "latency.p99", units: TIMES, measure: |report| Some(report.end.latency?.p99) },
    Quantity { name: "latency.p999", units: TIMES, measure: |report| Some(report.end.latency?.p999) },
    Quantity { name: "latency.max", units: TIMES, measure: |report| Some(report.end.latency?.max) },
];

fn mean(report: &Report, pick: impl Fn(&super::report::Repeat) -> f64) -> Option<f64> {
    let count = report.repeats.len();
    (count > 0).then(|| report.repeats.iter().map(pick).sum::<f64>() / count as f64)
}

/// One assertion, understood.
#[derive(Clone, Debug)]
pub struct Wanted {
    expression: String,
    quantity: usize,
    relation: Relation,
    value: f64,
    factor: f64,
}

/// Understands one.
///
/// # Errors
/// In words: the quantity, relation, number or unit is none.
pub fn parse(text: &str) -> Result<Wanted, String> {
    let at = text.find(['<', '>', '=']).ok_or("it has no relation; write for example 'throughput>=9Gb/s'")?;
    let (name, rest) = (text[..at].trim(), &text[at..]);
    let relations = [
        (">=", Relation::AtLeast),
        ("<=", Relation::AtMost),
        ("==", Relation::Equal),
        (">", Relation::More),
        ("<", Relation::Less),
        ("=", Relation::Equal),
    ];
    let (sign, relation) =
        relations.into_iter().find(|(sign, _)| rest.starts_with(sign)).ok_or("it has no relation")?;
    let quantity = QUANTITIES.iter().position(|quantity| quantity.name == name).ok_or_else(|| {
        let names: Vec<&str> = QUANTITIES.iter().map(|quantity| quantity.name).collect();
        format!("`{name}` is none of {}", names.join(", "))
    })?;
    let value = rest[sign.len()..].trim();
    let split = value.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(value.len());
    let (number, unit) = (&value[..split], value[split..].trim());
    let number: f64 = number.parse().map_err(|_| format!("`{value}` does not begin with a number"))?;
    let units = QUANTITIES[quantity].units;
    let factor = match unit {
        // A bare number is in the unit that is shown.
        "" => 1.0,
        unit => units.iter().find(|(known, _)| *known == unit).map(|(_, factor)| *factor).ok_or_else(|| {
            let known: Vec<&str> = units.iter().map(|(unit, _)| *unit).filter(|unit| !unit.is_empty()).collect();
            format!("`{unit}` is none of {}", known.join(", "))
        })?,
    };
    Ok(Wanted { expression: text.trim().to_owned(), quantity, relation, value: number, factor })
}

impl Wanted {
    /// Whether it holds. What was not measured does not hold; a partial run holds nothing.
    pub fn judge(&self, report: &Report) -> Assertion {
        let measured = (QUANTITIES[self.quantity].measure)(report).map(|value| value / self.factor);
        let held = report.partial.is_none()
            && measured.is_some_and(|measured| match self.relation {
                Relation::AtLeast => measured >= self.value,
                Relation::AtMost => measured <= self.value,
                Relation::More => measured > self.value,
                Relation::Less => measured < self.value,
                Relation::Equal => (measured - self.value).abs() <= f64::EPSILON * self.value.abs(),
            });
        Assertion { expression: self.expression.clone(), measured: measured.unwrap_or(0.0), held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blast::report::Repeat;

    #[test]
    fn judged() {
        let repeats = vec![Repeat { bits_per_second: 9e9, service_demand: 0.4, ..Repeat::default() }];
        let mut report = Report { repeats, ..Report::default() };
        let held = |text: &str, report: &Report| parse(text).expect(text).judge(report).held;
        let rows = [
            ("throughput>=9Gb/s", true),
            ("throughput > 9000Mb/s", false),
            ("throughput>=1.125GB/s", true),
            ("service_demand<=0.4us/KiB", true),
            ("service_demand<0.4", false),
            ("retransmits=0", true),
            ("latency.p99<=1s", false),
            ("remote_cpu<=100%", false),
        ];
        for (text, wanted) in rows {
            assert_eq!(held(text, &report), wanted, "{text}");
        }
        report.partial = Some("interrupted".into());
        assert!(!held("throughput>=1", &report));
    }

    #[test]
    fn refused() {
        let rows = [
            ("throughput", "no relation"),
            ("speed>1", "none of throughput"),
            ("throughput>=x", "number"),
            ("throughput>=9furlongs", "Gb/s"),
            ("latency.p99<1Gb/s", "ms"),
            ("retransmits<=", "number"),
        ];
        for (text, wanted) in rows {
            let told = parse(text).expect_err(text);
            assert!(told.contains(wanted), "{text}: {told}");
        }
    }
}
