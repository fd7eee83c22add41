//! Pure: what happens, as lines of a given width, and those as a frame of a terminal.

use super::scrape::{Named, View};
use ratatui::Frame;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// Bytes with a binary unit: `1.5 MiB`.
fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut at = 0;
    let mut value = value.max(0.0);
    while value >= 1024.0 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    if at == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[at]) }
}

fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(width - full))
}

/// Headings begin with `== `. Rows that do not fit into `rows` are cut, and it is said how many.
pub fn lines(view: &View, width: usize, rows: usize) -> Vec<String> {
    let state = match (view.draining, view.ready) {
        (true, _) => "draining",
        (_, true) => "ready",
        _ => "not ready",
    };
    let mut out = vec![format!(
        "== ringway {} {state}: {:.0} requests/s, {}/s to clients (over {:.1} s)",
        view.version,
        view.requests(),
        bytes(view.sent()),
        view.seconds
    )];
    let open: f64 = view.connections.iter().map(|(_, count)| count).sum();
    let states = view.connections.iter().filter(|(_, count)| *count > 0.0);
    let states: Vec<String> = states.map(|(name, count)| format!("{count:.0} {name}")).collect();
    out.push(format!(
        "connections {open:.0} ({}); {:.0}/s accepted, {:.0}/s rejected, {:.0}/s met a limit",
        if states.is_empty() { "none".to_owned() } else { states.join(", ") },
        view.accepted,
        view.rejected,
        view.limits
    ));
    let mut below = vec![format!("== {:<12} {:>12}", "engine", "bytes/s")];
    let all: f64 = view.engines.iter().map(|(_, rate)| rate).sum();
    let share = |rate: f64| if all > 0.0 { rate / all } else { 0.0 };
    let wide = width.saturating_sub(36).clamp(8, 60);
    below.extend(view.engines.iter().map(|(name, rate)| {
        format!("   {name:<9} {:>12} {:>4.0}% {}", bytes(*rate), share(*rate) * 100.0, bar(share(*rate), wide))
    }));
    if !view.origins.is_empty() {
        below.push(format!(
            "== {:<38} {:>4} {:>4} {:>7} {:>7} {:>13}",
            "origin", "busy", "idle", "req/s", "err/s", "bytes/s"
        ));
        below.extend(view.origins.iter().map(|origin| {
            format!(
                "   {:<30} {:>4} {:>4.0} {:>4.0} {:>7.0} {:>7.1} {:>13}",
                origin.name.chars().take(30).collect::<String>(),
                if origin.healthy { "" } else { "DOWN" },
                origin.busy,
                origin.idle,
                origin.requests,
                origin.errors,
                bytes(origin.received)
            )
        }));
    }
    if view.cache_capacity > 0.0 {
        let asked: f64 = view.cache.iter().map(|(_, rate)| rate).sum();
        let seen: Vec<String> = view
            .cache
            .iter()
            .filter(|(_, rate)| *rate > 0.0)
            .map(|(name, rate): &Named| format!("{name} {:.0}%", rate / asked * 100.0))
            .collect();
        below.push(format!(
            "== cache {} of {}, {:.0} objects; {asked:.0} requests/s {}",
            bytes(view.cache_size),
            bytes(view.cache_capacity),
            view.cache_objects,
            seen.join(", ")
        ));
    }
    if !view.nics.is_empty() {
        below.push(format!("== {:<15} {:>12} {:>12}", "interface", "out", "in"));
        below.extend(
            view.nics
                .iter()
                .map(|nic| format!("   {:<12} {:>10}/s {:>10}/s", nic.name, bytes(nic.sent), bytes(nic.received))),
        );
    }
    out.push(format!(
        "== {:>7} {:>4}  {:<16} {:>6} {:>8} {:>13} {:>6} {:>9}",
        "core", "cpu", "busy", "cpus", "req/s", "bytes/s", "conns", "inflight"
    ));
    // Cores take what the rest leaves, at least one row and the one that says what is missing.
    let room = rows.saturating_sub(out.len() + below.len()).max(2);
    let shown = if view.cores.len() <= room { view.cores.len() } else { room - 1 };
    out.extend(view.cores[..shown].iter().map(|core| {
        format!(
            "   {:>4} {:>4}  {} {:>4.0}% {:>6.2} {:>8.0} {:>13} {:>6.0} {:>9.0}",
            core.core,
            core.cpu,
            bar(core.busy, 10),
            core.busy * 100.0,
            core.cpus,
            core.requests,
            bytes(core.sent),
            core.connections,
            core.inflight
        )
    }));
    if shown < view.cores.len() {
        out.push(format!("   and {} more cores", view.cores.len() - shown));
    }
    out.extend(below);
    out.into_iter().map(|line| line.chars().take(width).collect()).collect()
}

/// Draws what happens, or why nothing is known, with `note` in the last line.
pub fn draw(frame: &mut Frame<'_>, view: Option<&View>, note: &str) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let room = height.saturating_sub(1);
    let mut text = view.map(|view| lines(view, width, room)).unwrap_or_default();
    text.resize(room, String::new());
    text.push(note.chars().take(width).collect());
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let styled: Vec<Line<'_>> = text
        .into_iter()
        .map(|line| match line.strip_prefix("== ") {
            Some(heading) => Line::styled(heading.to_owned(), bold),
            None => Line::raw(line),
        })
        .collect();
    frame.render_widget(Paragraph::new(styled), area);
}

#[cfg(test)]
mod tests {
    use super::super::scrape::{Core, Nic, Origin, Scrape};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view(cores: usize) -> View {
        View {
            version: "1.2.3".into(),
            seconds: 1.0,
            ready: true,
            cores: (0..cores)
                .map(|core| Core {
                    core: core.to_string(),
                    cpu: (core + 8).to_string(),
                    busy: 0.5,
                    cpus: 0.75,
                    requests: 100.0,
                    sent: 1_572_864.0,
                    connections: 3.0,
                    inflight: 7.0,
                })
                .collect(),
            engines: vec![("send".into(), 524_288.0), ("splice".into(), 1_572_864.0)],
            connections: vec![("reading".into(), 0.0), ("idle".into(), 12.0)],
            origins: vec![Origin { name: "http://o:9000".into(), healthy: false, errors: 2.0, ..Origin::default() }],
            cache: vec![("hit".into(), 30.0), ("miss".into(), 10.0)],
            cache_capacity: 1e9,
            nics: vec![Nic { name: "eth9".into(), sent: 2048.0, received: 10.0 }],
            ..View::default()
        }
    }

    fn drawn(view: Option<&View>, note: &str, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view, note)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let cell = |x, y| buffer[(x, y)].symbol().to_owned();
        (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn everything_is_on_a_small_and_on_a_large_terminal() {
        for (width, height, cores) in [(80, 24, 2), (200, 50, 16)] {
            let all = drawn(Some(&view(cores)), "q quits", width, height);
            let text = all.join("\n");
            for word in [
                "ringway 1.2.3 ready",
                "connections 12 (12 idle)",
                "   splice         1.5 MiB   75% ##",
                "http://o:9000",
                "DOWN",
                "hit 75%, miss 25%",
                "eth9            2.0 KiB/s       10 B/s",
                "      0    8  #####.....   50%   0.75      100       1.5 MiB      3         7",
            ] {
                assert!(text.contains(word), "{word} at {width}x{height} in\n{text}");
            }
            assert_eq!(all.last().map(String::as_str), Some("q quits"));
            assert!(!text.contains("more cores"), "{text}");
        }
    }

    #[test]
    fn cores_that_do_not_fit_are_counted() {
        let all = drawn(Some(&view(128)), "q quits", 80, 24);
        let text = all.join("\n");
        assert!(text.contains("   and 117 more cores") && text.contains("eth9"), "{text}");
    }

    #[test]
    fn no_size_panics_and_no_server_is_said() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 1)] {
            drawn(Some(&view(3)), "note", width, height);
        }
        let all = drawn(None, "cannot ask the admin address", 80, 24);
        assert_eq!(all[23], "cannot ask the admin address");
    }

    #[test]
    fn two_scrapes_give_rates_and_a_restart_gives_no_negative_ones() {
        let old = "# HELP x\nringway_build_info{version=\"9\"} 1\nringway_core_info{core=\"0\",cpu=\"4\"} 1\n\
                   ringway_core_requests_total{core=\"0\"} 100\n\
                   ringway_sent_bytes_total{core=\"0\",engine=\"send\",part=\"body\"} 1000\n\
                   ringway_core_loop_seconds_total{core=\"0\",state=\"busy\"} 1\n\
                   ringway_core_loop_seconds_total{core=\"0\",state=\"wait\"} 1\n";
        let new = old.replace("} 100\n", "} 300\n").replace("} 1000\n", "} 3000\n").replace("busy\"} 1", "busy\"} 2");
        let (old, new) = (Scrape::parse(old), Scrape::parse(&new.replace("wait\"} 1", "wait\"} 2")));
        assert!(old.is_ours() && !Scrape::parse("up 1\n<html>\n").is_ours());
        let view = View::between(&old, &new, 2.0);
        let core = &view.cores[0];
        assert_eq!((core.cpu.as_str(), core.requests, core.sent, core.busy), ("4", 100.0, 1000.0, 0.5));
        assert_eq!((view.engines.as_slice(), view.version.as_str()), ([("send".to_owned(), 1000.0)].as_slice(), "9"));
        assert_eq!(View::between(&new, &old, 1.0).cores[0].requests, 100.0, "counted from zero");
        assert_eq!(view.json()["cores"][0]["requests_per_second"], 100.0);
    }
}
