//! What the admin address may do with the cache: list, tell, purge. URLs are what clients ask for; keys are made from them
//! as the data path makes them.

use super::proxy;
use super::route::{Found, Router};
use crate::cache::{Cache, key};
use crate::clock::Clock;
use crate::config::{Config, HostRule, Source};
use crate::control::CacheAdmin;
use crate::http::target;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The cache behind the admin address.
#[derive(Debug)]
pub struct Admin {
    cache: Arc<Cache>,
    config: Arc<Config>,
    router: Router,
    clock: Clock,
}

impl Admin {
    /// For this cache and these routes.
    pub fn new(cache: Arc<Cache>, config: Arc<Config>, clock: Clock) -> Self {
        let router = Router::new(&config.routes);
        Self { cache, config, router, clock }
    }

    /// The key of a URL, or of a beginning of one: `http://host/path?query`, or the path alone where no route has a host.
    fn key(&self, url: &str) -> Result<Vec<u8>, String> {
        let (host, raw) = match url.split_once("://") {
            Some((_, rest)) => {
                let (host, _) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(host), &rest[host.len()..])
            }
            None => (None, url),
        };
        let raw = if raw.is_empty() { "/" } else { raw };
        let mut out = Vec::new();
        let path = target::decode_path_keeping_slashes(raw.as_bytes(), &mut out)
            .map_err(|refusal| format!("{url}: {}", refusal.reason))?
            .path;
        let (route, cut) = match self.router.find(host.map(str::as_bytes), path) {
            Some(Found::Route { route, cut }) => (route, cut),
            Some(Found::Redirect { .. }) | None => return Err(format!("{url}: no route has this host and path")),
        };
        let route = &self.config.routes[route];
        let Source::Origin(origin) = &route.source else { return Err(format!("{url}: its route has no origin")) };
        let host = match origin.host {
            HostRule::Client => host.unwrap_or_default(),
            _ => "",
        };
        Ok(key::primary(&proxy::route_name(route), host.as_bytes(), &target::below(raw.as_bytes(), path, cut)))
    }
}

impl CacheAdmin for Admin {
    fn list(&self, prefix: Option<&str>, most: usize) -> Result<String, String> {
        let prefix = prefix.map(|url| self.key(url)).transpose()?.unwrap_or_default();
        let mut text = String::from("status\tttl\tslices\tbytes\treaders\tkey\n");
        for object in self.cache.list(&prefix, most, self.clock.unix().as_secs()) {
            let size = object.size.map_or_else(|| "?".to_owned(), |size| size.to_string());
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "{}\t{}\t{}/{}\t{size}\t{}\t{}",
                object.status, object.ttl, object.slices, object.of, object.readers, object.key
            );
        }
        Ok(text)
    }

    fn stat(&self) -> String {
        let (counts, keeper) = (&self.cache.counts, self.cache.keeper.counts());
        let rows = [
            ("bytes", counts.size_bytes.load(Relaxed)),
            ("bytes_most", self.cache.config.bytes),
            ("objects", counts.objects.load(Relaxed)),
            ("objects_most", self.cache.config.objects as u64),
            ("slice_bytes", self.cache.config.slice),
            ("disk_free_bytes", self.cache.keeper.free_bytes()),
            ("disk_free_bytes_least", self.cache.config.free_bytes),
            ("slices_checked", counts.verified.load(Relaxed)),
            ("slices_wrong", counts.verify_failures.load(Relaxed)),
            ("swept_files", keeper.swept_files.load(Relaxed)),
            ("swept_bytes", keeper.swept_bytes.load(Relaxed)),
            ("journal_persistent", u64::from(keeper.persistent.load(Relaxed))),
            ("journal_records_lost", keeper.lost.load(Relaxed)),
        ];
        rows.iter().fold(String::new(), |text, (name, value)| text + &format!("{name}\t{value}\n"))
    }

    fn purge(&self, url: &str) -> Result<usize, String> {
        self.key(url).map(|key| self.cache.purge(&key))
    }

    fn purge_prefix(&self, url: &str) -> Result<usize, String> {
        self.key(url).map(|key| self.cache.purge_prefix(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sayings;

    #[test]
    fn urls_become_the_keys_the_data_path_makes() {
        let dir = tempfile::tempdir().expect("directory");
        let mut sayings = Sayings::default();
        let file = format!(
            "cache = {:?}\n[[route]]\nsource = \"http://o/p\"\npath = \"/a\"\n\
             [[route]]\nsource = \"http://q\"\nhost = \"h\"\nhost_header = \"client\"\n[[route]]\nsource = \"x\"\n",
            dir.path()
        );
        sayings.file("r", &file).expect("good");
        let config = Arc::new(sayings.understand(&[0]).expect("good"));
        let cache = Cache::open(config.cache.clone().expect("a cache")).expect("open");
        let admin = Admin::new(cache, config, Clock::start());
        let key = |url: &str| admin.key(url).map(|key| String::from_utf8(key).expect("ASCII"));
        assert_eq!(key("/a/b%20c?d"), Ok("*/a/ http://o/p  /b%20c?d".to_owned()));
        assert_eq!(key("http://any:80/a/b"), Ok("*/a/ http://o/p  /b".to_owned()));
        assert_eq!(key("http://H/x"), Ok("h/ http://q h /x".to_owned()));
        assert!(key("/x").is_err_and(|why| why.contains("no origin")));
        assert!(key("/a/../b").is_err());
    }
}
