//! A chart as SVG: bars or lines with their values written on them, units on the axes, readable without the table.

use super::table::Chart;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 70.0;
/// Colours that differ in lightness too (Okabe and Ito's).
const COLOURS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#555555"];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A value with three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 1e6 => format!("{:.1}M", value / 1e6),
        large if large >= 1e4 => format!("{:.0}k", value / 1e3),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// The step of the axis: 1, 2 or 5 times a power of ten, about five of them.
fn step(top: f64) -> f64 {
    let raw = (top / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= raw).unwrap_or(raw)
}

/// Draws it.
pub fn draw(chart: &Chart) -> String {
    let values = || chart.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
    let most = values().fold(0.0, f64::max).max(1e-9);
    let step = step(most);
    let top = (most / step).ceil() * step;
    let (wide, high) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let y = |value: f64| TOP + high * (1.0 - value / top);
    let slot = wide / chart.categories.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\" role=\"img\">\n<title>{0}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{0}</text>\n",
        escaped(&chart.title)
    );
    let mut tick = 0.0;
    while tick <= top + step / 2.0 {
        let at = y(tick);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            short(tick)
        );
        tick += step;
    }
    let middle = TOP + high / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"20\" y=\"{middle:.1}\" transform=\"rotate(-90 20 {middle:.1})\" text-anchor=\"middle\">{}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        escaped(&chart.y),
        LEFT + wide / 2.0,
        HEIGHT - 12.0,
        escaped(&chart.x)
    );
    for (at, category) in chart.categories.iter().enumerate() {
        let x = LEFT + slot * (at as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#222\">{}</text>",
            HEIGHT - BOTTOM + 20.0,
            escaped(category)
        );
    }
    let mut legend = LEFT;
    for (number, (name, values)) in chart.series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = writeln!(
            out,
            "<rect x=\"{legend:.1}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"48\">{}</text>",
            legend + 17.0,
            escaped(name)
        );
        legend += 40.0 + 7.0 * name.chars().count() as f64;
        if chart.lines {
            lines(&mut out, values, colour, slot, &y);
        } else {
            bars(&mut out, values, colour, slot, number, chart.series.len(), &y);
        }
    }
    out.push_str("</svg>\n");
    out
}

fn lines(out: &mut String, values: &[Option<f64>], colour: &str, slot: f64, y: &impl Fn(f64) -> f64) {
    let points: Vec<(f64, f64, f64)> = values
        .iter()
        .enumerate()
        .filter_map(|(at, value)| value.map(|value| (LEFT + slot * (at as f64 + 0.5), y(value), value)))
        .collect();
    let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>",
        path.join(" ")
    );
    for (x, y, value) in points {
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            y - 8.0,
            short(value)
        );
    }
}

fn bars(
    out: &mut String,
    values: &[Option<f64>],
    colour: &str,
    slot: f64,
    number: usize,
    count: usize,
    y: &impl Fn(f64) -> f64,
) {
    let width = slot * 0.8 / count.max(1) as f64;
    for (at, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let x = LEFT + slot * (at as f64 + 0.1) + width * number as f64;
        let top = y(*value);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            (width - 1.0).max(1.0),
            (y(0.0) - top).max(0.0),
            x + width / 2.0,
            top - 4.0,
            short(*value)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_unit_and_name_is_in_the_picture() {
        let mut chart = Chart {
            title: "Cost < of everything".into(),
            x: "engine".into(),
            y: "us/KiB".into(),
            categories: vec!["same".into(), "separate".into()],
            series: vec![("send".into(), vec![Some(1.234), Some(0.5)]), ("splice".into(), vec![Some(0.0), None])],
            lines: false,
        };
        for lines in [false, true] {
            chart.lines = lines;
            let svg = draw(&chart);
            for word in ["Cost &lt; of", "engine", "us/KiB", "same", "separate", "send", "splice", "1.23", "0.500"] {
                assert!(svg.contains(word), "{word}");
            }
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        }
    }

    #[test]
    fn axes_have_round_steps() {
        for (top, wanted) in [(1.0, 0.2), (9.0, 2.0), (45.0, 10.0), (0.7, 0.2), (123_456.0, 50_000.0)] {
            assert!((step(top) - wanted).abs() < 1e-9 * wanted, "{top}: {}", step(top));
        }
    }
}
