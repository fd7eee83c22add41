//! What was said: the command line, made from the settings' own table; no meaning (that is `config`).

use crate::config::{AdminAddress, Config, Kind, SETTINGS, Sayings, allowed_cpus};
use crate::error::{Error, Kind as ErrorKind, Result, describe};
use crate::telemetry::list::{Format, list};
use crate::top::Watch;
use crate::{bench, blast, tune};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do.
#[derive(Debug)]
pub enum Mode {
    /// Serve until told to stop.
    Serve(Box<Config>),
    /// Say something and end well.
    Say(String),
    /// Ask a running server's admin address.
    Ask(Ask),
    /// Saturate, or be saturated.
    Test(blast::cli::Run),
    /// Say what of this machine stands in the way of this configuration.
    Doctor {
        /// Of what.
        config: Box<Config>,
        /// As a JSON object.
        json: bool,
    },
    /// Show, apply or take back settings of this machine.
    Tune(tune::cli::Run),
    /// Watch a running server.
    Top(Watch),
    /// Write the man pages into a directory.
    Man(PathBuf),
    /// Both ends on this machine.
    Bench(Box<bench::Plan>),
}

/// A question to a running server.
#[derive(Debug)]
pub struct Ask {
    /// Where.
    pub admin: AdminAddress,
    /// What it wants to see.
    pub token: String,
    /// Method.
    pub method: &'static str,
    /// Target.
    pub target: String,
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
        .arg_required_else_help(true)
        .arg(
            Arg::new("list-metrics")
                .long("list-metrics")
                .value_name("FORMAT")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("text")
                .value_parser(["text", "json", "markdown"])
                .help("Print every metric with its type, unit and labels, and end"),
        )
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
                .arg(source.clone())
                .arg(config.clone())
                .arg(
                    Arg::new("print-effective")
                        .long("print-effective")
                        .action(ArgAction::SetTrue)
                        .help("Print the merged configuration, with the origin of each value"),
                )
                .args(settings()),
        )
        .subcommand(
            Command::new("doctor")
                .about("Say what of this machine stands in the way, what it means, and what to do about it")
                .after_help("Takes what serve takes. Exit codes: 0 all is well, 1 warnings, 2 serve would not start.")
                .arg(source)
                .arg(config)
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As a JSON object"))
                .args(settings()),
        )
        .subcommand(cache_command())
        .subcommand(top_command())
        .subcommand(tune::cli::command())
        .subcommand(blast::cli::blast_command())
        .subcommand(blast::cli::sink_command())
        .subcommand(bench::cli::command())
        .subcommand(
            Command::new("completions").about("Print the completions of a shell").arg(
                Arg::new("SHELL")
                    .required(true)
                    .value_parser(value_parser!(Shell))
                    .help("As in: ringway completions bash > /etc/bash_completion.d/ringway"),
            ),
        )
        .subcommand(
            Command::new("man").about("Write the man pages, one per command").arg(
                Arg::new("DIR")
                    .required(true)
                    .value_parser(value_parser!(PathBuf))
                    .help("Where to; made if it is not there, such as /usr/local/share/man/man1"),
            ),
        )
        .subcommand(
            Command::new("version")
                .about("Print the version")
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As a JSON object")),
        )
}

fn cache_command() -> Command {
    let prefix = |help: &'static str| Arg::new("prefix").long("prefix").value_name("URL").help(help);
    Command::new("cache")
        .about("Look into a running server's cache, or take something out of it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("admin").long("admin").global(true).value_name("ADDR").help(
                "Admin address of the server: ADDR:PORT or unix:PATH [default: RINGWAY_ADMIN, or 127.0.0.1:9880]",
            ),
        )
        .arg(
            Arg::new("token")
                .long("token")
                .global(true)
                .value_name("TOKEN")
                .help("Its admin_token [default: RINGWAY_ADMIN_TOKEN]"),
        )
        .subcommand(
            Command::new("ls")
                .about("List stored objects: status, freshness, slices, bytes, readers, key")
                .arg(prefix("Only those whose URL begins so"))
                .arg(Arg::new("limit").long("limit").value_name("N").help("At most so many [default: 10000]")),
        )
        .subcommand(Command::new("stat").about("Figures of the whole cache"))
        .subcommand(
            Command::new("purge")
                .about("Take a URL's stored responses out")
                .arg(
                    Arg::new("URL")
                        .help("As a client asks for it: http://host/path?query, or /path")
                        .required_unless_present("prefix"),
                )
                .arg(prefix("Take out everything whose URL begins so").conflicts_with("URL")),
        )
}

/// The completions of a shell, as its script.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "ringway", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `ringway.1` and a page for every command below it, such as `ringway-cache-purge.1`.
///
/// # Errors
/// The directory cannot be made, or a page cannot be written.
pub fn write_man(folder: &Path) -> Result<()> {
    let tried = || format!("write the man pages into {}", folder.display());
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command().disable_help_subcommand(true), folder))
        .map_err(|error| Error::os(tried(), &error).remedy("name a directory that this user may write"))
}

/// `ADDR:PORT` or `unix:PATH`; `what` names the flag or argument.
fn admin_address(text: &str, what: &str) -> Result<AdminAddress> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(AdminAddress::Unix(path.into())),
        None => text.parse().map(AdminAddress::Tcp).map_err(|_| {
            let why = format!("`{text}` is neither an address with a port nor unix:PATH");
            Error::new(ErrorKind::Usage, format!("use {what}"), why)
        }),
    }
}

fn top_command() -> Command {
    Command::new("top")
        .about("Watch a running server: cores, engines, connections, origins, cache, interfaces")
        .arg(Arg::new("URL").help(
            "Its admin address: http://ADDR:PORT, ADDR:PORT or unix:PATH [default: RINGWAY_ADMIN, or 127.0.0.1:9880]",
        ))
        .arg(Arg::new("interval").long("interval").value_name("TIME").default_value("1s").help("Between two readings"))
        .arg(Arg::new("once").long("once").action(ArgAction::SetTrue).help("Print one interval as text and end"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).requires("once").help("As a JSON object"))
}

fn top(given: &ArgMatches) -> Result<Watch> {
    let said = given.get_one::<String>("URL").cloned().or_else(|| std::env::var("RINGWAY_ADMIN").ok());
    let said = said.filter(|text| !text.is_empty()).unwrap_or_else(|| "127.0.0.1:9880".to_owned());
    let bare = said.strip_prefix("http://").unwrap_or(&said).trim_end_matches('/').trim_end_matches("/metrics");
    let text = given.get_one::<String>("interval").map_or("1s", String::as_str);
    let wrong = |why: String| Error::new(ErrorKind::Usage, "use --interval", format!("`{text}` {why}"));
    let interval = crate::config::time(text).map_err(wrong)?;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Err(wrong("must lie between 100ms and 1h".to_owned()));
    }
    let admin = admin_address(bare, "URL")?;
    Ok(Watch { admin, interval, once: given.get_flag("once"), json: given.get_flag("json") })
}

fn ask(given: &ArgMatches) -> Result<Ask> {
    let (what, own) = given.subcommand().ok_or_else(|| Error::new(ErrorKind::Usage, "run", "no command was given"))?;
    let said = |key: &str, variable: &str| {
        own.get_one::<String>(key).cloned().or_else(|| std::env::var(variable).ok()).unwrap_or_default()
    };
    let admin = Some(said("admin", "RINGWAY_ADMIN")).filter(|text| !text.is_empty());
    let admin = admin.unwrap_or_else(|| "127.0.0.1:9880".to_owned());
    let address = admin_address(&admin, "--admin")?;
    let encode =
        |text: &String| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let prefix = || own.get_one::<String>("prefix").map(|prefix| format!("prefix={}", encode(prefix)));
    let (method, target) = match what {
        "ls" => {
            let limit = own.get_one::<String>("limit").map(|limit| format!("limit={}", encode(limit)));
            let query: Vec<String> = [prefix(), limit].into_iter().flatten().collect();
            ("GET", format!("/cache/ls?{}", query.join("&")))
        }
        "purge" => {
            let url = own.get_one::<String>("URL").map(|url| format!("url={}", encode(url)));
            ("POST", format!("/cache/purge?{}", url.or_else(prefix).unwrap_or_default()))
        }
        _ => ("GET", "/cache/stat".to_owned()),
    };
    Ok(Ask { admin: address, token: said("token", "RINGWAY_ADMIN_TOKEN"), method, target })
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
    if let Some(format) = matches.get_one::<String>("list-metrics") {
        let format = match format.as_str() {
            "json" => Format::Json,
            "markdown" => Format::Markdown,
            _ => Format::Text,
        };
        return Ok(Mode::Say(list(format)));
    }
    match matches.subcommand() {
        Some(("serve", given)) => {
            let (sayings, config, _) = gather(given, None)?;
            for warning in &sayings.warnings {
                eprintln!("ringway: warning: {warning}");
            }
            Ok(Mode::Serve(Box::new(config)))
        }
        Some(("check", given)) => {
            let (sayings, config, name) = gather(given, None)?;
            if given.get_flag("print-effective") {
                return Ok(Mode::Say(sayings.print_effective(&config)));
            }
            let warnings: String = sayings.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
            Ok(Mode::Say(format!("{warnings}{name} is good\n")))
        }
        Some(("blast", given)) => blast::cli::blast(given).map(Mode::Test),
        Some(("bench", given)) => bench::cli::understand(given).map(|plan| Mode::Bench(Box::new(plan))),
        Some(("sink", given)) => blast::cli::sink(given).map(Mode::Test),
        Some(("doctor", given)) => {
            let (_, config, _) = gather(given, Some("."))?;
            Ok(Mode::Doctor { config: Box::new(config), json: given.get_flag("json") })
        }
        Some(("tune", given)) => tune::cli::tune(given).map(Mode::Tune),
        Some(("top", given)) => top(given).map(Mode::Top),
        Some(("cache", given)) => ask(given).map(Mode::Ask),
        Some(("completions", given)) => {
            // The grammar requires it.
            let shell = given.get_one::<Shell>("SHELL").copied().unwrap_or(Shell::Bash);
            Ok(Mode::Say(completions(shell)))
        }
        Some(("man", given)) => Ok(Mode::Man(given.get_one::<PathBuf>("DIR").cloned().unwrap_or_default())),
        Some(("version", given)) => Ok(Mode::Say(if given.get_flag("json") {
            format!("{{\"name\":\"ringway\",\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"))
        } else {
            format!("ringway {}\n", env!("CARGO_PKG_VERSION"))
        })),
        _ => Err(Error::new(ErrorKind::Usage, "run", "no command was given").remedy("see ringway --help")),
    }
}

/// What the words of a command line, the environment and the file mean; `source` where none of them names one.
fn gather(given: &ArgMatches, source: Option<&str>) -> Result<(Sayings, Config, String)> {
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
    let said = given.get_one::<String>("SOURCE").cloned();
    sayings.source = said.or_else(|| source.filter(|_| file.is_none()).map(str::to_owned));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let config = sayings.understand(&allowed_cpus(&status))?;
    Ok((sayings, config, file.unwrap_or_else(|| "the configuration".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_grammar_holds_together() {
        command().debug_assert();
    }

    /// Every command with the words that lead to it, and its own long flags.
    fn commands() -> Vec<(Vec<String>, Vec<String>)> {
        fn walk(command: &Command, path: &[String], out: &mut Vec<(Vec<String>, Vec<String>)>) {
            let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
            out.push((path.to_vec(), flags.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()));
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                walk(below, &[path, &[below.get_name().to_owned()]].concat(), out);
            }
        }
        let mut grammar = command();
        grammar.build();
        let mut out = Vec::new();
        walk(&grammar, &["ringway".to_owned()], &mut out);
        assert!(out.len() > 6 && out.iter().map(|(_, flags)| flags.len()).sum::<usize>() > 100, "{out:?}");
        out
    }

    #[test]
    fn every_command_and_flag_is_completed() {
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            for (path, flags) in commands() {
                let name = path.last().expect("a name");
                assert!(script.contains(name.as_str()), "{shell}: {path:?}");
                for flag in flags {
                    let said = if *shell == Shell::Fish { format!("-l {flag}") } else { format!("--{flag}") };
                    assert!(script.contains(&said), "{shell}: {path:?} {said}");
                }
            }
        }
    }

    #[test]
    fn every_command_has_its_page_with_every_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("share/man/man1");
        write_man(&folder).expect("pages");
        let commands = commands();
        for (path, flags) in &commands {
            let page = folder.join(format!("{}.1", path.join("-")));
            let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            for flag in flags {
                let said = format!("\\-\\-{}", flag.replace('-', "\\-"));
                assert!(text.contains(&said), "{path:?}: {said}");
            }
        }
        let pages = std::fs::read_dir(&folder).expect("folder").count();
        assert_eq!(pages, commands.len(), "one page per command");
        let told = write_man(Path::new("/proc/nowhere")).expect_err("nobody writes there").to_string();
        assert!(told.contains("/proc/nowhere") && told.contains("ENOENT"), "{told}");
    }
}
