//! One scrape of `/metrics`, parsed.

use super::Client;
use std::net::SocketAddr;

/// One sample: name, labels, value.
#[derive(Debug, Clone)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// A scrape.
pub struct Metrics {
    pub text: String,
    pub samples: Vec<Sample>,
}

impl Metrics {
    pub fn scrape(admin: SocketAddr) -> Self {
        let reply =
            Client::connect(admin).exchange(b"GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        assert_eq!(reply.status, 200, "/metrics");
        let text = String::from_utf8(reply.body).expect("metrics are UTF-8");
        let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(parse).collect();
        Self { text, samples }
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name && labels.iter().all(|(label, value)| sample.label(label) == Some(value))
        })
    }

    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// Sum of all samples of a name with these labels; a name that does not exist is a failure, not a zero.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        assert!(self.has(name, labels), "no sample of {name} with {labels:?}");
        self.matching(name, labels).map(|sample| sample.value).sum()
    }
}

fn parse(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
    let value = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
    let Some((name, rest)) = series.split_once('{') else {
        return Sample { name: series.to_owned(), labels: Vec::new(), value };
    };
    let mut labels = Vec::new();
    let mut rest = rest.strip_suffix('}').unwrap_or_else(|| panic!("labels without an end: {line}"));
    while let Some((label, tail)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut end = tail.len();
        let mut letters = tail.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                '"' => {
                    end = at + 1;
                    break;
                }
                other => text.push(other),
            }
        }
        labels.push((label.trim_start_matches(',').to_owned(), text));
        rest = &tail[end..];
    }
    Sample { name: name.to_owned(), labels, value }
}
