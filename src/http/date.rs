//! IMF-fixdate (RFC 9110 5.6.7), the only form ringway writes; all three are read.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

/// Seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT`; years past 9999 are shown as the last second of 9999.
pub fn format(unix_seconds: u64) -> [u8; 29] {
    // httpdate panics past year 9999.
    const LAST: u64 = 253_402_300_799;
    let mut out = [b' '; 29];
    let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST)));
    // The form has exactly 29 bytes.
    let _ = write!(out.as_mut_slice(), "{date}");
    out
}

/// Seconds since 1970; `None` for anything that is no date, or one before 1970.
pub fn parse(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(&format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse(b"yesterday"), None);
        assert_eq!(&format(u64::MAX)[..], b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0u64..253_402_300_799) {
            prop_assert_eq!(parse(&format(seconds)), Some(seconds));
        }
    }
}
