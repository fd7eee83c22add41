//! Header fields that outlive the bytes they came in: an origin's, kept for the client and for the cache.
//!
//! Apart from the request head, which borrows and is gone with its request. Values are raw bytes, names keep their case
//! and are compared without it. Imports nothing.
//!
//! ```text
//!   text    E T a g " v 1 " V a r y A c c e p t        one buffer, names and values in the order they came
//!   slots   [0..4, 4..8] [8..12, 12..18]               one per field; removing a field removes its slot only
//! ```
//!
//! Invariant: no name is empty, and no value holds CR, LF or NUL; what is written is one line per field.

use std::fmt;

/// Owned header fields, in order.
#[derive(Clone, Default)]
pub struct Headers {
    text: Vec<u8>,
    slots: Vec<Slot>,
}

/// Where a field lies in the text: the name at `start`, the value right behind it.
#[derive(Clone, Copy)]
struct Slot {
    start: u32,
    name_len: u32,
    value_len: u32,
}

impl Headers {
    /// None.
    pub const fn new() -> Self {
        Self { text: Vec::new(), slots: Vec::new() }
    }

    /// None yet, with room for `count` fields of `bytes` bytes together.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), slots: Vec::with_capacity(count) }
    }

    /// Appends a field. A byte that would end the line becomes a space: it would be a field of somebody else's choice.
    ///
    /// # Panics
    /// With an empty name, or beyond 4 GiB of text: heads are bounded long before that.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        assert!(!name.is_empty(), "a field has a name");
        let small = |length: usize| u32::try_from(length).expect("heads are bounded far below 4 GiB");
        let start = small(self.text.len());
        self.text.extend_from_slice(name);
        self.text.extend(value.iter().map(|&byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { byte }));
        small(self.text.len());
        self.slots.push(Slot { start, name_len: small(name.len()), value_len: small(value.len()) });
    }

    /// Removes every field of this name and appends one.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// Removes every field of this name; whether there was one. The space comes back with the whole.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.retain(|other, _| !other.eq_ignore_ascii_case(name))
    }

    /// Keeps the fields for which `keep` is true; whether any went.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        let (text, before) = (&self.text, self.slots.len());
        self.slots.retain(|slot| {
            let (name, value) = slot.of(text);
            keep(name, value)
        });
        self.slots.len() != before
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The value of the only field of this name: nothing if it came twice, as a single-valued field must not.
    pub fn get_only(&self, name: &str) -> Option<&[u8]> {
        let mut all = self.get_all(name);
        let first = all.next();
        if all.next().is_some() { None } else { first }
    }

    /// The values of all fields of this name, in order.
    pub fn get_all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// The elements of a list-valued field over all its lines, trimmed, empty ones left out (RFC 9110 section 5.6.1).
    /// For lists of tokens: a comma within quotes is a comma.
    pub fn tokens<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.get_all(name).flat_map(tokens)
    }

    /// Whether there is a field of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Every field, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.slots.iter().map(|slot| slot.of(&self.text))
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of memory held, for budgets.
    pub fn bytes(&self) -> usize {
        self.text.capacity() + self.slots.capacity() * size_of::<Slot>()
    }

    /// Appends every field as a line with its CRLF: what a head holds between its first line and the empty one.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter() {
            write_field(out, name, value);
        }
    }
}

impl Slot {
    fn of(self, text: &[u8]) -> (&[u8], &[u8]) {
        let field = &text[self.start as usize..];
        let (name, rest) = field.split_at(self.name_len as usize);
        (name, &rest[..self.value_len as usize])
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(n, v)| (n.escape_ascii().to_string(), v.escape_ascii().to_string())))
            .finish()
    }
}

/// The same fields in the same order; names by their bytes.
impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(fields: I) -> Self {
        let mut all = Self::new();
        fields.into_iter().for_each(|(name, value)| all.push(name, value));
        all
    }
}

/// Appends `name: value` and CRLF.
#[inline]
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The elements of one line of a list of tokens, trimmed, empty ones left out.
pub fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// The fields that concern the whole way and not this connection (RFC 9110 section 7.6.1): all but Connection, what
/// Connection names, and those that are hop-by-hop by their own definition.
///
/// What the origin is asked, what the cache tells variants apart by and what a client is told all go through here: a
/// field that Connection hides from the origin must not choose a stored variant either.
pub fn end_to_end<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
    // Nearly always empty, which allocates nothing; sorted, because a head may name thousands.
    let mut named: Vec<&[u8]> = fields
        .clone()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| tokens(value))
        .filter(|token| !token.eq_ignore_ascii_case(b"close") && !token.eq_ignore_ascii_case(b"keep-alive"))
        .collect();
    named.sort_unstable_by(|a, b| compare(a, b));
    fields
        .filter(move |(name, _)| !is_hop_by_hop(name) && named.binary_search_by(|other| compare(other, name)).is_err())
}

/// Whether a field ends at the next hop by its definition, named by Connection or not.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 7] =
        [b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"];
    starts_with(name, b"proxy-") || NAMES.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether `name` begins with `prefix`, without case.
pub fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn compare(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let lower = |byte: &u8| byte.to_ascii_lowercase();
    a.iter().map(lower).cmp(b.iter().map(lower))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    fn text(headers: &Headers) -> String {
        let mut out = Vec::new();
        headers.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_keep_their_order_and_case_and_are_found_without_it() {
        let mut all = headers(&[("ETag", "\"a\""), ("Vary", "a, ,b"), ("x", ""), ("VARY", "c")]);
        assert_eq!(all.get("etag"), Some(b"\"a\"".as_slice()));
        assert_eq!(all.get("X"), Some(b"".as_slice()));
        assert_eq!((all.get("y"), all.contains("y"), all.len()), (None, false, 4));
        assert_eq!(all.get_all("vary").collect::<Vec<_>>(), [b"a, ,b".as_slice(), b"c"]);
        assert_eq!(all.tokens("vary").collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        assert_eq!((all.get_only("vary"), all.get_only("etag").is_some()), (None, true));
        assert!(all.remove(b"vary") && !all.remove(b"vary"));
        assert_eq!(text(&all), "ETag: \"a\"\r\nx: \r\n");
        all.set(b"etag", b"\"b\"");
        assert_eq!(text(&all), "x: \r\netag: \"b\"\r\n");
        assert_eq!(all, headers(&[("x", ""), ("etag", "\"b\"")]), "what was removed does not count");
    }

    #[test]
    fn a_value_cannot_break_its_line() {
        let all = headers(&[("a", "b\r\nc: d\0")]);
        assert_eq!(text(&all), "a: b  c: d \r\n");
    }

    #[test]
    fn hop_by_hop_fields_and_those_that_connection_names_stay_behind() {
        let all = headers(&[
            ("Accept", "a"),
            ("connection", "close, X-One ,,"),
            ("CONNECTION", "x-two"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authorization", "a"),
            ("Proxy-Connection", "a"),
            ("TE", "trailers"),
            ("Trailer", "a"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "a"),
            ("x-one", "1"),
            ("X-TWO", "2"),
            ("X-Three", "3"),
            ("Test", "4"),
            ("close", "5"),
        ]);
        let left: Vec<_> = end_to_end(all.iter()).map(|(name, _)| name).collect();
        assert_eq!(left, [b"Accept".as_slice(), b"X-Three", b"Test", b"close"]);
    }

    proptest! {
        #[test]
        fn whatever_is_pushed_comes_back_less_what_is_removed(
            fields in prop::collection::vec(("[a-c]{1,2}", prop::collection::vec(1u8..=255, 0..9)), 0..12), gone in "[A-C]{1,2}",
        ) {
            let clean = |value: &[u8]| value.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }).collect::<Vec<_>>();
            let mut all: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
            all.remove(gone.as_bytes());
            let kept: Vec<_> = fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(&gone)).collect();
            prop_assert_eq!(all.len(), kept.len());
            for ((name, value), expected) in all.iter().zip(kept) {
                prop_assert_eq!((name, value.to_vec()), (expected.0.as_bytes(), clean(&expected.1)));
            }
        }

        #[test]
        fn a_field_that_connection_names_never_passes(names in prop::collection::vec("[a-eA-E]{1,2}", 0..40), split in 0usize..40) {
            let (named, sent) = names.split_at(split.min(names.len()));
            let list = named.join(",");
            let mut all = headers(&[("connection", &list)]);
            sent.iter().for_each(|name| all.push(name.as_bytes(), b"1"));
            let passed: Vec<_> = end_to_end(all.iter()).map(|(name, _)| name.to_vec()).collect();
            let expected: Vec<_> = sent
                .iter()
                .filter(|name| !is_hop_by_hop(name.as_bytes()) && !named.iter().any(|other| other.eq_ignore_ascii_case(name)))
                .map(|name| name.as_bytes().to_vec())
                .collect();
            prop_assert_eq!(passed, expected);
        }
    }
}
