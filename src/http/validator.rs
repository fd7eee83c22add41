//! Conditional requests: does the client's copy still stand, and may a part be joined to it?
//!
//! Apart because the order of evaluation is a rule of its own (RFC 9110 section 13.2.2). Imports only the layer's own
//! types; the current time is an argument.
//!
//! Invariant: two versions of a file that differ in length or in mtime (to the nanosecond) never share an ETag.

use super::date;
use super::head::{Lines, Method, RequestHead};

/// What identifies one version of a file; made when the file is opened, used by every reply about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validators {
    /// Two quotes, a dash, and two u64 in hex: 35 bytes at most.
    etag: [u8; 35],
    etag_len: u8,
    last_modified: [u8; 29],
    mtime_secs: u64,
}

impl Validators {
    /// The validators of a file of `len` bytes, last modified at `mtime_secs` and `mtime_nanos`.
    ///
    /// The ETag is strong: `"<mtime in ns, hex>-<length, hex>"`. No inode number: the same file on two servers, or
    /// copied into place again with its times, is the same version. An mtime before 1970 has the epoch for its
    /// Last-Modified, since HTTP dates do not reach further back.
    pub fn new(len: u64, mtime_secs: i64, mtime_nanos: u32) -> Self {
        // Wraps after 584 years, and for times before the epoch: a wrapped number tells versions apart as well.
        let nanos = (mtime_secs as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(mtime_nanos));
        let mut etag = [0; 35];
        etag[0] = b'"';
        let mut end = write_hex(&mut etag, 1, nanos);
        etag[end] = b'-';
        end = write_hex(&mut etag, end + 1, len);
        etag[end] = b'"';
        let mtime_secs = u64::try_from(mtime_secs).unwrap_or(0);
        Self { etag, etag_len: end as u8 + 1, last_modified: date::format(mtime_secs), mtime_secs }
    }

    /// The ETag, quotes included.
    #[inline]
    pub fn etag(&self) -> &[u8] {
        &self.etag[..usize::from(self.etag_len)]
    }

    /// Last-Modified as an IMF-fixdate.
    #[inline]
    pub fn last_modified(&self) -> &[u8; 29] {
        &self.last_modified
    }

    fn known(&self) -> Known<'_> {
        Known { etag: Some(self.etag()), modified: Some((self.mtime_secs, &self.last_modified)) }
    }

    /// The second `last_modified` tells.
    pub fn mtime_secs(&self) -> u64 {
        self.mtime_secs
    }
}

/// What the conditions of a request come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// Answer as if there were none.
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// Evaluates the conditions of `head` against a file that exists, in the order of RFC 9110 section 13.2.2. Range and
/// If-Range come after a [`Precondition::Proceed`].
pub fn evaluate(head: &RequestHead<'_>, validators: &Validators) -> Precondition {
    evaluate_known(head, &validators.known())
}

/// The validators somebody else chose: an origin's. Either may be missing, and its ETag may be weak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known<'a> {
    /// The ETag as it was sent.
    pub etag: Option<&'a [u8]>,
    /// Last-Modified, in seconds and as it was sent.
    pub modified: Option<(u64, &'a [u8])>,
}

/// As [`evaluate`], for somebody else's validators.
pub fn evaluate_known(head: &RequestHead<'_>, known: &Known<'_>) -> Precondition {
    // 1 and 2. An unusable date is ignored (section 13.1.4).
    if !head.if_match.is_empty() {
        if !any_tag(&head.if_match, known.etag, Comparison::Strong) {
            return Precondition::Failed;
        }
    } else if let (Some(since), Some((modified, _))) = (head.if_unmodified_since.and_then(date::parse), known.modified)
        && modified > since
    {
        return Precondition::Failed;
    }
    // 3 and 4.
    let reads = matches!(head.method, Method::Get | Method::Head);
    if !head.if_none_match.is_empty() {
        if any_tag(&head.if_none_match, known.etag, Comparison::Weak) {
            return if reads { Precondition::NotModified } else { Precondition::Failed };
        }
    } else if let (Some(value), Some((modified, sent))) = (head.if_modified_since, known.modified)
        && reads
    {
        // Nearly always our own Last-Modified comes back, which needs no parsing.
        let unchanged = value == sent || date::parse(value).is_some_and(|since| modified <= since);
        if unchanged {
            return Precondition::NotModified;
        }
    }
    Precondition::Proceed
}

/// Whether a range may be answered with a part: true without If-Range, else only if its validator is strong and ours
/// (RFC 9110 section 13.1.5).
///
/// A date is strong only if the file has not been modified within the second it tells, as far as `now_secs` shows
/// (section 8.8.2.2); a weak ETag never is.
pub fn if_range_holds(head: &RequestHead<'_>, validators: &Validators, now_secs: u64) -> bool {
    if_range_holds_known(head, &validators.known(), now_secs)
}

/// As [`if_range_holds`], for somebody else's validators.
pub fn if_range_holds_known(head: &RequestHead<'_>, known: &Known<'_>, now_secs: u64) -> bool {
    let Some(value) = head.if_range else { return true };
    if value.first() == Some(&b'"') {
        return known.etag == Some(value);
    }
    // Equal, not "no later than": a client may hold an older version of a file that was put back (section 13.1.5).
    // A weak tag is no date, so it ends here as well.
    known
        .modified
        .is_some_and(|(modified, sent)| modified < now_secs && (value == sent || date::parse(value) == Some(modified)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether some entity tag in the lines is `etag`, or one of them is `*`.
fn any_tag(lines: &Lines<'_>, etag: Option<&[u8]>, comparison: Comparison) -> bool {
    let opaque = match (etag, comparison) {
        (Some([b'W', b'/', opaque @ ..]), Comparison::Weak) => Some(opaque),
        // A weak tag is strongly equal to none (section 8.8.3.2).
        (Some([b'W', b'/', ..]), Comparison::Strong) => None,
        (etag, _) => etag,
    };
    lines.iter().any(|line| line == b"*" || opaque.is_some_and(|opaque| tag_in_list(line, opaque, comparison)))
}

/// Commas may stand inside a tag, so the list is read tag by tag. What follows a malformed tag is not trusted.
fn tag_in_list(mut list: &[u8], etag: &[u8], comparison: Comparison) -> bool {
    loop {
        while let [b' ' | b'\t' | b',', rest @ ..] = list {
            list = rest;
        }
        let (weak, opaque) = match list {
            [b'W', b'/', rest @ ..] => (true, rest),
            _ => (false, list),
        };
        let [b'"', inner @ ..] = opaque else { return false };
        let Some(end) = inner.iter().position(|&byte| byte == b'"') else { return false };
        let (tag, rest) = opaque.split_at(end + 2);
        if tag == etag && (comparison == Comparison::Weak || !weak) {
            return true;
        }
        list = rest;
        if !matches!(list.first(), None | Some(b' ' | b'\t' | b',')) {
            return false;
        }
    }
}

/// Writes `number` in lower-case hex at `start`, and tells where it ends.
fn write_hex(out: &mut [u8; 35], start: usize, number: u64) -> usize {
    let digits = (16 - number.leading_zeros() as usize / 4).max(1);
    for (index, slot) in out[start..start + digits].iter_mut().enumerate() {
        let shift = 4 * (digits - 1 - index);
        *slot = b"0123456789abcdef"[(number >> shift) as usize & 15];
    }
    start + digits
}

#[cfg(test)]
mod tests {
    use super::Precondition::{Failed, NotModified, Proceed};
    use super::*;
    use crate::http::head::{HeadLimits, Parse, parse};
    use proptest::prelude::*;

    const MTIME: i64 = 784_111_777;
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const LIMITS: HeadLimits = HeadLimits { head_bytes: 4096, header_count: 16, target_bytes: 64 };

    fn validators() -> Validators {
        Validators::new(0x1234, MTIME, 5)
    }

    fn tag() -> String {
        String::from_utf8(validators().etag().to_vec()).unwrap()
    }

    fn with_head<T>(method: &str, fields: &[(&str, &str)], then: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        let mut text = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        match parse(text.as_bytes(), &LIMITS) {
            Parse::Request(head, _) => then(&head),
            other => panic!("{other:?} for {text}"),
        }
    }

    #[test]
    fn an_etag_is_mtime_and_length_in_hex_and_always_fits() {
        assert_eq!(Validators::new(0, 0, 0).etag(), b"\"0-0\"");
        assert_eq!(Validators::new(0xabc, 1, 1).etag(), b"\"3b9aca01-abc\"");
        assert_eq!(Validators::new(u64::MAX, -1, 999_999_999).etag(), b"\"ffffffffffffffff-ffffffffffffffff\"");
        assert_ne!(Validators::new(1, 1, 0).etag(), Validators::new(1, 1, 1).etag());
    }

    #[test]
    fn an_mtime_before_the_epoch_is_the_epoch_to_a_client() {
        for secs in [-1, i64::MIN] {
            let validators = Validators::new(1, secs, 0);
            assert_eq!((validators.mtime_secs(), validators.last_modified()), (0, b"Thu, 01 Jan 1970 00:00:00 GMT"));
        }
        Validators::new(1, i64::MAX, u32::MAX);
    }

    #[test]
    fn conditions_are_evaluated_in_the_order_of_rfc_9110() {
        let tag = tag();
        let weak = format!("W/{tag}");
        let listed = format!("\"a,b\" , W/\"c\",, {tag}");
        let glued = format!("\"a\"{tag}");
        let (tag, weak, listed, glued) = (tag.as_str(), weak.as_str(), listed.as_str(), glued.as_str());
        let table: &[(&[(&str, &str)], Precondition)] = &[
            (&[], Proceed),
            (&[("If-Match", "*")], Proceed),
            (&[("If-Match", tag)], Proceed),
            (&[("If-Match", listed)], Proceed),
            (&[("If-Match", "\"a\""), ("If-Match", tag)], Proceed),
            (&[("If-Match", weak)], Failed),
            (&[("If-Match", "\"a\"")], Failed),
            (&[("If-Match", "nonsense")], Failed),
            (&[("If-Match", "")], Failed),
            (&[("If-Unmodified-Since", EARLIER)], Failed),
            (&[("If-Unmodified-Since", SAME)], Proceed),
            (&[("If-Unmodified-Since", LATER)], Proceed),
            (&[("If-Unmodified-Since", "nonsense")], Proceed),
            (&[("If-Match", tag), ("If-Unmodified-Since", EARLIER)], Proceed), // If-Match decides alone
            (&[("If-None-Match", "*")], NotModified),
            (&[("If-None-Match", tag)], NotModified),
            (&[("If-None-Match", weak)], NotModified),
            (&[("If-None-Match", listed)], NotModified),
            (&[("If-None-Match", "\"a\""), ("If-None-Match", tag)], NotModified),
            (&[("If-None-Match", "\"a\"")], Proceed),
            (&[("If-None-Match", glued)], Proceed),
            (&[("If-None-Match", &tag[..tag.len() - 1])], Proceed),
            (&[("If-None-Match", "w/\"a\"")], Proceed),
            (&[("If-Modified-Since", SAME)], NotModified),
            (&[("If-Modified-Since", LATER)], NotModified),
            (&[("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT")], NotModified),
            (&[("If-Modified-Since", EARLIER)], Proceed),
            (&[("If-Modified-Since", "nonsense")], Proceed),
            (&[("If-Modified-Since", SAME), ("If-Modified-Since", SAME)], Proceed),
            (&[("If-None-Match", "\"a\""), ("If-Modified-Since", SAME)], Proceed), // If-None-Match decides alone
            (&[("If-Match", "\"a\""), ("If-None-Match", tag)], Failed),
            (&[("If-Match", tag), ("If-None-Match", tag)], NotModified),
            (&[("If-Unmodified-Since", LATER), ("If-Modified-Since", SAME)], NotModified),
        ];
        for (fields, expected) in table {
            for method in ["GET", "HEAD"] {
                let found = with_head(method, fields, |head| evaluate(head, &validators()));
                assert_eq!(found, *expected, "{method} {fields:?}");
            }
        }
    }

    #[test]
    fn nothing_is_not_modified_for_a_method_that_does_not_read() {
        let found = |fields: &[(&str, &str)]| with_head("PUT", fields, |head| evaluate(head, &validators()));
        assert_eq!(found(&[("If-None-Match", "*")]), Failed);
        assert_eq!(found(&[("If-Modified-Since", SAME)]), Proceed);
    }

    #[test]
    fn a_part_is_joined_only_to_the_very_same_version() {
        let tag = tag();
        let weak = format!("W/{tag}");
        let now = MTIME as u64 + 1;
        let table: &[(&[(&str, &str)], u64, bool)] = &[
            (&[], now, true),
            (&[("If-Range", &tag)], now, true),
            (&[("If-Range", &tag)], 0, true),
            (&[("If-Range", &weak)], now, false),
            (&[("If-Range", "\"a\"")], now, false),
            (&[("If-Range", "*")], now, false),
            (&[("If-Range", "")], now, false),
            (&[("If-Range", SAME)], now, true),
            (&[("If-Range", "Sun Nov  6 08:49:37 1994")], now, true),
            (&[("If-Range", SAME)], now - 1, false), // written within this second: may change again
            (&[("If-Range", LATER)], now + 9, false),
            (&[("If-Range", EARLIER)], now + 9, false),
            (&[("If-Range", &tag), ("If-Range", &tag)], now, false),
        ];
        for (fields, now, expected) in table {
            let found = with_head("GET", fields, |head| if_range_holds(head, &validators(), *now));
            assert_eq!(found, *expected, "{fields:?} at {now}");
        }
    }

    proptest! {
        #[test]
        fn any_file_has_a_tag_that_finds_itself_in_a_list(len in any::<u64>(), secs in any::<i64>(), nanos in any::<u32>(), list in "[\"W/,a ]{0,20}") {
            let validators = Validators::new(len, secs, nanos);
            let etag = validators.etag();
            let mut lines = Lines::default();
            prop_assert!(lines.push(etag));
            prop_assert!(any_tag(&lines, Some(etag), Comparison::Strong));
            prop_assert!(!tag_in_list(list.as_bytes(), etag, Comparison::Weak));
        }
    }
}
