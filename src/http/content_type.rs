//! Content-Type by file name extension.
//!
//! Apart because it is a table with opinions: mime_guess knows the types, this file knows which of them are text and
//! says so, since a text type without a charset is guessed at by browsers. Asked once when a file is opened, not per
//! request. Imports nothing of ours.

use std::borrow::Cow;

/// The media type of a file called `name`, or `default` where its extension says nothing.
///
/// Text types, JavaScript, XML and SVG are declared UTF-8. JSON is not: its charset parameter has no meaning (RFC 8259
/// section 11).
pub fn of<'a>(name: &[u8], default: &'a [u8]) -> Cow<'a, [u8]> {
    let Some(extension) = extension(name) else { return Cow::Borrowed(default) };
    for (known, media_type) in COMMON {
        if extension.eq_ignore_ascii_case(known) {
            return Cow::Borrowed(media_type.as_bytes());
        }
    }
    match mime_guess::from_ext(extension).first_raw() {
        None => Cow::Borrowed(default),
        Some(media_type) if is_text(media_type) => Cow::Owned([media_type, "; charset=utf-8"].concat().into_bytes()),
        Some(media_type) => Cow::Borrowed(media_type.as_bytes()),
    }
}

/// The files of most sites, without a search or an allocation, and corrections of the larger table: `ts` is a piece of
/// an HLS stream on a file server (mime_guess has a DLNA type for it).
const COMMON: &[(&str, &str)] = &[
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("svg", "image/svg+xml; charset=utf-8"),
    ("xml", "text/xml; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("ts", "video/mp2t"),
];

/// What follows the last dot, as of a path: `.profile` has no extension.
fn extension(name: &[u8]) -> Option<&str> {
    let start = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &name[start..];
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    if dot == 0 {
        return None;
    }
    std::str::from_utf8(&name[dot + 1..]).ok()
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/")
        || matches!(
            media_type,
            "application/javascript" | "application/xml" | "application/xhtml+xml" | "image/svg+xml"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_has_its_type_and_text_its_charset() {
        let table = [
            ("index.html", "text/html; charset=utf-8"),
            ("A.HTML", "text/html; charset=utf-8"),
            ("dir.d/app.js", "text/javascript; charset=utf-8"),
            ("app.mjs", "text/javascript; charset=utf-8"),
            ("x.csv", "text/csv; charset=utf-8"),
            ("x.md", "text/markdown; charset=utf-8"),
            ("x.xhtml", "application/xhtml+xml; charset=utf-8"),
            ("logo.svg", "image/svg+xml; charset=utf-8"),
            ("data.json", "application/json"),
            ("x.wasm", "application/wasm"),
            ("x.woff2", "font/woff2"),
            ("x.mp4", "video/mp4"),
            ("x.ts", "video/mp2t"),
            ("x.tar.gz", "application/gzip"),
            ("x.nonsense", "a/b"),
            ("README", "a/b"),
            ("dir.html/README", "a/b"),
            (".html", "a/b"),
            ("x.", "a/b"),
            ("", "a/b"),
        ];
        for (name, expected) in table {
            assert_eq!(of(name.as_bytes(), b"a/b"), expected.as_bytes(), "{name}");
        }
        assert_eq!(of(b"x.\xff", b"a/b"), b"a/b".as_slice());
    }

    #[test]
    fn the_table_of_common_types_keeps_the_charset_rule() {
        for (extension, media_type) in COMMON {
            let bare = media_type.split(';').next().unwrap();
            assert_eq!(media_type.ends_with("; charset=utf-8"), is_text(bare), "{extension}");
        }
    }
}
