//! Pure: may a response be kept, for how long is it good, and may it answer this request now (RFC 9111, RFC 5861)?
//!
//! Times are whole seconds since 1970 and arguments. Invariant: what says `no-store` or `private` is never kept, and
//! what says `must-revalidate` is never used stale, whatever a route's own times are.

use crate::http::date;
use crate::http::headers::Headers;
use crate::http::response::ResponseHead;

/// Directives of Cache-Control, of a request or a response; times in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheControl {
    /// Fresh for so long.
    pub max_age: Option<u64>,
    /// The same for shared caches, which wins.
    pub s_maxage: Option<u64>,
    /// Not to be used without asking.
    pub no_cache: bool,
    /// Not to be kept.
    pub no_store: bool,
    /// Only for one user.
    pub private: bool,
    /// For everybody, even in answer to authorized requests.
    pub public: bool,
    /// Never to be used stale (must-revalidate or proxy-revalidate).
    pub must_revalidate: bool,
    /// Usable stale for so long while it is asked for again.
    pub stale_while_revalidate: Option<u64>,
    /// Usable stale for so long when the origin fails.
    pub stale_if_error: Option<u64>,
    /// A request that wants no origin asked.
    pub only_if_cached: bool,
    /// A request that wants so much freshness left.
    pub min_fresh: Option<u64>,
    /// A request that takes what is stale by so much.
    pub max_stale: Option<u64>,
}

impl CacheControl {
    /// From the values of all its fields; unknown directives are ignored, times that are no numbers are zero (section
    /// 4.2.1: such a response is better called stale).
    pub fn parse<'v>(values: impl Iterator<Item = &'v [u8]>) -> Self {
        let mut found = Self::default();
        for directive in values.flat_map(split) {
            let (name, value) = match directive.iter().position(|byte| *byte == b'=') {
                Some(at) => (directive[..at].trim_ascii(), Some(directive[at + 1..].trim_ascii())),
                None => (directive, None),
            };
            let seconds = || Some(value.map_or(0, seconds));
            // Of a directive that comes twice the smaller counts.
            let least = |old: Option<u64>| old.into_iter().chain(seconds()).min();
            match name.to_ascii_lowercase().as_slice() {
                b"max-age" => found.max_age = least(found.max_age),
                b"s-maxage" => found.s_maxage = least(found.s_maxage),
                // With field names it asks for less; taking it for all is allowed (section 5.2.2.4).
                b"no-cache" => found.no_cache = true,
                b"no-store" => found.no_store = true,
                b"private" => found.private = true,
                b"public" => found.public = true,
                b"must-revalidate" | b"proxy-revalidate" => found.must_revalidate = true,
                b"stale-while-revalidate" => found.stale_while_revalidate = least(found.stale_while_revalidate),
                b"stale-if-error" => found.stale_if_error = least(found.stale_if_error),
                b"only-if-cached" => found.only_if_cached = true,
                b"min-fresh" => found.min_fresh = seconds(),
                b"max-stale" => found.max_stale = Some(value.map_or(u64::MAX, self::seconds)),
                _ => {}
            }
        }
        found
    }

    /// Of a request: Cache-Control, or Pragma where there is none (section 5.4).
    pub fn of_request<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone) -> Self {
        let named = |name: &'static str| {
            let fields = fields.clone();
            fields.filter(move |(other, _)| other.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
        };
        let mut found = Self::parse(named("cache-control"));
        if named("cache-control").next().is_none() {
            found.no_cache = named("pragma").any(|value| value.eq_ignore_ascii_case(b"no-cache"));
        }
        found
    }
}

/// Directives of one line: a comma within quotes is none.
fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    line.split(move |byte| {
        quoted ^= *byte == b'"';
        *byte == b',' && !quoted
    })
    .map(<[u8]>::trim_ascii)
    .filter(|directive| !directive.is_empty())
}

fn seconds(value: &[u8]) -> u64 {
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    // More than fits is as good as for ever (section 1.2.2).
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    match std::str::from_utf8(value) {
        Ok(text) if digits => text.parse().unwrap_or(u64::MAX).min(u64::from(u32::MAX)),
        _ => 0,
    }
}

/// A route's own times, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Overrides {
    /// Freshness where the origin gives none.
    pub ttl: Option<u64>,
    /// Freshness whatever the origin says.
    pub ttl_override: Option<u64>,
    /// Freshness of what is not there, where the origin gives none.
    pub negative_ttl: u64,
    /// Where the origin does not say.
    pub stale_while_revalidate: u64,
    /// Where the origin does not say.
    pub stale_if_error: u64,
}

/// How long a stored response is good.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// When it left the origin, as far as anybody can tell (section 4.2.3): its age is counted from here.
    pub born: u64,
    /// Fresh for so long.
    pub lifetime: u64,
    /// Usable stale for so long while it is asked for again.
    pub stale_while_revalidate: u64,
    /// Usable stale for so long when the origin fails.
    pub stale_if_error: u64,
    /// Not to be used without asking.
    pub no_cache: bool,
    /// Never to be used stale.
    pub must_revalidate: bool,
}

/// Why a response is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoStore {
    /// The request says no-store.
    Request,
    /// The response says no-store.
    NoStore,
    /// The response is for one user.
    Private,
    /// It answers an authorized request and does not say that others may have it.
    Authorized,
    /// It sets a cookie.
    SetCookie,
    /// It varies by everything, or by too much.
    Vary,
    /// Its status cannot be kept.
    Status,
    /// It is stale from the start and cannot be asked for again without its body.
    Useless,
    /// It is larger than the cache takes.
    TooLarge,
    /// The cache has no room, or its disk fails.
    NoRoom,
    /// A part of something without a validator.
    NoValidator,
}

impl NoStore {
    /// For Cache-Status and the log.
    pub fn text(self) -> &'static str {
        match self {
            NoStore::Request => "request-no-store",
            NoStore::NoStore => "no-store",
            NoStore::Private => "private",
            NoStore::Authorized => "authorized",
            NoStore::SetCookie => "set-cookie",
            NoStore::Vary => "vary",
            NoStore::Status => "status",
            NoStore::Useless => "stale",
            NoStore::TooLarge => "too-large",
            NoStore::NoRoom => "no-room",
            NoStore::NoValidator => "no-validator",
        }
    }
}

/// What the decision reads of the request and of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Asked {
    /// The request's directives.
    pub control: CacheControl,
    /// It had an Authorization.
    pub authorized: bool,
    /// When it was sent.
    pub at: u64,
    /// When the answer came.
    pub answered: u64,
}

/// Whether a response may be kept, and for how long it is good.
///
/// # Errors
/// Why not.
pub fn storable(asked: &Asked, head: &ResponseHead, overrides: &Overrides) -> Result<Times, NoStore> {
    let control = CacheControl::parse(head.headers.get_all("cache-control"));
    let forced = overrides.ttl_override;
    if asked.control.no_store {
        return Err(NoStore::Request);
    }
    if control.no_store && forced.is_none() {
        return Err(NoStore::NoStore);
    }
    if control.private && forced.is_none() {
        return Err(NoStore::Private);
    }
    // Section 3.5.
    if asked.authorized && !control.public && !control.must_revalidate && control.s_maxage.is_none() {
        return Err(NoStore::Authorized);
    }
    if head.headers.contains("set-cookie") && forced.is_none() {
        return Err(NoStore::SetCookie);
    }
    // Answers to conditions and ranges are about a representation, not one (RFC 9110 sections 15.4.5, 15.5.13, 15.5.17).
    if matches!(head.status, 304 | 412 | 416) {
        return Err(NoStore::Status);
    }
    let explicit = explicit(&control, &head.headers, asked.answered);
    let lifetime = match (forced, explicit) {
        (Some(forced), _) if heuristic(head.status) || explicit.is_some() => forced,
        (_, Some(explicit)) => explicit,
        _ if !heuristic(head.status) => return Err(NoStore::Status),
        _ if is_negative(head.status) => overrides.negative_ttl,
        _ => overrides.ttl.unwrap_or_else(|| guess(&head.headers, asked.answered)),
    };
    let validator = head.headers.contains("etag") || head.headers.contains("last-modified");
    if (lifetime == 0 || control.no_cache) && !validator {
        return Err(NoStore::Useless);
    }
    Ok(Times {
        born: asked.answered.saturating_sub(initial_age(asked, &head.headers)),
        lifetime,
        stale_while_revalidate: control.stale_while_revalidate.unwrap_or(overrides.stale_while_revalidate),
        stale_if_error: control.stale_if_error.unwrap_or(overrides.stale_if_error),
        no_cache: control.no_cache && forced.is_none(),
        // s-maxage implies it (section 5.2.2.10), unless the same response allows staleness in so many words.
        must_revalidate: control.must_revalidate
            || control.s_maxage.is_some()
                && control.stale_while_revalidate.is_none()
                && control.stale_if_error.is_none(),
    })
}

/// Freshness the origin gives (section 4.2.1).
fn explicit(control: &CacheControl, headers: &Headers, answered: u64) -> Option<u64> {
    if let Some(seconds) = control.s_maxage.or(control.max_age) {
        return Some(seconds);
    }
    let expires = headers.get("expires")?;
    // An invalid date, 0 above all, means "already expired" (section 5.3).
    let Some(expires) = date::parse(expires) else { return Some(0) };
    let sent = headers.get("date").and_then(date::parse).unwrap_or(answered);
    Some(expires.saturating_sub(sent))
}

/// A tenth of the time since the last change, at most a day (section 4.2.2).
fn guess(headers: &Headers, answered: u64) -> u64 {
    let Some(changed) = headers.get("last-modified").and_then(date::parse) else { return 0 };
    let sent = headers.get("date").and_then(date::parse).unwrap_or(answered);
    (sent.saturating_sub(changed) / 10).min(86_400)
}

/// Section 4.2.3.
fn initial_age(asked: &Asked, headers: &Headers) -> u64 {
    let apparent = headers.get("date").and_then(date::parse).map_or(0, |sent| asked.answered.saturating_sub(sent));
    let told = headers.get("age").map_or(0, seconds);
    apparent.max(told.saturating_add(asked.answered.saturating_sub(asked.at)))
}

/// Statuses that may be kept without being told so (RFC 9110 section 15.1).
fn heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

fn is_negative(status: u16) -> bool {
    matches!(status, 404 | 405 | 410 | 414 | 501)
}

/// Whether a stored response may answer a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// As it is.
    Fresh,
    /// As it is, while it is asked for again.
    StaleWhileRevalidate,
    /// Only after asking the origin.
    Revalidate,
}

impl Times {
    /// Its age at `now`.
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.born)
    }

    /// Seconds of freshness left; negative once it is stale.
    pub fn ttl(&self, now: u64) -> i64 {
        let left = self.lifetime as i128 - self.age(now) as i128;
        left.clamp(i64::MIN as i128, i64::MAX as i128) as i64
    }

    /// Whether it may answer a request that says `control` (section 4.2, 5.2.1).
    pub fn reuse(&self, control: &CacheControl, now: u64) -> Reuse {
        if control.no_cache || self.no_cache {
            return Reuse::Revalidate;
        }
        let age = self.age(now);
        let lifetime = self.lifetime.min(control.max_age.unwrap_or(u64::MAX));
        if age.saturating_add(control.min_fresh.unwrap_or(0)) < lifetime {
            return Reuse::Fresh;
        }
        let stale = age.saturating_sub(lifetime);
        if self.must_revalidate || control.min_fresh.is_some() {
            return Reuse::Revalidate;
        }
        if control.max_stale.is_some_and(|most| stale <= most) {
            return Reuse::Fresh;
        }
        if control.max_age.is_none() && stale < self.stale_while_revalidate {
            return Reuse::StaleWhileRevalidate;
        }
        Reuse::Revalidate
    }

    /// Whether it may be used though the origin fails.
    pub fn usable_on_error(&self, now: u64) -> bool {
        !self.must_revalidate && !self.no_cache && self.age(now) < self.lifetime.saturating_add(self.stale_if_error)
    }
}

/// What every part of an object must have in common (RFC 9110 section 14.4, section 13.1.5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pin {
    /// A strong ETag.
    Etag(Vec<u8>),
    /// A date, with the length beside it.
    LastModified(Vec<u8>),
    /// Nothing: only what came in one piece is one version.
    None,
}

impl Pin {
    /// From the fields of a response.
    pub fn of(headers: &Headers) -> Self {
        match (headers.get_only("etag"), headers.get_only("last-modified")) {
            (Some(tag), _) if tag.first() == Some(&b'"') && tag.len() >= 2 => Pin::Etag(tag.to_vec()),
            // A date of the same second as the response may be followed by another change in it (RFC 9110 section 8.8.2.2).
            (_, Some(changed)) => match (date::parse(changed), headers.get("date").and_then(date::parse)) {
                (Some(changed_at), sent) if sent.is_none_or(|sent| changed_at < sent) => {
                    Pin::LastModified(changed.to_vec())
                }
                _ => Pin::None,
            },
            _ => Pin::None,
        }
    }

    /// The value of If-Range.
    pub fn if_range(&self) -> Option<&[u8]> {
        match self {
            Pin::Etag(value) | Pin::LastModified(value) => Some(value),
            Pin::None => None,
        }
    }
}

/// Whether a 304 is about what is stored: if it has an ETag, that must be the same (section 4.3.4).
pub fn is_about(stored: &Headers, fresh: &ResponseHead) -> bool {
    fn opaque(tag: &[u8]) -> &[u8] {
        tag.strip_prefix(b"W/").unwrap_or(tag)
    }
    match (fresh.headers.get("etag"), stored.get("etag")) {
        (Some(theirs), Some(ours)) => opaque(theirs) == opaque(ours),
        (theirs, _) => theirs.is_none(),
    }
}

/// Takes the fields of a 304 over (section 4.3.4); those that describe the bytes stay.
pub fn freshen(stored: &mut Headers, fresh: &ResponseHead) {
    const BYTES: [&str; 6] =
        ["content-length", "content-encoding", "content-range", "content-type", "transfer-encoding", "etag"];
    for (name, value) in crate::http::headers::end_to_end(fresh.headers.iter()) {
        if !BYTES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes())) {
            stored.set(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::Version;
    use crate::http::response::BodyLength;

    const NOW: u64 = 784_111_777;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.push(name.as_bytes(), value.as_bytes());
        }
        ResponseHead { version: Version::Http11, status, headers, body: BodyLength::Exact(1) }
    }

    fn asked() -> Asked {
        Asked { at: NOW, answered: NOW, ..Asked::default() }
    }

    fn lifetime(fields: &[(&str, &str)]) -> Result<u64, NoStore> {
        storable(&asked(), &head(200, fields), &Overrides::default()).map(|times| times.lifetime)
    }

    #[test]
    fn how_long_a_response_is_fresh() {
        type Fields<'a> = &'a [(&'a str, &'a str)];
        let rows: &[(Fields<'_>, Result<u64, NoStore>)] = &[
            (&[("Cache-Control", "max-age=60")], Ok(60)),
            (&[("Cache-Control", "max-age=60, s-maxage=5")], Ok(5)),
            (&[("Cache-Control", "max-age=60"), ("Cache-Control", "max-age=30")], Ok(30)),
            (&[("Cache-Control", "MAX-AGE=\"60\"")], Ok(60)),
            (&[("Cache-Control", "max-age=soon"), ("ETag", "\"a\"")], Ok(0)),
            (&[("Cache-Control", "max-age=99999999999999999999")], Ok(u64::from(u32::MAX))),
            (&[("Cache-Control", "no-store, max-age=60")], Err(NoStore::NoStore)),
            (&[("Cache-Control", "private=\"a, b\", max-age=60")], Err(NoStore::Private)),
            (&[("Cache-Control", "x=\"no-store, y\", max-age=7")], Ok(7)),
            (&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("Date", DATE)], Ok(60)),
            (&[("Expires", "0"), ("ETag", "\"a\"")], Ok(0)),
            (&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("Cache-Control", "max-age=1")], Ok(1)),
            (&[("Last-Modified", "Sun, 06 Nov 1994 08:32:57 GMT"), ("Date", DATE)], Ok(100)),
            (&[("Last-Modified", "Sat, 06 Nov 1993 08:32:57 GMT"), ("Date", DATE)], Ok(86_400)),
            (&[("Cache-Control", "max-age=0")], Err(NoStore::Useless)),
            (&[("Cache-Control", "no-cache, max-age=50")], Err(NoStore::Useless)),
            (&[("Cache-Control", "max-age=5"), ("Set-Cookie", "a=b")], Err(NoStore::SetCookie)),
            (&[], Err(NoStore::Useless)),
        ];
        for (fields, want) in rows {
            assert_eq!(lifetime(fields), *want, "{fields:?}");
        }
    }

    #[test]
    fn statuses_and_authorization() {
        let ask = asked();
        let none = Overrides { negative_ttl: 5, ..Overrides::default() };
        let of =
            |status, fields: &[(&str, &str)]| storable(&ask, &head(status, fields), &none).map(|times| times.lifetime);
        assert_eq!(of(404, &[]), Ok(5));
        assert_eq!(of(404, &[("Cache-Control", "max-age=9")]), Ok(9));
        assert_eq!(of(500, &[]), Err(NoStore::Status));
        assert_eq!(of(302, &[]), Err(NoStore::Status));
        assert_eq!(of(302, &[("Cache-Control", "max-age=9")]), Ok(9));
        for about in [304, 412, 416] {
            assert_eq!(of(about, &[("Cache-Control", "max-age=9")]), Err(NoStore::Status), "{about}");
        }
        let secret = Asked { authorized: true, ..ask };
        let of = |control: &str| {
            storable(&secret, &head(200, &[("Cache-Control", control)]), &none).map(|times| times.lifetime)
        };
        assert_eq!(of("max-age=5"), Err(NoStore::Authorized));
        assert_eq!(of("public, max-age=5"), Ok(5));
        assert_eq!(of("s-maxage=5"), Ok(5));
        let ask = Asked { control: CacheControl { no_store: true, ..CacheControl::default() }, ..ask };
        assert_eq!(storable(&ask, &head(200, &[("Cache-Control", "max-age=5")]), &none), Err(NoStore::Request));
    }

    #[test]
    fn a_route_may_know_better() {
        let forced = Overrides { ttl_override: Some(7), ..Overrides::default() };
        let of = |fields: &[(&str, &str)]| storable(&asked(), &head(200, fields), &forced).map(|times| times.lifetime);
        assert_eq!(of(&[("Cache-Control", "no-store"), ("Set-Cookie", "a")]), Ok(7));
        assert_eq!(storable(&asked(), &head(500, &[]), &forced), Err(NoStore::Status));
        let ttl = Overrides { ttl: Some(8), ..Overrides::default() };
        assert_eq!(storable(&asked(), &head(200, &[]), &ttl).map(|times| times.lifetime), Ok(8));
    }

    #[test]
    fn age_counts_what_others_and_the_way_took() {
        let late = Asked { at: NOW + 3, answered: NOW + 5, ..Asked::default() };
        let times = storable(
            &late,
            &head(200, &[("Age", "10"), ("Date", DATE), ("Cache-Control", "max-age=60")]),
            &Overrides::default(),
        );
        assert_eq!(times.expect("kept").age(NOW + 5), 12, "told age and the delay");
        let times =
            storable(&late, &head(200, &[("Date", DATE), ("Cache-Control", "max-age=60")]), &Overrides::default());
        assert_eq!(times.expect("kept").age(NOW + 6), 6, "apparent age");
    }

    #[test]
    fn when_it_may_be_used() {
        let times =
            Times { born: 100, lifetime: 10, stale_while_revalidate: 5, stale_if_error: 20, ..Times::default() };
        let none = CacheControl::default();
        assert_eq!(times.reuse(&none, 109), Reuse::Fresh);
        assert_eq!(times.reuse(&none, 110), Reuse::StaleWhileRevalidate);
        assert_eq!(times.reuse(&none, 115), Reuse::Revalidate);
        assert!(times.usable_on_error(129) && !times.usable_on_error(130));
        let strict = Times { must_revalidate: true, ..times };
        assert_eq!(strict.reuse(&none, 110), Reuse::Revalidate);
        assert!(!strict.usable_on_error(111));
        let asks = |control: &str| CacheControl::parse([control.as_bytes()].into_iter());
        assert_eq!(times.reuse(&asks("no-cache"), 101), Reuse::Revalidate);
        assert_eq!(times.reuse(&asks("max-age=5"), 104), Reuse::Fresh);
        assert_eq!(times.reuse(&asks("max-age=5"), 105), Reuse::Revalidate);
        assert_eq!(times.reuse(&asks("min-fresh=5"), 104), Reuse::Fresh);
        assert_eq!(times.reuse(&asks("min-fresh=5"), 105), Reuse::Revalidate);
        assert_eq!(times.reuse(&asks("max-stale=9"), 119), Reuse::Fresh);
        assert_eq!(times.reuse(&asks("max-stale"), 10_000), Reuse::Fresh);
        assert_eq!(strict.reuse(&asks("max-stale"), 111), Reuse::Revalidate);
        assert_eq!((times.ttl(105), times.ttl(112)), (5, -2));
    }

    #[test]
    fn what_pins_a_version() {
        let pin = |fields: &[(&str, &str)]| Pin::of(&head(200, fields).headers);
        assert_eq!(pin(&[("ETag", "\"a\""), ("Last-Modified", DATE)]), Pin::Etag(b"\"a\"".to_vec()));
        assert_eq!(pin(&[("ETag", "W/\"a\""), ("Last-Modified", DATE)]), Pin::LastModified(DATE.as_bytes().to_vec()));
        assert_eq!(pin(&[("ETag", "W/\"a\"")]), Pin::None);
        assert_eq!(pin(&[("Last-Modified", "yesterday")]), Pin::None);
    }

    #[test]
    fn a_304_of_another_version_renews_nothing() {
        let stored = head(200, &[("ETag", "W/\"a\"")]).headers;
        assert!(is_about(&stored, &head(304, &[("ETag", "\"a\"")])) && is_about(&stored, &head(304, &[])));
        assert!(!is_about(&stored, &head(304, &[("ETag", "\"b\"")])));
    }

    #[test]
    fn a_304_renews_what_is_not_about_the_bytes() {
        let mut stored = head(200, &[("Content-Type", "a/b"), ("Expires", "0"), ("X", "1")]).headers;
        freshen(&mut stored, &head(304, &[("Content-Type", "c/d"), ("Expires", DATE), ("Connection", "x")]));
        assert_eq!(stored.get("content-type"), Some(b"a/b".as_slice()));
        assert_eq!(stored.get("expires"), Some(DATE.as_bytes()));
        assert_eq!((stored.get("x"), stored.get("connection")), (Some(b"1".as_slice()), None));
    }
}
