//! Pure code, in nanoseconds: what one request costs before the kernel is asked for anything.
//!
//! Question: does HTTP stay out of the way? Expectation: a request of a load tool below 200 ns and one of a browser
//! below 1 us from bytes to head; everything else below 100 ns; no allocation in any of it (buffers are reused here as
//! the server reuses them).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringway::http::head::{HeadLimits, Parse, RequestHead, Version, parse};
use ringway::http::reply::{FileHead, write_error, write_file_head};
use ringway::http::target::decode_path;
use ringway::http::validator::{Validators, evaluate};
use ringway::http::{Status, chunked, framing, range};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 16 << 10, header_count: 64, target_bytes: 8 << 10 };

/// What wrk sends.
const TOOL: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

/// What a browser sends on a reload.
const BROWSER: &[u8] = b"GET /assets/app.7c1f0b.js?v=3 HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    Connection: keep-alive\r\n\
    Cache-Control: max-age=0\r\n\
    sec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: no-cors\r\n\
    Sec-Fetch-Dest: script\r\n\
    Referer: https://www.example.org/index.html\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9\r\n\
    If-None-Match: \"18c2f3a1b2c3d4e5-1f40\"\r\n\
    If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";

const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

fn head_of(bytes: &[u8]) -> RequestHead<'_> {
    match parse(bytes, &LIMITS) {
        Parse::Request(head, _) => head,
        other => panic!("{other:?}"),
    }
}

fn heads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("head");
    for (name, bytes) in [("tool", TOOL), ("browser", BROWSER), ("partial", &BROWSER[..BROWSER.len() - 2])] {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| parse(black_box(bytes), &LIMITS)));
    }
    group.finish();
}

fn targets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("target");
    let mut out = Vec::with_capacity(256);
    for (name, target) in [
        ("short", b"/index.html".as_slice()),
        ("long", b"/assets/images/2024/11/holiday/large/IMG_20241106_084937.jpg?width=1200"),
        ("escaped", b"/caf%C3%A9/./men%C3%BC//r%C3%A9sum%C3%A9.pdf"),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| decode_path(black_box(target), &mut out).map(|target| target.path.len()))
        });
    }
    group.finish();
}

fn ranges(criterion: &mut Criterion) {
    criterion.bench_function("range/single", |bencher| {
        bencher.iter(|| range::answer(black_box(b"bytes=1048576-2097151"), black_box(1 << 30)))
    });
}

fn conditions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("evaluate");
    let validators = Validators::new(8000, 784_111_777, 5);
    let dated = [TOOL.strip_suffix(b"\r\n").unwrap(), b"If-Modified-Since: ", DATE, b"\r\n\r\n"].concat();
    for (name, bytes) in [("none", TOOL), ("etag", BROWSER), ("date", &dated)] {
        let head = head_of(bytes);
        group.bench_function(name, |bencher| bencher.iter(|| evaluate(black_box(&head), &validators)));
    }
    group.finish();
    criterion.bench_function("validators/new", |bencher| {
        bencher.iter(|| Validators::new(black_box(8000), black_box(784_111_777), black_box(5)))
    });
}

fn replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reply");
    let validators = Validators::new(1 << 30, 784_111_777, 5);
    let mut out = Vec::with_capacity(1024);
    for (name, status, part) in [
        ("200", Status::OK, None),
        ("206", Status::PARTIAL_CONTENT, Some(1048576..2097152)),
        ("304", Status::NOT_MODIFIED, None),
    ] {
        let head = FileHead {
            status,
            len: 1 << 30,
            part,
            content_type: b"text/html; charset=utf-8",
            validators: &validators,
            cache_control: None,
            keep_alive: true,
            version: Version::Http11,
            date: DATE,
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                write_file_head(&mut out, black_box(&head));
                out.len()
            })
        });
    }
    group.bench_function("404", |bencher| {
        bencher.iter(|| {
            out.clear();
            write_error(&mut out, black_box(Status::NOT_FOUND), "", &[], true, Version::Http11, DATE, true);
            out.len()
        })
    });
    group.finish();
}

fn bodies(criterion: &mut Criterion) {
    let body = [b"1000\r\n".as_slice(), &[b'x'; 4096], b"\r\n0\r\n\r\n"].concat();
    criterion.bench_function("skip/chunked_4k", |bencher| {
        bencher.iter(|| chunked::BodySkip::new(framing::Framing::Chunked, 1 << 20).feed(black_box(&body)))
    });
}

criterion_group!(pure, heads, targets, ranges, conditions, replies, bodies);
criterion_main!(pure);
