//! Content-Type by file extension, with a charset where text would be guessed wrongly without one.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The type of a file name, or `default` where its extension says nothing.
pub fn of(name: &[u8], default: &str) -> Vec<u8> {
    let path = Path::new(std::ffi::OsStr::from_bytes(name));
    let extension = path.extension().and_then(|extension| extension.to_str());
    let Some(guess) = extension.and_then(|extension| mime_guess::from_ext(extension).first_raw()) else {
        return default.as_bytes().to_vec();
    };
    let textual =
        guess.starts_with("text/") || matches!(guess, "application/javascript" | "application/xml" | "image/svg+xml");
    if textual { format!("{guess}; charset=utf-8").into_bytes() } else { guess.as_bytes().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let rows: &[(&[u8], &str)] = &[
            (b"index.html", "text/html; charset=utf-8"),
            (b"a/b.CSS", "text/css; charset=utf-8"),
            (b"x.js", "text/javascript; charset=utf-8"),
            (b"x.svg", "image/svg+xml; charset=utf-8"),
            (b"x.json", "application/json"),
            (b"x.png", "image/png"),
            (b"x.mp4", "video/mp4"),
            (b"x.wasm", "application/wasm"),
            (b"README", "application/octet-stream"),
            (b"x.\xff", "application/octet-stream"),
            (b".html", "application/octet-stream"),
        ];
        for (name, want) in rows {
            assert_eq!(String::from_utf8_lossy(&of(name, "application/octet-stream")), *want, "{:?}", name);
        }
    }
}
