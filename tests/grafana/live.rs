//! A server under load (files, four engines, an origin with a cache), Debian's Prometheus that scrapes it each second, and
//! every query of the dashboards asked of it. `PREVIEW=1` draws them too, into `grafana/previews/`.

use crate::model::written;
use crate::support::origin::{Object, Origin};
use crate::support::{BINARY, Client, Server, Start, eventually, has, tree};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Queries that may have no finite answer here: panel, legend (empty: any), why.
const EXCEPT: &[(&str, &str, &str)] = &[
    ("Firing", "", "nothing fires"),
    ("Fallbacks", "", "only engines that were left show"),
    ("Rejected, cut and limited", "limit: {{limit}}", "only limits that were met show"),
    ("Pinned bytes of the memlock limit", "", "there may be no limit"),
    ("Link use now", "", "the driver may not know the speed"),
    ("Queue for a connection p99", "", "nothing queues"),
];

struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn scraping(targets: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = crate::folder().join("alerts/ringway.rules.yml");
        let config = folder.path().join("prometheus.yml");
        let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
        let text = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n  - job_name: ringway\n    \
             static_configs: [{{ targets: {targets:?} }}]\n",
            rules.display()
        );
        std::fs::write(&config, text).expect("a configuration");
        // The port is free until somebody else takes it in this moment; Prometheus cannot say which one it got.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus starts");
        let prometheus = Self { child, address, _folder: folder };
        eventually("prometheus is ready", Duration::from_secs(20), || {
            ureq::get(format!("http://{address}/-/ready")).call().is_ok()
        });
        prometheus
    }

    fn get(&self, path: &str, pairs: &[(&str, &str)]) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.get(url).query_pairs(pairs.iter().copied()).call().expect("prometheus answers");
        let text = answer.body_mut().read_to_string().expect("text");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}"))
    }

    /// Finite values of a query, and all of them.
    fn ask(&self, expr: &str) -> Result<(usize, usize), String> {
        let answer = self.get("query", &[("query", expr)]);
        if answer["status"] != "success" {
            return Err(answer["error"].to_string());
        }
        let rows = answer["data"]["result"].as_array().expect("a vector");
        let finite = |row: &&Value| {
            row["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).is_some_and(f64::is_finite)
        };
        Ok((rows.iter().filter(finite).count(), rows.len()))
    }
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gentle run of the tester over loopback, longer than the test, and where its two ends tell their metrics.
fn tester() -> ([Killed; 2], [SocketAddr; 2]) {
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let (target, ends) = (free().to_string(), [free(), free()]);
    let told = ends.map(|end| end.to_string());
    let run = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(command.spawn().expect("the tester starts"))
    };
    let sink = run(&["sink", "--listen", &target, "--metrics", &told[0]]);
    eventually("the sink listens", Duration::from_secs(10), || std::net::TcpStream::connect(&target).is_ok());
    let blast = run(&["blast", &target, "--time", "120", "--message", "64K", "--rate", "500", "--metrics", &told[1]]);
    ([sink, blast], ends)
}

/// Asks for all kinds of things until told to stop.
fn load(server: &Server, stop: &AtomicBool, seed: usize) {
    let (mut client, mut turn) = (server.client(), seed);
    while !stop.load(Ordering::Relaxed) {
        turn += 6;
        for path in ["/files/small", "/files/large", "/zc/large", "/splice/large", "/send/large", "/files/none"] {
            client.get(path);
        }
        client.get_with("/files/large", "Range: bytes=5-99\r\n");
        // First each is a fill; what is older than a second is asked for again.
        client.get(&format!("/objects/{}", turn % 400));
        client.get("/objects/0");
        if turn % 48 < 6 {
            // One that leaves in the middle of a body.
            let mut gone = Client::connect_small(server.address());
            gone.send(b"GET /files/huge HTTP/1.1\r\nHost: test\r\n\r\n");
            gone.head();
            gone.reset();
        }
    }
}

/// An expression with its variables at "all".
fn filled(expr: &str) -> String {
    let mut text = written(expr).replace("$__rate_interval", "5s");
    for name in ["$job", "$instance", "$core", "$upstream", "$device"] {
        text = text.replace(name, ".+");
    }
    text
}

#[test]
fn every_query_has_an_answer() {
    if !has("prometheus") {
        return;
    }
    let (files, cache, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Origin::start());
    for (name, length) in [("small", 1000), ("large", 1 << 20), ("huge", 64 << 20)] {
        tree::put(files.path(), name, 7, length);
    }
    for number in 0..400 {
        origin.put(&format!("/{number}"), &Object::new(number, 100_000).fresh(1 + 600 * u32::from(number == 0)));
    }
    let mut text = format!(
        "congestion = \"cubic\"\ncache = \"{}\"\ncache_slice = \"64KiB\"\ncache_bytes = \"256MiB\"\n\
         [[route]]\npath = \"/objects/\"\nsource = \"{}\"\n",
        cache.path().display(),
        origin.url("")
    );
    for (path, engine) in [("files", "auto"), ("zc", "send-zc"), ("splice", "splice"), ("send", "send")] {
        text += &format!(
            "[[route]]\npath = \"/{path}/\"\nsource = \"{}\"\nengine = \"{engine}\"\n",
            files.path().display()
        );
    }
    let server = Start::configured(&text).spawn();
    let (_tester, ends) = tester();
    let prometheus = Prometheus::scraping(&[server.admin.expect("an admin address"), ends[0], ends[1]]);
    let stop = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|seed| {
                scope.spawn({
                    let (server, stop) = (&server, &stop);
                    move || load(server, stop, seed)
                })
            })
            .collect();
        let preview = std::env::var_os("PREVIEW").is_some();
        std::thread::sleep(Duration::from_secs(if preview { 60 } else { 9 }));
        // Whatever happens here, the load ends before it is told.
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if preview {
                draw(prometheus.address);
            }
            unanswered(&prometheus)
        }));
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("the load met no wrong answer");
        }
        wrong
    });
    let wrong = wrong.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(wrong.is_empty(), "{} queries:\n{}", wrong.len(), wrong.join("\n"));
    server.stop();
}

fn unanswered(prometheus: &Prometheus) -> Vec<String> {
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for board in crate::panels::all() {
        for panel in board.panels() {
            for (expr, legend) in &panel.queries {
                asked += 1;
                let excepted =
                    EXCEPT.iter().any(|(title, own, _)| *title == panel.title && (own.is_empty() || own == legend));
                match prometheus.ask(&filled(expr)) {
                    Ok((0, all)) if !excepted => {
                        wrong.push(format!(
                            "{} / {} / {legend}: {all} values, none finite: {expr}",
                            board.uid, panel.title
                        ));
                    }
                    Ok(_) => {}
                    Err(error) => wrong.push(format!("{} / {}: {error}: {expr}", board.uid, panel.title)),
                }
            }
        }
        for variable in board.all_variables() {
            let query = variable.query.replace("$job", ".+").replace("$instance", ".+");
            let inside =
                query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect("label_values");
            let (series, label) = inside.rsplit_once(", ").expect("two arguments");
            let answer = prometheus.get(&format!("label/{label}/values"), &[("match[]", series)]);
            if answer["data"].as_array().is_none_or(Vec::is_empty) {
                wrong.push(format!("{}: variable {} has no value", board.uid, variable.name));
            }
        }
    }
    // Nothing restarts or drains here: what marks it must parse, and its family must be there.
    for (name, _, expr) in crate::panels::ANNOTATIONS {
        let (shown, bare) = (filled(expr), filled(expr).replace(" > 0", ""));
        if prometheus.ask(&shown).is_err() || prometheus.ask(&bare).is_ok_and(|(finite, _)| finite == 0) {
            wrong.push(format!("annotation {name}: {expr}"));
        }
    }
    println!("{asked} queries of panels asked");
    wrong
}

/// Draws every dashboard with headless Chromium.
fn draw(prometheus: SocketAddr) {
    let page = std::fs::read_to_string(crate::folder().join("preview/preview.html")).expect("the page");
    let scratch = tempfile::tempdir().expect("a folder");
    let out = crate::folder().join("previews");
    std::fs::create_dir_all(&out).expect("previews/");
    for board in crate::panels::all() {
        let json = board.json();
        let rows = json["panels"].as_array().expect("panels").iter();
        let rows =
            rows.map(|panel| ["y", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0)).iter().sum::<u64>());
        let height = 70 + 34 * rows.max().unwrap_or(0);
        let script = format!("const DASHBOARD = {json}, PROMETHEUS = \"http://{prometheus}\";");
        let file = scratch.path().join("page.html");
        std::fs::write(&file, page.replace("/*DATA*/", &script.replace("</", "<\\/"))).expect("a page");
        shoot(&file, &out.join(format!("{}.png", board.uid)), height, scratch.path());
    }
}

fn shoot(page: &Path, picture: &Path, height: u64, profile: &Path) {
    let mut command = Command::new("timeout");
    command.args([
        "60",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-web-security",
    ]);
    command.args(["--virtual-time-budget=15000", &format!("--window-size=1600,{height}")]);
    command.arg(format!("--user-data-dir={}", profile.join("profile").display()));
    command.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", page.display()));
    crate::support::output(&mut command);
    assert!(picture.is_file(), "no {}", picture.display());
}
