//! From a request target to a path: decoded once, normalised, and free of everything that could leave its root.
//!
//! Apart because it is the one place where percent escapes are undone. The kernel confines the open as well
//! (RESOLVE_BENEATH); this is the first wall, and the one that can say 400. Imports only the layer's own types.
//!
//! Invariant: a [`Target`] begins with `/`, holds no NUL, no `..`, `.` or empty segment, and each `/` in it was a `/`
//! in the request.

use super::Refusal;

/// A decoded path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// Begins with `/`; ends with `/` where the request named a directory. Any other bytes but NUL: file names need
    /// not be UTF-8.
    pub path: &'a [u8],
    /// Whether `path` ends with `/` (the root does).
    pub trailing_slash: bool,
}

/// Decodes the path of an origin-form `target` into `out`, whose content is replaced.
///
/// Query and fragment are cut off. Escapes are decoded exactly once: `%2541` is the name `%41`. Empty and `.` segments
/// vanish. Refused with 400: a target that does not begin with `/`, a broken escape, NUL, a `..` segment in any
/// spelling (a client resolves them itself, RFC 3986 section 5.2.4; one that arrives was sent on purpose), and an
/// escaped `/`, which would name a file no path can. A backslash is an ordinary byte of a name here.
pub fn decode_path<'a>(target: &[u8], out: &'a mut Vec<u8>) -> Result<Target<'a>, Refusal> {
    decode(target, out, false)
}

/// The same for a name that somebody else looks up: an escaped slash stays escaped, since to an origin it may be part
/// of a name. Only for choosing a route; what is sent on is [`below`].
pub fn decode_path_keeping_slashes<'a>(target: &[u8], out: &'a mut Vec<u8>) -> Result<Target<'a>, Refusal> {
    decode(target, out, true)?;
    // An origin may undo the escape, or take a backslash for a slash: then this would be a parent segment.
    let mut rest = out.as_slice();
    while let Some(at) = rest.windows(2).position(|two| two == b"..") {
        let before = &out[..out.len() - rest.len() + at];
        let after = &rest[at + 2..];
        let opens = before.is_empty() || before.ends_with(b"/") || before.ends_with(b"\\") || before.ends_with(b"%2F");
        let closes =
            after.is_empty() || after.starts_with(b"/") || after.starts_with(b"\\") || after.starts_with(b"%2F");
        if opens && closes {
            return Err(PARENT);
        }
        rest = &rest[at + 1..];
    }
    Ok(Target { trailing_slash: out.last() == Some(&b'/'), path: out })
}

/// What of the raw `target` is behind the first `cut` bytes of its decoded `path`, query included, as it was sent; it
/// begins with `/`. Where the path was normalised on the way, the rest of `path` is escaped anew.
pub fn below(target: &[u8], path: &[u8], cut: usize) -> Vec<u8> {
    let target = target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let split = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let (raw, query) = target.split_at(split);
    let (mut rest, mut at, mut from) = (raw, 0, None);
    loop {
        if at == cut {
            from = Some(rest);
        }
        let Some(want) = path.get(at) else { break };
        // An escaped slash stands in both as an escape.
        if let ([b'%', b'2', b'f' | b'F', after @ ..], [b'%', b'2', b'F', ..]) = (rest, &path[at..]) {
            (rest, at) = (after, at + 3);
            continue;
        }
        let byte = match rest {
            [b'%', after @ ..] => escape(after),
            [byte, after @ ..] => Some((*byte, after)),
            [] => None,
        };
        match byte.filter(|(byte, _)| byte == want) {
            Some((_, after)) => (rest, at) = (after, at + 1),
            None => {
                from = None;
                break;
            }
        }
    }
    let mut out = Vec::with_capacity(target.len());
    match from {
        Some(from) => out.extend_from_slice(from),
        None => {
            out.extend(percent_encoding::percent_encode(&path[cut.min(path.len())..], PATH).collect::<String>().bytes())
        }
    }
    if out.first() != Some(&b'/') {
        out.insert(0, b'/');
    }
    out.extend_from_slice(query);
    out
}

/// What a path segment holds as it is (RFC 3986 section 3.3), and the percent sign of an escape that was kept.
const PATH: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

fn decode<'a>(target: &[u8], out: &'a mut Vec<u8>, keep_slashes: bool) -> Result<Target<'a>, Refusal> {
    out.clear();
    if target.first() != Some(&b'/') {
        return Err(Refusal::bad("request target does not begin with a slash"));
    }
    // Nothing grows in decoding, so this is the only allocation a fresh `out` can see.
    out.reserve(target.len());
    let mut rest = target;
    // `out` always ends with the slash before the segment being read.
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let byte = match byte {
            b'?' | b'#' => break,
            b'/' => {
                close_segment(out)?;
                continue;
            }
            b'%' => {
                let (decoded, after) = escape(rest).ok_or(Refusal::bad("malformed percent escape"))?;
                rest = after;
                if decoded == b'/' && keep_slashes {
                    out.extend_from_slice(b"%2F");
                    continue;
                }
                if decoded == b'/' {
                    return Err(Refusal::bad("escaped slash in the request target"));
                }
                decoded
            }
            _ => byte,
        };
        if byte == 0 {
            return Err(Refusal::bad("NUL in the request target"));
        }
        out.push(byte);
    }
    // The last segment stays as it is unless it is `.` or `..`.
    match last_segment(out) {
        b"." => {
            out.pop();
        }
        b".." => return Err(PARENT),
        _ => {}
    }
    let trailing_slash = out.last() == Some(&b'/');
    Ok(Target { path: out, trailing_slash })
}

/// Writes the Location of a directory that was asked for without its slash: the path as it was sent with `/` added
/// before the query.
///
/// The result begins with exactly one slash, so that it can never name another host, and bytes that have no place in a
/// URI are percent-encoded: the backslash too, which browsers take for a slash. Escapes already there are kept.
pub fn write_redirect_location(out: &mut Vec<u8>, raw_target: &[u8]) {
    let end = raw_target.iter().position(|&byte| byte == b'#').unwrap_or(raw_target.len());
    let raw_target = &raw_target[..end];
    let split = raw_target.iter().position(|&byte| byte == b'?').unwrap_or(raw_target.len());
    let (path, query) = raw_target.split_at(split);
    let name = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    out.push(b'/');
    write_encoded(out, &path[name..]);
    if out.last() != Some(&b'/') {
        out.push(b'/');
    }
    write_encoded(out, query);
}

const PARENT: Refusal = Refusal::bad("parent segment in the request target");

/// A slash came: ends the segment at the end of `out`, if there is one.
#[inline]
fn close_segment(out: &mut Vec<u8>) -> Result<(), Refusal> {
    match out.as_slice() {
        [] => out.push(b'/'),
        [.., b'/'] => {}
        [.., b'/', b'.'] => {
            out.pop();
        }
        [.., b'/', b'.', b'.'] => return Err(PARENT),
        _ => out.push(b'/'),
    }
    Ok(())
}

fn last_segment(path: &[u8]) -> &[u8] {
    match path {
        [.., b'/', b'.'] => b".",
        [.., b'/', b'.', b'.'] => b"..",
        _ => b"",
    }
}

/// Two hex digits at the start of `bytes`: their value and what follows.
fn escape(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, rest @ ..] = bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some(((digit(*high)? << 4 | digit(*low)?) as u8, rest))
}

fn write_encoded(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        // pchar, `/` and `?` of RFC 3986, and `%`, whose escapes were checked when the path was decoded.
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(percent_encoding::percent_encode_byte(byte).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_a_parent_segment_reaches_an_origin() {
        for target in ["/a/..%2fb", "/a%2f..", "/a%2F..%2Fb", "/..%5cb", "/a\\..", "/%2e%2e%2fb", "/../b"] {
            let mut out = Vec::new();
            assert_eq!(decode_path_keeping_slashes(target.as_bytes(), &mut out), Err(PARENT), "{target}");
        }
        for target in ["/a..b", "/..a", "/a..", "/...", "/a%2f..b"] {
            let mut out = Vec::new();
            assert!(decode_path_keeping_slashes(target.as_bytes(), &mut out).is_ok(), "{target}");
        }
    }

    #[test]
    fn what_is_sent_on_is_what_was_sent() {
        let rows: &[(&str, usize, &str)] = &[
            ("/a/b?c=d", 0, "/a/b?c=d"),
            ("/a/b?c=%2f", 2, "/b?c=%2f"),
            ("/%61/%62%20c", 2, "/%62%20c"),
            ("/a/x%2Fy%2fz", 2, "/x%2Fy%2fz"),
            ("/a/./b c", 2, "/b%20c"),
            ("/a//b%20c?q", 2, "/b%20c?q"),
            ("/a/%25", 2, "/%25"),
            ("/a/b#f", 2, "/b"),
            ("/a/", 2, "/"),
        ];
        for (target, cut, want) in rows {
            let mut out = Vec::new();
            let path = decode_path_keeping_slashes(target.as_bytes(), &mut out).expect(target).path;
            assert_eq!(String::from_utf8_lossy(&below(target.as_bytes(), path, *cut)), *want, "{target}");
        }
    }
    use proptest::prelude::*;

    fn decoded(target: &[u8]) -> Result<Vec<u8>, u16> {
        let mut out = b"left over".to_vec();
        decode_path(target, &mut out).map(|target| target.path.to_vec()).map_err(|refusal| refusal.status.0)
    }

    #[test]
    fn a_path_is_decoded_once_and_normalised() {
        let table: &[(&[u8], &[u8])] = &[
            (b"/", b"/"),
            (b"/a/b.html", b"/a/b.html"),
            (b"/a?b=/../c", b"/a"),
            (b"/a#b", b"/a"),
            (b"/?x", b"/"),
            (b"/a%20b", b"/a b"),
            (b"/a+b", b"/a+b"),
            (b"/%41%4a%4A", b"/AJJ"),
            (b"/%2541", b"/%41"),
            (b"/%252e%252e/x", b"/%2e%2e/x"),
            (b"/a%3Fb", b"/a?b"),
            (b"/a%23b", b"/a#b"),
            (b"//a///b//", b"/a/b/"),
            (b"//", b"/"),
            (b"/./a/./b", b"/a/b"),
            (b"/a/.", b"/a/"),
            (b"/a/%2e", b"/a/"),
            (b"/.", b"/"),
            (b"/%2E/", b"/"),
            (b"/.../a", b"/.../a"),
            (b"/..a/b..", b"/..a/b.."),
            (b"/.git", b"/.git"),
            (b"/a.", b"/a."),
            (b"/a../b", b"/a../b"),
            (b"/%ff\xfe", b"/\xff\xfe"),
            (b"/a\\b%5Cc", b"/a\\b\\c"),
            (b"/..\\a", b"/..\\a"),
            (b"/%0d%0a", b"/\r\n"),
        ];
        for (target, path) in table {
            assert_eq!(decoded(target).as_deref(), Ok(*path), "{:?}", String::from_utf8_lossy(target));
        }
    }

    #[test]
    fn a_path_that_could_leave_its_root_or_lie_about_it_is_refused() {
        let table: &[&[u8]] = &[
            b"",
            b"a",
            b"*",
            b"?/",
            b"/..",
            b"/../",
            b"/a/../b",
            b"/a/..",
            b"/%2e%2e/a",
            b"/.%2e/a",
            b"/%2E./a",
            b"/a/%2e%2E",
            b"/./..",
            b"//..",
            b"/..?x",
            b"/..#x",
            b"/a%2fb",
            b"/%2Fetc",
            b"/..%2fetc",
            b"/%",
            b"/%4",
            b"/%4g",
            b"/%g4",
            b"/%%41",
            b"/%?41",
            b"/%+1",
            b"/%00",
            b"/a%00.html",
            b"/a\0",
        ];
        for target in table {
            assert_eq!(decoded(target), Err(400), "{:?}", String::from_utf8_lossy(target));
        }
    }

    #[test]
    fn a_trailing_slash_is_told_and_kept() {
        let mut out = Vec::new();
        for (target, slash) in
            [("/", true), ("/a", false), ("/a/", true), ("/a//", true), ("/a/.", true), ("/a/?b", true)]
        {
            assert_eq!(decode_path(target.as_bytes(), &mut out).unwrap().trailing_slash, slash, "{target}");
        }
    }

    fn location(target: &[u8]) -> String {
        let mut out = Vec::new();
        write_redirect_location(&mut out, target);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_redirect_adds_the_slash_before_the_query_and_stays_on_this_host() {
        let table: &[(&[u8], &str)] = &[
            (b"/a", "/a/"),
            (b"/a?b=c?d", "/a/?b=c?d"),
            (b"/a#f", "/a/"),
            (b"/a%20b", "/a%20b/"),
            (b"//evil.com", "/evil.com/"),
            (b"///evil.com?x", "/evil.com/?x"),
            (b"/\\evil.com", "/%5Cevil.com/"),
            (b"/\t/evil.com", "/%09/evil.com/"),
            (b"/a\r\nSet-Cookie: x", "/a%0D%0ASet-Cookie:%20x/"),
            (b"/a?\r\nX", "/a/?%0D%0AX"),
            (b"/\xff\"<>", "/%FF%22%3C%3E/"),
            (b"", "/"),
            (b"//", "/"),
            (b"/a/", "/a/"),
        ];
        for (target, expected) in table {
            assert_eq!(location(target), *expected, "{:?}", String::from_utf8_lossy(target));
        }
    }

    fn targets() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("/"),
            Just("."),
            Just(".."),
            Just("%2e"),
            Just("%2E"),
            Just("%2f"),
            Just("%5c"),
            Just("\\"),
            Just("%00"),
            Just("%25"),
            Just("a"),
            Just("%"),
            Just("?"),
            Just("#"),
            Just("%ff"),
            Just("//"),
        ];
        prop::collection::vec(piece, 0..12)
            .prop_map(|pieces| [&["/"], pieces.as_slice()].concat().concat().into_bytes())
    }

    fn is_safe(target: &[u8]) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        if let Ok(Target { path, trailing_slash }) = decode_path(target, &mut out) {
            prop_assert_eq!(path.first(), Some(&b'/'));
            prop_assert_eq!(path.last() == Some(&b'/'), trailing_slash);
            prop_assert!(!path.contains(&0));
            let inner = path[1..].strip_suffix(b"/").unwrap_or(&path[1..]);
            for segment in inner.split(|&byte| byte == b'/').filter(|_| !inner.is_empty()) {
                prop_assert!(!matches!(segment, b"" | b"." | b".."), "{:?}", path);
            }
            // No slash came out of an escape.
            let raw = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap();
            let slashes = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'/').count();
            prop_assert!(slashes(path) <= slashes(raw));
            let escaped = raw.to_ascii_lowercase().windows(3).any(|bytes| bytes == b"%2f");
            prop_assert!(!escaped, "an escaped slash is refused");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_decoded_path_never_leaves_its_root(target in targets()) {
            is_safe(&target)?;
        }

        #[test]
        fn no_bytes_panic_the_decoder(target in prop::collection::vec(any::<u8>(), 0..64)) {
            is_safe(&target)?;
            is_safe(&[b"/", target.as_slice()].concat())?;
        }

        #[test]
        fn a_location_is_one_line_of_visible_ascii_on_this_host(target in prop::collection::vec(any::<u8>(), 0..64)) {
            let location = location(&target);
            prop_assert!(location.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\'));
            prop_assert!(location.starts_with('/') && !location.starts_with("//"));
        }
    }
}
