//! IMF-fixdate, the format of Date and Last-Modified (RFC 9110 section 5.6.7), over httpdate.
//!
//! Apart because httpdate panics outside the years 1970 to 9999 and a file's mtime knows no such bounds. Imports
//! nothing of ours.
//!
//! Invariant: no number of seconds panics, and every formatted date parses to the seconds it was made from.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 9999-12-31 23:59:59, the last second the format can tell.
const SECS_MAX: u64 = 253_402_300_799;

/// The date of a Unix time in seconds; later than the year 9999 is the last second of it.
pub fn format(unix_secs: u64) -> [u8; 29] {
    let time = UNIX_EPOCH + Duration::from_secs(unix_secs.min(SECS_MAX));
    let mut date = [0; 29];
    // An IMF-fixdate is 29 bytes by its grammar, so it fits and fills the array.
    write!(&mut date[..], "{}", httpdate::HttpDate::from(time)).expect("an IMF-fixdate is 29 bytes");
    date
}

/// Unix seconds of an HTTP-date in any of its three formats; `None` if it is not one.
pub fn parse(date: &[u8]) -> Option<u64> {
    let date = std::str::from_utf8(date).ok()?;
    let time = SystemTime::from(date.parse::<httpdate::HttpDate>().ok()?);
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_formats_of_rfc_9110_are_one_moment() {
        assert_eq!(&format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse(date.as_bytes()), Some(784_111_777), "{date}");
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for date in [
            "",
            "0",
            "yesterday",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Feb 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(date.as_bytes()), None, "{date}");
        }
    }

    #[test]
    fn no_time_is_too_late_to_format() {
        assert_eq!(&format(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(format(u64::MAX), format(SECS_MAX));
        assert_eq!(&format(SECS_MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    proptest! {
        #[test]
        fn a_formatted_date_parses_to_its_seconds(secs in 0..=SECS_MAX) {
            prop_assert_eq!(parse(&format(secs)), Some(secs));
        }

        #[test]
        fn no_bytes_panic_the_parser(date in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "(Sun|Sunday), [0-9]{2}[ -]Nov[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT".prop_map(String::into_bytes),
        ]) {
            parse(&date);
        }
    }
}
