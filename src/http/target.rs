//! Request target to path (RFC 9112 3.2, RFC 3986 5.2.4): decoded exactly once, no dot segments left.

use super::Refusal;

/// A decoded path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// Begins with `/`, has no `.`, `..` or empty segment; bytes, not necessarily UTF-8.
    pub path: &'a [u8],
    /// It names a directory.
    pub trailing_slash: bool,
}

const BAD: Refusal = Refusal::new(400, "the path is malformed");

/// Decodes a target into `out`. Refused with 400: no leading `/`, bad escapes, NUL, `..` in any spelling (a client
/// resolves it before it asks; nothing else needs it), and `%2f` (it is no separator and no file name has it).
pub fn decode_path<'a>(target: &[u8], out: &'a mut Vec<u8>) -> Result<Target<'a>, Refusal> {
    out.clear();
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let raw = target[..end].strip_prefix(b"/").ok_or(BAD)?;
    let mut segments = raw.split(|byte| *byte == b'/').peekable();
    let mut trailing_slash = true;
    while let Some(segment) = segments.next() {
        if segment.is_empty() {
            continue;
        }
        let start = out.len();
        out.push(b'/');
        if segment.contains(&b'%') {
            decode_segment(segment, out)?;
        } else {
            out.extend_from_slice(segment);
        }
        match &out[start + 1..] {
            b".." => return Err(BAD),
            b"." => out.truncate(start),
            name if name.contains(&0) => return Err(BAD),
            _ => trailing_slash = segments.peek().is_some(),
        }
        if out.len() == start {
            trailing_slash = true;
        }
    }
    if trailing_slash {
        out.push(b'/');
    }
    Ok(Target { path: out, trailing_slash })
}

fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut bytes = segment.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| (*byte as char).to_digit(16)).ok_or(BAD);
        let decoded = (digit()? << 4 | digit()?) as u8;
        if decoded == 0 || decoded == b'/' {
            return Err(BAD);
        }
        out.push(decoded);
    }
    Ok(())
}

/// The Location of a directory asked for without its slash: the same path with one, before the query.
///
/// Leading slashes are folded into one, or the answer would name another host (`//evil.example`).
pub fn write_redirect_location(out: &mut Vec<u8>, raw_target: &[u8]) {
    let end = raw_target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(raw_target.len());
    let (path, rest) = raw_target.split_at(end);
    let start = path.iter().position(|byte| !matches!(byte, b'/' | b'\\')).unwrap_or(path.len());
    let query = match rest.iter().position(|byte| *byte == b'#') {
        Some(fragment) => &rest[..fragment],
        None => rest,
    };
    out.push(b'/');
    for (bytes, slash) in [(&path[start..], start < path.len()), (query, false)] {
        for byte in bytes {
            if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\') {
                out.push(*byte);
            } else {
                let hex = b"0123456789ABCDEF";
                out.extend_from_slice(&[b'%', hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]]);
            }
        }
        if slash {
            out.push(b'/');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table() {
        let rows: &[(&str, Option<&[u8]>)] = &[
            ("/", Some(b"/")),
            ("/a", Some(b"/a")),
            ("/a/", Some(b"/a/")),
            ("/a?b=/../", Some(b"/a")),
            ("/a//b", Some(b"/a/b")),
            ("//a", Some(b"/a")),
            ("/a/./b", Some(b"/a/b")),
            ("/a/.", Some(b"/a/")),
            ("/.", Some(b"/")),
            ("/%41", Some(b"/A")),
            ("/%2541", Some(b"/%41")),
            ("/%ff", Some(b"/\xff")),
            ("/a%5cb", Some(b"/a\\b")),
            ("/...", Some(b"/...")),
            ("/a%20b", Some(b"/a b")),
            ("/..", None),
            ("/a/../b", None),
            ("/%2e%2e/b", None),
            ("/.%2e", None),
            ("/a%2fb", None),
            ("/..%2fb", None),
            ("/%00", None),
            ("/%", None),
            ("/%4", None),
            ("/%zz", None),
            ("a", None),
            ("", None),
        ];
        for (target, want) in rows {
            let mut out = Vec::new();
            let got = decode_path(target.as_bytes(), &mut out).ok().map(|target| target.path.to_vec());
            assert_eq!(got.as_deref(), *want, "{target}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_the_host() {
        let rows = [
            ("/a", "/a/"),
            ("/a?b", "/a/?b"),
            ("//evil.example/x", "/evil.example/x/"),
            ("/\\evil.example", "/evil.example/"),
            ("/%0d%0aSet-Cookie:x", "/%0d%0aSet-Cookie:x/"),
            ("/a#b", "/a/"),
            ("/\u{e9}", "/%C3%A9/"),
        ];
        for (target, want) in rows {
            let mut out = Vec::new();
            write_redirect_location(&mut out, target.as_bytes());
            assert_eq!(String::from_utf8_lossy(&out), want, "{target}");
        }
    }

    proptest! {
        #[test]
        fn nothing_dangerous_comes_out(target in "/[a.%2e/f0?\\\\-]{0,30}") {
            let mut out = Vec::new();
            if let Ok(target) = decode_path(target.as_bytes(), &mut out) {
                prop_assert!(target.path.starts_with(b"/") && !target.path.contains(&0));
                prop_assert_eq!(target.trailing_slash, target.path.ends_with(b"/"));
                for segment in target.path[1..].split(|byte| *byte == b'/') {
                    prop_assert!(segment != b".." && segment != b".");
                }
                prop_assert!(!target.path.windows(2).any(|pair| pair == b"//"));
            }
        }

        #[test]
        fn no_bytes_panic(target in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut out = Vec::new();
            let _ = decode_path(&target, &mut out);
            let mut location = Vec::new();
            write_redirect_location(&mut location, &target);
            prop_assert!(location.iter().all(u8::is_ascii_graphic) && !location.starts_with(b"//"));
        }
    }
}
