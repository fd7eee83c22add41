//! The `metrics` facade for rare events: a library user may install any recorder and gets them there.
//!
//! Our own recorder is installed where none was; what it holds is appended to /metrics. Nothing of the data path comes
//! here (a facade counter costs some hundred nanoseconds and shared cache lines).

use super::names;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Our recorder, if it is the one in use.
#[derive(Clone)]
pub struct Rare(Option<PrometheusHandle>);

impl std::fmt::Debug for Rare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rare").field(&self.0.is_some()).finish()
    }
}

impl Rare {
    /// Installs our recorder, or leaves the one that is there.
    pub fn install() -> Self {
        let handle = PrometheusBuilder::new().install_recorder().ok();
        for family in names::RARE {
            metrics::describe_counter!(family.name, family.help);
        }
        Self(handle)
    }

    /// Text of the rare events so far.
    pub fn render(&self) -> String {
        self.0.as_ref().map(PrometheusHandle::render).unwrap_or_default()
    }

    /// To be called now and then, or histograms would grow without bound.
    pub fn upkeep(&self) {
        if let Some(handle) = &self.0 {
            handle.run_upkeep();
        }
    }
}

/// Counts something that start-up found worse than it could be.
pub fn startup_warning(kind: &'static str) {
    metrics::counter!(names::STARTUP_WARNINGS.name, "kind" => kind).increment(1);
}

/// Counts a request to the admin address; `path` is one of the known ones or `other`.
pub fn admin_request(path: &'static str, code: u16) {
    metrics::counter!(names::ADMIN_REQUESTS.name, "path" => path, "code" => code.to_string()).increment(1);
}
