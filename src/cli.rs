//! What was said: the command line, made from the settings' own table; no meaning (that is `config`).

use crate::config::{Config, Kind, SETTINGS, Sayings, allowed_cpus};
use crate::error::{Error, Kind as ErrorKind, Result, describe};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What to do.
#[derive(Debug)]
pub enum Mode {
    /// Serve until told to stop.
    Serve(Box<Config>),
    /// Say something and end well.
    Say(String),
}

/// The command line's grammar.
pub fn command() -> Command {
    let settings = || {
        SETTINGS.iter().map(|setting| {
            let mut help = setting.help.to_owned();
            if !setting.default.is_empty() && setting.kind != Kind::Switch {
                help.push_str(&format!(" [default: {}]", setting.default));
            }
            let flag = setting.key.replace('_', "-");
            let arg = Arg::new(setting.key).long(flag).help(help);
            let arg = match setting.kind {
                Kind::Switch => arg.action(ArgAction::SetTrue),
                Kind::List => arg.action(ArgAction::Append).value_name(name(setting.key, setting.kind)),
                _ => arg.action(ArgAction::Set).value_name(name(setting.key, setting.kind)),
            };
            if setting.limit { arg.help_heading("Limits") } else { arg }
        })
    };
    let source = Arg::new("SOURCE").help("Directory to serve; may be left out where the configuration has routes");
    let config = Arg::new("config").long("config").value_name("FILE").help("Configuration file (TOML)");
    Command::new("ringway")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Files to sockets through io_uring, one pinned thread per core")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("serve")
                .about("Serve a directory over HTTP")
                .after_help(
                    "Every flag has a variable (RINGWAY_LISTEN for --listen) and a key in the configuration file \
                     (listen; limits under [limits]). Flags win over variables, variables over the file.\n\n\
                     SIGTERM drains, a second SIGTERM or SIGINT stops at once. Exit codes: 0 ok, 1 failure, 2 usage, \
                     77 not permitted, 78 bad configuration.",
                )
                .arg(source.clone())
                .arg(config.clone())
                .args(settings()),
        )
        .subcommand(
            Command::new("check")
                .about("Say whether a configuration is good, and what it means")
                .arg(source)
                .arg(config)
                .arg(
                    Arg::new("print-effective")
                        .long("print-effective")
                        .action(ArgAction::SetTrue)
                        .help("Print the merged configuration, with the origin of each value"),
                )
                .args(settings()),
        )
        .subcommand(
            Command::new("version")
                .about("Print the version")
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As a JSON object")),
        )
}

fn name(key: &str, kind: Kind) -> &'static str {
    match (key, kind) {
        ("listen" | "admin", _) => "ADDR",
        ("cores", _) => "LIST",
        ("log_format", _) => "FORMAT",
        (_, Kind::Size) => "BYTES",
        (_, Kind::Time) => "TIME",
        (_, Kind::Count) => "N",
        _ => "NAME",
    }
}

/// Understands a parsed command line with this process's environment and files.
pub fn understand(matches: &ArgMatches) -> Result<Mode> {
    match matches.subcommand() {
        Some(("serve", given)) => {
            let (sayings, config, _) = gather(given)?;
            for warning in &sayings.warnings {
                eprintln!("ringway: warning: {warning}");
            }
            Ok(Mode::Serve(Box::new(config)))
        }
        Some(("check", given)) => {
            let (sayings, config, name) = gather(given)?;
            if given.get_flag("print-effective") {
                return Ok(Mode::Say(sayings.print_effective(&config)));
            }
            let warnings: String = sayings.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
            Ok(Mode::Say(format!("{warnings}{name} is good\n")))
        }
        Some(("version", given)) => Ok(Mode::Say(if given.get_flag("json") {
            format!("{{\"name\":\"ringway\",\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"))
        } else {
            format!("ringway {}\n", env!("CARGO_PKG_VERSION"))
        })),
        _ => Err(Error::new(ErrorKind::Usage, "run", "no command was given").remedy("see ringway --help")),
    }
}

fn gather(given: &ArgMatches) -> Result<(Sayings, Config, String)> {
    let mut sayings = Sayings::default();
    let file = given.get_one::<String>("config").cloned().or_else(|| std::env::var("RINGWAY_CONFIG").ok());
    if let Some(file) = &file {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Error::new(ErrorKind::Config, format!("read {file}"), describe(&error)))?;
        sayings.file(file, &text)?;
    }
    let variables = std::env::vars_os();
    sayings
        .environment(variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))));
    for setting in SETTINGS {
        if given.value_source(setting.key) != Some(clap::parser::ValueSource::CommandLine) {
            continue;
        }
        let values = match setting.kind {
            Kind::Switch => vec![given.get_flag(setting.key).to_string()],
            _ => given.get_many::<String>(setting.key).unwrap_or_default().cloned().collect(),
        };
        sayings.flag(setting.key, values);
    }
    sayings.source = given.get_one::<String>("SOURCE").cloned();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let config = sayings.understand(&allowed_cpus(&status))?;
    Ok((sayings, config, file.unwrap_or_else(|| "the configuration".to_owned())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_grammar_holds_together() {
        super::command().debug_assert();
    }
}
