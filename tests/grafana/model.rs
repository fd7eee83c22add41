//! Dashboards as a few plain values, and their classic JSON (schemaVersion 42), which file provisioning takes in
//! Grafana 10 to 13.
//!
//! In expressions `$S` stands for the matchers of job and instance, `$R` for the rate interval.

use serde_json::{Map, Value, json};

/// How a panel draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Stat,
    Gauge,
    Bars,
    Lines,
    Stacked,
    Heatmap,
    Table,
    Timeline,
}

impl Kind {
    pub fn plugin(self) -> &'static str {
        match self {
            Kind::Stat => "stat",
            Kind::Gauge => "gauge",
            Kind::Bars => "bargauge",
            Kind::Lines | Kind::Stacked => "timeseries",
            Kind::Heatmap => "heatmap",
            Kind::Table => "table",
            Kind::Timeline => "state-timeline",
        }
    }
}

/// Where colours change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steps {
    /// No judgement.
    Plain,
    /// Green below 0.7, amber below 0.9, then red.
    Load,
    /// Red above zero.
    NeverAbove,
    /// Red below one half, green from 0.9.
    Share,
    /// Red at zero, green from one.
    Up,
}

impl Steps {
    fn json(self) -> Value {
        let steps: &[(&str, f64)] = match self {
            Steps::Plain => &[("blue", f64::NAN)],
            Steps::Load => &[("green", f64::NAN), ("orange", 0.7), ("red", 0.9)],
            Steps::NeverAbove => &[("green", f64::NAN), ("red", 1e-9)],
            Steps::Share => &[("red", f64::NAN), ("orange", 0.5), ("green", 0.9)],
            Steps::Up => &[("red", f64::NAN), ("green", 1.0)],
        };
        let steps: Vec<Value> = steps
            .iter()
            .map(|(color, from)| json!({ "color": color, "value": if from.is_nan() { Value::Null } else { json!(from) } }))
            .collect();
        json!({ "mode": "absolute", "steps": steps })
    }
}

/// One panel.
#[derive(Clone, Debug)]
pub struct Panel {
    pub title: &'static str,
    /// How to read it: one or two sentences.
    pub about: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub steps: Steps,
    pub width: u32,
    /// The axis or the bar ends here.
    pub max: Option<f64>,
    /// Expression and legend.
    pub queries: Vec<(String, &'static str)>,
}

/// A panel of one query; more with `and`.
pub fn panel(
    title: &'static str,
    kind: Kind,
    unit: &'static str,
    width: u32,
    expr: &str,
    legend: &'static str,
) -> Panel {
    let queries = vec![(expr.to_owned(), legend)];
    Panel { title, about: "", kind, unit, steps: Steps::Plain, width, max: None, queries }
}

impl Panel {
    pub fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    pub fn steps(mut self, steps: Steps) -> Self {
        self.steps = steps;
        self
    }

    pub fn max(mut self, max: f64) -> Self {
        self.max = Some(max);
        self
    }

    pub fn and(mut self, expr: &str, legend: &'static str) -> Self {
        self.queries.push((expr.to_owned(), legend));
        self
    }

    fn height(&self) -> u32 {
        match self.kind {
            Kind::Stat => 4,
            Kind::Timeline => 6,
            _ => 8,
        }
    }

    fn options(&self) -> Value {
        let last = json!({ "calcs": ["lastNotNull"], "fields": "", "values": false });
        match self.kind {
            Kind::Stat => json!({
                "reduceOptions": last, "colorMode": if self.steps == Steps::Plain { "value" } else { "background" },
                "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
            }),
            Kind::Gauge => json!({ "reduceOptions": last, "showThresholdLabels": false, "showThresholdMarkers": true }),
            Kind::Bars => json!({
                "reduceOptions": last, "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": true,
                "valueMode": "color", "minVizHeight": 10, "minVizWidth": 0,
            }),
            Kind::Lines | Kind::Stacked => json!({
                "legend": { "displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["lastNotNull", "max"] },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Kind::Heatmap => json!({
                "calculate": false, "cellGap": 1, "color": { "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5 },
                "legend": { "show": true }, "tooltip": { "mode": "single", "yHistogram": false },
                "yAxis": { "axisPlacement": "left", "unit": self.unit }, "rowsFrame": { "layout": "auto" },
            }),
            Kind::Table => json!({ "cellHeight": "sm", "showHeader": true }),
            Kind::Timeline => json!({
                "alignValue": "left", "mergeValues": true, "rowHeight": 0.9, "showValue": "never",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "single", "sort": "none" },
            }),
        }
    }

    fn field_config(&self) -> Value {
        let mut defaults = Map::new();
        defaults.insert("unit".into(), json!(self.unit));
        defaults.insert("thresholds".into(), self.steps.json());
        let by = if matches!(self.kind, Kind::Lines | Kind::Stacked) { "palette-classic" } else { "thresholds" };
        defaults.insert("color".into(), json!({ "mode": by }));
        if self.kind != Kind::Table && self.kind != Kind::Heatmap {
            defaults.insert("min".into(), json!(0));
        }
        if let Some(max) = self.max {
            defaults.insert("max".into(), json!(max));
        }
        if matches!(self.kind, Kind::Lines | Kind::Stacked) {
            let stacked = self.kind == Kind::Stacked;
            let lines = if self.steps == Steps::Plain { "off" } else { "dashed" };
            defaults.insert(
                "custom".into(),
                json!({
                    "drawStyle": "line", "lineWidth": 1, "fillOpacity": if stacked { 40 } else { 8 }, "showPoints": "never",
                    "spanNulls": false, "stacking": { "group": "A", "mode": if stacked { "normal" } else { "none" } },
                    "thresholdsStyle": { "mode": lines },
                }),
            );
        }
        if self.kind == Kind::Timeline {
            defaults.insert("custom".into(), json!({ "fillOpacity": 70, "lineWidth": 0 }));
        }
        if self.unit == "bool_yes_no" {
            let map = json!({ "0": { "text": "no", "color": "red" }, "1": { "text": "yes", "color": "green" } });
            defaults.insert("mappings".into(), json!([{ "type": "value", "options": map }]));
        }
        json!({ "defaults": defaults, "overrides": [] })
    }

    fn json(&self, id: u32, x: u32, y: u32) -> Value {
        let instant = matches!(self.kind, Kind::Table | Kind::Bars);
        let targets: Vec<Value> = self
            .queries
            .iter()
            .enumerate()
            .map(|(at, (expr, legend))| {
                json!({
                    "refId": char::from(b'A' + at as u8).to_string(), "datasource": datasource(), "expr": written(expr),
                    "legendFormat": legend, "instant": instant, "range": !instant, "editorMode": "code",
                    "format": match self.kind { Kind::Table => "table", Kind::Heatmap => "heatmap", _ => "time_series" },
                })
            })
            .collect();
        let mut panel = json!({
            "id": id, "type": self.kind.plugin(), "title": self.title, "description": self.about,
            "datasource": datasource(), "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height() },
            "fieldConfig": self.field_config(), "options": self.options(), "targets": targets,
        });
        if self.kind == Kind::Table {
            let hidden = json!({ "Time": true, "__name__": true });
            panel["transformations"] = json!([{ "id": "organize", "options": { "excludeByName": hidden, "indexByName": {}, "renameByName": {} } }]);
        }
        panel
    }
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// An expression as Grafana gets it.
pub fn written(expr: &str) -> String {
    expr.replace("$S", "job=~\"$job\",instance=~\"$instance\"").replace("[$R]", "[$__rate_interval]")
}

/// A titled group of panels.
pub struct Row {
    pub title: &'static str,
    pub panels: Vec<Panel>,
}

/// A variable of a dashboard: name, label, query of values.
pub struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    pub query: &'static str,
}

/// One dashboard.
pub struct Dashboard {
    pub uid: &'static str,
    pub title: &'static str,
    pub about: &'static str,
    pub variables: Vec<Variable>,
    pub rows: Vec<Row>,
}

impl Dashboard {
    /// Every panel, top to bottom.
    pub fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    /// The variables, those of every dashboard first.
    pub fn all_variables(&self) -> Vec<&Variable> {
        super::panels::COMMON.iter().chain(&self.variables).collect()
    }

    /// The whole file.
    pub fn json(&self) -> Value {
        let mut list = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0,
            "refresh": 1, "regex": "", "multi": false, "includeAll": false, "current": {}, "options": [],
        })];
        for variable in self.all_variables() {
            list.push(json!({
                "name": variable.name, "label": variable.label, "type": "query", "datasource": { "type": "prometheus", "uid": "$datasource" },
                "query": { "query": variable.query, "refId": variable.name }, "definition": variable.query, "hide": 0,
                "refresh": 2, "sort": 3, "regex": "", "multi": true, "includeAll": true, "allValue": ".+",
                "current": { "selected": true, "text": ["All"], "value": ["$__all"] }, "options": [],
            }));
        }
        let annotations: Vec<Value> = super::panels::ANNOTATIONS
            .iter()
            .map(|(name, color, expr)| {
                json!({
                    "name": name, "enable": true, "hide": false, "iconColor": color, "datasource": datasource(),
                    "expr": written(expr), "step": "15s", "titleFormat": name, "textFormat": "{{instance}}",
                })
            })
            .collect();
        let (mut panels, mut id, mut y) = (Vec::new(), 0, 0);
        for row in &self.rows {
            id += 1;
            panels.push(json!({
                "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
                "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 },
            }));
            y += 1;
            let (mut x, mut tallest) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > 24 {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                id += 1;
                panels.push(panel.json(id, x, y));
                x += panel.width;
                tallest = tallest.max(panel.height());
            }
            y += tallest;
        }
        json!({
            "id": null, "uid": self.uid, "title": self.title, "description": self.about, "tags": ["ringway"],
            "schemaVersion": 42, "version": 1, "editable": false, "graphTooltip": 1, "refresh": "10s", "timezone": "browser",
            "time": { "from": "now-30m", "to": "now" }, "timepicker": {}, "fiscalYearStartMonth": 0, "liveNow": false,
            "links": [{
                "title": "ringway", "type": "dashboards", "tags": ["ringway"], "asDropdown": false, "icon": "dashboard",
                "includeVars": true, "keepTime": true, "targetBlank": false, "tooltip": "", "url": "",
            }],
            "annotations": { "list": annotations }, "templating": { "list": list }, "panels": panels,
        })
    }
}
