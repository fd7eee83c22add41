//! Pure: host and path to a route. An exact host beats any host, then the longest path prefix wins.

use crate::config::Route;

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// To this route; the path below it begins at `cut` (with a `/`).
    Route {
        /// Index in the configuration.
        route: usize,
        /// Bytes of the path that belong to the route.
        cut: usize,
    },
    /// The path is the route's prefix without its slash.
    Redirect {
        /// Index in the configuration.
        route: usize,
    },
}

#[derive(Clone, Debug)]
struct Rule {
    host: Option<Vec<u8>>,
    prefix: Vec<u8>,
}

/// The routes, in the configuration's order (most specific first).
#[derive(Clone, Debug)]
pub struct Router {
    rules: Vec<Rule>,
}

impl Router {
    /// A router over the configuration's routes.
    pub fn new(routes: &[Route]) -> Self {
        let rule = |route: &Route| Rule {
            host: route.host.as_ref().map(|host| host.as_bytes().to_vec()),
            prefix: route.prefix.as_bytes().to_vec(),
        };
        Self { rules: routes.iter().map(rule).collect() }
    }

    /// Finds the route of a decoded path (which begins with `/`); `host` as it stood in the request.
    #[inline]
    pub fn find(&self, host: Option<&[u8]>, path: &[u8]) -> Option<Found> {
        if let [Rule { host: None, prefix }] = self.rules.as_slice()
            && prefix == b"/"
        {
            return Some(Found::Route { route: 0, cut: 0 });
        }
        let host = host.map(bare);
        self.rules.iter().enumerate().find_map(|(route, rule)| {
            if let Some(want) = &rule.host
                && !host.is_some_and(|host| host.eq_ignore_ascii_case(want))
            {
                return None;
            }
            if path.starts_with(&rule.prefix) {
                return Some(Found::Route { route, cut: rule.prefix.len() - 1 });
            }
            let slashless = &rule.prefix[..rule.prefix.len() - 1];
            (!slashless.is_empty() && path == slashless).then_some(Found::Redirect { route })
        })
    }
}

/// A host without its port and final dot.
fn bare(host: &[u8]) -> &[u8] {
    let end = match host.iter().rposition(|byte| *byte == b':') {
        // The colons of an IPv6 address stand inside brackets.
        Some(colon) if !host[colon..].contains(&b']') => colon,
        _ => host.len(),
    };
    let host = &host[..end];
    host.strip_suffix(b".").unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sayings;

    fn router() -> Router {
        let mut sayings = Sayings::default();
        let route = |host: &str, path: &str| format!("[[route]]\nsource = \"x\"\n{host}path = \"{path}\"\n");
        let file = [
            route("", "/"),
            route("", "/a"),
            route("", "/a/b"),
            route("host = \"h\"\n", "/"),
            route("host = \"[::1]\"\n", "/six/"),
        ]
        .concat();
        sayings.file("r", &file).expect("good");
        let routes = sayings.understand(&[0]).expect("good").routes;
        let order: Vec<_> = routes.iter().map(|route| (route.host.as_deref(), route.prefix.as_str())).collect();
        assert_eq!(order, [(Some("[::1]"), "/six/"), (Some("h"), "/"), (None, "/a/b/"), (None, "/a/"), (None, "/")]);
        Router::new(&routes)
    }

    #[test]
    fn the_table() {
        let router = router();
        let rows: &[(Option<&str>, &str, Found)] = &[
            (None, "/", Found::Route { route: 4, cut: 0 }),
            (Some("x"), "/a/c", Found::Route { route: 3, cut: 2 }),
            (Some("x"), "/a/b/c", Found::Route { route: 2, cut: 4 }),
            (Some("x"), "/a", Found::Redirect { route: 3 }),
            (Some("x"), "/ab", Found::Route { route: 4, cut: 0 }),
            (Some("H:8080"), "/a/b", Found::Route { route: 1, cut: 0 }),
            (Some("h."), "/", Found::Route { route: 1, cut: 0 }),
            (Some("[::1]:80"), "/six/x", Found::Route { route: 0, cut: 4 }),
            (Some("[::1]"), "/other", Found::Route { route: 4, cut: 0 }),
        ];
        for (host, path, want) in rows {
            assert_eq!(router.find(host.map(str::as_bytes), path.as_bytes()), Some(*want), "{host:?} {path}");
        }
    }
}
