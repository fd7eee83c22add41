//! AWS Signature Version 4 for GET and HEAD of S3-style origins, and where their credentials come from.
//!
//! Apart because a signature is right to the last byte or worthless, and because this file alone sees secrets. Pure:
//! the time and the text of files are arguments. Rests on "Authenticating Requests: Using the Authorization Header" of
//! the Amazon S3 API reference.
//!
//! Invariant: what is signed is what is sent: [`Signed::target`] is the canonical form of the target, with which no
//! server can come to another one; no secret is printed.

use std::fmt;
use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Access key, secret and session token.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
}

impl fmt::Debug for Credentials {
    /// The access key is no secret: it is sent in the clear, and needed to find what is wrong.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = if self.session_token.is_some() { "present" } else { "absent" };
        f.debug_struct("Credentials")
            .field("access_key", &self.access_key)
            .field("session_token", &token)
            .finish_non_exhaustive()
    }
}

/// Why there are no credentials. Names keys and lines, never values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A value is missing.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// The file has no such profile.
    #[error("there is no profile [{wanted}] in the credentials file (it has: {})", if found.is_empty() { "none" } else { found })]
    NoProfile {
        /// The profile asked for.
        wanted: String,
        /// Those there are.
        found: String,
    },
    /// A line is neither a section, nor `key = value`, nor a comment.
    #[error("line {0} of the credentials file is neither [profile] nor key = value")]
    Syntax(usize),
    /// A value holds bytes that no header field can.
    #[error("{0} holds a control character or a byte that is not ASCII")]
    Unprintable(&'static str),
}

impl Credentials {
    /// Credentials from their parts.
    pub fn new(access_key: &str, secret_key: &str, session_token: Option<&str>) -> Result<Self, CredentialsError> {
        const NAMES: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        let session_token = session_token.filter(|token| !token.is_empty());
        for (name, value) in NAMES.into_iter().zip([access_key, secret_key, session_token.unwrap_or("-")]) {
            if value.is_empty() {
                return Err(CredentialsError::Missing(name));
            }
            if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(CredentialsError::Unprintable(name));
            }
        }
        Ok(Self {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            session_token: session_token.map(Into::into),
        })
    }

    /// Credentials from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, as `variable` reads them;
    /// nothing if neither key is set.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, CredentialsError> {
        let (access_key, secret_key) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
        if access_key.is_none() && secret_key.is_none() {
            return Ok(None);
        }
        let token = variable("AWS_SESSION_TOKEN");
        Self::new(&access_key.unwrap_or_default(), &secret_key.unwrap_or_default(), token.as_deref()).map(Some)
    }

    /// Credentials of a profile of the shared credentials file (`~/.aws/credentials`), given its text.
    ///
    /// Sections are `[name]`, or `[profile name]` as the configuration file has them; keys are compared without case,
    /// the last of several counts; whole lines that begin with `#` or `;` are comments; other keys are ignored, as are
    /// indented lines below them.
    pub fn from_file(text: &str, profile: &str) -> Result<Self, CredentialsError> {
        let mut found: Vec<&str> = Vec::new();
        let mut values = [None; 3];
        for (number, line) in text.lines().enumerate() {
            let nested = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                let name = section.split(']').next().filter(|_| section.contains(']'));
                let name = name.ok_or(CredentialsError::Syntax(number + 1))?.trim();
                found.push(name.strip_prefix("profile ").map_or(name, str::trim));
                continue;
            }
            if nested {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or(CredentialsError::Syntax(number + 1))?;
            let index = match key.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => 0,
                "aws_secret_access_key" => 1,
                "aws_session_token" => 2,
                _ => continue,
            };
            if found.last() == Some(&profile) {
                values[index] = Some(value.trim());
            }
        }
        if !found.contains(&profile) {
            return Err(CredentialsError::NoProfile { wanted: profile.into(), found: found.join(", ") });
        }
        Self::new(values[0].unwrap_or_default(), values[1].unwrap_or_default(), values[2])
    }
}

/// How a bucket is named in a request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Style {
    /// `http://endpoint/bucket/key`: what servers other than Amazon's have by default.
    #[default]
    Path,
    /// `http://bucket.endpoint/key`.
    VirtualHost,
}

/// Where a bucket is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    host: String,
    base: String,
}

impl Bucket {
    /// The bucket at an endpoint (`host` or `host:port`). The error says what is wrong with the names.
    pub fn new(endpoint: &str, bucket: &str, style: Style) -> Result<Self, &'static str> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if !(3..=255).contains(&bucket.len()) || !bucket.bytes().all(is_name) || bucket.contains("..") {
            return Err("a bucket name has 3 to 255 letters, digits, dots, dashes and underscores");
        }
        match style {
            Style::Path => Ok(Self { host: endpoint.into(), base: format!("/{bucket}") }),
            Style::VirtualHost => {
                let name = endpoint.rsplit_once(':').map_or(endpoint, |(name, _)| name);
                if endpoint.starts_with('[') || name.parse::<IpAddr>().is_ok() {
                    return Err("a bucket cannot be part of an IP address; use the path style");
                }
                let is_label =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
                if bucket.len() > 63 || !bucket.bytes().all(is_label) {
                    return Err("this bucket name cannot be part of a host name; use the path style");
                }
                Ok(Self { host: format!("{bucket}.{endpoint}"), base: String::new() })
            }
        }
    }

    /// The Host of requests.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The target of an object, given the path and query within the bucket (origin form, free of dot segments).
    pub fn target(&self, within: &[u8]) -> Vec<u8> {
        [self.base.as_bytes(), within].concat()
    }
}

/// A request to be signed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET` or `HEAD`.
    pub method: &'a str,
    /// The Host that is sent.
    pub host: &'a [u8],
    /// Origin form.
    pub target: &'a [u8],
    /// Fields that are signed besides Host and `x-amz-*`; every `x-amz-*` field that is sent must be among them.
    pub fields: &'a [(&'a str, &'a [u8])],
    /// For example `us-east-1`.
    pub region: &'a str,
    /// Unix seconds. Servers allow 15 minutes of difference.
    pub now: u64,
}

/// What is sent with a signed request.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed {
    /// The target to send: the same one in its canonical form.
    pub target: Vec<u8>,
    authorization: String,
    date: String,
    session_token: Option<String>,
}

impl Signed {
    /// The fields to send, instead of any of the same names.
    pub fn fields(&self) -> Vec<(&'static str, &[u8])> {
        let mut fields = vec![
            ("Authorization", self.authorization.as_bytes()),
            ("x-amz-content-sha256", EMPTY_SHA256.as_bytes()),
            ("x-amz-date", self.date.as_bytes()),
        ];
        fields.extend(self.session_token.as_ref().map(|token| ("x-amz-security-token", token.as_bytes())));
        fields
    }
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").field("target", &self.target.escape_ascii().to_string()).finish_non_exhaustive()
    }
}

/// SHA-256 of no bytes: GET and HEAD have no body.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Signs a GET or HEAD.
pub fn sign(credentials: &Credentials, request: &Request<'_>) -> Signed {
    let date = amz_date(request.now);
    let day = &date[..8];
    let (path, query) = canonical_target(request.target);
    let mut fields: Vec<(String, Vec<u8>)> = vec![
        ("host".into(), trimmed(request.host)),
        ("x-amz-content-sha256".into(), EMPTY_SHA256.into()),
        ("x-amz-date".into(), date.clone().into()),
    ];
    fields
        .extend(credentials.session_token.as_ref().map(|token| ("x-amz-security-token".into(), token.clone().into())));
    fields.extend(request.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), trimmed(value))));
    fields.sort();
    let names = fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");

    let mut canonical = format!("{}\n{path}\n{query}\n", request.method).into_bytes();
    for (name, value) in &fields {
        canonical.extend_from_slice(name.as_bytes());
        canonical.push(b':');
        canonical.extend_from_slice(value);
        canonical.push(b'\n');
    }
    canonical.extend_from_slice(format!("\n{names}\n{EMPTY_SHA256}").as_bytes());

    let scope = format!("{day}/{}/s3/aws4_request", request.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(&canonical)));
    let start = format!("AWS4{}", credentials.secret_key).into_bytes();
    let key = [day, request.region, "s3", "aws4_request"].into_iter().fold(start, |key, part| hmac(&key, part));
    let signature = hex(&hmac(&key, &to_sign));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
        credentials.access_key
    );
    let target = if query.is_empty() { path } else { format!("{path}?{query}") }.into_bytes();
    Signed { target, authorization, date, session_token: credentials.session_token.clone() }
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// A value without surrounding whitespace, runs of spaces within it as one.
fn trimmed(value: &[u8]) -> Vec<u8> {
    let mut out = value.trim_ascii().to_vec();
    out.dedup_by(|a, b| *a == b' ' && *b == b' ');
    out
}

/// Path and query in the one spelling of the signature: escapes undone once, then all but unreserved bytes (and the
/// slashes of the path) escaped; parameters sorted, each with its equals sign. A plus sign of a query is a space.
fn canonical_target(target: &[u8]) -> (String, String) {
    let split = target.iter().position(|&byte| byte == b'?');
    let (path, query) = target.split_at(split.unwrap_or(target.len()));
    let mut parameters: Vec<(String, String)> = query
        .strip_prefix(b"?")
        .unwrap_or_default()
        .split(|&byte| byte == b'&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let equals = parameter.iter().position(|&byte| byte == b'=');
            let (name, value) = parameter.split_at(equals.unwrap_or(parameter.len()));
            let spelled = |text: &[u8]| {
                let text: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
                respelled(&text, false)
            };
            (spelled(name), spelled(value.strip_prefix(b"=").unwrap_or_default()))
        })
        .collect();
    parameters.sort();
    let query: Vec<String> = parameters.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    (respelled(path, true), query.join("&"))
}

fn respelled(text: &[u8], keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in percent_encoding::percent_decode(text) {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[byte]).to_ascii_uppercase());
        }
    }
    out
}

/// `20130524T000000Z`; years beyond 9999 are not signed by anybody.
fn amz_date(unix_secs: u64) -> String {
    let (days, secs) = (unix_secs.min(253_402_300_799) / 86_400, unix_secs.min(253_402_300_799) % 86_400);
    // Days since 0000-03-01 in eras of 400 years, so that the leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // March is month zero; months of 31 and 30 days alternate so that this is their number.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year_of_era + month / 10, (month + 2) % 12 + 1);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2013-05-24T00:00:00Z, and the key of the examples in the Amazon S3 API reference.
    const NOW: u64 = 1_369_353_600;

    fn example() -> Credentials {
        Credentials::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None).unwrap()
    }

    fn signed(credentials: &Credentials, target: &str, fields: &[(&str, &[u8])]) -> Signed {
        let host = b"examplebucket.s3.amazonaws.com";
        sign(
            credentials,
            &Request { method: "GET", host, target: target.as_bytes(), fields, region: "us-east-1", now: NOW },
        )
    }

    #[test]
    fn the_published_examples_of_amazon_s3_have_their_signatures() {
        let table: &[(&str, &[(&str, &[u8])], &str, &str)] = &[
            (
                "/test.txt",
                &[("Range", b"bytes=0-9")],
                "host;range;x-amz-content-sha256;x-amz-date",
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "/?lifecycle",
                &[],
                "host;x-amz-content-sha256;x-amz-date",
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "/?prefix=J&max-keys=2",
                &[],
                "host;x-amz-content-sha256;x-amz-date",
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ];
        for (target, fields, names, signature) in table {
            let signed = signed(&example(), target, fields);
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                 SignedHeaders={names},Signature={signature}"
            );
            let fields = signed.fields();
            assert_eq!(fields[0], ("Authorization", expected.as_bytes()), "{target}");
            assert_eq!(fields[2], ("x-amz-date", b"20130524T000000Z".as_slice()));
            assert_eq!(fields.len(), 3);
        }
    }

    #[test]
    fn a_session_token_is_sent_and_signed() {
        let with = Credentials::new("A", "s", Some("token")).unwrap();
        let signed = signed(&with, "/a", &[]);
        assert_eq!(signed.fields()[3], ("x-amz-security-token", b"token".as_slice()));
        assert!(
            signed.authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,")
        );
    }

    #[test]
    fn what_is_sent_is_what_was_signed() {
        let table = [
            ("/a%20b/c", "/a%20b/c"),
            ("/a b!'()*+$&:=@,;", "/a%20b%21%27%28%29%2A%2B%24%26%3A%3D%40%2C%3B"),
            ("/%61%7e%e2%82%ac//x", "/a~%E2%82%AC//x"),
            ("/a%2fb%25", "/a/b%25"),
            ("/?b=2&a=1&b=1&c", "/?a=1&b=1&b=2&c="),
            ("/?a=x+y&b=%2b/", "/?a=x%20y&b=%2B%2F"),
            ("/?a=b=c&&", "/?a=b%3Dc"),
            ("/?", "/"),
        ];
        for (target, expected) in table {
            let found = signed(&example(), target, &[]);
            assert_eq!(found.target, expected.as_bytes(), "{target}");
            assert_eq!(signed(&example(), expected, &[]), found, "the canonical form signs as what it came from");
        }
        assert_eq!(trimmed(b"  a   b \t"), b"a b");
    }

    #[test]
    fn a_date_is_the_utc_calendars() {
        for (secs, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (u64::MAX, "99991231T235959Z"),
        ] {
            assert_eq!(amz_date(secs), expected);
        }
    }

    #[test]
    fn a_profile_is_found_in_the_shared_file() {
        let text = "# comment\n[default]\naws_access_key_id = AK\nAWS_SECRET_ACCESS_KEY=s/e=c\n; x\nregion = us\ns3 =\n  a = b\n\n\
                    [profile two]\naws_access_key_id=AK2\naws_access_key_id=AK3\naws_secret_access_key=x\naws_session_token= t\n\
                    [empty]\n[half]\naws_access_key_id = AK\n";
        let of = |profile| Credentials::from_file(text, profile);
        assert_eq!(of("default"), Credentials::new("AK", "s/e=c", None));
        assert_eq!(of("two"), Credentials::new("AK3", "x", Some("t")));
        assert_eq!(of("empty"), Err(CredentialsError::Missing("aws_access_key_id")));
        assert_eq!(of("half"), Err(CredentialsError::Missing("aws_secret_access_key")));
        let missing = of("three").unwrap_err().to_string();
        assert!(missing.contains("[three]") && missing.contains("default, two, empty, half"), "{missing}");
        assert_eq!(Credentials::from_file("[default\n", "default"), Err(CredentialsError::Syntax(1)));
        assert_eq!(Credentials::from_file("[default]\nwhat\n", "default"), Err(CredentialsError::Syntax(2)));
        assert!(Credentials::from_file("", "default").unwrap_err().to_string().contains("none"));
        assert_eq!(Credentials::new("A", "b\r\nc", None), Err(CredentialsError::Unprintable("aws_secret_access_key")));
    }

    #[test]
    fn the_environment_has_both_keys_or_none() {
        let of = |set: &[(&str, &str)]| {
            let set: std::collections::HashMap<String, String> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            Credentials::from_environment(|name| set.get(name).cloned())
        };
        assert_eq!(of(&[("AWS_SESSION_TOKEN", "t")]), Ok(None));
        assert_eq!(of(&[("AWS_ACCESS_KEY_ID", "a")]), Err(CredentialsError::Missing("aws_secret_access_key")));
        let both = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_SESSION_TOKEN", "")];
        assert_eq!(of(&both), Credentials::new("a", "b", None).map(Some));
    }

    #[test]
    fn no_secret_is_printed() {
        let credentials = Credentials::new("PUBLIC", "SECRET1", Some("SECRET2")).unwrap();
        let text = format!("{credentials:?} {:?}", signed(&credentials, "/", &[]));
        assert!(text.contains("PUBLIC") && !text.contains("SECRET") && !text.contains("Signature"), "{text}");
    }

    #[test]
    fn a_bucket_is_in_the_path_or_in_the_host() {
        let at = |endpoint, bucket, style| {
            Bucket::new(endpoint, bucket, style).map(|b| (b.host().to_owned(), b.target(b"/k?q")))
        };
        assert_eq!(at("s3:9000", "my_Bucket", Style::Path), Ok(("s3:9000".into(), b"/my_Bucket/k?q".to_vec())));
        assert_eq!(
            at("s3.example:9000", "my.b", Style::VirtualHost),
            Ok(("my.b.s3.example:9000".into(), b"/k?q".to_vec()))
        );
        for (endpoint, bucket, style) in [
            ("s3", "ab", Style::Path),
            ("s3", "a/b", Style::Path),
            ("s3", "a..b", Style::Path),
            ("s3", "a b", Style::Path),
            ("s3", "My-bucket", Style::VirtualHost),
            ("127.0.0.1:9000", "abc", Style::VirtualHost),
            ("[::1]:9000", "abc", Style::VirtualHost),
            ("[::1]", "abc", Style::VirtualHost),
        ] {
            assert!(at(endpoint, bucket, style).is_err(), "{endpoint} {bucket}");
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_its_own(path in prop::collection::vec(any::<u8>(), 0..20), query in "[a-c=&+%2 ]{0,20}") {
            let target = [b"/".as_slice(), &path, b"?", query.as_bytes()].concat();
            let once = canonical_target(&target);
            let again = canonical_target(format!("{}?{}", once.0, once.1).as_bytes());
            prop_assert_eq!(again, once);
        }

        #[test]
        fn every_date_has_its_form_and_order(a in 0u64..300_000_000_000, b in 0u64..300_000_000_000) {
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(amz_date(a) <= amz_date(b) && amz_date(a).len() == 16);
        }

        #[test]
        fn no_text_panics_the_credentials_file(text in "[\\[\\]a-z=#;\n _]{0,60}", profile in "[a-z]{0,3}") {
            let _ = Credentials::from_file(&text, &profile);
        }
    }
}
