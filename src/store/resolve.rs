//! Pure: a decoded path to the names to try under a root.

use std::ffi::CString;

/// The path relative to the root, as openat2(2) takes it; an error only for a NUL, which decoding refused before.
pub fn relative(path: &[u8]) -> Result<CString, std::ffi::NulError> {
    let name = path.strip_prefix(b"/").unwrap_or(path);
    CString::new(if name.is_empty() { b"." } else { name })
}

/// The names to try, in order: the file itself, or each index file of a directory.
pub fn candidates<'a>(path: &'a [u8], index: &'a [String]) -> impl Iterator<Item = CString> + 'a {
    let directory = path.ends_with(b"/");
    let own = (!directory).then(|| relative(path).ok()).flatten();
    let indexes = index.iter().filter(move |_| directory).filter_map(move |name| {
        let mut full = path.to_vec();
        full.extend_from_slice(name.as_bytes());
        relative(&full).ok()
    });
    own.into_iter().chain(indexes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let index = ["index.html".to_owned(), "index.txt".to_owned()];
        let rows: &[(&[u8], &[&[u8]])] = &[
            (b"/", &[b"index.html", b"index.txt"]),
            (b"/a/", &[b"a/index.html", b"a/index.txt"]),
            (b"/a/b.txt", &[b"a/b.txt"]),
            (b"/\xff", &[b"\xff"]),
        ];
        for (path, names) in rows {
            let found: Vec<_> = candidates(path, &index).map(CString::into_bytes).collect();
            assert_eq!(found, *names, "{}", String::from_utf8_lossy(path));
        }
        assert_eq!(relative(b"/").expect("no NUL").as_bytes(), b".");
        assert!(relative(b"/a\0b").is_err());
    }
}
