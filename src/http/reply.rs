//! Response heads, written into a caller's buffer without allocating.

use super::Status;
use super::head::Version;
use super::validator::Validators;
use std::ops::Range;

/// What the head of a file's answer needs.
#[derive(Clone, Debug)]
pub struct FileHead<'a> {
    /// 200, 206 or 304.
    pub status: Status,
    /// Bytes of the whole file.
    pub len: u64,
    /// The part, on a 206.
    pub part: Option<Range<u64>>,
    /// Content-Type.
    pub content_type: &'a [u8],
    /// ETag and Last-Modified.
    pub validators: &'a Validators,
    /// Cache-Control, if any.
    pub cache_control: Option<&'a [u8]>,
    /// The connection goes on.
    pub keep_alive: bool,
    /// The request's version.
    pub version: Version,
    /// The Date.
    pub date: &'a [u8; 29],
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn start(out: &mut Vec<u8>, status: Status, date: &[u8; 29]) {
    match status.0 {
        200 => out.extend_from_slice(b"HTTP/1.1 200 OK\r\nServer: ringway\r\nDate: "),
        code => {
            out.extend_from_slice(b"HTTP/1.1 ");
            number(out, u64::from(code));
            out.push(b' ');
            out.extend_from_slice(status.reason().as_bytes());
            out.extend_from_slice(b"\r\nServer: ringway\r\nDate: ");
        }
    }
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n");
}

fn end(out: &mut Vec<u8>, keep_alive: bool, version: Version) {
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n\r\n"),
        // RFC 9112 C.2.2: a 1.0 client that asked must be told.
        (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n\r\n"),
        (true, Version::Http11) => out.extend_from_slice(b"\r\n"),
    }
}

/// Appends the head of a file's answer; a 304 has no Content-Length (RFC 9110 8.6 allows none that would differ).
pub fn write_file_head(out: &mut Vec<u8>, head: &FileHead<'_>) {
    start(out, head.status, head.date);
    if head.status.0 != 304 {
        let length = head.part.as_ref().map_or(head.len, |part| part.end - part.start);
        out.extend_from_slice(b"Content-Length: ");
        number(out, length);
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(head.content_type);
        out.extend_from_slice(b"\r\nAccept-Ranges: bytes\r\n");
    }
    if let Some(part) = &head.part {
        out.extend_from_slice(b"Content-Range: bytes ");
        number(out, part.start);
        out.push(b'-');
        number(out, part.end - 1);
        out.push(b'/');
        number(out, head.len);
        out.extend_from_slice(b"\r\n");
    }
    field(out, b"ETag", head.validators.etag());
    field(out, b"Last-Modified", head.validators.last_modified());
    if let Some(value) = head.cache_control {
        field(out, b"Cache-Control", value);
    }
    end(out, head.keep_alive, head.version);
}

/// Appends a whole short answer: status, `extra` fields, and a plain body of two lines unless it is for HEAD.
#[allow(clippy::too_many_arguments)]
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
    start(out, status, date);
    let mut code = itoa::Buffer::new();
    let parts: [&[u8]; 6] =
        [code.format(status.0).as_bytes(), b" ", status.reason().as_bytes(), b"\n", detail.as_bytes(), b"\n"];
    out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: ");
    number(out, parts.iter().map(|part| part.len() as u64).sum());
    out.extend_from_slice(b"\r\n");
    for (name, value) in extra {
        field(out, name.as_bytes(), value);
    }
    end(out, keep_alive, version);
    if body {
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(status: u16, part: Option<Range<u64>>, keep_alive: bool, version: Version) -> String {
        let validators = Validators::new(100, 784_111_777, 0);
        let mut out = Vec::new();
        write_file_head(
            &mut out,
            &FileHead {
                status: Status(status),
                len: 100,
                part,
                content_type: b"text/plain",
                validators: &validators,
                cache_control: Some(b"max-age=5"),
                keep_alive,
                version,
                date: b"Sun, 06 Nov 1994 08:49:37 GMT",
            },
        );
        String::from_utf8(out).expect("ascii")
    }

    #[test]
    fn a_whole_file() {
        assert_eq!(
            file(200, None, true, Version::Http11),
            "HTTP/1.1 200 OK\r\nServer: ringway\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 100\r\n\
             Content-Type: text/plain\r\nAccept-Ranges: bytes\r\nETag: \"ae1b981bc490a00-64\"\r\n\
             Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nCache-Control: max-age=5\r\n\r\n"
        );
    }

    #[test]
    fn a_part_has_one_content_range_and_a_304_no_length() {
        let part = file(206, Some(10..20), false, Version::Http11);
        assert!(part.contains("Content-Length: 10\r\n") && part.contains("Content-Range: bytes 10-19/100\r\n"));
        assert!(part.contains("Connection: close\r\n"));
        let not = file(304, None, true, Version::Http10);
        assert!(!not.contains("Content-Length") && !not.contains("Content-Type"));
        assert!(not.contains("ETag: ") && not.contains("Connection: keep-alive") && not.contains("Cache-Control: "));
    }

    #[test]
    fn an_error_says_its_length_for_head_too() {
        for body in [true, false] {
            let mut out = Vec::new();
            let extra: [(&str, &[u8]); 1] = [("Allow", b"GET, HEAD")];
            write_error(&mut out, Status(405), "no", &extra, true, Version::Http11, &[b'd'; 29], body);
            let out = String::from_utf8(out).expect("ascii");
            assert!(out.contains("Content-Length: 26\r\n") && out.contains("Allow: GET, HEAD\r\n"), "{out}");
            assert_eq!(out.ends_with("405 Method Not Allowed\nno\n"), body);
        }
    }
}
