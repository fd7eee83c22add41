//! Response heads, written into the caller's buffer without formatting machinery.
//!
//! Apart because what is on the wire is decided here and nowhere else: which field goes with which status, and in
//! which order. Imports only the layer's own types.
//!
//! Invariant: a head ends with one empty line and states the length of its body, once; no value can break a line.

use std::ops::Range;

use super::Status;
use super::head::Version;
use super::validator::Validators;

/// A reply about a file that exists.
///
/// The reply to HEAD is the same head with nothing after it.
#[derive(Clone, Debug)]
pub struct FileHead<'a> {
    /// 200, 206 or 304.
    pub status: Status,
    /// The length of the whole file.
    pub len: u64,
    /// The part that is sent: with 206 and only then.
    pub part: Option<Range<u64>>,
    /// Content-Type.
    pub content_type: &'a [u8],
    /// ETag and Last-Modified.
    pub validators: &'a Validators,
    /// Cache-Control, if configured.
    pub cache_control: Option<&'a [u8]>,
    /// Whether the connection lasts.
    pub keep_alive: bool,
    /// The version of the request.
    pub version: Version,
    /// Date, as an IMF-fixdate.
    pub date: &'a [u8; 29],
}

/// Appends the head of a reply about a file. `content_type` and `cache_control` come from the configuration, which has
/// checked that they are field values.
pub fn write_file_head(out: &mut Vec<u8>, head: &FileHead<'_>) {
    debug_assert_eq!(head.status == Status::PARTIAL_CONTENT, head.part.is_some(), "a part goes with 206");
    // Fixed text, two validators, two numbers and a date stay below this without the two values.
    out.reserve(448 + head.content_type.len() + head.cache_control.map_or(0, <[u8]>::len));
    write_start(out, head.status, head.date);
    if head.status != Status::NOT_MODIFIED {
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(head.content_type);
        out.extend_from_slice(b"\r\nContent-Length: ");
        match &head.part {
            None => write_number(out, head.len),
            Some(part) => {
                write_number(out, part.end - part.start);
                out.extend_from_slice(b"\r\nContent-Range: bytes ");
                write_number(out, part.start);
                out.push(b'-');
                // A part is never empty.
                write_number(out, part.end - 1);
                out.push(b'/');
                write_number(out, head.len);
            }
        }
        out.extend_from_slice(b"\r\nAccept-Ranges: bytes");
    }
    out.extend_from_slice(b"\r\nLast-Modified: ");
    out.extend_from_slice(head.validators.last_modified());
    out.extend_from_slice(b"\r\nETag: ");
    out.extend_from_slice(head.validators.etag());
    if let Some(cache_control) = head.cache_control {
        out.extend_from_slice(b"\r\nCache-Control: ");
        out.extend_from_slice(cache_control);
    }
    write_end(out, head.keep_alive, head.version);
}

/// Appends a reply that is not about a file's content: a short text of its own, `detail` on its second line.
///
/// `extra` are fields that go with the status (Allow, Content-Range, Location, Retry-After). With `body` false the head
/// is the same and nothing follows it, as HEAD wants it.
#[allow(clippy::too_many_arguments)] // each is one fact of the reply, and a struct would only rename them
pub fn write_error(
    out: &mut Vec<u8>,
    status: Status,
    detail: &str,
    extra: &[(&str, &[u8])],
    keep_alive: bool,
    version: Version,
    date: &[u8; 29],
    body: bool,
) {
    let reason = status.reason();
    let detail_len = if detail.is_empty() { 0 } else { detail.len() + 1 };
    out.reserve(320 + detail_len + extra.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>());
    write_start(out, status, date);
    out.extend_from_slice(b"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ");
    // "404 Not Found\n" and the detail with its own line end.
    write_number(out, (3 + 1 + reason.len() + 1 + detail_len) as u64);
    for (name, value) in extra {
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        // A value that could end its line would be a second field of somebody else's choice.
        out.extend(value.iter().map(|&byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { byte }));
    }
    write_end(out, keep_alive, version);
    if body {
        write_code(out, status);
        out.push(b' ');
        out.extend_from_slice(reason.as_bytes());
        out.push(b'\n');
        if !detail.is_empty() {
            out.extend_from_slice(detail.as_bytes());
            out.push(b'\n');
        }
    }
}

/// Begins a reply whose fields come from elsewhere (an origin, the cache): its status line. Fields follow by
/// [`super::headers::write_field`], then an empty line.
pub fn write_status_line(out: &mut Vec<u8>, status: Status) {
    out.extend_from_slice(b"HTTP/1.1 ");
    write_code(out, status);
    out.push(b' ');
    out.extend_from_slice(status.reason().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the 416 of a file of `len` bytes, with its Content-Range (RFC 9110 section 15.5.17).
pub fn write_range_error(out: &mut Vec<u8>, len: u64, keep_alive: bool, version: Version, date: &[u8; 29], body: bool) {
    let mut value = [0; 28];
    let mut number = itoa::Buffer::new();
    let digits = number.format(len).as_bytes();
    value[..8].copy_from_slice(b"bytes */");
    value[8..8 + digits.len()].copy_from_slice(digits);
    let extra = [("Content-Range", &value[..8 + digits.len()])];
    write_error(out, Status::RANGE_NOT_SATISFIABLE, "", &extra, keep_alive, version, date, body);
}

/// The status line, Server and Date without its line end. The version is ours, not the client's (RFC 9110 section 2.5).
#[inline]
fn write_start(out: &mut Vec<u8>, status: Status, date: &[u8; 29]) {
    match status.0 {
        200 => out.extend_from_slice(b"HTTP/1.1 200 OK\r\nServer: ringway\r\nDate: "),
        206 => out.extend_from_slice(b"HTTP/1.1 206 Partial Content\r\nServer: ringway\r\nDate: "),
        _ => {
            out.extend_from_slice(b"HTTP/1.1 ");
            write_code(out, status);
            out.push(b' ');
            out.extend_from_slice(status.reason().as_bytes());
            out.extend_from_slice(b"\r\nServer: ringway\r\nDate: ");
        }
    }
    out.extend_from_slice(date);
}

/// Connection, where the version's default does not say it, and the empty line.
#[inline]
fn write_end(out: &mut Vec<u8>, keep_alive: bool, version: Version) {
    out.extend_from_slice(match (keep_alive, version) {
        (false, _) => b"\r\nConnection: close\r\n\r\n".as_slice(),
        (true, Version::Http10) => b"\r\nConnection: keep-alive\r\n\r\n",
        (true, Version::Http11) => b"\r\n\r\n",
    });
}

/// Three digits, whatever the number.
fn write_code(out: &mut Vec<u8>, status: Status) {
    out.extend([status.0 / 100 % 10, status.0 / 10 % 10, status.0 % 10].map(|digit| b'0' + digit as u8));
}

#[inline]
fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn file_head(status: Status, part: Option<Range<u64>>, keep_alive: bool, version: Version) -> String {
        let validators = Validators::new(1000, 0, 1);
        let mut out = Vec::new();
        write_file_head(
            &mut out,
            &FileHead {
                status,
                len: 1000,
                part,
                content_type: b"text/plain",
                validators: &validators,
                cache_control: Some(b"max-age=60"),
                keep_alive,
                version,
                date: DATE,
            },
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_whole_file_has_exactly_these_fields() {
        assert_eq!(
            file_head(Status::OK, None, true, Version::Http11),
            "HTTP/1.1 200 OK\r\nServer: ringway\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: text/plain\r\n\
             Content-Length: 1000\r\nAccept-Ranges: bytes\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
             ETag: \"1-3e8\"\r\nCache-Control: max-age=60\r\n\r\n"
        );
    }

    #[test]
    fn a_part_has_its_own_length_and_one_content_range() {
        let head = file_head(Status::PARTIAL_CONTENT, Some(10..20), true, Version::Http11);
        assert!(head.starts_with("HTTP/1.1 206 Partial Content\r\n"));
        assert!(head.contains("\r\nContent-Length: 10\r\nContent-Range: bytes 10-19/1000\r\n"));
        assert_eq!(head.matches("Content-Range").count(), 1);
    }

    #[test]
    fn not_modified_tells_the_validators_and_no_length() {
        let head = file_head(Status::NOT_MODIFIED, None, true, Version::Http11);
        assert_eq!(
            head,
            "HTTP/1.1 304 Not Modified\r\nServer: ringway\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nETag: \"1-3e8\"\r\nCache-Control: max-age=60\r\n\r\n"
        );
    }

    #[test]
    fn connection_is_said_only_where_the_version_does_not_say_it() {
        let table = [
            (true, Version::Http11, None),
            (false, Version::Http11, Some("close")),
            (true, Version::Http10, Some("keep-alive")),
            (false, Version::Http10, Some("close")),
        ];
        for (keep_alive, version, expected) in table {
            let head = file_head(Status::OK, None, keep_alive, version);
            let found = head.lines().find_map(|line| line.strip_prefix("Connection: "));
            assert_eq!(found, expected, "{keep_alive} {version:?}");
            assert!(head.ends_with("\r\n\r\n"));
        }
    }

    fn error(status: Status, detail: &str, extra: &[(&str, &[u8])], body: bool) -> String {
        let mut out = Vec::new();
        write_error(&mut out, status, detail, extra, false, Version::Http11, DATE, body);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_length_of_an_error_is_the_length_of_its_body() {
        for code in [301, 400, 404, 431, 505] {
            for detail in ["", "no such file"] {
                let reply = error(Status(code), detail, &[], true);
                let (head, body) = reply.split_once("\r\n\r\n").unwrap();
                let length: usize =
                    head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
                assert_eq!(length, body.len(), "{code} {detail}");
                assert!(body.starts_with(&format!("{code} {}\n", Status(code).reason())));
                assert_eq!(
                    error(Status(code), detail, &[], false),
                    format!("{head}\r\n\r\n"),
                    "HEAD is GET without its body"
                );
            }
        }
    }

    #[test]
    fn a_value_cannot_end_its_line() {
        let reply = error(Status::MOVED_PERMANENTLY, "", &[("Location", b"/a\r\nX: y\0")], false);
        assert!(reply.contains("\r\nLocation: /a  X: y \r\n"));
    }

    #[test]
    fn an_unsatisfiable_range_is_told_the_length_there_is() {
        for len in [0, 1000, u64::MAX] {
            let mut out = Vec::new();
            write_range_error(&mut out, len, true, Version::Http11, DATE, true);
            let reply = String::from_utf8(out).unwrap();
            assert!(reply.starts_with("HTTP/1.1 416 Range Not Satisfiable\r\n"));
            assert!(reply.contains(&format!("\r\nContent-Range: bytes */{len}\r\n")));
        }
    }
}
