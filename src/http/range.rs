//! Byte ranges (RFC 9110 14).

use std::ops::Range;

/// What a Range field asks of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeAnswer {
    /// Not a range that is understood, or of an empty file: the whole file.
    Full,
    /// This part, never empty, inside the file.
    Part(Range<u64>),
    /// Several ranges: the whole file (allowed by RFC 9110 14.2), which also takes the point out of range floods.
    Multi,
    /// It begins past the end.
    Unsatisfiable,
}

/// Answers the value of a Range field for a file of `len` bytes. Numbers too large for 64 bits are "past the end".
pub fn answer(header: &[u8], len: u64) -> RangeAnswer {
    let Some((unit, set)) = header.split_at_checked(6) else { return RangeAnswer::Full };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return RangeAnswer::Full;
    }
    let mut specs = set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|spec| !spec.is_empty());
    let Some(spec) = specs.next() else { return RangeAnswer::Full };
    let Some(dash) = spec.iter().position(|byte| *byte == b'-') else { return RangeAnswer::Full };
    let (first, last) = (number(&spec[..dash]), number(&spec[dash + 1..]));
    if specs.next().is_some() {
        return RangeAnswer::Multi;
    }
    match (first, last) {
        (Number::Bad, _) | (_, Number::Bad) | (Number::None, Number::None) => RangeAnswer::Full,
        (Number::Some(first), Number::Some(last)) if last < first => RangeAnswer::Full,
        _ if len == 0 => RangeAnswer::Full,
        (Number::None, Number::Some(0)) => RangeAnswer::Unsatisfiable,
        (Number::None, Number::Some(suffix)) => RangeAnswer::Part(len.saturating_sub(suffix)..len),
        (Number::Some(first), _) if first >= len => RangeAnswer::Unsatisfiable,
        (Number::Some(first), Number::None) => RangeAnswer::Part(first..len),
        (Number::Some(first), Number::Some(last)) => RangeAnswer::Part(first..last.saturating_add(1).min(len)),
    }
}

#[derive(Clone, Copy)]
enum Number {
    None,
    Some(u64),
    Bad,
}

fn number(digits: &[u8]) -> Number {
    if digits.is_empty() {
        return Number::None;
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return Number::Bad;
    }
    Number::Some(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table() {
        use RangeAnswer::*;
        let rows: &[(&str, u64, RangeAnswer)] = &[
            ("bytes=0-4", 5, Part(0..5)),
            ("bytes=0-9", 5, Part(0..5)),
            ("bytes=1-1", 5, Part(1..2)),
            ("bytes=3-", 5, Part(3..5)),
            ("bytes=-2", 5, Part(3..5)),
            ("bytes=-9", 5, Part(0..5)),
            ("bytes=5-", 5, Unsatisfiable),
            ("bytes=-0", 5, Unsatisfiable),
            ("bytes=99999999999999999999999-", 5, Unsatisfiable),
            ("bytes=0-99999999999999999999999", 5, Part(0..5)),
            ("bytes=-9223372036854775000,-1", 5, Multi),
            ("bytes=0-0,2-2", 5, Multi),
            ("bytes=0-1,", 5, Part(0..2)),
            ("bytes=", 5, Full),
            ("bytes=,,,", 5, Full),
            ("bytes=a-b", 5, Full),
            ("bytes=2-1", 5, Full),
            ("bytes=+1-2", 5, Full),
            ("bytes=1", 5, Full),
            ("bytes=-", 5, Full),
            ("lines=0-1", 5, Full),
            ("BYTES=0-1", 5, Part(0..2)),
            ("bytes=0-", 0, Full),
            ("bytes=-1", 0, Full),
        ];
        for (header, len, want) in rows {
            assert_eq!(answer(header.as_bytes(), *len), *want, "{header} of {len}");
        }
    }

    proptest! {
        #[test]
        fn a_part_lies_inside_the_file(header in "bytes=[-0-9, ]{0,25}|.{0,20}", len: u64) {
            if let RangeAnswer::Part(part) = answer(header.as_bytes(), len) {
                prop_assert!(part.start < part.end && part.end <= len);
            }
        }
    }
}
