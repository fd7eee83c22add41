//! AWS Signature Version 4 checked as S3 checks it, from the documents and nothing of the server under test: HMAC is
//! spelled out over SHA-256 here, so that both sides cannot share a mistake.

use super::client::{hex, sha256};
use super::origin::Request;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime};

/// What a request must be signed with.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
    pub region: String,
    /// The clock of the check; `None` is now.
    pub clock: Option<SystemTime>,
}

/// HMAC-SHA256 (RFC 2104).
pub fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

/// Percent-decoded and encoded again as S3 canonicalises it: every byte but the unreserved ones, hex in capitals.
fn canonical(text: &str, keep_slash: bool) -> Result<String, String> {
    let (bytes, mut at, mut out) = (text.as_bytes(), 0, String::new());
    while at < bytes.len() {
        let byte = if bytes[at] == b'%' {
            let digits = text.get(at + 1..at + 3).ok_or("half an escape")?;
            at += 2;
            u8::from_str_radix(digits, 16).map_err(|_| format!("%{digits} is no escape"))?
        } else {
            bytes[at]
        };
        at += 1;
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    Ok(out)
}

impl Credentials {
    /// Whether a request is signed right; otherwise why not.
    pub fn verify(&self, request: &Request) -> Result<(), String> {
        let one = |name: &str| {
            let mut values = request.all(name);
            let value = values.next().ok_or_else(|| format!("no {name}"))?;
            if values.next().is_some() { Err(format!("{name} is there twice")) } else { Ok(value.to_owned()) }
        };
        let authorization = one("authorization")?;
        let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("not AWS4-HMAC-SHA256")?;
        let part = |name: &str| {
            rest.split(',')
                .find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
                .ok_or_else(|| format!("no {name} in Authorization"))
        };
        let (credential, signed, signature) = (part("Credential")?, part("SignedHeaders")?, part("Signature")?);
        let scope: Vec<&str> = credential.split('/').collect();
        let [access_key, date, region, service, terminator] = scope[..] else {
            return Err(format!("credential {credential}"));
        };
        if access_key != self.access_key {
            return Err(format!("unknown access key {access_key}"));
        }
        if (region, service, terminator) != (self.region.as_str(), "s3", "aws4_request") {
            return Err(format!("scope {credential}"));
        }
        let stamp = one("x-amz-date")?;
        let at = parse_stamp(&stamp).ok_or_else(|| format!("x-amz-date {stamp}"))?;
        let now = self.clock.unwrap_or_else(SystemTime::now);
        let apart = now.duration_since(at).or_else(|_| at.duration_since(now)).unwrap_or_default();
        if apart > Duration::from_secs(15 * 60) || stamp.get(..8) != Some(date) {
            return Err(format!("RequestTimeTooSkewed: {stamp}, scope {date}"));
        }
        let payload = one("x-amz-content-sha256")?;
        if payload != "UNSIGNED-PAYLOAD" && payload != sha256(b"") {
            return Err(format!("x-amz-content-sha256 {payload} of an empty payload"));
        }
        if request.header("x-amz-security-token") != self.session_token {
            return Err("x-amz-security-token is not the one of the session".to_owned());
        }
        let names: Vec<&str> = signed.split(';').collect();
        if !names.is_sorted() || names.iter().any(|name| name.chars().any(|letter| letter.is_ascii_uppercase())) {
            return Err(format!("SignedHeaders are not sorted or not lower case: {signed}"));
        }
        // What S3 demands to be signed: the host and everything of its own.
        for (name, _) in &request.headers {
            let name = name.to_ascii_lowercase();
            if (name == "host" || name.starts_with("x-amz-")) && !names.contains(&name.as_str()) {
                return Err(format!("{name} is not signed"));
            }
        }
        let mut headers = String::new();
        for name in &names {
            let value = request.header(name).ok_or_else(|| format!("{name} is signed and not there"))?;
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            headers += &format!("{name}:{value}\n");
        }
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push(format!("{}={}", canonical(name, false)?, canonical(value, false)?));
        }
        pairs.sort();
        let (method, path, query) = (&request.method, canonical(path, true)?, pairs.join("&"));
        let canonical_request = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{payload}");
        let scope = format!("{date}/{region}/s3/aws4_request");
        let to_sign = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", sha256(canonical_request.as_bytes()));
        let mut key = hmac(format!("AWS4{}", self.secret_key).as_bytes(), date.as_bytes());
        for step in [region, "s3", "aws4_request"] {
            key = hmac(&key, step.as_bytes());
        }
        let right = hex(&hmac(&key, to_sign.as_bytes()));
        if right == signature {
            Ok(())
        } else {
            Err(format!("signature is {signature}, not {right}, over:\n{canonical_request}"))
        }
    }
}

/// `20130524T000000Z`.
fn parse_stamp(stamp: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| stamp.get(from..to)?.parse::<u32>().ok();
    let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        .get(usize::try_from(digits(4, 6)?.checked_sub(1)?).ok()?)?;
    (stamp.len() == 16 && stamp.get(8..9) == Some("T") && stamp.ends_with('Z')).then_some(())?;
    let [year, day, hour, minute, second] =
        [digits(0, 4)?, digits(6, 8)?, digits(9, 11)?, digits(11, 13)?, digits(13, 15)?];
    // The crate reads IMF-fixdate and does not check the weekday against the date... so each of them is tried.
    ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].into_iter().find_map(|weekday| {
        let text = format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT");
        httpdate::parse_http_date(&text).ok()
    })
}

/// The example of the documents ("Signature Calculations for the Authorization Header", GET Object).
pub fn example() -> (Credentials, Request) {
    let credentials = Credentials {
        access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        session_token: None,
        region: "us-east-1".to_owned(),
        clock: parse_stamp("20130524T000000Z"),
    };
    let headers = [
        ("Host", "examplebucket.s3.amazonaws.com"),
        ("Range", "bytes=0-9"),
        ("x-amz-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("x-amz-date", "20130524T000000Z"),
        (
            "Authorization",
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    ];
    let request = Request {
        at: std::time::Instant::now(),
        connection: 0,
        number: 0,
        method: "GET".to_owned(),
        target: "/test.txt".to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
    };
    (credentials, request)
}
