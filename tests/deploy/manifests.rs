//! What other programs read: the Dockerfile, compose, Prometheus' configuration, Kubernetes' manifests.

use crate::support::confined::deploy;
use crate::support::{BINARY, has, output, which};
use std::io::Write;
use std::process::Command;

#[test]
fn the_dockerfile_is_good() {
    if has("hadolint") {
        output(Command::new("hadolint").arg(deploy("docker/Dockerfile")));
    }
}

#[test]
fn compose_is_good_and_its_files_are_there() {
    let file = deploy("docker/compose.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    for own in ["../seccomp/ringway.json", "./prometheus.yml", "./grafana-datasource.yml"] {
        assert!(text.contains(own) && deploy("docker").join(own).is_file(), "{own}");
    }
    if has("check-jsonschema") {
        output(Command::new("check-jsonschema").args(["--builtin-schema", "vendor.compose-spec"]).arg(&file));
    }
}

#[test]
fn prometheus_takes_its_configuration() {
    if has("promtool") {
        output(
            Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(deploy("docker/prometheus.yml")),
        );
    }
}

#[test]
fn the_pods_configuration_is_good() {
    let said =
        output(Command::new(BINARY).args(["check", "--config"]).arg(deploy("k8s/base/ringway.toml")).env_clear());
    assert!(String::from_utf8_lossy(&said).contains("is good"));
}

#[test]
fn kubernetes_takes_every_overlay() {
    if which("kubectl").is_none() {
        // No registry brings a kubectl new enough, so its absence is no failure anywhere.
        let _ = std::io::stderr().write_all(b"\nskipped: kubernetes_takes_every_overlay needs kubectl 1.27 or newer\n");
        return;
    }
    if !has("kubernetes-validate") {
        return;
    }
    for (overlay, kind) in [
        ("base", "Deployment"),
        ("overlays/deployment", "Deployment"),
        ("overlays/hostnet", "DaemonSet"),
        ("overlays/monitoring", "PodMonitor"),
    ] {
        let made = output(Command::new("kubectl").arg("kustomize").arg(deploy("k8s").join(overlay)));
        let text = String::from_utf8_lossy(&made).into_owned();
        assert!(text.contains(&format!("kind: {kind}\n")), "{overlay} has no {kind}");
        for word in ["localhostProfile: profiles/ringway.json", "path: /readyz", "path: /healthz", "preStop:"] {
            assert!(text.contains(word), "{overlay} lacks {word}");
        }
        let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        file.write_all(&made).unwrap();
        output(Command::new("kubernetes-validate").args(["--strict", "--no-warn"]).arg(file.path()));
    }
}
