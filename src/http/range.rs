//! Byte ranges: which part of a file a Range header asks for.
//!
//! Apart because it is arithmetic on numbers a stranger chose. Imports only the layer's own types.
//!
//! Invariant: a [`RangeAnswer::Part`] is not empty and lies inside the file.

use std::ops::Range;

use super::framing::digits;

/// What a Range header means for a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeAnswer {
    /// The header is ignored: 200 with the whole file.
    Full,
    /// 206 with this part.
    Part(Range<u64>),
    /// 416.
    Unsatisfiable,
    /// Several ranges: 200 with the whole file (RFC 9110 section 14.2 allows it), and worth counting.
    Multi,
}

/// What the value of Range means for a file of `len` bytes (RFC 9110 section 14).
///
/// What cannot be parsed, or is of another unit, is ignored. A last position beyond the end is the end. A first
/// position at or beyond the end, and a suffix of nothing (`-0`), are unsatisfiable. Numbers beyond u64 count as the
/// largest u64, which is beyond every file. Of an empty file every range is the whole (as nginx has it): there is no
/// part to miss.
pub fn answer(header: &[u8], len: u64) -> RangeAnswer {
    let Some(set) = bytes_unit(header) else { return RangeAnswer::Full };
    let mut only = None;
    let mut several = false;
    for spec in set.split(|&byte| byte == b',') {
        let spec = spec.trim_ascii();
        // RFC 9110 section 5.6.1.2: empty list elements are to be ignored.
        if spec.is_empty() {
            continue;
        }
        let Some(spec) = Spec::parse(spec) else { return RangeAnswer::Full };
        several |= only.replace(spec).is_some();
    }
    match only {
        None => RangeAnswer::Full,
        Some(_) if len == 0 => RangeAnswer::Full,
        Some(_) if several => RangeAnswer::Multi,
        Some(spec) => spec.of(len),
    }
}

/// The one range a header asks for, where the length is not known yet: first and last position, the first missing in a
/// suffix, the last in a range to the end. `None` for anything else.
pub fn single(header: &[u8]) -> Option<(Option<u64>, Option<u64>)> {
    let mut specs =
        bytes_unit(header)?.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|spec| !spec.is_empty());
    let spec = Spec::parse(specs.next()?)?;
    if specs.next().is_some() {
        return None;
    }
    Some(match spec {
        Spec::Positions(first, last) => (Some(first), (last != u64::MAX).then_some(last)),
        Spec::Suffix(count) => (None, Some(count)),
    })
}

/// The part a Content-Range of a 206 tells: first position, one behind the last, and the length of the whole if known
/// (RFC 9110 section 14.4). Nothing if it is malformed, of another unit, empty, or beyond the whole.
///
/// Stricter than [`answer`]: this decides which bytes are stored where.
pub fn content_range(value: &[u8]) -> Option<(u64, u64, Option<u64>)> {
    let (part, whole) = content_range_parts(value)?;
    let dash = part.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (digits(&part[..dash])?, digits(&part[dash + 1..])?);
    let whole = if whole == b"*" { None } else { Some(digits(whole)?) };
    let end = last.checked_add(1)?;
    (first <= last && whole.is_none_or(|whole| end <= whole)).then_some((first, end, whole))
}

/// The length of the whole that a 416 tells: `bytes */1234`.
pub fn unsatisfied_range(value: &[u8]) -> Option<u64> {
    let (part, whole) = content_range_parts(value)?;
    if part == b"*" { digits(whole) } else { None }
}

/// What stands around the slash, `bytes` and its space taken off.
fn content_range_parts(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (unit, rest) = value.split_at_checked(6)?;
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    unit.eq_ignore_ascii_case(b"bytes ").then_some((&rest[..slash], &rest[slash + 1..]))
}

#[derive(Clone, Copy)]
enum Spec {
    /// First and last position.
    Positions(u64, u64),
    /// The last so many bytes.
    Suffix(u64),
}

impl Spec {
    fn parse(spec: &[u8]) -> Option<Spec> {
        let dash = spec.iter().position(|&byte| byte == b'-')?;
        let (first, last) = (&spec[..dash], &spec[dash + 1..]);
        match (first.is_empty(), last.is_empty()) {
            (true, _) => Some(Spec::Suffix(number(last)?)),
            (false, true) => Some(Spec::Positions(number(first)?, u64::MAX)),
            (false, false) => {
                let (first, last) = (number(first)?, number(last)?);
                // Section 14.1.1: a last position below the first makes the range invalid, so it is ignored.
                (first <= last).then_some(Spec::Positions(first, last))
            }
        }
    }

    fn of(self, len: u64) -> RangeAnswer {
        match self {
            Spec::Positions(first, _) if first >= len => RangeAnswer::Unsatisfiable,
            Spec::Positions(first, last) => RangeAnswer::Part(first..last.saturating_add(1).min(len)),
            Spec::Suffix(0) => RangeAnswer::Unsatisfiable,
            Spec::Suffix(count) => RangeAnswer::Part(len.saturating_sub(count)..len),
        }
    }
}

/// What follows `bytes=`; range units are case-insensitive (section 14.1).
fn bytes_unit(header: &[u8]) -> Option<&[u8]> {
    let (unit, set) = header.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// 1*DIGIT, saturating.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |sum, byte| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::RangeAnswer::{Full, Multi, Part, Unsatisfiable};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_means_what_rfc_9110_section_14_says() {
        let table = [
            ("bytes=0-0", 10, Part(0..1)),
            ("bytes=2-4", 10, Part(2..5)),
            ("BYTES=2-4", 10, Part(2..5)),
            ("bytes=2-", 10, Part(2..10)),
            ("bytes=0-", 10, Part(0..10)),
            ("bytes=9-", 10, Part(9..10)),
            ("bytes=9-99", 10, Part(9..10)),
            ("bytes=-3", 10, Part(7..10)),
            ("bytes=-10", 10, Part(0..10)),
            ("bytes=-99", 10, Part(0..10)),
            ("bytes=0-18446744073709551615", 10, Part(0..10)),
            ("bytes=0-99999999999999999999999", 10, Part(0..10)),
            ("bytes=-99999999999999999999999", 10, Part(0..10)),
            ("bytes=,2-4, ,", 10, Part(2..5)),
            ("bytes= 2-4", 10, Part(2..5)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=10-20", 10, Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Unsatisfiable),
            ("bytes=18446744073709551615-", u64::MAX, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-1,3-4", 10, Multi),
            ("bytes=0-1,-1", 10, Multi),
            ("bytes=4-2", 10, Full),
            ("bytes=", 10, Full),
            ("bytes=,,", 10, Full),
            ("bytes=-", 10, Full),
            ("bytes=a-b", 10, Full),
            ("bytes=1", 10, Full),
            ("bytes=1-2-3", 10, Full),
            ("bytes=--1", 10, Full),
            ("bytes=+1-2", 10, Full),
            ("bytes=1 -2", 10, Full),
            ("bytes=0-1,x", 10, Full),
            ("bytes =0-1", 10, Full),
            ("byte=0-1", 10, Full),
            ("lines=0-1", 10, Full),
            ("0-1", 10, Full),
            ("", 10, Full),
        ];
        for (header, len, expected) in table {
            assert_eq!(answer(header.as_bytes(), len), expected, "{header} of {len}");
        }
    }

    #[test]
    fn one_range_without_a_length() {
        assert_eq!(single(b"bytes=5-9"), Some((Some(5), Some(9))));
        assert_eq!(single(b"bytes=5-"), Some((Some(5), None)));
        assert_eq!(single(b"bytes=-9"), Some((None, Some(9))));
        assert_eq!(single(b"bytes=0-1,5-9"), None);
        assert_eq!(single(b"lines=0-1"), None);
        assert_eq!(single(b"bytes=9-5"), None);
    }

    #[test]
    fn an_origin_says_exactly_which_bytes_it_sends() {
        let table = [
            ("bytes 0-9/10", Some((0, 10, Some(10)))),
            ("Bytes 2-2/10", Some((2, 3, Some(10)))),
            ("bytes 5-9/*", Some((5, 10, None))),
            ("bytes 0-18446744073709551614/*", Some((0, u64::MAX, None))),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes 0-10/10", None),
            ("bytes 5-4/10", None),
            ("bytes */10", None),
            ("bytes 0-9", None),
            ("bytes=0-9/10", None),
            ("bytes 0-9/", None),
            ("bytes 0-9/10, 0-9/10", None),
            ("bytes  0-9/10", None),
            ("bytes -9/10", None),
            ("bytes 0-/10", None),
            ("lines 0-9/10", None),
            ("", None),
        ];
        for (value, expected) in table {
            assert_eq!(content_range(value.as_bytes()), expected, "{value}");
        }
        for (value, expected) in
            [("bytes */10", Some(10)), ("bytes */*", None), ("bytes 0-9/10", None), ("bytes */", None)]
        {
            assert_eq!(unsatisfied_range(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn every_range_of_an_empty_file_is_the_whole_of_it() {
        for header in ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=-0", "bytes=5-6", "bytes=0-1,2-3", "bytes=x"] {
            assert_eq!(answer(header.as_bytes(), 0), Full, "{header}");
        }
    }

    proptest! {
        #[test]
        fn a_part_is_not_empty_and_lies_inside_the_file(
            header in prop_oneof!["bytes=[0-9]{0,21}-[0-9]{0,21}", "bytes=[-0-9, ]{0,30}"], len in any::<u64>(), small in 0u64..50,
        ) {
            for len in [len, small] {
                if let Part(part) = answer(header.as_bytes(), len) {
                    prop_assert!(part.start < part.end && part.end <= len, "{:?} of {}", part, len);
                }
            }
        }

        #[test]
        fn no_bytes_panic_the_answer(header in prop::collection::vec(any::<u8>(), 0..40), len in any::<u64>()) {
            answer(&header, len);
            answer(&[b"bytes=", header.as_slice()].concat(), len);
        }
    }
}
