//! Validators and conditional requests (RFC 9110 8.8, 13).

use super::date;
use super::head::{Lines, Method, RequestHead};

/// ETag and Last-Modified of a file, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validators {
    etag: [u8; 40],
    etag_len: u8,
    last_modified: [u8; 29],
    seconds: u64,
}

impl Validators {
    /// From size and modification time, so that every node that has the file tells the same (never the inode).
    ///
    /// The ETag is strong: nanoseconds and length change with any ordinary write. Times before 1970 count as 1970 in
    /// Last-Modified and as themselves in the ETag.
    pub fn new(len: u64, mtime_seconds: i64, mtime_nanos: u32) -> Self {
        let nanos = (i128::from(mtime_seconds) * 1_000_000_000 + i128::from(mtime_nanos)) as u64;
        let mut etag = [0; 40];
        let mut at = 0;
        let mut put = |byte| {
            etag[at] = byte;
            at += 1;
        };
        put(b'"');
        hex(nanos, &mut put);
        put(b'-');
        hex(len, &mut put);
        put(b'"');
        let seconds = u64::try_from(mtime_seconds).unwrap_or(0);
        Self { etag, etag_len: at as u8, last_modified: date::format(seconds), seconds }
    }

    /// The ETag with its quotes.
    pub fn etag(&self) -> &[u8] {
        &self.etag[..usize::from(self.etag_len)]
    }

    /// The Last-Modified date.
    pub fn last_modified(&self) -> &[u8; 29] {
        &self.last_modified
    }
}

fn hex(number: u64, put: &mut impl FnMut(u8)) {
    let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        put(b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
    }
}

/// The outcome of the preconditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// Answer as asked.
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// Evaluates the preconditions of a GET or HEAD in the order of RFC 9110 13.2.2.
pub fn evaluate(head: &RequestHead<'_>, validators: &Validators) -> Precondition {
    if !head.if_match.is_empty() {
        if !any(&head.if_match, |tag| tag == b"*" || tag == validators.etag()) {
            return Precondition::Failed;
        }
    } else if let Some(since) = head.if_unmodified_since.and_then(date::parse)
        && validators.seconds > since
    {
        return Precondition::Failed;
    }
    if !head.if_none_match.is_empty() {
        if any(&head.if_none_match, |tag| tag == b"*" || weak(tag) == validators.etag()) {
            return Precondition::NotModified;
        }
    } else if matches!(head.method, Method::Get | Method::Head)
        && let Some(since) = head.if_modified_since.and_then(date::parse)
        && validators.seconds <= since
    {
        return Precondition::NotModified;
    }
    Precondition::Proceed
}

/// Whether a Range may be answered with a part: no If-Range, or one that holds by strong comparison.
///
/// A date is strong only if it is at least a second older than now (RFC 9110 8.8.2.2).
pub fn if_range_holds(head: &RequestHead<'_>, validators: &Validators, now_seconds: u64) -> bool {
    match head.if_range {
        None => true,
        Some(tag) if tag.starts_with(b"\"") => tag == validators.etag(),
        Some(other) => {
            date::parse(other) == Some(validators.seconds) && validators.seconds.saturating_add(1) <= now_seconds
        }
    }
}

fn weak(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether any entity tag of a list is wanted; a comma inside quotes does not end a tag.
fn any(lines: &Lines<'_>, wanted: impl Fn(&[u8]) -> bool) -> bool {
    lines.iter().any(|line| {
        let mut rest = line.trim_ascii();
        while !rest.is_empty() {
            let quoted = rest.iter().position(|byte| *byte == b'"').filter(|at| *at == 0 || *at == 2);
            let end = match quoted {
                Some(open) => {
                    rest[open + 1..].iter().position(|byte| *byte == b'"').map_or(rest.len(), |n| open + n + 2)
                }
                None => rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len()),
            };
            if wanted(rest[..end].trim_ascii()) {
                return true;
            }
            rest = rest[end..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
            if end == 0 && rest.len() == line.len() {
                return false;
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::super::head::{HeadLimits, Parse, parse};
    use super::*;
    use proptest::prelude::*;

    fn ask(headers: &str) -> (Precondition, bool) {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        let limits = HeadLimits { head_bytes: 4096, header_count: 16, target_bytes: 100 };
        let Parse::Request(head, _) = parse(bytes.as_bytes(), &limits) else { panic!("{headers}") };
        let validators = Validators::new(0x10, 784_111_777, 5);
        (evaluate(&head, &validators), if_range_holds(&head, &validators, 784_111_800))
    }

    #[test]
    fn the_etag_is_of_time_and_size() {
        let validators = Validators::new(0x1f, 1, 2);
        assert_eq!(validators.etag(), b"\"3b9aca02-1f\"");
        assert_eq!(Validators::new(0, 0, 0).etag(), b"\"0-0\"");
        assert_ne!(Validators::new(1, 5, 0).etag(), Validators::new(1, 5, 1).etag());
        assert_eq!(Validators::new(u64::MAX, -1, 0).last_modified(), b"Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn the_order_of_the_rfc() {
        use Precondition::*;
        let own = String::from_utf8(Validators::new(0x10, 784_111_777, 5).etag().to_vec()).expect("ascii");
        let same = "Sun, 06 Nov 1994 08:49:37 GMT";
        let before = "Sun, 06 Nov 1994 08:49:36 GMT";
        let rows: Vec<(String, Precondition)> = vec![
            (String::new(), Proceed),
            (format!("If-Match: {own}\r\n"), Proceed),
            ("If-Match: *\r\n".into(), Proceed),
            ("If-Match: \"x\"\r\n".into(), Failed),
            (format!("If-Match: W/{own}\r\n"), Failed),
            (format!("If-Match: \"x\", {own}\r\n"), Proceed),
            (format!("If-Match: \"x\"\r\nIf-Match: {own}\r\n"), Proceed),
            (format!("If-Unmodified-Since: {before}\r\n"), Failed),
            (format!("If-Unmodified-Since: {same}\r\n"), Proceed),
            (format!("If-Match: {own}\r\nIf-Unmodified-Since: {before}\r\n"), Proceed),
            (format!("If-None-Match: {own}\r\n"), NotModified),
            (format!("If-None-Match: W/{own}\r\n"), NotModified),
            (format!("If-None-Match: \"a,b\", {own}\r\n"), NotModified),
            ("If-None-Match: *\r\n".into(), NotModified),
            ("If-None-Match: \"x\"\r\n".into(), Proceed),
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {same}\r\n"), Proceed),
            (format!("If-Modified-Since: {same}\r\n"), NotModified),
            (format!("If-Modified-Since: {before}\r\n"), Proceed),
            ("If-Modified-Since: garbage\r\n".into(), Proceed),
        ];
        for (headers, want) in rows {
            assert_eq!(ask(&headers).0, want, "{headers}");
        }
    }

    #[test]
    fn a_resumed_download_never_joins_two_versions() {
        let own = String::from_utf8(Validators::new(0x10, 784_111_777, 5).etag().to_vec()).expect("ascii");
        for (value, holds) in [
            (own.as_str(), true),
            ("\"x\"", false),
            (&format!("W/{own}"), false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("garbage", false),
        ] {
            assert_eq!(ask(&format!("If-Range: {value}\r\n")).1, holds, "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_list_hangs_or_panics(value in "[W/\"a, *]{0,40}") {
            let mut lines = Lines::default();
            let _ = &mut lines;
            ask(&format!("If-None-Match: {value}\r\n"));
        }
    }
}
