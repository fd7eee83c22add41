//! Pure: what two requests must have in common to be answered by the same stored response.
//!
//! The primary key is the route and the target as the origin gets it; method and range are no part of it (GET and HEAD
//! share, slices are parts of one object). Vary adds a secondary key per stored response (RFC 9111 section 4.1).

use crate::http::headers::Headers;

/// Header names a Vary may list.
pub const NAMES_MOST: usize = 8;
/// Bytes of the values they may select by.
pub const VALUES_MOST: usize = 4096;

/// The primary key: the route by name, what the origin sees as Host where that is the client's, and the target.
pub fn primary(route: &str, host: &[u8], target: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(route.len() + host.len() + target.len() + 2);
    key.extend_from_slice(route.as_bytes());
    key.push(b' ');
    key.extend(host.iter().map(u8::to_ascii_lowercase));
    key.push(b' ');
    key.extend_from_slice(target);
    key
}

/// The lower-case names a response varies by; `None` if it varies by everything, or by too much to be kept.
pub fn vary(headers: &Headers) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for name in headers.tokens("vary") {
        if name == b"*" {
            return None;
        }
        names.push(String::from_utf8(name.to_ascii_lowercase()).ok()?);
    }
    names.sort_unstable();
    names.dedup();
    (names.len() <= NAMES_MOST).then_some(names)
}

/// The secondary key of a request: the values of `names`, normalised; `None` if they are too long.
pub fn secondary<'r>(names: &[String], fields: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    for name in names {
        let values = fields.clone().filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
        let values: Vec<&[u8]> = values.map(|(_, value)| value.trim_ascii()).collect();
        // A separator no value can contain.
        key.push(b'\n');
        if name == "accept-encoding" {
            key.extend(codings(&values));
        } else {
            key.extend(values.join(b", ".as_slice()));
        }
        if key.len() > VALUES_MOST {
            return None;
        }
    }
    Some(key)
}

/// The content codings a client takes, in one order whatever the order and weights it sent; those it refuses are out.
fn codings(values: &[&[u8]]) -> Vec<u8> {
    let mut codings: Vec<Vec<u8>> = values
        .iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .filter_map(|item| {
            let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let coding = parts.next()?.to_ascii_lowercase();
            let refused = parts.any(|weight| {
                let weight = weight.to_ascii_lowercase();
                weight.strip_prefix(b"q=").is_some_and(|q| q.iter().all(|byte| matches!(byte, b'0' | b'.')))
            });
            (!coding.is_empty() && !refused).then_some(coding)
        })
        .collect();
    codings.sort_unstable();
    codings.dedup();
    codings.join(b",".as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.push(name.as_bytes(), value.as_bytes());
        }
        headers
    }

    #[test]
    fn what_a_response_varies_by() {
        assert_eq!(vary(&headers(&[])), Some(vec![]));
        let both = headers(&[("Vary", "Accept-Encoding, X-A"), ("vary", "x-a,Cookie")]);
        assert_eq!(vary(&both), Some(vec!["accept-encoding".to_owned(), "cookie".to_owned(), "x-a".to_owned()]));
        assert_eq!(vary(&headers(&[("Vary", "A, *")])), None);
        assert_eq!(vary(&headers(&[("Vary", "a,b,c,d,e,f,g,h,i")])), None);
    }

    #[test]
    fn codings_are_one_set_however_they_are_spelled() {
        let names = ["accept-encoding".to_owned()];
        let key = |value: &str| {
            let fields = headers(&[("Accept-Encoding", value)]);
            secondary(&names, fields.iter()).expect("short")
        };
        assert_eq!(key("gzip, br"), key("br;q=0.5 ,GZIP"));
        assert_eq!(key("gzip, br;q=0"), key("gzip"));
        assert_ne!(key("gzip"), key("br"));
        assert_eq!(key(""), secondary(&names, headers(&[]).iter()).expect("short"));
    }

    #[test]
    fn values_are_told_apart_by_field() {
        let names = ["a".to_owned(), "b".to_owned()];
        let key = |a: &str, b: &str| secondary(&names, headers(&[("A", a), ("B", b)]).iter());
        assert_ne!(key("x", ""), key("", "x"));
        assert_eq!(key(&"x".repeat(VALUES_MOST), ""), None);
    }

    #[test]
    fn routes_hosts_and_targets_make_different_keys() {
        assert_ne!(primary("r", b"a", b"/b"), primary("r", b"", b"/b"));
        assert_eq!(primary("r", b"A", b"/b"), primary("r", b"a", b"/b"));
        assert_ne!(primary("r", b"a", b"/B"), primary("r", b"a", b"/b"));
    }
}
