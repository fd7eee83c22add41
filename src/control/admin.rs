//! The admin address: /metrics, /healthz, /readyz. A small HTTP/1.1 server, bounded, one task per connection.

use super::State;
use crate::telemetry::names::Group;
use crate::telemetry::publish;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_uring::net::{TcpListener, TcpStream};

/// Connections at once; more are told 503.
const CONNECTIONS: usize = 64;
/// Bytes of a request head.
const HEAD: usize = 8 << 10;
/// Between requests.
const IDLE: Duration = Duration::from_secs(30);
/// From the first byte of a head to its last.
const HEADER: Duration = Duration::from_secs(5);
/// For the client to take a whole answer.
const WRITE: Duration = Duration::from_secs(10);

/// What is the same of a TCP and a Unix listener.
pub(super) trait Listener {
    type Stream: Stream;
    async fn accept(&self) -> std::io::Result<Self::Stream>;
}

/// What is the same of their streams.
pub(super) trait Stream: 'static {
    /// Who may open it was checked by the file system.
    const TRUSTED: bool;
    async fn read(&self, into: Vec<u8>) -> (std::io::Result<usize>, Vec<u8>);
    async fn write_all(&self, bytes: Vec<u8>) -> (std::io::Result<()>, Vec<u8>);
    fn end(&self);
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    async fn accept(&self) -> std::io::Result<TcpStream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    async fn accept(&self) -> std::io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Stream for TcpStream {
    const TRUSTED: bool = false;
    async fn read(&self, into: Vec<u8>) -> (std::io::Result<usize>, Vec<u8>) {
        TcpStream::read(self, into).await
    }
    async fn write_all(&self, bytes: Vec<u8>) -> (std::io::Result<()>, Vec<u8>) {
        TcpStream::write_all(self, bytes).await
    }
    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    const TRUSTED: bool = true;
    async fn read(&self, mut into: Vec<u8>) -> (std::io::Result<usize>, Vec<u8>) {
        loop {
            if let Err(error) = self.readable().await {
                return (Err(error), into);
            }
            into.resize(into.capacity(), 0);
            match self.try_read(&mut into) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                done => return (done, into),
            }
        }
    }
    async fn write_all(&self, bytes: Vec<u8>) -> (std::io::Result<()>, Vec<u8>) {
        let mut at = 0;
        while at < bytes.len() {
            if let Err(error) = self.writable().await {
                return (Err(error), bytes);
            }
            match self.try_write(&bytes[at..]) {
                Ok(n) => at += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return (Err(error), bytes),
            }
        }
        (Ok(()), bytes)
    }
    fn end(&self) {
        // The stream is dropped after this, which is its end.
    }
}

/// Answers until the listener is shut down.
pub(super) async fn serve<L: Listener>(state: Rc<State>, listener: L) {
    loop {
        match listener.accept().await {
            Ok(_) if state.ended.get() => return,
            Ok(stream) => {
                let full = state.open.get() >= CONNECTIONS;
                state.open.set(state.open.get() + 1);
                let state = Rc::clone(&state);
                tokio_uring::spawn(async move {
                    if full {
                        let busy = answer(503, "text/plain", "too many admin connections\n", false, true);
                        let _ = timeout(WRITE, stream.write_all(busy)).await;
                        publish::admin_request("other", 503);
                    } else {
                        connection(&state, &stream).await;
                    }
                    // FIN first, so that a client that still sends is not cut off with a reset.
                    stream.end();
                    state.open.set(state.open.get() - 1);
                });
            }
            // EINVAL: shut down for the end.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            // EMFILE and the like pass; do not spin meanwhile.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection<S: Stream>(state: &State, stream: &S) {
    let mut head: Vec<u8> = Vec::new();
    loop {
        let patience = if head.is_empty() { IDLE } else { HEADER };
        let complete = timeout(patience, read_head(state, stream, &mut head)).await;
        let (used, keep, reply) = match complete {
            Ok(Some(Head::Request(used))) => {
                let (keep, reply) = respond(state, &head[..used], S::TRUSTED);
                (used, keep, reply)
            }
            Ok(Some(Head::TooLong)) => {
                (0, false, answer(431, "text/plain", "the request head is too long\n", false, true))
            }
            Ok(Some(Head::Bad)) => (0, false, answer(400, "text/plain", "that is not HTTP\n", false, true)),
            Ok(None) | Err(_) => return,
        };
        head.drain(..used);
        match timeout(WRITE, stream.write_all(reply)).await {
            Ok((Ok(()), _)) if keep => {}
            _ => return,
        }
    }
}

enum Head {
    Request(usize),
    TooLong,
    Bad,
}

/// Reads until a head is complete; `None` at the end of the stream.
async fn read_head(state: &State, stream: &impl Stream, head: &mut Vec<u8>) -> Option<Head> {
    let began = state.clock.now();
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        match httparse::Request::new(&mut fields).parse(head) {
            Ok(httparse::Status::Complete(used)) => return Some(Head::Request(used)),
            Err(httparse::Error::TooManyHeaders) => return Some(Head::TooLong),
            Err(_) => return Some(Head::Bad),
            Ok(httparse::Status::Partial) if head.len() >= HEAD => return Some(Head::TooLong),
            Ok(httparse::Status::Partial) if !head.is_empty() && state.clock.now().since(began) > HEADER => {
                return None;
            }
            Ok(httparse::Status::Partial) => {}
        }
        let (read, piece) = stream.read(Vec::with_capacity(2048)).await;
        match read {
            Ok(n) if n > 0 => head.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
}

fn respond(state: &State, head: &[u8], trusted: bool) -> (bool, Vec<u8>) {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    // It was complete a moment ago.
    let _ = request.parse(head);
    let method = request.method.unwrap_or_default();
    let whole = request.path.unwrap_or_default();
    let (path, query) = whole.split_once('?').unwrap_or((whole, ""));
    let raw = |name: &str| {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    let field = |name: &str| raw(name).map(|value| value.to_ascii_lowercase());
    let connection = field("connection").unwrap_or_default();
    // A body is not read here, so whoever sends one is done.
    let body = field("content-length").is_some_and(|length| length != "0") || field("transfer-encoding").is_some();
    let keep =
        if request.version == Some(1) { !connection.contains("close") } else { connection.contains("keep-alive") };
    let keep = keep && !body;
    if path.starts_with("/cache/") {
        let allowed = trusted || is_token(&state.config.admin_token, raw("authorization").as_deref());
        let (code, text) = cache_command(state, method, path, query, allowed);
        publish::admin_request("/cache", code);
        return (keep, answer(code, "text/plain; charset=utf-8", &text, keep, method != "HEAD"));
    }
    let mut asked = Vec::new();
    let (known, code, kind, text) = match path {
        "/metrics" => match groups(query) {
            Ok(groups) => {
                asked = groups;
                ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", None)
            }
            Err(why) => ("/metrics", 400, "text/plain", Some(why)),
        },
        "/healthz" => match state.hung() {
            None => ("/healthz", 200, "text/plain", Some("ok\n".to_owned())),
            Some(core) => {
                ("/healthz", 503, "text/plain", Some(format!("core {core} has ended or has not turned for 10 s\n")))
            }
        },
        "/readyz" if state.ready() => ("/readyz", 200, "text/plain", Some("ready\n".to_owned())),
        "/readyz" if state.draining.get() => ("/readyz", 503, "text/plain", Some("draining\n".to_owned())),
        "/readyz" => ("/readyz", 503, "text/plain", Some("not every core accepts\n".to_owned())),
        _ => ("other", 404, "text/plain", Some("try /metrics, /healthz, /readyz or /cache/stat\n".to_owned())),
    };
    let (code, kind, text) = match method {
        "GET" | "HEAD" => (code, kind, text),
        _ => (405, "text/plain", Some("only GET and HEAD\n".to_owned())),
    };
    publish::admin_request(known, code);
    let Some(text) = text else {
        let squeeze = field("accept-encoding").is_some_and(|value| takes_gzip(&value));
        return (keep, metrics(&state.metrics(&asked), squeeze, keep, kind, method != "HEAD"));
    };
    (keep, answer(code, kind, &text, keep, method != "HEAD"))
}

/// The groups of `collect[]=`; all of them where none is named.
fn groups(query: &str) -> Result<Vec<Group>, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let named = pairs.map(|(key, value)| (decode(key), decode(value))).filter(|(key, _)| key == "collect[]");
    let find = |(_, word): (String, String)| {
        Group::ALL.iter().copied().find(|group| group.text() == word).ok_or_else(|| {
            let known: Vec<_> = Group::ALL.iter().map(|group| group.text()).collect();
            format!("there is no group {word:?}; collect[] may be {}\n", known.join(", "))
        })
    };
    let groups = named.map(find).collect::<Result<Vec<_>, _>>()?;
    Ok(if groups.is_empty() { Group::ALL.to_vec() } else { groups })
}

/// Whether an Accept-Encoding (in small letters) takes gzip: named, and not with a weight of zero.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next() == Some("gzip");
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
        named && weight.is_ok_and(|weight| weight > 0.0)
    })
}

/// The answer to a scrape.
fn metrics(text: &str, squeeze: bool, keep: bool, kind: &str, body: bool) -> Vec<u8> {
    let mut coding = "Vary: Accept-Encoding\r\n";
    let mut bytes = text.as_bytes().to_vec();
    if squeeze {
        let mut gzip = flate2::write::GzEncoder::new(Vec::with_capacity(16 << 10), flate2::Compression::fast());
        // Writing into a Vec cannot fail; if it did, the plain text is as good.
        if let Ok(squeezed) = gzip.write_all(&bytes).and_then(|()| gzip.finish()) {
            bytes = squeezed;
            coding = "Vary: Accept-Encoding\r\nContent-Encoding: gzip\r\n";
        }
    }
    let close = if keep { "" } else { "Connection: close\r\n" };
    let mut out = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{coding}{close}\r\n",
        bytes.len()
    )
    .into_bytes();
    if body {
        out.append(&mut bytes);
    }
    out
}

/// Whether an Authorization shows the token; the time it takes tells nothing of where it differs.
fn is_token(token: &str, authorization: Option<&str>) -> bool {
    let Some(shown) = authorization.and_then(|value| value.strip_prefix("Bearer ")) else { return false };
    let differs = token.bytes().zip(shown.trim().bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    !token.is_empty() && token.len() == shown.trim().len() && differs == 0
}

/// `/cache/ls`, `/cache/stat` and `/cache/purge`: status and text.
fn cache_command(state: &State, method: &str, path: &str, query: &str, allowed: bool) -> (u16, String) {
    let Some(cache) = &state.cache_admin else { return (404, "there is no cache: see --cache\n".to_owned()) };
    let value = |name: &str| {
        let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
        let pair = pair.filter(|(_, value)| !value.is_empty())?;
        Some(percent_encoding::percent_decode_str(pair.1).decode_utf8_lossy().into_owned())
    };
    let done = |purged: Result<usize, String>| match purged {
        Ok(count) => (200, format!("purged {count}\n")),
        Err(why) => (400, format!("{why}\n")),
    };
    match (method, path) {
        ("GET" | "HEAD", "/cache/stat") => (200, cache.stat()),
        ("GET" | "HEAD", "/cache/ls") => {
            let most = value("limit").and_then(|text| text.parse().ok()).unwrap_or(LIST_MOST);
            match cache.list(value("prefix").as_deref(), most) {
                Ok(text) => (200, text),
                Err(why) => (400, format!("{why}\n")),
            }
        }
        ("POST" | "DELETE", "/cache/purge") if !allowed => {
            (401, "purging wants the token of admin_token, or a unix: admin address\n".to_owned())
        }
        ("POST" | "DELETE", "/cache/purge") => match (value("url"), value("prefix")) {
            (Some(url), None) => done(cache.purge(&url)),
            (None, Some(prefix)) => done(cache.purge_prefix(&prefix)),
            _ => (400, "purge what? ?url=URL or ?prefix=BEGINNING\n".to_owned()),
        },
        (_, "/cache/purge") => (405, "POST it\n".to_owned()),
        (_, "/cache/stat" | "/cache/ls") => (405, "only GET and HEAD\n".to_owned()),
        _ => (404, "try /cache/stat, /cache/ls or /cache/purge\n".to_owned()),
    }
}

/// Objects listed unless another limit is asked for.
const LIST_MOST: usize = 10_000;

fn answer(code: u16, kind: &str, text: &str, keep: bool, body: bool) -> Vec<u8> {
    let reason = crate::http::Status(code).reason();
    let allow = match code {
        401 => "WWW-Authenticate: Bearer\r\n",
        405 if text == "POST it\n" => "Allow: POST, DELETE\r\n",
        405 => "Allow: GET, HEAD\r\n",
        _ => "",
    };
    let close = if keep { "" } else { "Connection: close\r\n" };
    let length = text.len();
    let mut out = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n{allow}{close}\r\n"
    )
    .into_bytes();
    if body {
        out.extend_from_slice(text.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_unknown_ones_refused() {
        assert_eq!(groups("").map(|all| all.len()), Ok(Group::ALL.len()));
        assert_eq!(groups("x=1&collect[]=core&collect%5B%5D=nic"), Ok(vec![Group::Core, Group::Nic]));
        assert!(groups("collect[]=cores").is_err_and(|why| why.contains("\"cores\"") && why.contains("core, ring")));
    }

    #[test]
    fn gzip_is_taken_only_where_it_is_wanted() {
        for (accepted, taken) in
            [("gzip", true), ("br, gzip;q=0.5", true), ("gzip;q=0", false), ("x-gzip", false), ("", false)]
        {
            assert_eq!(takes_gzip(accepted), taken, "{accepted}");
        }
    }
}
